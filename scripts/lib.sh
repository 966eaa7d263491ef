# What the scripts share: packages, build folders, root.  Sourced, never run.
# shellcheck shell=bash

set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
JOBS=${JOBS:-$(nproc)}
SELF=$(realpath -m -- "$0")  # wherever the script goes from here

# Mounting with allow_other and passthrough needs root; so does apt-get.
as_root() {
  [ "$(id -u)" = 0 ] && return
  command -v sudo >/dev/null || { echo "$0: run as root, or install sudo" >&2; exit 1; }
  local kept=JOBS,TMPDIR,PIP_INDEX_URL,PIP_FIND_LINKS,PIP_CERT,WEIGHTFS_DEMO,WEIGHTFS_SHARED
  kept+=,WEIGHTFS_TIDY_BASE,WEIGHTFS_TIDY_MAX,WEIGHTFS_TEST_SEED,WEIGHTFS_TEST_MINUTES,WEIGHTFS_SANITIZED_TESTS,WEIGHTFS_ENGINE_VERSIONS
  kept+=,http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY
  exec sudo "--preserve-env=$kept" "$SELF" "$@"
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

BUILD_PACKAGES=(g++ cmake ninja-build pkg-config fuse3 libfuse3-dev librocksdb-dev libzstd-dev zlib1g-dev
  libxxhash-dev libhwy-dev libssl-dev libcurl4-openssl-dev libpugixml-dev nlohmann-json3-dev
  libtomlplusplus-dev libfmt-dev libspdlog-dev ca-certificates)
DATA_PACKAGES=(python3 python3-numpy)
WHEEL_PACKAGES=(dpkg-dev python3-venv libsnappy-dev liblz4-dev libbz2-dev libgflags-dev zlib1g-dev)
DEB_PACKAGES=(dpkg-dev binutils gzip)
EMPTY_PACKAGES=(debootstrap util-linux)
FUZZ_PACKAGES=(clang-14 libclang-rt-14-dev)
TEST_PACKAGES=("${DATA_PACKAGES[@]}" libgtest-dev python3-venv e2fsprogs mount util-linux clang-tidy-14 git
  ccache rsync tar systemd man-db zsh fish radosgw ceph-mon ceph-osd ceph-common openssl iproute2 python3-botocore python3-yaml strace)

# build FOLDER TARGET [cmake options]: quiet unless something fails. With ccache, where it is
# installed: a second checkout, or a branch that was built before, costs seconds.
build() {
  local folder=$1 target=$2 log cache=()
  shift 2
  mkdir -p "$folder"
  log=$folder/build.log
  if command -v ccache >/dev/null; then
    cache=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
    export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
    export CCACHE_SLOPPINESS=pch_defines,time_macros  # what precompiled headers need
  fi
  if ! { cmake -S "$ROOT" -B "$folder" -G Ninja "${cache[@]}" "$@" &&
    cmake --build "$folder" --target "$target" --parallel "$JOBS"; } >"$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
}

# make_venv FOLDER WANTED INSTALL: a virtual environment that a function, INSTALL FOLDER, fills. WANTED
# says with what: nothing happens if it is complete and WANTED is the same, else it is made anew.
make_venv() {
  local folder=$1 wanted=$2 install=$3
  [ "$(cat "$folder/wanted" 2>/dev/null)" = "$wanted" ] && return
  if [ ! -e "$folder/wanted" ] && [ -n "$(ls -A "$folder" 2>/dev/null)" ]; then
    echo "$folder is not empty and not made by this script: remove it, or name another" >&2
    return 1
  fi
  say "virtual environment $folder"
  rm -rf "$folder"
  mkdir -p "$folder"
  echo 'half made' >"$folder/wanted"
  /usr/bin/python3 -m venv "$folder"
  "$install" "$folder"
  echo "$wanted" >"$folder/wanted"
}

# pip_install VENV [pip options] REQUIREMENT...
pip_install() {
  local venv=$1
  shift
  "$venv/bin/pip" install --quiet --disable-pip-version-check --progress-bar off --only-binary :all: "$@" && return
  echo "packages for $venv could not be installed. They come from PyPI, or from where pip is" \
    "configured to look (PIP_INDEX_URL, PIP_FIND_LINKS). See to the network and run this again." >&2
  return 1
}

# The real safetensors package, older ones beside it that write files in another way, and what the Python
# package is checked with (pytest in a folder of its own, also for interpreters that have torch); pinned.
# Exports WEIGHTFS_VENV_PYTHON.
need_safetensors() {
  make_venv "$ROOT/build/venv" "safetensors 0.8.0 0.7.0 0.5.3, numpy 2.2.6, $CHECKERS" install_safetensors
  export WEIGHTFS_VENV_PYTHON=$ROOT/build/venv/bin/python
}
CHECKERS='pytest==9.2.0 ruff==0.17.6 mypy==2.4.1'
install_safetensors() {
  # shellcheck disable=SC2086  # several words
  pip_install "$1" safetensors==0.8.0 numpy==2.2.6 ${CHECKERS#* }
  pip_install "$1" --target "$1/pytest" "${CHECKERS%% *}"
  for version in 0.7.0 0.5.3; do
    pip_install "$1" --no-deps --target "$1/safetensors-$version" "safetensors==$version"
  done
}
