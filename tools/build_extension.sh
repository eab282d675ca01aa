#!/usr/bin/env bash
# Brings the extension up to date; takes a moment when nothing changed. usage: build_extension.sh VENV_BIN
set -euo pipefail
bin=$1
build=build/python
log=$build/build.log
if ! "$bin/ninja" -C "$build" _native > "$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
if ! tail -n 1 "$log" | grep -q 'no work to do' || ! "$bin/python" -c 'import plait._native' 2> /dev/null; then
  "$bin/cmake" --install "$build" --prefix "$("$bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')" > /dev/null
fi
