#!/usr/bin/env bash
# Installs what the tests need, builds, and runs all of them.
#
#   scripts/test.sh [--no-sanitizers] [ctest options]
#
# Four builds: the one that is used (build/), one with AddressSanitizer and UBSan for the unit
# tests (build-asan/), one with ThreadSanitizer for the store and the tree (build-tsan/), and one
# with libFuzzer by clang (build-fuzz/), which searches 30 s for each decoder and variant.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
as_root "$@"
sanitizers=1
if [ "${1:-}" = --no-sanitizers ]; then sanitizers=0; shift; fi
case "${1:-}" in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}" "${FUZZ_PACKAGES[@]}"

say "building"
build "$ROOT/build" all -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTFS_TESTS=ON -DWEIGHTFS_BENCH=ON

# The real safetensors package, in a venv of its own; pinned.
venv=$ROOT/build/venv
wanted='safetensors==0.8.0 numpy==2.2.6'
if [ "$(cat "$venv/wanted" 2>/dev/null)" != "$wanted" ]; then
  say "installing $wanted"
  rm -rf "$venv"
  /usr/bin/python3 -m venv "$venv"
  # shellcheck disable=SC2086
  "$venv/bin/pip" install --quiet --disable-pip-version-check $wanted
  echo "$wanted" >"$venv/wanted"
fi
export WEIGHTFS_VENV_PYTHON=$venv/bin/python WEIGHTFS_BIN=$ROOT/build/weightfs

if [ $sanitizers = 1 ]; then
  say "unit tests under AddressSanitizer and UBSan"
  build "$ROOT/build-asan" tests/all -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1\ -g1 \
    -DWEIGHTFS_SANITIZE=address,undefined -DWEIGHTFS_BENCH=OFF
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1 \
    ctest --test-dir "$ROOT/build-asan" -L unit --output-on-failure --parallel "$JOBS"
  # Parsers have no threads; a daemon that is forked from a test's process cannot run under TSan.
  say "store and mount under ThreadSanitizer"
  without='^(CommandsTest\.Mount|Safetensors|Layout|Pack|Manifest|Checkpoint|PathRules|ByteReader|Options|ConfigFile)'
  build "$ROOT/build-tsan" tests/all -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1\ -g1 \
    -DWEIGHTFS_SANITIZE=thread -DWEIGHTFS_BENCH=OFF
  TSAN_OPTIONS=halt_on_error=1:suppressions=$ROOT/tests/support/tsan.supp \
    ctest --test-dir "$ROOT/build-tsan" -L unit -LE kernels -E "$without" \
    --output-on-failure --parallel "$JOBS"
  say "fuzzers"
  build "$ROOT/build-fuzz" tests/fuzz/all -DCMAKE_CXX_COMPILER=clang++-14 \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2\ -g1 \
    -DWEIGHTFS_FUZZ=ON -DWEIGHTFS_SANITIZE=address,undefined -DWEIGHTFS_BENCH=OFF \
    -DWEIGHTFS_CUDA=OFF
  ctest --test-dir "$ROOT/build-fuzz" -L fuzz --output-on-failure --parallel "$JOBS"
fi

say "all tests"
ctest --test-dir "$ROOT/build" --output-on-failure --parallel "$JOBS" "$@"
