"""Full disks, of the store and of the bucket. The disks are small tmpfs."""

import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

MIB = 1 << 20
PARAMS = 4_000_000  # 8 MiB a version


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
