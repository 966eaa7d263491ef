"""Full disks, of the store and of the bucket. The disks are small tmpfs."""

import errno
import mmap
import os
import shutil
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

MIB = 1 << 20
PARAMS = 4_000_000  # 8 MiB a version
FILE = "model-00001-of-00002.safetensors"


def free_bytes(path):
    seen = os.statvfs(path)
    return seen.f_bavail * seen.f_frsize


class DiskFull(harness.MountTest):
    def fill(self, disk, leave, name="filler"):
        """Takes the space of a disk but for `leave` bytes; returns the function that gives it back."""
        path = os.path.join(disk, name)
        with open(path, "wb") as file:
            while (left := free_bytes(disk) - leave) > 0:
                file.write(bytes(min(left, MIB)))
                file.flush()
        return lambda: os.unlink(path)

    def failed(self, done):
        """A command that found no space: it says so, and did not crash."""
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(harness.json.loads(done.stdout)["error"]["code"], "no_space")

    def assert_stays(self, mount, step):
        status = mount.wait_status(
            lambda status: status["error"] and status["error"]["code"] == "no_space", "no space")
        self.assertEqual(status["version"], 1)
        self.assert_same_tree(mount.join("latest/"), step)
        self.assertFalse(mount.process.has_ended())

    def test_a_reader_whose_disk_is_full_stays_on_its_version_and_recovers(self):
        disk = self.tmpfs("disk", "96M")
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--min-free", "4M", store="disk/store")
        # The version is tried again all the time: nothing may be given back between the two.
        give_back = [self.fill(disk, 6 * MIB)]
        self.publish(steps[1])
        self.assert_stays(mount, steps[0])
        give_back.append(self.fill(disk, 0, "more"))
        self.assert_stays(mount, steps[0])
        # Also a daemon that starts on the full disk serves what is there.
        mount.process.kill()
        self.assertEqual(mount.start()["version"], 1)
        self.assert_stays(mount, steps[0])
        for give in give_back:
            give()
        mount.wait_version(2, timeout=90)
        self.assert_same_tree(mount.join("latest/"), steps[1])
        self.assertIsNone(mount.status()["error"])

    def test_publishing_into_a_full_bucket_fails_and_works_again(self):
        disk = self.tmpfs("disk", "48M")
        self.url = f"file://{disk}/bucket"
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        store = os.path.join(self.dir, "publisher")
        failures, leave = 0, 0
        while True:  # it gets further each time: pack, blobs, layout, manifest
            give_back = self.fill(disk, leave)
            done = harness.run("publish", self.url, steps[1], "--store", store, "--json")
            give_back()
            if done.returncode == 0:
                break
            self.failed(done)
            self.assertEqual(self.version_count(), 1)
            failures, leave = failures + 1, leave + 12 * 1024
        self.assertGreater(failures, 1)
        self.assertEqual(self.version_count(), 2)
        self.assert_clean()

    def test_publishing_with_a_full_store_fails_and_works_again(self):
        disk = self.tmpfs("disk", "96M")
        store = os.path.join(disk, "store")
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        for leave in (0, MIB, 6 * MIB):
            give_back = self.fill(disk, leave)
            self.failed(harness.run("publish", self.url, steps[1], "--store", store, "--json"))
            give_back()
        self.assertEqual(self.version_count(), 1)
        said = harness.call("publish", self.url, steps[1], "--store", store)
        self.assertEqual(said["version"], 2)
        self.assert_clean()

    def test_saves_that_need_room_do_not_wait_for_themselves_in_bind_mode(self):
        """What makes room unmounts a version, and the kernel asks the session for its path."""
        disk = self.tmpfs("disk", "192M")
        steps = self.make_repository(2, PARAMS)
        mount = self.writer("--serve", "bind", "--min-free", "64M", store="disk/store")
        mount.wait_status(lambda status: status["serve"]["bound"] == [2], "the bind mount")
        self.assert_same_tree(mount.join("versions/1/"), steps[0])  # by name: it is brought
        mount.wait_status(lambda status: status["serve"]["bound"] == [1, 2], "both bind mounts")
        # In a directory of its own each: the kernel lets one at a time create in one.
        folders = [mount.staging(f"save-{i}") for i in range(40)]
        for folder in folders:
            os.mkdir(folder)
        self.fill(disk, 63 * MIB)
        looked = time.monotonic()  # the kernel knows attributes on that path for a second
        harness.wait_until(lambda: time.monotonic() > looked + 1.5, "the kernel to have to ask")
        begin = threading.Barrier(len(folders))
        made = []

        def save(folder):
            begin.wait()
            with open(os.path.join(folder, "f"), "xb"):
                made.append(folder)

        savers = [threading.Thread(target=save, args=(folder,), daemon=True) for folder in folders]
        for saver in savers:
            saver.start()
        harness.wait_until(lambda: len(made) == len(folders), "the saves")
        self.assertEqual(mount.status()["serve"]["bound"], [2])
        self.assert_same_tree(mount.join("latest/"), steps[1])

    def refused(self, mount, name):
        """A hand-over of what the disk did not take; the reason is told."""
        with self.assertRaises(OSError) as raised:
            os.rename(mount.staging(name), mount.join("publish", name))
        self.assertEqual(raised.exception.errno, errno.EIO)
        said = harness.read_file(mount.join(".weightfs/last_error")).decode()
        self.assertIn(f"some bytes of {FILE} may be lost: the disk did not take", said)

    def test_what_a_mapping_stored_on_a_full_disk_is_not_published(self):
        """The kernel writes it when it is unmapped, and tells nobody whether it could."""
        disk = self.tmpfs("disk", "192M")
        step = self.make_run(1)[0]
        mount = self.writer("--serve", "daemon", store="disk/store")
        folder = mount.staging("step-1")
        shutil.copytree(step, folder)
        path = os.path.join(folder, FILE)
        data = harness.read_file(path)
        with open(path, "w+b") as file:
            file.write(data[:8 + int.from_bytes(data[:8], "little")])  # the header is right
            file.truncate(len(data))
            with mmap.mmap(file.fileno(), len(data)) as mapped:
                give_back = self.fill(disk, 0)
                mapped[:] = data
        give_back()
        self.refused(mount, "step-1")
        with open(os.path.join(mount.store, "weightfs.log")) as file:
            self.assertIn(f"step-1/{FILE}: some of what was stored through a mapping", file.read())
        os.mkdir(mount.staging("step-2"))  # the next record: for the mark there was no room
        mount.process.kill()
        mount.start()
        self.refused(mount, "step-1")
        os.unlink(path)
        harness.write_file(path, data)
        os.rename(folder, mount.join("publish/step-1"))
        mount.wait_version(1)
        self.assert_same_tree(mount.join("latest/"), step)

    def test_ranks_that_set_the_sizes_of_their_files_have_room_made_for_all(self):
        disk = self.tmpfs("disk", "256M")
        steps = self.make_repository(2, PARAMS)
        mount = self.writer("--min-free", "64M", store="disk/store")
        self.assert_same_tree(mount.join("versions/1/"), steps[0])  # by name: it is brought
        mount.wait_status(lambda status: status["unsynced"] == [], "both on the disk")
        images = os.path.join(mount.store, "images")
        self.assertEqual(sorted(os.listdir(images)), ["1", "2"])
        ranks = [open(mount.staging(f"rank-{rank}"), "xb") for rank in range(2)]
        for rank in ranks:
            self.addCleanup(rank.close)  # it is written later

        def has_made_room():  # not at once if version 1 is still open somewhere
            for rank in ranks:
                rank.truncate(0)
            size = (free_bytes(disk) - 64 * MIB) // 2 + 2 * MIB  # for one of them there is room
            for rank in ranks:
                rank.truncate(size)
            return os.listdir(images) == ["2"]

        harness.wait_until(has_made_room, "room for both")
        self.assert_same_tree(mount.join("latest/"), steps[1])

    def test_mounting_with_a_full_store_fails(self):
        disk = self.tmpfs("disk", "96M")
        self.make_repository(1, PARAMS)
        mount = harness.Mount(self, self.url, store="disk/store")
        for leave in (0, 6 * MIB):
            give_back = self.fill(disk, leave)
            self.failed(harness.run(*mount.arguments(), "--json"))
            self.assertFalse(os.path.ismount(mount.path))
            give_back()
        self.assertEqual(mount.start()["version"], 1)


if __name__ == "__main__":
    harness.main()
