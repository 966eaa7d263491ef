# What tests/deb/empty.sh runs in an empty system, as root, under systemd: from `apt install` to `apt purge`.
set -euo pipefail
cd /root/deb
step() { echo "-- $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
apt() { apt-get -qq -y -o Dpkg::Use-Pty=0 -o APT::Sandbox::User=root "$@" >apt.log 2>&1 || { cat apt.log >&2; fail "apt-get $*"; }; }
# All files that a package could have left; not what apt and dpkg write about every package.
files() {
  find / -xdev \( -path /proc -o -path /sys -o -path /var/lib/systemd -o -path /root -o -path /tmp -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt \
    -o -path /var/log -o -path /dev \) -prune -o \( -path /etc/ld.so.cache -o -path '/etc/*-' \) -o -print | sort
  # Not what belongs to mount(8) and systemd.
  find /run \( -path /run/mount -o -path /run/systemd -o -path /run/log \) -prune -o -print | sort
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
groupadd --system weightfs  # such a group is used
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
weightfs init file:///srv/bucket
weightfs publish file:///srv/bucket one --store /srv/publisher
cp /etc/fstab fstab.before 2>/dev/null || : >fstab.before
echo 'file:///srv/bucket /mnt/w weightfs store=/srv/store,poll=0.1,_netdev,nofail 0 0' >>/etc/fstab
mount -a
mount -a
[ "$(mounts)" = 1 ] || fail "$(mounts) mounts"
cmp one/model.safetensors /mnt/w/latest/model.safetensors
weightfs publish file:///srv/bucket two --store /srv/publisher
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

umount /mnt/w

step "the same line as systemd mounts it"
systemctl daemon-reload
systemctl start mnt-w.mount
cmp two/model.safetensors /mnt/w/latest/model.safetensors
[ "$(systemctl show -p What --value mnt-w.mount)" = file:///srv/bucket ] || fail "what systemd sees"
systemctl stop mnt-w.mount
[ "$(mounts)" = 0 ] || fail "$(mounts) mounts"
cp fstab.before /etc/fstab
[ -s fstab.before ] || rm /etc/fstab
systemctl daemon-reload

# killed UNIT: kills its process, and waits until systemd has started another.
killed() {
  local before
  before=$(systemctl show -p MainPID --value "$1")
  systemctl kill -s KILL "$1"
  for _ in $(seq 600); do
    [ "$(systemctl show -p MainPID --value "$1")" = "$before" ] || ! systemctl is-active -q "$1" || return 0
    sleep 0.1
  done
  systemctl status --no-pager "$1"
  fail "$1 does not come back"
}
step "weightfs@a, as a service"
cat >/etc/weightfs/a.toml <<'TOML'
store = "/srv/store"
poll = 0.1
[mount]
url = "file:///srv/bucket"
mountpoint = "/mnt/w"
metrics = "127.0.0.1:9099"
TOML
scraped() {
  python3 -c 'import sys, urllib.request as http
sys.stdout.write(http.urlopen("http://127.0.0.1:9099/metrics", timeout=10).read().decode())' |
    grep -q '^weightfs_version{which="latest"} 2$' || fail "what is scraped"
}
systemctl start weightfs@a
scraped
cmp two/model.safetensors /mnt/w/latest/model.safetensors
[ "$(systemctl show -p StatusText --value weightfs@a)" = healthy ] || fail "its status"
case $(weightfs status /mnt/w --json) in *'"mode": "passthrough"'*) ;; *) weightfs status /mnt/w; fail "how it serves" ;; esac
exec 3</mnt/w/latest/model.safetensors
killed weightfs@a
scraped
cmp two/model.safetensors <(cat <&3)
exec 3<&-
cmp two/model.safetensors /mnt/w/latest/model.safetensors
[ "$(mounts)" = 1 ] || fail "$(mounts) mounts"
umount /mnt/w
state() { systemctl show -p ActiveState -p Result --value weightfs@a | sort | tr '\n' ' '; }
for _ in $(seq 600); do case $(state) in *inactive* | *failed*) break ;; esac; sleep 0.1; done
[ "$(state)" = "inactive success " ] || fail "umount is no failure: $(state)"

step "weightfs-sync@b, as a service"
cat >/etc/weightfs/b.toml <<'TOML'
poll = 0.1
[sync]
url = "file:///srv/bucket"
dir = "/var/lib/weightfs-sync/b"
TOML
systemctl start weightfs-sync@b || { journalctl --no-pager -n 20 -u weightfs-sync@b; fail "it does not start"; }
cmp two/model.safetensors /var/lib/weightfs-sync/b/latest/model.safetensors
[ "$(stat -c %U /var/lib/weightfs-sync/b)" = weightfs ] || fail "whose files"
killed weightfs-sync@b
cmp two/model.safetensors /var/lib/weightfs-sync/b/latest/model.safetensors

step "purged, but for saved files that were never published"
rmdir /mnt/w
rm /etc/weightfs/[ab].toml
# Three stores with such files, one of them after its database was damaged, one deeper, and one without; and a
# disk of its own, which cannot be removed.
saved="/var/lib/weightfs/lost/staging.lost-2/7 /var/lib/weightfs/staged/staging/7 /var/lib/weightfs/team/run-7/staging/7"
for file in $saved /var/lib/weightfs/cache/images/7; do install -D /dev/null "$file"; done
mkdir /var/lib/weightfs/lost/staging /var/lib/weightfs/cache/staging.lost-1 /var/lib/weightfs/disk
mount -t tmpfs tmpfs /var/lib/weightfs/disk
apt purge weightfs
umount /var/lib/weightfs/disk
[ ! -e /var/lib/weightfs/cache ] || fail "a store without such files is left"
[ "$(find /var/lib/weightfs -type f | sort | xargs)" = "$saved" ] || fail "left: $(find /var/lib/weightfs)"

step "removed without a trace"
rm -r /var/lib/weightfs
apt autoremove --purge
files >after
diff before after || fail "these are left, or missing"
echo "the .deb is installed, used and removed"
