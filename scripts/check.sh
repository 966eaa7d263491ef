#!/usr/bin/env bash
# Before a commit: format, folders (scripts/folders.py), build, unit tests.
#
#   scripts/check.sh [--full]        --full: everything scripts/test.sh does
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case "${1:-}" in -h | --help) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
# Since scripts/quickstart.sh by sudo it is root's.
[ ! -e "$ROOT/build" ] || [ -w "$ROOT/build" ] || as_root "$@"
cd "$ROOT"

say "format"
if command -v clang-format >/dev/null; then
  git ls-files '*.cpp' '*.hpp' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror
else
  echo "clang-format is not installed: skipped"
fi
say "folders"
scripts/folders.py --check
[ "${1:-}" = --full ] && exec "$ROOT/scripts/test.sh"
say "build and unit tests"
# Each file alone: what one does not include is not there because another of its batch does.
build "$ROOT/build" all -DWEIGHTFS_TESTS=ON -DWEIGHTFS_BENCH=ON -DWEIGHTFS_UNITY=OFF
ctest --test-dir "$ROOT/build" -L unit --output-on-failure --parallel "$JOBS"
