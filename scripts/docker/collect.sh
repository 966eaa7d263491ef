#!/bin/sh
# Collects what one program needs to run, and nothing else, for an image that begins from nothing.
#
#   collect.sh PROGRAM FOLDER       PROGRAM goes to FOLDER/usr/bin
#
# With it: the shared libraries that it is linked to, at their places; the certificates of CAs; fusermount3
# for mounts by users other than root; a shell and small tools (busybox) for hooks, probes and whoever looks.
set -eu
program=$1 image=$2

mkdir -p "$image/usr/bin" "$image/etc/ssl/certs" "$image/dev" "$image/proc" "$image/sys" "$image/run" \
  "$image/root" "$image/tmp" "$image/var/lib/weightfs" "$image/mnt"
chmod 1777 "$image/tmp"
# As Debian has it: what asks for /lib64/ld-linux-x86-64.so.2 or /bin/sh finds it in /usr.
for folder in bin sbin lib lib64; do
  mkdir -p "$image/usr/$folder"
  ln -s "usr/$folder" "$image/$folder"
done

cp "$program" /usr/bin/fusermount3 "$image/usr/bin/"
chmod 4755 "$image/usr/bin/fusermount3"
# "libx.so.1 => /lib/.../libx.so.1 (0x...)", and the loader alone: "/lib64/ld-linux-x86-64.so.2 (0x...)".
ldd "$program" /usr/bin/fusermount3 | grep -o '/[^ :]* (0x' | cut -d' ' -f1 | sort -u |
  while read -r library; do
    mkdir -p "$image/$(dirname "$library")"
    cp -L "$library" "$image/$library"
  done

cp /usr/bin/busybox "$image/usr/bin/busybox"
"$image/usr/bin/busybox" --list | while read -r applet; do
  [ -e "$image/usr/bin/$applet" ] || ln -s busybox "$image/usr/bin/$applet"
done

cp /etc/ssl/certs/ca-certificates.crt "$image/etc/ssl/certs/"
cp /etc/nsswitch.conf "$image/etc/" 2>/dev/null || true
cp /etc/fuse.conf "$image/etc/"
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$image/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$image/etc/group"
