#!/usr/bin/env bash
# Installs what the tests need, builds, and runs all of them.
#
#   scripts/test.sh [--no-sanitizers] [--no-engines] [--no-wheel] [ctest options]
#
# A part that fails does not keep the others from running; what has failed stands at the end.
# Three builds: the one that is used (build/), in which all tests run; and by clang one with AddressSanitizer
# and UBSan for the unit tests and the fuzzers (build-asan/), which search 10 s for each decoder and variant
# and for each parser of what lies in a bucket, and one with ThreadSanitizer for what has threads (build-tsan/).
# The last two come last.  Where all of theirs would not end within 40 minutes they have a third of them, the
# next with each commit; where that would not within 72 (WEIGHTFS_TEST_MINUTES; 0: any time), none.  The log
# says so; WEIGHTFS_SANITIZED_TESTS=all, store-1, store-2 or rest names the part.
# The wheel (scripts/wheel.sh) and the .deb (scripts/deb.sh) are made of the first build, and used in an empty
# Debian 12.
# Engines: vLLM, torch and transformers in an environment of their own (scripts/engines.sh, 0.95 GB to download).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
as_root "$@"
sanitizers=1 engines=1 wheel=1
while true; do
  case "${1:-}" in
    --no-sanitizers) sanitizers=0 ;;
    --no-engines) engines=0 ;;
    --no-wheel) wheel=0 ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) break ;;
  esac
  shift
done

# Parts: the log of a CI that is slow or ends early says where the time went.
failed=()
# part NAME COMMAND...: runs it whatever failed before, and says how long it took.  In a shell of its
# own, which is no condition: else `set -e` would not hold inside.
part() {
  local name=$1 begin=$SECONDS result
  shift
  say "$name"
  set +e
  (set -e; "$@")
  result=$?
  set -e
  printf '== %s: %d s\n' "$name" $((SECONDS - begin))
  [ $result -eq 0 ] || failed+=("$name")
}

