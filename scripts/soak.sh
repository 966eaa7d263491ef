#!/usr/bin/env bash
# Builds, and runs the model tests for a long time: random operations and kills, against plain copies, each
# round with another seed.
#
#   scripts/soak.sh [MINUTES]        (default: 30)
#
# A line for each run says what it did.  One that fails is printed whole, with its seed, and ends this with 1.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
as_root "$@"

MINUTES=${1:-30}
# {test: how many operations make some minutes}
declare -A MODELS=(["Homes/HistoryModel.*"]=WEIGHTFS_HISTORY_STEPS=10000 ["*/HostModel.*"]=WEIGHTFS_MODEL_STEPS=4000
  ["CollectModel.*"]=WEIGHTFS_GC_SECONDS=180 ["*/KilledParts.*"]=WEIGHTFS_PART_ROUNDS=125)

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
build "$ROOT/build" weightfs_store_test -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -DWEIGHTFS_UNITY=ON -DWEIGHTFS_TESTS=ON -DWEIGHTFS_BENCH=ON \
  -DWEIGHTFS_CHECK_LOCK_ORDER=ON "-DWEIGHTFS_CUDA_ARCHITECTURES=80-real"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf 'commit %s, %s cores, kernel %s, %s minutes\n' "$(git -C "$ROOT" rev-parse --short HEAD)" "$(nproc)" \
  "$(uname -r)" "$MINUTES"
rounds=0
SECONDS=0  # building does not count
while [ "$SECONDS" -lt $((MINUTES * 60)) ]; do
  for model in "${!MODELS[@]}"; do
    if ! env "${MODELS[$model]}" "$ROOT/build/tests/weightfs_store_test" --gtest_filter="$model" >"$log" 2>&1; then
      cat "$log"
      exit 1
    fi
    grep -E 'SEED=|steps in|versions \(|rounds[:,] ' "$log"
  done
  rounds=$((rounds + 1))
done
printf '%s rounds in %s minutes, nothing failed\n' "$rounds" $((SECONDS / 60))
