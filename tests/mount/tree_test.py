"""What the mount shows: names, attributes, permissions, and that nothing can be changed."""

import errno
import os
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402


class Tree(harness.MountTest):
    def setUp(self):
        self.steps = self.make_run(2)
        harness.write_file(os.path.join(self.steps[1], "sub", "dir", "notes.txt"), b"notes\n")
        self.init()

    def test_is_empty_before_the_first_version(self):
        mount = self.mount()
        self.assertEqual(sorted(os.listdir(mount.path)), [".weightfs", "deltas", "tags", "versions"])
        self.assertFalse(os.path.lexists(mount.join("latest")))
        self.assertEqual(os.listdir(mount.join("versions")), [])
        self.assertEqual(os.listdir(mount.join("tags")), [])
        self.assertEqual(mount.status()["version"], 0)

    def test_shows_versions_tags_and_latest(self):
        mount = self.mount()
        self.publish(self.steps[0], "--tag", "first")
        mount.wait_version(1)
        self.publish(self.steps[1], "--tag", "second")
        mount.wait_version(2)
        self.assertEqual(sorted(os.listdir(mount.path)),
                         [".weightfs", "deltas", "latest", "tags", "versions"])
        self.assertEqual(os.readlink(mount.join("latest")), "versions/2")
        self.assertEqual(sorted(os.listdir(mount.join("versions"))), ["1", "2"])
        self.assertEqual(os.readlink(mount.join("tags/first")), "../versions/1")
        self.assertEqual(os.readlink(mount.join("tags/second")), "../versions/2")
        self.assert_same_tree(mount.join("versions/1"), self.steps[0])
        self.assert_same_tree(mount.join("latest/"), self.steps[1])
        self.assert_same_tree(mount.join("tags/second/"), self.steps[1])

    def test_attributes_are_those_of_the_manifest(self):
        self.publish(self.steps[1])
        mount = self.mount()
        time = harness.call("show", self.url, 1)["time"]
        for parent, folders, files in os.walk(mount.join("versions/1")):
            for name in folders + files:
                path = os.path.join(parent, name)
                seen = os.stat(path)
                self.assertEqual((seen.st_uid, seen.st_gid), (0, 0))
                self.assertEqual(seen.st_mtime, time)
                self.assertEqual(stat.S_IMODE(seen.st_mode), 0o555 if name in folders else 0o444)
                if name in files:
                    source = os.path.join(self.steps[1],
                                          os.path.relpath(path, mount.join("versions/1")))
                    self.assertEqual(seen.st_size, os.path.getsize(source))

    def test_owner_and_umask_can_be_chosen(self):
        self.publish(self.steps[0])
        mount = self.mount("--uid", "1001", "--gid", "1002", "--umask", "027")
        seen = os.stat(mount.join("latest/config.json"))
        self.assertEqual((seen.st_uid, seen.st_gid), (1001, 1002))
        self.assertEqual(stat.S_IMODE(seen.st_mode), 0o640)
        self.assertEqual(stat.S_IMODE(os.stat(mount.join("versions/1")).st_mode), 0o750)

    def test_another_user_can_read(self):
        self.publish(self.steps[0])
        for serve in ("passthrough", "daemon"):
            mount = self.mount("--serve", serve, name=serve, store="store-" + serve)
            name = "model-00001-of-00002.safetensors"
            path = mount.join("latest", name)
            done = subprocess.run(["sha256sum", path], user=65534, group=65534, extra_groups=[],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.split()[0],
                             harness.hash_tree(self.steps[0])[name])

    def test_another_user_cannot_read_the_store(self):
        self.publish(self.steps[0])
        mount = self.mount()
        done = subprocess.run(["ls", mount.store], user=65534, group=65534, extra_groups=[],
                              capture_output=True)
        self.assertNotEqual(done.returncode, 0)

    def test_the_kernel_knows_type_source_and_options(self):
        mount = self.mount()
        with open("/proc/self/mounts") as file:
            lines = [line.split() for line in file if line.split()[1] == mount.path]
        self.assertEqual(len(lines), 1)
        source, _, kind, options = lines[0][:4]
        self.assertEqual(source, self.url)
        self.assertEqual(kind, "fuse.weightfs")
        for option in ("ro", "nosuid", "nodev", "allow_other", "default_permissions"):
            self.assertIn(option, options.split(","))

    def test_what_is_absent_is_absent(self):
        self.publish(self.steps[0])
        mount = self.mount()
        for name in ("nothing", "versions/2", "versions/01", "versions/x", "versions/0", "tags/x",
                     "latest/nothing", "latest/config.json/x", ".weightfs/x", "staging", "publish"):
            self.assertFalse(os.path.lexists(mount.join(name)), name)

    def test_a_name_that_was_absent_is_not_remembered(self):
        mount = self.mount()
        self.assertFalse(os.path.lexists(mount.join("versions/1")))
        self.assertFalse(os.path.lexists(mount.join("tags/first")))
        self.publish(self.steps[0], "--tag", "first")
        mount.wait_version(1)
        self.assertTrue(os.path.isdir(mount.join("versions/1")))
        self.assertTrue(os.path.isdir(mount.join("tags/first")))
        self.assertTrue(os.path.isdir(mount.join("latest")))

    def test_inode_numbers_follow_from_version_and_file_and_stay_after_a_restart(self):
        self.publish(self.steps[1])
        mount = self.mount()
        before = inode_numbers(mount.path)
        for path, number in before.items():
            if path.startswith("versions/1"):
                self.assertEqual(number >> 60, 1, path)
                self.assertEqual(number >> 24 & (1 << 36) - 1, 1, path)
        self.assertEqual(len(set(before.values())), len(before))
        mount.umount()
        mount.start()
        self.assertEqual(inode_numbers(mount.path), before)
        mount.process.kill()
        mount.start()
        self.assertEqual(inode_numbers(mount.path), before)

    def test_nothing_can_be_changed(self):
        self.publish(self.steps[1])
        mount = self.mount()
        before = harness.hash_tree(mount.join("versions"))
        for name, change in changes(mount).items():
            with self.assertRaises(OSError, msg=name) as raised:
                change()
            self.assertEqual(raised.exception.errno, errno.EROFS, name)
        self.assertEqual(harness.hash_tree(mount.join("versions")), before)


