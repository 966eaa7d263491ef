#!/usr/bin/env bash
# Installs the .deb into an empty Debian 12 by apt, uses it there, and removes it (tests/deb/use.sh).
#
#   tests/deb/empty.sh [DEB]     default: the one of scripts/deb.sh
#
# The system is that of tests/wheel/empty.sh; what apt fetches is kept in build-wheel/apt. Needs root, /dev/fuse
# and Debian's mirror.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
as_root "$@"
deb=$(realpath "${1:-$(ls "$ROOT"/build-deb/dist/*.deb)}")
source "$ROOT/tests/support/empty_system.sh"

# In namespaces: what it mounts is gone, and its daemons are killed, when it ends.
inside='
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs -o size=2g deb "$work"
mkdir "$work/over" "$work/changes" "$work/root"
mount -t overlay -o "lowerdir=$system,upperdir=$work/changes,workdir=$work/over" overlay "$work/root"
cd "$work/root"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
mknod -m 666 dev/fuse c 10 229; mknod -m 666 dev/null c 1 3; mknod -m 666 dev/urandom c 1 9
mkdir -p root/deb root/data "$apt/lists" "$apt/archives"
mount -t tmpfs tmpfs root/data  # the store cannot lie on an overlay
mount --bind "$apt/lists" var/lib/apt/lists
mount --bind "$apt/archives" var/cache/apt/archives
cp /etc/resolv.conf etc/ 2>/dev/null || true
cp "$deb" root/deb/weightfs.deb
cp "$use" root/deb/
exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
  DEBIAN_FRONTEND=noninteractive ${http_proxy:+http_proxy="$http_proxy"} bash /root/deb/use.sh
'
need_packages "${EMPTY_PACKAGES[@]}"
make_system bookworm
say "the .deb in bookworm"
work=$(mktemp -d) system=$WORK/bookworm apt=$WORK/apt deb=$deb use=$ROOT/tests/deb/use.sh \
  bash -c 'export work system apt deb use; unshare --mount --pid --fork --kill-child bash -c "$1"; result=$?
    rmdir "$work"; exit $result' bash "$inside"
