#!/usr/bin/env bash
# Runs every libFuzzer target for a while. usage: run_fuzzers.sh BUILD_DIR SECONDS
set -euo pipefail
build=$1
seconds=$2
found=0
while IFS= read -r source; do
  name=$(basename "$source" .cc)
  found=1
  corpus="$build/corpus/$name"
  mkdir -p "$corpus"
  seeds=()
  [ -d "${source%.cc}_seeds" ] && seeds=("${source%.cc}_seeds")
  echo "fuzz: $name for $seconds s"
  "$build/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/$name-" "$corpus" "${seeds[@]}" > "$build/$name.log" 2>&1 || {
    tail -n 60 "$build/$name.log" >&2
    echo "fuzz: $name failed" >&2
    exit 1
  }
  grep -E 'stat::number_of_executed_units' "$build/$name.log" || true
done < <(find native -name '*_fuzz.cc' | sort)
[ "$found" = 1 ] || echo "fuzz: there are no targets"
