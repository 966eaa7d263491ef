"""scripts/quickstart.sh, without the build: wherever its place is, and again and again."""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

SUPPORT = os.path.join(harness.ROOT, "tests", "support")
RUNS = f"""import sys
sys.path.insert(0, {SUPPORT!r})
import runs
runs.make_run(sys.argv[1], 2, 20_000)
"""


class Quickstart(harness.MountTest):
    def setUp(self):
        """A checkout in which all is built, nothing is missing, and a run is small."""
        self.checkout = os.path.join(self.dir, "checkout")
        for path, text in (
                ("scripts/lib.sh", f"source '{harness.ROOT}/scripts/lib.sh'\n"
                                   f"ROOT='{self.checkout}'\n"
                                   "as_root() { :; }; need_packages() { :; }; build() { :; }\n"),
                ("tests/support/runs.py", RUNS), ("tests/bench/read_speed.py", "")):
            harness.write_file(os.path.join(self.checkout, path), text.encode())
        self.script = shutil.copy(os.path.join(harness.ROOT, "scripts", "quickstart.sh"),
                                  os.path.join(self.checkout, "scripts"))
        os.mkdir(os.path.join(self.checkout, "build"))
        os.symlink(os.path.abspath(harness.BINARY), os.path.join(self.checkout, "build/weightfs"))
        # Its place is named through a link, and has a name that /proc/self/mounts escapes.
        self.place = os.path.join(self.dir, "real", "a demo")
        os.mkdir(os.path.join(self.dir, "real"))
        os.symlink("real", os.path.join(self.dir, "link"))
        self.mnt, self.trainer = (os.path.join(self.place, name) for name in ("mnt", "trainer"))
        self.workspace.mount_points += [self.mnt, self.trainer]

    def quickstart(self, demo):
        done = subprocess.run(
            ["bash", self.script], cwd=self.dir, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=harness.LIMIT,
            env=harness.environment({"WEIGHTFS_DEMO": demo}))
        if done.returncode == 0:
            self.assert_same_tree(os.path.join(self.mnt, "latest/"),
                                  os.path.join(self.place, "run", "step_000001"))
        return done

    def run_it(self, demo):
        done = self.quickstart(demo)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:])

    def test_a_relative_place(self):
        self.run_it("link/a demo")
        harness.umount(self.mnt)

    def test_it_ends_its_own_mounts_before_it_begins_again(self):
        demo = os.path.join(self.dir, "link", "a demo") + "/"
        self.run_it(demo)
        self.run_it(demo)
        pid = harness.call("status", self.mnt)["pid"]
        harness.Process(pid).kill()
        self.run_it(demo)
        self.assertEqual(self.daemons(), [harness.call("status", self.mnt)["pid"]])
        harness.umount(self.mnt)

    def daemons(self):
        """Those of mounts below its place that are still alive."""
        return [one["pid"] for one in harness.call("status")
                if one["mountpoint"].startswith(self.place)]

    def test_what_it_cannot_end_is_not_removed(self):
        """Here something else is mounted where the trainer's mount was."""
        os.makedirs(self.trainer)
        marker = os.path.join(self.place, ".weightfs-quickstart")
        harness.write_file(marker, b"")
        self.tmpfs("real/a demo/trainer/foreign", "1M")
        saved = os.path.join(self.trainer, "foreign", "saved")
        harness.write_file(saved, b"saved")
        done = self.quickstart(self.place)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(harness.read_file(saved), b"saved")


if __name__ == "__main__":
    harness.main()
