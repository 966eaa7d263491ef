"""Mounts of a user who is not root."""

import contextlib
import json
import os
import shutil
import subprocess

import harness

UID = 65534


class UserMounts:
    """For a harness.MountTest."""

    def make_for_user(self):
        """A mount, not mounted yet, whose place and store are the user's."""
        try:
            harness.run("--version", user=UID, group=UID, extra_groups=[])
        except PermissionError:
            self.skipTest("other users cannot run the binary where it lies")
        for program in ("fusermount3", "unshare", "setpriv"):
            if shutil.which(program) is None:
                self.skipTest(f"no {program}")
        mount = harness.Mount(self, self.url)
        os.makedirs(mount.store)
        for path in (mount.path, mount.store):
            os.chown(path, UID, UID)
        return mount

    def as_user(self, mount, options, root_unmounts=False):
        """Mounts as a user, in a mount namespace where users may open /dev/fuse, and unmounts.
        Returns how that ended, and what mount and umount said."""
        script = ('mknod "$DEVICE" c 10 229 && chmod 666 "$DEVICE" && '
                  'mount --bind "$DEVICE" /dev/fuse && (exec 3< /dev/fuse) || exit 77; '
                  f'user="setpriv --reuid {UID} --regid {UID} --clear-groups"; '
                  '$user "$0" "$@" --json && '
                  f'{"" if root_unmounts else "$user"} "$0" umount "$MNT" --json > "$ENDED"')
        mount.options = options
        variables = {"MNT": mount.path, "DEVICE": os.path.join(self.dir, "fuse"),
                     "ENDED": os.path.join(self.dir, "ended")}
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, harness.BINARY,
                               *mount.arguments()], env=harness.environment(variables),
                              capture_output=True, text=True, timeout=120)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(variables["DEVICE"])
        if done.returncode == harness.SKIPPED:
            self.skipTest(f"users cannot be given /dev/fuse: {done.stderr}")
        ended = json.loads(harness.read_file(variables["ENDED"]) or "null") if (
            os.path.exists(variables["ENDED"])) else None
        return done, json.loads(done.stdout), ended
