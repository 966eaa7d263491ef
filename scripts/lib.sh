# What the scripts share: packages, build folders, root.  Sourced, never run.
# shellcheck shell=bash

set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
JOBS=${JOBS:-$(nproc)}

# Mounting with allow_other and passthrough needs root; so does apt-get.
as_root() {
  [ "$(id -u)" = 0 ] && return
  command -v sudo >/dev/null || { echo "$0: run as root, or install sudo" >&2; exit 1; }
  exec sudo --preserve-env=JOBS,TMPDIR,WEIGHTFS_SEED,WEIGHTFS_SHARED,WEIGHTFS_DEMO "$0" "$@"
}

say() { printf '\n== %s\n' "$*"; }

# Installs the Debian packages that are missing; asks the network only then.
need_packages() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

BUILD_PACKAGES=(g++ cmake ninja-build pkg-config fuse3 libfuse3-dev librocksdb-dev libzstd-dev
  libxxhash-dev libhwy-dev libssl-dev nlohmann-json3-dev libtomlplusplus-dev libfmt-dev libspdlog-dev ca-certificates)
DATA_PACKAGES=(python3 python3-numpy)
FUZZ_PACKAGES=(clang-14 libclang-rt-14-dev)
TEST_PACKAGES=("${DATA_PACKAGES[@]}" libgtest-dev python3-venv e2fsprogs mount util-linux)

# build FOLDER TARGET [cmake options]: quiet unless something fails.
build() {
  local folder=$1 target=$2 log
  shift 2
  mkdir -p "$folder"
  log=$folder/build.log
  if ! { cmake -S "$ROOT" -B "$folder" -G Ninja "$@" &&
    cmake --build "$folder" --target "$target" --parallel "$JOBS"; } >"$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
}
