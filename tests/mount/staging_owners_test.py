"""Who may stage and hand over: the mounting user, unless the mount says otherwise; and nobody what
is somebody else's."""

import concurrent.futures
import errno
import os
import shutil
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import writers  # noqa: E402
from writers import FILE  # noqa: E402

NOBODY, OTHER = 65534, 12345

# Holds argv[1] open for writing, says so, and renames argv[2] to argv[3] for as long as its
# standard input is open.
BUSY = """
import errno, os, select, sys
held = open(os.path.join(sys.argv[2], sys.argv[1]), "r+b")
print("begins", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        os.rename(sys.argv[2], sys.argv[3])
        sys.exit("was handed over")
    except OSError as error:
        assert error.errno == errno.EBUSY, error
"""


def as_user(uid, *command, **more):
    return subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True,
                          text=True, env={**os.environ, "LC_ALL": "C"}, **more)


class Owners(writers.WriterTest):
    def setUp(self):
        self.steps = self.make_run(2)
        self.init()
        os.chmod(os.path.join(self.dir, "run"), 0o755)

    def modes(self, mount):
        """(uid, gid, mode) of the two directories, which is the same."""
        found = {(s.st_uid, s.st_gid, stat.S_IMODE(s.st_mode))
                 for s in (os.stat(mount.join(name)) for name in ("staging", "publish"))}
        self.assertEqual(len(found), 1, found)
        return found.pop()

    def as_nobody(self, mount, *command):
        """Runs it; returns what it says if it fails, else ""."""
        done = as_user(NOBODY, *command)
        self.assertEqual(done.returncode == 0, not done.stderr, done.stderr)
        return done.stderr

    def test_only_the_mounting_user_stages_and_hands_over(self):
        mount = self.writer()
        self.assertEqual(self.modes(mount), (0, 0, 0o755))
        said = self.as_nobody(mount, "cp", "-r", self.steps[0], mount.staging("theirs"))
        self.assertIn("Permission denied", said)
        self.save(mount, self.steps[0], "step-1")
        self.assertIn("Permission denied", self.as_nobody(mount, "mv", mount.staging("step-1"),
                                                          mount.join("publish/step-1")))
        done = as_user(NOBODY, harness.BINARY, "publish", mount.path, self.steps[0], "--tag", "x")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(os.listdir(mount.staging()), ["step-1"])
        self.hand_over(mount, "step-1")
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)
        self.assertEqual(self.version_count(), 1)

    def test_another_owner(self):
        mount = self.writer("--uid", NOBODY, "--gid", OTHER)
        self.assertEqual(self.modes(mount), (NOBODY, OTHER, 0o755))
        self.assertEqual(self.as_nobody(mount, "cp", "-r", self.steps[0], mount.staging("theirs")), "")
        self.assertEqual(self.as_nobody(mount, "mv", mount.staging("theirs"),
                                        mount.join("publish/step-1")), "")
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)
        done = as_user(NOBODY, harness.BINARY, "publish", mount.path, self.steps[1], "--tag", "x")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(as_user(OTHER, "touch", mount.staging("x")).returncode, 1)

    def test_a_mode_counts_for_old_stores_too(self):
        mount = self.writer("--staging-mode", "1777")
        self.assertEqual(self.modes(mount), (0, 0, 0o1777))
        self.assertEqual(self.as_nobody(mount, "mkdir", mount.staging("kept")), "")
        mount.umount()
        mount.options = ("--writer",)
        mount.start()
        self.assertEqual(self.modes(mount), (0, 0, 0o755))
        self.assertEqual(os.listdir(mount.staging()), ["kept"])
        self.assertIn("Permission denied", self.as_nobody(mount, "mkdir", mount.staging("more")))

    def test_nobody_publishes_what_is_somebody_elses(self):
        mount = self.writer("--staging-mode", "1777")
        self.assertEqual(self.as_nobody(mount, "cp", "-r", self.steps[0], mount.staging("theirs")), "")
        # A directory that all may write into, and a private file of root in it.
        os.chmod(mount.staging("theirs"), 0o777)
        secret = mount.staging("theirs", "secret.json")
        harness.write_file(secret, b"{}")
        os.chmod(secret, 0o600)
        said = self.as_nobody(mount, "mv", mount.staging("theirs"), mount.join("publish/step-1"))
        self.assertIn("Permission denied", said)
        why = self.last_error(mount)
        self.assertIn("publish/step-1: staging/theirs/secret.json belongs to uid 0, but uid "
                      f"{NOBODY} is handing over: users can hand over only their own files", why)
        done = as_user(NOBODY, harness.BINARY, "publish", mount.path, mount.staging("theirs"),
                       "--tag", "step-1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("secret.json belongs to uid 0", done.stderr)
        self.assertEqual(self.version_count(), 0)
        self.assertIn("secret.json", os.listdir(mount.staging("theirs")))
        os.unlink(secret)
        self.assertEqual(self.as_nobody(mount, "mv", mount.staging("theirs"),
                                        mount.join("publish/step-1")), "")
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)
        self.assert_same_tree(mount.join("versions/1"), self.steps[0])

    def test_root_hands_over_what_others_saved(self):
        mount = self.writer("--staging-mode", "1777")
        self.assertEqual(self.as_nobody(mount, "cp", "-r", self.steps[0], mount.staging("theirs")), "")
        self.hand_over(mount, "theirs", "step-1")
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)

    def test_only_what_may_be_handed_over_is_uploaded_early(self):
        large, = self.make_large_run()
        mount = self.writer()
        os.chmod(mount.staging(), 0o1777)  # not publish/
        self.assertEqual(self.as_nobody(mount, "cp", "-r", large, mount.staging("theirs")), "")
        shutil.copytree(large, mount.staging("ours"))
        size = sum(os.path.getsize(os.path.join(large, name)) for name in os.listdir(large)
                   if name.endswith(".safetensors"))
        status = mount.wait_status(
            lambda status: status["writer"]["early"]["uploaded_bytes"] >= size, "the early work")
        self.assertEqual(status["writer"]["early"]["waiting_files"], 0)
        self.assertEqual(status["writer"]["early"]["coded_bytes"], size)

    def make_large_run(self):
        shutil.rmtree(os.path.join(self.dir, "run"))
        steps = self.make_run(1, 3_000_000)
        os.chmod(os.path.join(self.dir, "run"), 0o755)
        return steps

    def test_many_busy_renames_of_one_user_do_not_hold_up_another(self):
        mount = self.writer("--staging-mode", "1777")
        self.save(mount, self.steps[0], "step-1")
        renamers = 60
        for i in range(renamers):
            self.assertEqual(
                self.as_nobody(mount, "cp", "-r", self.steps[1], mount.staging(f"busy-{i}")), "")
        # Once without any of them: what a rename takes on this machine now.
        begin = time.monotonic()
        with open(mount.staging("step-1", FILE), "r+b"), self.assertRaises(OSError) as raised:
            self.hand_over(mount, "step-1")
        alone = time.monotonic() - begin
        self.assertEqual(raised.exception.errno, errno.EBUSY)
        busy = [subprocess.Popen([sys.executable, "-c", BUSY, FILE, mount.staging(f"busy-{i}"),
                                  mount.join("publish", f"busy-{i}")],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                 user=NOBODY, group=NOBODY, extra_groups=[])
                for i in range(renamers)]
        try:
            for one in busy:
                self.assertEqual(one.stdout.readline(), "begins\n")
            begin = time.monotonic()
            subprocess.run(["mv", "-T", mount.staging("step-1"), mount.join("publish/step-1")],
                           check=True)
            took = time.monotonic() - begin
        finally:
            with concurrent.futures.ThreadPoolExecutor(renamers) as threads:
                ends = list(threads.map(lambda one: one.communicate()[0] and None, busy))
        self.assertEqual(len(ends), renamers)
        self.assertEqual([one.returncode for one in busy], [0] * renamers)
        print(f"{took:.1f} s beside {renamers} busy renamers; a refusal alone {alone:.1f} s",
              file=sys.stderr)
        self.assertLess(took, renamers * alone / 3)
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)


if __name__ == "__main__":
    harness.main()
