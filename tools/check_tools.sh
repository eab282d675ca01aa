#!/usr/bin/env bash
# Says what is missing for a build, in words that can be typed. usage: check_tools.sh PYTHON
set -euo pipefail
python=${1:-python3}
missing=()

if ! command -v "$python" > /dev/null; then
  missing+=("Python 3.11 or newer (Debian: apt-get install python3)")
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  missing+=("Python 3.11 or newer; $python is $("$python" -V 2>&1 | cut -d' ' -f2) (make PYTHON=... names another one)")
else
  "$python" -c 'import ensurepip, venv' 2> /dev/null ||
    missing+=("Python's venv module (Debian: apt-get install python3-venv)")
  header=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"] + "/Python.h")')
  [ -f "$header" ] || missing+=("Python's headers, $header (Debian: apt-get install python3-dev)")
fi

compiler=${CXX:-g++}
if ! command -v "$compiler" > /dev/null; then
  missing+=("a C++20 compiler (Debian: apt-get install g++)")
elif ! echo '#include <version>
#include <atomic>
int main() { std::atomic<int> a{0}; a.notify_one(); return 0; }' | "$compiler" -std=c++20 -x c++ -fsyntax-only - 2> /dev/null; then
  missing+=("a compiler that knows C++20; $compiler does not")
fi

if [ ${#missing[@]} -gt 0 ]; then
  echo "plait cannot be built here; missing:" >&2
  printf '  - %s\n' "${missing[@]}" >&2
  exit 1
fi
