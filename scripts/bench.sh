#!/usr/bin/env bash
# Runs the benchmarks and prints their tables (docs/BENCHMARKS.md keeps what they printed).
#
#   scripts/bench.sh [--mib N]       N: size of the checkpoint that is read and published (1024)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case "${1:-}" in -h | --help) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
as_root "$@"
mib=1024
[ "${1:-}" = --mib ] && mib=$2

need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
build "$ROOT/build" all -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTFS_TESTS=ON -DWEIGHTFS_BENCH=ON \
  -DWEIGHTFS_CHECK_LOCK_ORDER=OFF
need_safetensors
export WEIGHTFS_BIN=$ROOT/build/weightfs

printf 'commit %s, %s cores, kernel %s\n' "$(git -C "$ROOT" rev-parse --short HEAD)" "$(nproc)" "$(uname -r)"
say "codec"
"$ROOT/build/tests/bench/weightfs_codec_bench"
"$ROOT/build/tests/bench/weightfs_patch_bench"

say "sizes"
/usr/bin/python3 "$ROOT/tests/bench/size_bench.py"
say "publish and materialise, delta sizes"
/usr/bin/python3 "$ROOT/tests/bench/publish_speed.py" --mib "$mib"
say "reads through the mount"
/usr/bin/python3 "$ROOT/tests/bench/read_speed.py" --mib "$mib"
say "the first load of a version"
/usr/bin/python3 "$ROOT/tests/bench/cold_start.py" --mib "$mib"
say "a cold host"
/usr/bin/python3 "$ROOT/tests/bench/cold_read.py" --mib "$mib"
say "growth with files, versions and headers"
/usr/bin/python3 "$ROOT/tests/bench/growth.py"
say "saves through a writer's mount, and hand-overs"
"$WEIGHTFS_VENV_PYTHON" "$ROOT/tests/bench/save_speed.py" --mib "$mib"
say "staging while a publish runs, and while the bucket is dead"
/usr/bin/python3 "$ROOT/tests/bench/staging_latency.py"
say "from a publish to an engine"
/usr/bin/python3 "$ROOT/tests/bench/hook_latency.py"
say "loads through a mount (with transformers and vLLM where scripts/engines.sh vllm was run)"
/usr/bin/python3 "$ROOT/tests/bench/load_speed.py" --mib "$mib"
