#!/usr/bin/env bash
# Builds, runs benchmarks, and prints docs/BENCHMARKS.md from what they measured (scripts/benchmarks.py).
#
#   scripts/bench.sh [NAME...]       these (default: all; scripts/benchmarks.py --list names them)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case "${1:-}" in -h | --help) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
as_root "$@"

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
build "$ROOT/build" all -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTFS_TESTS=ON -DWEIGHTFS_BENCH=ON \
  -DWEIGHTFS_CHECK_LOCK_ORDER=OFF
need_safetensors
export WEIGHTFS_BIN=$ROOT/build/weightfs WEIGHTFS_TESTS=$ROOT/build/tests

printf 'commit %s, %s cores, kernel %s\n' "$(git -C "$ROOT" rev-parse --short HEAD)" "$(nproc)" "$(uname -r)"
/usr/bin/python3 "$ROOT/scripts/benchmarks.py" --run "${@:-all}"
