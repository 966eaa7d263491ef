# What tests/deb/empty.sh runs in an empty system, as root: from `apt install` to `apt purge`.
set -euo pipefail
cd /root/deb
step() { echo "-- $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
apt() { apt-get -qq -y -o Dpkg::Use-Pty=0 -o APT::Sandbox::User=root "$@" >apt.log 2>&1 || { cat apt.log >&2; fail "apt-get $*"; }; }
# All files that a package could have left; not what apt and dpkg write about every package.
files() {
  find / -xdev \( -path /proc -o -path /root -o -path /tmp -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt \
    -o -path /var/log -o -path /dev \) -prune -o \( -path /etc/ld.so.cache -o -path '/etc/*-' \) -o -print | sort
  find /run -path /run/mount -prune -o -print | sort  # /run/mount is mount(8)'s own
  cat /etc/passwd /etc/group
}
# checkpoint DIR NUMBER: one tensor of 1 MiB.
checkpoint() {
  mkdir -p "$1"
  python3 - "$1/model.safetensors" "$2" <<'PY'
import json, struct, sys
header = json.dumps({"w": {"dtype": "BF16", "shape": [524288], "data_offsets": [0, 1 << 20]}}).encode()
body = bytearray(range(256)) * 4096
body[:2] = struct.pack("<H", int(sys.argv[2]))
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + body)
PY
}
mounts() { grep -c ' /mnt/w ' /proc/self/mountinfo || true; }

step "apt install"
apt update
files >before
apt install --no-install-recommends ./weightfs.deb
weightfs --version
for shell in bash zsh fish; do
  weightfs completion $shell | cmp - "$(dpkg -L weightfs | grep -E "/(bash-completion|zsh|fish)/.*weightfs" | grep "$shell" | head -n 1)"
done
for file in /sbin/mount.weightfs /usr/share/man/man1/weightfs-mount.1.gz /usr/share/man/man8/mount.weightfs.8.gz \
  /usr/lib/systemd/system/weightfs@.service /usr/lib/systemd/system/weightfs-sync@.service; do
  [ -e $file ] || fail "$file is absent"
done
dpkg-query -W -f='${Conffiles}' weightfs | grep -q /etc/weightfs/weightfs.toml || fail "no conffile"
getent passwd weightfs >/dev/null || fail "no user weightfs"
weightfs log file:///absent 2>/dev/null && fail "a bucket that is absent"

step "a line of fstab, mount -a, publish, read"
mkdir /mnt/w
checkpoint one 1
checkpoint two 2
weightfs init file:///root/data/bucket
weightfs publish file:///root/data/bucket one --store /root/data/publisher
cp /etc/fstab fstab.before 2>/dev/null || : >fstab.before
echo 'file:///root/data/bucket /mnt/w weightfs store=/root/data/store,poll=0.1,_netdev,nofail 0 0' >>/etc/fstab
mount -a
mount -a
[ "$(mounts)" = 1 ] || fail "$(mounts) mounts"
cmp one/model.safetensors /mnt/w/latest/model.safetensors
weightfs publish file:///root/data/bucket two --store /root/data/publisher
weightfs wait /mnt/w --version 2 --ready --timeout 60
cmp two/model.safetensors /mnt/w/latest/model.safetensors

step "kill -9, and it comes back"
pid=$(weightfs status /mnt/w --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
kill -9 "$pid"
for _ in $(seq 1000); do ls /mnt/w >/dev/null 2>&1 || break; done
said=$(weightfs status /mnt/w 2>&1) && fail "a dead mount has a status"
case $said in *"weightfs mount --again /mnt/w") ;; *) fail "the message of a dead mount: $said" ;; esac
weightfs mount --again /mnt/w
case $(weightfs mount --again /mnt/w) in *"nothing is done") ;; *) fail "a live mount is mounted again" ;; esac
cmp two/model.safetensors /mnt/w/latest/model.safetensors
[ "$(mounts)" = 1 ] || fail "$(mounts) mounts"

step "removed without a trace"
umount /mnt/w
rmdir /mnt/w
cp fstab.before /etc/fstab
[ -s fstab.before ] || rm /etc/fstab
apt purge weightfs
apt autoremove --purge
files >after
diff before after || fail "these are left, or missing"
echo "the .deb is installed, used and removed"
