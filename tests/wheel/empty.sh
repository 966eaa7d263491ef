#!/usr/bin/env bash
# Installs a wheel into empty systems, and uses it there: publish, mount, read (tests/wheel/use.py).
#
#   tests/wheel/empty.sh [WHEEL [SUITE...]]     default: the newest one of scripts/wheel.sh, bookworm
#
# SUITE: a release of Debian, of the mirror that this machine installs from, with python3 and nothing of ours.
# It is made once, in build-wheel/SUITE, and copied for each run; mounts and processes are in namespaces of
# their own and end with it. Needs root and /dev/fuse.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
case "${1:-}" in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
as_root "$@"
wheel=$(realpath "${1:-$(ls -t "$ROOT"/build-wheel/dist/*.whl | head -n 1)}")
shift || true
[ $# -gt 0 ] || set -- bookworm
source "$ROOT/tests/support/empty_system.sh"

# In namespaces: what it mounts is gone, and its daemons are killed, when it ends.
inside='
set -euo pipefail
mount -t tmpfs -o size=2g wheel "$work"
mkdir "$work/over" "$work/changes" "$work/root"
mount -t overlay -o "lowerdir=$system,upperdir=$work/changes,workdir=$work/over" overlay "$work/root"
cd "$work/root"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
mknod -m 666 dev/fuse c 10 229; mknod -m 666 dev/null c 1 3; mknod -m 666 dev/urandom c 1 9
mkdir root/wheel root/data  # on a tmpfs: the store cannot lie on an overlay
mount -t tmpfs tmpfs root/data
cp "$wheel" "$use" root/wheel/
exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 bash -euc "
  cd /root/wheel
  python3 -m venv venv
  venv/bin/pip install --quiet --no-index --disable-pip-version-check ./*.whl
  venv/bin/python use.py"
'
need_packages "${EMPTY_PACKAGES[@]}"
for suite in "$@"; do
  make_system "$suite"
  say "the wheel in $suite"
  work=$(mktemp -d) system=$WORK/$suite wheel=$wheel use=$ROOT/tests/wheel/use.py \
    bash -c 'export work system wheel use; unshare --mount --pid --fork --kill-child bash -c "$1"; result=$?
      rmdir "$work"; exit $result' bash "$inside"
done
