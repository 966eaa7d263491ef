#!/usr/bin/env bash
# Builds the kernels on a bare machine with CUDA 13, holds them to the scalar reference, and prints
# a table of how fast they are.
#
#   scripts/gpu.sh [--blocks N]      N: blocks of the benchmark (4096: 512 MiB of bf16)
#
# Needs nvcc and g++ and nothing else: no cmake, no libraries, no network.  The build lies in
# build-gpu/.  It also prints what -Xptxas -v says of each kernel.  Without a device it builds
# everything, and says that nothing ran.  Ends with 1 if a check is wrong.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
JOBS=${JOBS:-$(nproc)}
out=build-gpu
mkdir -p "$out"

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc 2>/dev/null | head -n 1 || true)
[ -n "$nvcc" ] || { echo "no nvcc: neither on PATH nor in /usr/local/cuda/bin" >&2; exit 1; }

# Only what this device runs, which halves the time; sm_90 where there is none.  If it finds no
# driver, nvidia-smi says so on stdout.
device=$(nvidia-smi --query-gpu=compute_cap,name,driver_version --format=csv,noheader 2>/dev/null |
  head -n 1 || true)
if [[ $device =~ ^([0-9]+)\.([0-9]+), ]]; then
  arch=sm_${BASH_REMATCH[1]}${BASH_REMATCH[2]}
else
  arch=sm_90
  device=
fi

# The same sources as in CMake, without the variants that need Highway and xxHash.
host=$(ls kernels/{block,scalar,dispatch}/*.cpp | grep -v gpu_none)
cuda=$(ls kernels/cuda/*.cu kernels/dispatch/gpu.cu)
checks=$(ls tests/kernels/cuda_check*.cpp)
flags=(-std=c++20 -O2 -arch="$arch" --expt-relaxed-constexpr -I.)

compile() {
  local object=$out/$(echo "$1" | tr / _).o
  "$nvcc" "${flags[@]}" -Xptxas -v -c "$1" -o "$object" >"$object.log" 2>&1 ||
    { cat "$object.log" >&2; return 1; }
}
compile_host() {
  "${CXX:-g++}" -std=c++20 -O2 -I. -c "$1" -o "$out/$(echo "$1" | tr / _).o"
}
objects() { for source in "$@"; do echo "$out/$(echo "$source" | tr / _).o"; done; }

printf 'building for %s with %s\n' "$arch" "$("$nvcc" --version | sed -n 's/.*release \([^,]*\).*/nvcc \1/p')"
export -f compile compile_host
export out nvcc
export_flags=$(printf '%q ' "${flags[@]}")
export export_flags
# xargs ends with an error if one compilation does.
{ for source in $cuda $checks tests/bench/gpu_bench.cu; do echo "compile $source"; done
  for source in $host; do echo "compile_host $source"; done; } |
  xargs -P "$JOBS" -I{} bash -c 'eval "flags=($export_flags)"; {}'

# shellcheck disable=SC2046,SC2086
{
  "$nvcc" -arch="$arch" $(objects $host $cuda $checks) -o "$out/cuda_check"
  "$nvcc" -arch="$arch" $(objects $host $cuda tests/bench/gpu_bench.cu) -o "$out/gpu_bench"
}

# | kernel | registers | shared | spills | stack | from what ptxas said.
resources() {
  printf '| kernel, %s | registers | static shared, B | spilled, B | stack, B |\n|---|---|---|---|---|\n' "$arch"
  # shellcheck disable=SC2046
  cat $(objects $cuda | sed 's/$/.log/') | awk '
    /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
    /bytes stack frame/ { stack = $1; spilled = $5 + $9 }
    /Used [0-9]+ registers/ {
      shared = 0
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^registers/) registers = $(i - 1)
        if ($i ~ /^smem/) shared = $(i - 2)
      }
      print name "\t" registers "\t" shared "\t" spilled "\t" stack
    }' | { command -v c++filt >/dev/null && c++filt || cat; } |
    sed -E 's/void //; s/weightfs::kernels::(cuda::)?//g; s/\(anonymous namespace\):://g; s/\([^\t]*\)//' |
    sort | awk -F'\t' '{ printf "| %s | %s | %s | %s | %s |\n", $1, $2, $3, $4, $5 }'
}

resources
if [ -z "$device" ]; then
  printf '\nNothing ran: this machine has no CUDA device. Everything was built.\n'
  exit 0
fi
printf '\ndevice: %s\n\n' "$device"
timeout 240 "$out/cuda_check" --data tests/data
printf '\n'
timeout 120 "$out/gpu_bench" "$@"