# begin_part NAME COMMAND...: a part beneath what comes next, which runs only while a core is idle, in a
# process group of its own.  end_part NAME: waits for it, and prints what it has printed.
declare -A begun=()
begin_part() {
  set -m
  (failed=() && { chrt --idle --pid 0 "$BASHPID" || true; } && part "$@" && exit ${#failed[@]}) >"$(log_of "$1")" 2>&1 &
  begun[$1]=$!
  set +m
}
end_part() {
  wait "${begun[$1]}" || failed+=("$1")
  unset "begun[$1]"
  cat "$(log_of "$1")"
}
log_of() { printf '%s/weightfs-%s-%s.log' "${TMPDIR:-/tmp}" $$ "${1// /-}"; }
end_all_parts() {
  for name in "${!begun[@]}"; do kill -- "-${begun[$name]}" 2>/dev/null || true; done
  rm -f "${TMPDIR:-/tmp}/weightfs-$$-"*.log "$FAILURES" "$SUMMARY"*
}
trap end_all_parts EXIT
trap 'exit 1' INT TERM

# run_shards PROGRAM FILTER: a test program in some processes.  A process for each test, as ctest has
# it, costs more than the tests do where a program starts slowly.  As with run_ctest, what fails is
# named and run once more, alone; not so what a sanitizer reports, or a program that ends without a
# verdict or is ended in a test that hangs: those are no matter of time.
run_shards() {
  local pids=() result=0 again='' logs names left i
  logs=$(mktemp -d)
  for ((i = 0; i < 2 * JOBS; i++)); do
    GTEST_BRIEF=0 GTEST_TOTAL_SHARDS=$((2 * JOBS)) GTEST_SHARD_INDEX=$i \
      timeout --kill-after=10 1500 "$1" --gtest_filter="$2" >"$logs/$i" 2>&1 &
    pids+=($!)
  done
  for i in "${!pids[@]}"; do
    wait "${pids[$i]}" || {
      names=$(sed -n 's/^\[  FAILED  \] \([^ ,]*\.[^ ,]*\).*/\1/p' "$logs/$i" | sort -u | paste -sd:)
      left=$(unfinished_test "$logs/$i")
      name_failure "${1##*/}, shard $i: ${names:-no test failed}$left"
      if [ -z "$names" ] || [ -n "$left" ] || grep -q 'Sanitizer' "$logs/$i"; then
        result=1
      else
        again+=${again:+:}$names
      fi
    }
    grep -vE '^\[( RUN      |       OK |----------)\]' "$logs/$i" || true
  done
  rm -rf "$logs"
  if [ -n "$again" ]; then
    say "FAILED BESIDE OTHERS, run again alone: $again"
    "$1" --gtest_filter="$again" || result=1
  fi
  return $result
}
# unfinished_test LOG: ", NAME did not end" of the test that a program was in when it ended.
unfinished_test() {
  awk '/^\[ RUN /{name = $4} /^\[ +(OK|FAILED|SKIPPED) /{name = ""} END{if (name) print ", " name " did not end"}' "$1"
}

# What has failed, named again where the log ends.  Parts are shells of their own: by a file.
FAILURES=$(mktemp)
SUMMARY=$(mktemp)
name_failure() { echo "$1" >>"$FAILURES"; }

# What sanitizers look at in a store needs no disk, and a slow one takes most of their time: a store
# syncs its records.  Tests of the page cache (fs) do need one.  To be called in a shell of its own.
use_memory() {
  if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ]; then export TMPDIR=/dev/shm; fi
}

# run_ctest FOLDER [ctest options]: what fails beside other tests is named and run once more, alone: on a
# machine that is busy by others' work a limit may pass.  That it is named is a bug to be mended.
run_ctest() {
  local folder=$1
  shift
  ctest --test-dir "$folder" --output-on-failure "$@" && return
  say "FAILED BESIDE OTHERS, run again alone:"
  sed 's/^/   /' "$folder/Testing/Temporary/LastTestsFailed.log"
  ctest --test-dir "$folder" --output-on-failure --rerun-failed
}

# Device code that no device here would run is compiled as fast as nvcc can: optimised, it takes ten times as long.
cuda_flags() {
  [ -e /dev/nvidiactl ] || ! nvcc --help 2>/dev/null | grep -q -- --Ofast-compile || echo --Ofast-compile=max
}
# What a device here runs is among it; without one, as little as can be.
cuda_architectures() { if [ -e /dev/nvidiactl ]; then echo "80-real;90"; else echo 80-real; fi; }
build_main() {
  build "$ROOT/build" all -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" \
    -DWEIGHTFS_UNITY=ON -DWEIGHTFS_TESTS=ON -DWEIGHTFS_BENCH=ON -DWEIGHTFS_CHECK_LOCK_ORDER=ON \
    "-DWEIGHTFS_CUDA_ARCHITECTURES=$(cuda_architectures)" "-DCMAKE_CUDA_FLAGS=$(cuda_flags)"
}

# ---- sanitizers ----

# choose_part FACTOR_ALL FACTOR_THIRD: what is built and run under a sanitizer, by how long all else took: all if
# FACTOR_ALL times as long, in percent, is within what a CI should take, a third if FACTOR_THIRD times as long is
# within what it may take, else nothing.
# The factors were measured: of what came before, on fast machines and slow ones alike, packages and a third under
# AddressSanitizer take 30 %, a third under ThreadSanitizer 20 % more, and all tests under both 120 % in all.
choose_part() {
  local parts=(store-1 store-2 rest) should=$((40 * 60)) limit=$((${WEIGHTFS_TEST_MINUTES:-72} * 60)) turn
  [ $limit = 0 ] || [ $limit -ge $should ] || should=$limit
  turn=$(git -C "$ROOT" rev-list --count HEAD 2>/dev/null || date +%j)
  if [ -n "${WEIGHTFS_SANITIZED_TESTS:-}" ]; then
    echo "$WEIGHTFS_SANITIZED_TESTS"
  elif [ $limit = 0 ] || [ $((SECONDS * $1 / 100)) -le $should ]; then
    echo all
  elif [ $((SECONDS * $2 / 100)) -le $limit ]; then
    echo "${parts[$((10#$turn % 3))]}"
  else
    echo none
  fi
}

# By clang, which is faster at it than g++, and so are tests under its ThreadSanitizer.
build_sanitized() {
  build "$1" sanitized -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1" \
    -DWEIGHTFS_PRECOMPILE=ON -DWEIGHTFS_BENCH=OFF "${@:2}"
}
build_asan() {
  build_sanitized "$ROOT/build-asan" -DWEIGHTFS_SANITIZE=address,undefined -DWEIGHTFS_FUZZ=ON \
    "-DWEIGHTFS_SANITIZED_TESTS=$asan_part"
}
build_tsan() {
  build_sanitized "$ROOT/build-tsan" -DWEIGHTFS_SANITIZE=thread "-DWEIGHTFS_SANITIZED_TESTS=$tsan_part"
}
# More than cores: many of them wait, for processes that are killed and for the disk.
test_asan() {
  local result=0
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1:malloc_context_size=12
  if [[ $asan_part != store-* ]]; then
    run_ctest "$ROOT/build-asan" -R '^(weightfs_(kernels|fs|gpu)_test|CudaCheck|PlantedBugs|GpuTest)' \
      --parallel $((3 * JOBS)) || result=1
  fi
  if [ "$asan_part" != rest ]; then
    use_memory
    run_ctest "$ROOT/build-asan" -R '^weightfs_store_test' --parallel $((3 * JOBS)) || result=1
  fi
  return $result
}

# What has threads.  Parsers, trees and records have none; what is killed is a process, not a
# thread; a daemon that is forked from a test's process cannot run under TSan.
TSAN_FS='Requests*:RequestPool*:RequestCounts*:MetricsServer*:Control*:OpenTable*:OpenImages*:*FuseSession*:FuseWriter*:LostImages*:ServerTest*:Hooks*:VllmInPlaceTest.Hooks*:OpenWriters*:Get*:Target*:Warmer*:TimedOutReads*:LoaderPins*:ServiceReport*:Announcer*:-ControlProtocol*:ControlPath*:*Killed*'
TSAN_STORE='Sync*:PublishQueueTest*:PartQueue*:EarlyVersion*:EarlyAnnouncer*:HeadStart*:PublishStore*:PublishTest*:PreEncoder*:GrowingFile*:Parallel*:ReorderBuffer*:Background*:OwnContext*:RunBoth*:ChunkBatches*:Catalog*:ShownCatalog*'
TSAN_STORE+=':MaterializeIntoStore*:WithACoder*:DeltaCoder*:StagingThreads*:StagingSeal*:*BucketContract*:Db*:Context*'
TSAN_STORE+=':PackSpoolTest.E*:PackSpoolTest.Who*:PartialVersionTest.E*:PartialVersionTest.W*:PartialVersionTest.T*:PartialVersionTest.S*:PartialVersionTest.N*'
TSAN_STORE+=':PartialImagesTest.AV*:PartialImagesTest.M*:PartialImagesTest.WhatIs*:Store.WaitsForWhatIsPartial'
TSAN_STORE+=':EvictionTest*:EvictAhead*:RoomAheadTest*:BaseWriterTest*:FullHostTest*:CloseWatch*:LayoutCache*:History.RefreshFetches*:PackSpoolTest.F*'
TSAN_STORE+=':PatchRecorderTest*:MaterializePatches*:MakeSkip*:SkipMaker*:SnapshotPieces*'
TSAN_STORE+=':EarlyConflict*:EarlyPacks*:UploadedInVain*:PublishPartTest*:PatchRaces*:WokenThread*'
TSAN_STORE+=':Http*:S3Bucket*:*S3Bucket*:Retry*:AwsCredentials*:-*Killed*'
# The same threads again, many times over; and what forks a process with threads.
TSAN_STORE+=':Http.replies_are_acknowledged_at_once:PreEncoderTest.GivesTheSameVersions*:PublishTest.GivesUpARebaseThatAlwaysLoses'
test_tsan() {
  local result=0
  export TSAN_OPTIONS=suppressions=$ROOT/tests/support/tsan.supp
  if [[ $tsan_part != store-* ]]; then
    run_shards "$ROOT/build-tsan/tests/weightfs_fs_test" "$TSAN_FS" || result=1
    ctest --test-dir "$ROOT/build-tsan" -L unit-cuda --output-on-failure --parallel "$JOBS" || result=1
  fi
  if [ "$tsan_part" != rest ]; then
    (use_memory && run_shards "$ROOT/build-tsan/tests/weightfs_store_test" "$TSAN_STORE") || result=1
  fi
  unset TSAN_OPTIONS
  return $result
}

build_others() {
  local result=0
  [ "$asan_part" = none ] || build_asan || result=1
  [ "$tsan_part" = none ] || build_tsan || result=1
  return $result
}

test_fuzz() { ctest --test-dir "$ROOT/build-asan" -L fuzz --output-on-failure --parallel "$JOBS"; }

# More than cores: tests of mounts and of S3 wait most of their time, each on a place of its own.
# What ctest says of them at last is also what the log ends with.
test_all() {
  local result=0
  set -o pipefail
  run_ctest "$ROOT/build" --parallel $((2 * JOBS + 1)) "${without[@]}" "$@" | tee "$SUMMARY.all" || result=1
  {
    # That of what ran beside others too, where something of it failed and was run again.
    grep 'tests passed,' "$SUMMARY.all" | sed '$d; s/$/ (beside others; what failed was run again alone:)/'
    tac "$SUMMARY.all" | sed '/tests passed,/q' | tac
  } >"$SUMMARY"
  return $result
}

test_wheel() {
  "$ROOT/scripts/wheel.sh" --build "$ROOT/build"
  "$ROOT/tests/wheel/empty.sh"
}

test_deb() {
  "$ROOT/scripts/deb.sh" --build "$ROOT/build"
  "$ROOT/tests/deb/empty.sh"
}
test_packages() {
  local wheel_result deb_result
  set +e
  (set -e; test_wheel)
  wheel_result=$?
  (set -e; test_deb)
  deb_result=$?
  return $((wheel_result | deb_result))
}

test_tidy() { "$ROOT/scripts/tidy.sh"; }

without=()  # options of ctest
export GTEST_BRIEF=1  # of a test program that fails only the failures are printed
need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}" "${FUZZ_PACKAGES[@]}" "${WHEEL_PACKAGES[@]}" "${DEB_PACKAGES[@]}" "${EMPTY_PACKAGES[@]}"
# Unpacked, not installed: the package would start a server.
need_prometheus() {
  local folder=$ROOT/build/prometheus
  [ -x "$folder/usr/bin/prometheus" ] && [ -x "$folder/usr/bin/promtool" ] && return
  rm -rf "$folder"
  mkdir -p "$folder"
  cd "$folder"
  apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }
  dpkg --fsys-tarfile ./prometheus_*.deb | tar -x ./usr/bin
  rm ./prometheus_*.deb
}

