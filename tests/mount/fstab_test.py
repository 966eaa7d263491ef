"""The real mount(8) and fstab: mount.weightfs, in a mount namespace that has it in /sbin."""

import ctypes
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

CLONE_NEWNS = 0x20000


def setUpModule():
    """From here on this process and its children have an /sbin of their own."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "sbin", "/sbin"], check=True)
    os.symlink(os.path.abspath(harness.BINARY), "/sbin/mount.weightfs")


class Fstab(harness.MountTest):
    def setUp(self):
        self.steps = self.make_repository(2)
        self.fstab = os.path.join(self.dir, "fstab")
        self.place = harness.Mount(self, self.url, store="a,b")
        self.options = f"store={self.dir}/a\\,b,poll=0.05,_netdev,nofail,x-systemd.requires=x,user"

    def system(self, *command, code=0):
        done = subprocess.run(command, text=True, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def adopt(self):
        self.place.adopt({"pid": self.place.status()["pid"]})

    def write(self, url, options):
        harness.write_file(self.fstab, f"{url} {self.place.path} weightfs {options} 0 0\n".encode())

    def mounts(self):
        with open("/proc/self/mountinfo") as file:
            return sum(line.split()[4] == self.place.path for line in file)

    def test_a_line_of_fstab_is_mounted_once_and_unmounted(self):
        self.write(self.url, self.options)
        self.assertEqual(self.system("mount", "-T", self.fstab, "-a"), "")
        self.adopt()
        pid = self.place.process.pid
        self.assert_same_tree(self.place.join("latest/"), self.steps[1])
        self.assertEqual(self.place.status()["store"], self.place.store)
        said = self.system("mount", "-T", self.fstab, "-a", "-v")
        self.assertRegex(said, re.escape(self.place.path) + r" *: already mounted")
        self.assertEqual((self.mounts(), self.place.status()["pid"]), (1, pid))
        self.system("umount", self.place.path)
        self.assertTrue(self.place.process.has_ended(15))
        self.assertEqual(self.mounts(), 0)

    def test_another_spelling_of_the_url_is_mounted_once_too(self):
        self.write(self.url + "//", self.options)
        for _ in range(2):
            self.system("mount", "-T", self.fstab, "-a")
            self.assertEqual(self.mounts(), 1)
        self.adopt()

    def test_a_killed_daemon_is_mounted_again_by_the_same_line(self):
        """mount(8) believes a dead mount to be mounted: with the name it does as it is told."""
        self.write(self.url, self.options)
        self.system("mount", "-T", self.fstab, self.place.path)
        self.adopt()
        self.place.process.kill()
        self.place.adopt(harness.call("mount", "--again", self.place.path))
        self.assert_same_tree(self.place.join("latest/"), self.steps[1])
        self.place.process.kill()
        self.system("mount", "-t", "weightfs", self.url, self.place.path, "-o", self.options)
        self.adopt()
        self.assert_same_tree(self.place.join("latest/"), self.steps[1])
        self.assertEqual(self.mounts(), 1)

    def test_a_writer_with_a_quoted_hook(self):
        told = os.path.join(self.dir, "told")
        self.system("mount", "-t", "weightfs", self.url, self.place.path, "-v", "-n", "-s", "-o",
                    f'writer,store={self.place.store.replace(",", chr(92) + ",")},nonsense,'
                    f'hook="exec=/usr/bin/touch {told}"')
        self.adopt()
        harness.wait_until(lambda: os.path.exists(told), "the hook")
        self.assertTrue(os.path.isdir(self.place.join("staging")))

    def test_errors_are_those_that_mount_expects(self):
        mount = ("mount", "-t", "weightfs", self.url, self.place.path)
        self.assertIn("did you mean store?", self.system(*mount, "-o", "stoer=/x", code=1))
        self.assertIn("exclude each other", self.system(*mount, "-o", "ro,writer", code=1))
        absent = ("mount", "-t", "weightfs", self.url + "x", self.place.path)
        self.assertIn("weightfs init", self.system(*absent, "-o", self.options, code=32))
        self.assertEqual(self.system(*mount, "-f"), "")
        self.assertEqual(self.mounts(), 0)


if __name__ == "__main__":
    harness.main()
