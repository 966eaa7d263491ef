"""A disk that takes writes and loses them later: ext4 on a loop device whose file has no room to grow.

The file system believes that it has room; writing back fails, as on a broken disk or a full thin volume.
What was lost is still right in memory, and zeros as soon as the kernel drops it: so it must be hidden."""

import errno
import os
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import disks  # noqa: E402
import harness  # noqa: E402

MIB = 1 << 20
PARAMS = 4_000_000  # 8 MiB a version


class Reader(threading.Thread):
    """Reads all of `latest` again and again: right bytes or EIO."""

    def __init__(self, mount, trees):
        super().__init__()
        self.mount, self.trees = mount, trees
        self.is_stopped = threading.Event()
        self.passes, self.errors, self.wrong = 0, 0, []

    def run(self):
        while not self.is_stopped.is_set():
            try:
                version = self.mount.latest()
                found = harness.hash_tree(self.mount.join("versions", version))
            except OSError as error:
                if error.errno not in (errno.EIO, errno.ENOENT, errno.ESTALE):
                    self.wrong.append(error)
                self.errors += 1
                continue
            if not found:  # the version was hidden meanwhile
                self.errors += 1
                continue
            self.passes += 1
            if found != self.trees[version]:
                self.wrong.append((version, found))


class DiskLoses(harness.MountTest):
    def make_disk(self):
        """The records stay on a good disk: it is the images that are lost."""
        self.thin = self.tmpfs("thin", "64M")
        self.disk = disks.Disk(self, size=1 << 30, folder=self.thin,
                               options=("-O", "^has_journal", "-N", "2048", "-m", "0"))

    def keep_records_elsewhere(self, store):
        good = os.path.join(self.dir, "records")
        shutil.move(os.path.join(store, "db"), good)
        os.makedirs(os.path.join(store, "db"))
        subprocess.run(["mount", "--bind", good, os.path.join(store, "db")], check=True)
        self.workspace.mount_points.append(os.path.join(store, "db"))

    def fill(self):
        path = os.path.join(self.thin, "filler")
        with open(path, "wb") as file:
            try:
                while True:
                    file.write(bytes(64 << 10))
                    file.flush()
            except OSError:
                pass
        return lambda: os.truncate(path, 0)

    def drop_cached(self, store):
        """What is clean leaves memory: from here on the disk's bytes are read."""
        for parent, _, names in os.walk(os.path.join(store, "images")):
            for name in names:
                try:
                    image = os.open(os.path.join(parent, name), os.O_RDONLY)
                except FileNotFoundError:
                    continue  # removed meanwhile
                os.posix_fadvise(image, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(image)

    def file_of(self, mount):
        return mount.join("versions", "2", "model-00001-of-00002.safetensors")

    def can_open(self, path):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError:
            return False
        return True

    def open_lost(self, mount):
        """A file of version 2 while the disk has no room for it: it is shown, lost, and shown again."""
        opened = []

        def is_open():
            try:
                opened.append(os.open(self.file_of(mount), os.O_RDONLY))
            except OSError:
                return False
            return True

        harness.wait_until(is_open, "version 2 is open")
        return opened[0]

    def test_a_version_that_the_disk_lost_is_hidden_and_rebuilt(self):
        steps = self.make_run(2, PARAMS)
        trees = {i + 1: harness.hash_tree(step) for i, step in enumerate(steps)}
        self.init()
        self.publish(steps[0])
        self.make_disk()
        mount = self.mount(store="disk/store")
        mount.wait_status(lambda status: status["unsynced"] == [], "version 1 on the disk")
        mount.umount()
        self.keep_records_elsewhere(mount.store)
        mount.start()
        self.assertEqual(mount.status()["version"], 1)
        make_room = self.fill()
        reader = Reader(mount, trees)
        reader.start()
        try:
            self.publish(steps[1])
            held = self.open_lost(mount)
            status = mount.wait_status(lambda status: status["lost"] > 0, "version 2 is lost")
            with open(os.path.join(mount.store, "weightfs.log")) as file:
                self.assertIn("version 2 is lost and hidden", file.read())
            mount.wait_status(lambda status: status["error"] and "did not take"
                              in status["error"]["message"], "status says it")
            self.drop_cached(mount.store)
            make_room()
            status = mount.wait_status(lambda status: status["version"] == 2
                                       and 2 in status["versions"] and status["unsynced"] == []
                                       and status["error"] is None, "version 2 is rebuilt")
        finally:
            reader.is_stopped.set()
            reader.join()
        print(f"lost {status['lost']} times; {reader.passes} reads of a version, {reader.errors} errors",
              flush=True)
        self.assertEqual(reader.wrong, [])
        # Who opens it now must not be given what the kernel has of the lost file.
        with self.assertRaises(OSError) as raised:
            os.close(os.open(self.file_of(mount), os.O_RDONLY))
        self.assertEqual(raised.exception.errno, errno.EIO)
        os.close(held)
        harness.wait_until(lambda: self.can_open(self.file_of(mount)), "the file can be opened")
        self.assertGreater(reader.passes, 0)
        self.drop_cached(mount.store)
        self.assert_same_tree(mount.join("latest/"), steps[1])


if __name__ == "__main__":
    disks.skip_without_loop_devices()
    harness.main()
