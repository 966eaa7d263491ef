#!/usr/bin/env bash
# From nothing to a mounted checkpoint: installs what is missing, builds, makes a repository in a
# directory, publishes a run through a trainer's mount, mounts it for readers, and shows what there is.
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
build "$ROOT/build" weightfs -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTFS_TESTS=OFF -DWEIGHTFS_BENCH=OFF \
  -DWEIGHTFS_CHECK_LOCK_ORDER=OFF
weightfs=$ROOT/build/weightfs

# Absolute, for the URL, and without links, as the kernel names mounts.
demo=$(realpath -m "${WEIGHTFS_DEMO:-/var/tmp/weightfs-demo}")
if [ -e "$demo" ] && [ ! -e "$demo/.weightfs-quickstart" ]; then
  echo "$demo is not from an earlier quickstart; remove it or set WEIGHTFS_DEMO" >&2
  exit 1
fi
# end_mount DIR: if it is one, also when its daemon was killed.
end_mount() {
  findmnt --mountpoint "$1" >/dev/null || return 0
  "$weightfs" umount "$1" || "$weightfs" umount "$1" --lazy
}
end_mount "$demo/mnt"
end_mount "$demo/trainer"
rm -rf --one-file-system "$demo"  # never what is mounted in it by others
mkdir -p "$(dirname "$demo")"
mkdir "$demo"  # fails if somebody has put a link there meanwhile
mkdir "$demo/mnt" "$demo/trainer"
touch "$demo/.weightfs-quickstart"
bucket=file://$demo/bucket

say "a run of nine checkpoints"
/usr/bin/python3 "$ROOT/tests/support/runs.py" "$demo/run" --source auto

say "weightfs init, and mount --writer for the trainer"
"$weightfs" init "$bucket"
trap 'end_mount "$demo/trainer"' EXIT
"$weightfs" mount --writer "$bucket" "$demo/trainer" --store "$demo/store-trainer"

say "the first checkpoint and eight steps: saved into staging, handed over by mv, waited for"
for step in "$demo"/run/step_*; do
  tag=$(basename "$step")
  cp -r "$step" "$demo/trainer/staging/$tag"
  mv "$demo/trainer/staging/$tag" "$demo/trainer/publish/$tag"
  "$weightfs" wait "$demo/trainer" --tag "$tag"
done
end_mount "$demo/trainer"
trap - EXIT

say "weightfs mount, as on every inference host"
"$weightfs" mount "$bucket" "$demo/mnt" --store "$demo/store"
"$weightfs" wait "$demo/mnt" --ready

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
printf -v shown %q "$demo"
printf -v program %q "$weightfs"
cat <<EOF
Look at it:   ls -l $shown/mnt/ $shown/mnt/latest/ $shown/mnt/tags/
Train:        $program mount --writer file://$shown/bucket $shown/trainer --store $shown/store-trainer
              cp -r DIR $shown/trainer/staging/NAME && mv $shown/trainer/staging/NAME $shown/trainer/publish/NAME
Serve it:     vllm serve $shown/mnt/latest
End it:       $program umount $shown/mnt
EOF