part "building" build_main
begin_part "clang-tidy" test_tidy
part "safetensors" need_safetensors
part "prometheus" need_prometheus
export WEIGHTFS_VENV_PYTHON=$ROOT/build/venv/bin/python
export WEIGHTFS_BIN=$ROOT/build/weightfs
if [ $engines = 1 ]; then
  part "engines" "$ROOT/scripts/engines.sh" vllm
  export WEIGHTFS_ENGINES_REQUIRED=1  # what is missing fails, and is not skipped
else
  without=(-LE engines)
fi
end_part "clang-tidy"
part "all tests" test_all "$@"
if [ $sanitizers = 1 ]; then
  asan_part=$(choose_part 220 130) tsan_part=$(choose_part 220 150)
  echo "tests that are run under AddressSanitizer: $asan_part; under ThreadSanitizer: $tsan_part"
  begin_part "builds with sanitizers" build_others
fi
[ $wheel = 0 ] || part "packages" test_packages
if [ $sanitizers = 1 ]; then
  end_part "builds with sanitizers"
  [ "$tsan_part" = none ] || part "tests under ThreadSanitizer" test_tsan
  [ "$asan_part" = none ] || part "fuzzers" test_fuzz
  [ "$asan_part" = none ] || part "unit tests under AddressSanitizer and UBSan" test_asan
fi
say "all of it: $SECONDS s; of all tests:"
cat "$SUMMARY"
[ ${#failed[@]} -eq 0 ] || { cat "$FAILURES"; printf 'failed: %s\n' "${failed[@]}"; exit 1; } >&2
