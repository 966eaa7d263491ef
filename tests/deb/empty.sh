#!/usr/bin/env bash
# Installs the .deb into an empty Debian 12 by apt, uses it there, under a systemd that is booted for it, and
# removes it (tests/deb/use.sh).
#
#   tests/deb/empty.sh [DEB]     default: the newest one of scripts/deb.sh
#
# The system is that of tests/wheel/empty.sh; what apt fetches is kept in build-wheel/apt. Needs root, /dev/fuse
# and Debian's mirror.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
as_root "$@"
deb=$(realpath "${1:-$(ls -t "$ROOT"/build-deb/dist/*.deb | head -n 1)}")
source "$ROOT/tests/support/empty_system.sh"

# In namespaces: what it mounts is gone, and its processes are killed, when it ends.
inside='
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs -o size=2g deb "$work"
mkdir "$work/over" "$work/changes" "$work/root"
mount -t overlay -o "lowerdir=$system,upperdir=$work/changes,workdir=$work/over" overlay "$work/root"
cd "$work/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mknod -m 666 dev/fuse c 10 229
for device in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"; done
mkdir dev/pts dev/shm dev/mqueue dev/hugepages
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mknod -m 666 dev/tty c 5 0
mkdir -p root/deb root/outside "$apt/lists" "$apt/archives"
mount -t tmpfs -o mode=755 tmpfs srv  # a store cannot lie on an overlay
mount --bind "$apt/lists" var/lib/apt/lists
mount --bind "$apt/archives" var/cache/apt/archives
mount --bind "$out" root/outside
cp /etc/resolv.conf etc/ 2>/dev/null || true
cp "$deb" root/deb/weightfs.deb
cp "$use" root/deb/
environment=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
  ${http_proxy:+"http_proxy=$http_proxy"})
chroot . /usr/bin/env -i "${environment[@]}" bash -euc "
  apt-get -qq -o APT::Sandbox::User=root update
  apt-get -qq -y -o APT::Sandbox::User=root --no-install-recommends install systemd systemd-sysv" \
  >"$out/systemd.log" 2>&1 || { cat "$out/systemd.log" >&2; exit 1; }
cat >etc/systemd/system/use.service <<UNIT
[Service]
Type=oneshot
Environment=${environment[@]@Q}
ExecStart=/bin/bash /root/deb/use.sh
ExecStopPost=/bin/sh -c "systemctl --no-block exit \$EXIT_STATUS"
StandardOutput=append:/root/outside/log
StandardError=inherit
UNIT
# A service with namespaces of its own needs a root that is one: no chroot.
mkdir old
pivot_root . old
umount -l old
exec /usr/bin/env -i container=test /lib/systemd/systemd --unit=use.service
'
need_packages "${EMPTY_PACKAGES[@]}"
make_system bookworm
say "the .deb in bookworm"
work=$(mktemp -d) out=$(mktemp -d)
result=0
export work out
system=$WORK/bookworm apt=$WORK/apt deb=$deb use=$ROOT/tests/deb/use.sh \
  timeout 600 unshare --mount --pid --cgroup --ipc --uts --fork --kill-child bash -c "$inside" || result=$?
cat "$out/log" || result=1
rm -rf "$work" "$out"
exit $result
