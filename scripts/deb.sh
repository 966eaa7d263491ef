#!/usr/bin/env bash
# Builds the Debian package: weightfs_VERSION_ARCH.deb.
#
#   scripts/deb.sh [--build FOLDER] [OUTPUT]
#
# OUTPUT, a directory (default: build-deb/dist). --build packs a build that is there (scripts/test.sh: build/)
# instead of compiling in build-deb/. Times in the package are those of the last commit: the same build gives
# the same bytes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage() { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
as_root "$@"
folder=$ROOT/build-deb output=$ROOT/build-deb/dist is_given=0
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build) [ $# -ge 2 ] || { usage >&2; exit 2; }; folder=$(realpath "$2") is_given=1; shift ;;
    -*) usage >&2; exit 2 ;;
    *) output=$(realpath -m "$1") ;;
  esac
  shift
done
need_packages "${BUILD_PACKAGES[@]}" "${DEB_PACKAGES[@]}"
if [ $is_given = 0 ]; then
  say "the program"
  build "$folder" weightfs -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTFS_TESTS=OFF -DWEIGHTFS_BENCH=OFF
fi
[ -e "$folder/CPackConfig.cmake" ] || { echo "$folder is no build; run scripts/test.sh" >&2; exit 1; }
say "the package"
mkdir -p "$output" "$ROOT/build-deb"
version=$(sed -n 's/^set(CPACK_PACKAGE_VERSION "\(.*\)")/\1/p' "$folder/CPackConfig.cmake")
rm -f "$output/weightfs_${version}_"*.deb
umask 022
# A checkout without git packs with the time of the sources' newest part.
SOURCE_DATE_EPOCH=$(git -C "$ROOT" log -1 --format=%ct 2>/dev/null || stat -c %Y "$ROOT/CMakeLists.txt")
export SOURCE_DATE_EPOCH
(cd "$ROOT/build-deb" && cpack --config "$folder/CPackConfig.cmake" -B "$output" >cpack.log 2>&1) ||
  { cat "$ROOT/build-deb/cpack.log" >&2; exit 1; }
rm -rf "$output/_CPack_Packages"
ls -l "$output/weightfs_${version}_"*.deb