def inode_numbers(root):
    numbers = {}
    for parent, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(parent, name)
            numbers[os.path.relpath(path, root)] = os.lstat(path).st_ino
    return numbers


def changes(mount):
    """Every system call that changes something, on a file, a directory and a symlink."""
    file, folder = mount.join("versions/1/config.json"), mount.join("versions/1/sub")
    new = mount.join("versions/1/new")

    def opened(path, flags):
        return lambda: os.close(os.open(path, flags, 0o644))

    return {
        "open for writing": opened(file, os.O_WRONLY),
        "open for both": opened(file, os.O_RDWR),
        "open and append": opened(file, os.O_WRONLY | os.O_APPEND),
        "open and truncate": opened(file, os.O_WRONLY | os.O_TRUNC),
        "create": opened(new, os.O_WRONLY | os.O_CREAT),
        "create exclusively": opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        "create at the root": opened(mount.join("new"), os.O_WRONLY | os.O_CREAT),
        "create in versions": opened(mount.join("versions/new"), os.O_WRONLY | os.O_CREAT),
        "create in tags": opened(mount.join("tags/new"), os.O_WRONLY | os.O_CREAT),
        "write the status": opened(mount.join(".weightfs/status"), os.O_WRONLY),
        "temporary file": opened(folder, os.O_TMPFILE | os.O_WRONLY),
        "truncate": lambda: os.truncate(file, 0),
        "mkdir": lambda: os.mkdir(new),
        "mkdir in versions": lambda: os.mkdir(mount.join("versions/3")),
        "rmdir": lambda: os.rmdir(folder),
        "unlink": lambda: os.unlink(file),
        "unlink latest": lambda: os.unlink(mount.join("latest")),
        "rename": lambda: os.rename(file, new),
        "rename a version": lambda: os.rename(mount.join("versions/1"), mount.join("versions/2")),
        "replace latest": lambda: os.rename(file, mount.join("latest")),
        "link": lambda: os.link(file, new),
        "symlink": lambda: os.symlink("config.json", new),
        "mknod": lambda: os.mknod(new, stat.S_IFIFO | 0o644),
        "chmod": lambda: os.chmod(file, 0o777),
        "chmod a directory": lambda: os.chmod(folder, 0o777),
        "chown": lambda: os.chown(file, 1, 1),
        "lchown": lambda: os.lchown(mount.join("latest"), 1, 1),
        "utime": lambda: os.utime(file, (1, 1)),
        "setxattr": lambda: os.setxattr(file, "user.x", b"y"),
        "removexattr": lambda: os.removexattr(file, "user.x"),
    }


if __name__ == "__main__":
    harness.main()
