"""`latest` moves before anything is synced: no fsync of an image, or of a record of the store, lies between
a manifest and the flip.

strace tells when the daemon calls fsync, and makes each call slow, so that one on the way would show."""

import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

CALLS = "fsync,fdatasync,sync_file_range,syncfs,sync"
LINE = re.compile(r"^\d+\s+([\d.]+) (\w+)\((?:\d+<([^>]*)>)?")


class FlipFirst(harness.MountTest):
    def start_traced(self, mount):
        self.trace = os.path.join(self.dir, "trace")
        command = ["strace", "-f", "-y", "-ttt", "-o", self.trace, "-e", f"trace={CALLS}",
                   "-e", "inject=fsync,fdatasync,sync_file_range:delay_exit=50000",
                   harness.BINARY, *map(str, mount.arguments()), "--foreground"]
        traced = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  env=harness.environment())
        self.addCleanup(traced.wait)
        self.addCleanup(subprocess.run, ["umount", "-l", mount.path], stderr=subprocess.DEVNULL)
        harness.wait_until(lambda: os.path.lexists(mount.join("latest")), "the mount")

    def syncs(self, folder):
        """[time] of all calls that synced something below a folder."""
        times = []
        with open(self.trace) as file:
            for line in file:
                found = LINE.match(line)
                if found and found[3] and (found[3] + "/").startswith(folder + "/"):
                    times.append(float(found[1]))
        return times

    def look(self, mount, version):
        """Waits for the flip; returns when `latest` was last seen to be another version."""
        before = time.time()

        def has_moved():
            nonlocal before
            now = time.time()
            if mount.latest() == version:
                return True
            before = now
            return False

        harness.wait_until(has_moved, f"version {version}")
        return before

    @staticmethod
    def wait_quiet(mount, version):
        """Nothing that follows the version syncs anything any more."""
        mount.wait_status(lambda status: status["unsynced"] == [] and
                          status["history"]["recorded"] == version and
                          status["history"]["backlog"] == 0, f"all that follows version {version}")

    def test_nothing_is_synced_before_latest_moves(self):
        steps = self.make_run(3)
        self.init()
        self.publish(steps[0])
        mount = harness.Mount(self, self.url)
        self.start_traced(mount)
        self.wait_quiet(mount, 1)
        for number in (2, 3):
            # Looking begins before the manifest is there: the command ends later than that.
            begin = time.time()
            publisher = self.start_publish(steps[number - 1])
            before = self.look(mount, number)
            _, errors = publisher.communicate(timeout=120)
            self.assertEqual(publisher.returncode, 0, errors)
            self.assert_same_tree(mount.join("latest/"), steps[number - 1])
            self.wait_quiet(mount, number)
            times = self.syncs(os.path.join(mount.store, "images", str(number)))
            self.assertGreater(len(times), 0)
            self.assertGreater(min(times), before)
            records = [at for at in self.syncs(os.path.join(mount.store, "db")) if at > begin]
            self.assertGreater(len(records), 0)
            self.assertGreater(min(records), before)


if __name__ == "__main__":
    if shutil.which("strace") is None:
        print("skipped: needs strace")
        sys.exit(harness.SKIPPED)
    harness.main()
