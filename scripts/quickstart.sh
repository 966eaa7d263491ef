#!/usr/bin/env bash
# From nothing to a mounted checkpoint: installs what is missing, builds, makes a repository in a
# directory, publishes a run into it, mounts it, and shows what there is.
#
#   scripts/quickstart.sh            again and again, from any directory; leaves one mount
#
# Everything lies below $WEIGHTFS_DEMO (default: weightfs-demo in /var/tmp).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
as_root "$@"

need_packages "${BUILD_PACKAGES[@]}" "${DATA_PACKAGES[@]}"
say "building weightfs"
# Without the tests: what they need is not installed for a first look.
build "$ROOT/build" weightfs -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTFS_TESTS=OFF -DWEIGHTFS_BENCH=OFF
weightfs=$ROOT/build/weightfs

demo=${WEIGHTFS_DEMO:-/var/tmp/weightfs-demo}
if [ -e "$demo" ] && [ ! -e "$demo/.weightfs-quickstart" ]; then
  echo "$demo is not from an earlier quickstart; remove it or set WEIGHTFS_DEMO" >&2
  exit 1
fi
if mountpoint -q "$demo/mnt" 2>/dev/null || grep -q " $demo/mnt " /proc/self/mounts; then
  "$weightfs" umount "$demo/mnt" || "$weightfs" umount "$demo/mnt" --lazy
fi
rm -rf "$demo"
mkdir -p "$demo/mnt"
touch "$demo/.weightfs-quickstart"
bucket=file://$demo/bucket

say "a run of nine checkpoints"
/usr/bin/python3 "$ROOT/tests/support/runs.py" "$demo/run" --source auto

say "weightfs init, and publish of the first checkpoint and of eight steps"
"$weightfs" init "$bucket"
for step in "$demo"/run/step_*; do
  "$weightfs" publish "$bucket" "$step" --tag "$(basename "$step")" --store "$demo/store-trainer" |
    sed -n 1p
done

say "weightfs mount"
"$weightfs" mount "$bucket" "$demo/mnt" --store "$demo/store"

say "weightfs log"
"$weightfs" log "$bucket"
say "weightfs status"
"$weightfs" status "$demo/mnt"

say "is every byte there?  sha256 of the last checkpoint as it was saved, and through the mount"
last=$(ls -d "$demo"/run/step_* | tail -n 1)
(cd "$last" && find . -type f | LC_ALL=C sort | xargs sha256sum) >"$demo/saved.sha256"
(cd "$demo/mnt/latest/" && sha256sum -c "$demo/saved.sha256")

say "read speed"
/usr/bin/python3 "$ROOT/tests/bench/read_speed.py" --brief "$demo/mnt" "$demo/store"

say "done"
cat <<EOF
Look at it:   ls -l $demo/mnt/ $demo/mnt/latest/ $demo/mnt/tags/
Publish more: $weightfs publish $bucket DIR --tag NAME --store $demo/store-trainer
Serve it:     vllm serve $demo/mnt/latest
End it:       $weightfs umount $demo/mnt
EOF
