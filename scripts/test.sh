#!/usr/bin/env bash
# Installs what the tests need, builds, and runs all of them.
#
#   scripts/test.sh [--no-sanitizers] [--no-engines] [ctest options]
#
# Four builds: the one that is used (build/), one with AddressSanitizer and UBSan for the unit
# tests (build-asan/), one with ThreadSanitizer for the store and the tree (build-tsan/), and one
# with libFuzzer by clang (build-fuzz/), which searches 30 s for each decoder and variant.
# Engines: torch and transformers in an environment of their own (scripts/engines.sh, 0.6 GB to download).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
as_root "$@"
sanitizers=1 engines=1
while true; do
  case "${1:-}" in
    --no-sanitizers) sanitizers=0 ;;
    --no-engines) engines=0 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) break ;;
  esac
  shift
done

# run_shards PROGRAM FILTER: a test program in as many processes as there are cores.  A process for
# each test, as ctest has it, costs more than the tests do where a program starts slowly.
run_shards() {
  local pids=() failed=0
  for ((i = 0; i < JOBS; i++)); do
    GTEST_TOTAL_SHARDS=$JOBS GTEST_SHARD_INDEX=$i timeout 1500 "$1" --gtest_brief=1 --gtest_filter="$2" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return $failed
}

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}" "${FUZZ_PACKAGES[@]}"

say "building"
build "$ROOT/build" all -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTFS_TESTS=ON -DWEIGHTFS_BENCH=ON

need_safetensors
export WEIGHTFS_BIN=$ROOT/build/weightfs

without=()
if [ $engines = 1 ]; then
  "$ROOT/scripts/engines.sh" hf
  export WEIGHTFS_ENGINES_REQUIRED=1  # what is missing fails, and is not skipped
else
  without=(-LE engines)
fi

if [ $sanitizers = 1 ]; then
  say "unit tests under AddressSanitizer and UBSan"
  build "$ROOT/build-asan" tests/all -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1\ -g1 \
    -DWEIGHTFS_SANITIZE=address,undefined -DWEIGHTFS_BENCH=OFF
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1 \
    ctest --test-dir "$ROOT/build-asan" -L unit --output-on-failure --parallel "$JOBS"
  # Parsers, trees and records have no threads; what is killed is a process, not a thread; a daemon
  # that is forked from a test's process cannot run under TSan.
  say "store and mount under ThreadSanitizer"
  no_threads='CommandsTest.Mount*:Safetensors*:Layout*:Pack*:Manifest*:Checkpoint*:PathRules*:ByteReader*:Options*:ConfigFile*'
  no_threads+=':Staging.*:StagingModel.*:StagingFinish.*:StagingHandOver.*:HandOver*:OwnVersions*:WaitCondition*:ControlProtocol*:Golden*:*Killed*'
  build "$ROOT/build-tsan" tests/all -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1\ -g1 \
    -DWEIGHTFS_SANITIZE=thread -DWEIGHTFS_BENCH=OFF
  export TSAN_OPTIONS=halt_on_error=1:suppressions=$ROOT/tests/support/tsan.supp
  run_shards "$ROOT/build-tsan/tests/weightfs_fs_test" "-$no_threads"
  run_shards "$ROOT/build-tsan/tests/weightfs_store_test" "-$no_threads"
  ctest --test-dir "$ROOT/build-tsan" -L unit-cuda --output-on-failure --parallel "$JOBS"
  unset TSAN_OPTIONS
  say "fuzzers"
  build "$ROOT/build-fuzz" tests/fuzz/all -DCMAKE_CXX_COMPILER=clang++-14 \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2\ -g1 \
    -DWEIGHTFS_FUZZ=ON -DWEIGHTFS_SANITIZE=address,undefined -DWEIGHTFS_BENCH=OFF \
    -DWEIGHTFS_CUDA=OFF
  ctest --test-dir "$ROOT/build-fuzz" -L fuzz --output-on-failure --parallel "$JOBS"
fi

say "all tests"
ctest --test-dir "$ROOT/build" --output-on-failure --parallel "$JOBS" "${without[@]}" "$@"
