"""A mount follows the repository: latest moves, and what is open keeps its bytes."""

import mmap
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

FILE = "model-00001-of-00002.safetensors"


class Follow(harness.MountTest):
    def follow(self, serve):
        steps = self.make_run(4)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--serve", serve)
        first = harness.read_file(os.path.join(steps[0], FILE))
        fd = os.open(mount.join("versions/1", FILE), os.O_RDONLY)  # which pins nothing
        self.addCleanup(os.close, fd)
        mapping = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        self.addCleanup(mapping.close)
        self.assertEqual(mapping[:100], first[:100])  # the other pages are not touched yet
        folder = os.open(mount.join("latest/"), os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, folder)

        for version, step in enumerate(steps[1:], 2):
            self.publish(step, "--tag", "best")
            mount.wait_version(version)
            self.assertEqual(os.readlink(mount.join("latest")), f"versions/{version}")
            self.assertEqual(os.readlink(mount.join("tags/best")), f"../versions/{version}")
            self.assert_same_tree(mount.join("latest/"), step)
        self.assertEqual(os.pread(fd, len(first), 0), first)
        self.assertEqual(mapping[:], first)
        inside = os.open(FILE, os.O_RDONLY, dir_fd=folder)
        self.addCleanup(os.close, inside)
        self.assertEqual(os.pread(inside, len(first), 0), first)

    def test_passthrough(self):
        self.follow("passthrough")

    def test_daemon(self):
        self.follow("daemon")

    def test_a_mount_of_an_empty_repository_shows_the_first_version(self):
        steps = self.make_run(1)
        self.init()
        mount = self.mount()
        self.publish(steps[0])
        mount.wait_version(1)
        self.assert_same_tree(mount.join("latest/"), steps[0])

    def test_polls_by_the_rhythm_of_the_run(self):
        """The default, `--poll auto`: what other tests replace, so that they need not wait."""
        steps = self.make_run(6)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--poll", "auto")
        self.assertIsNone(mount.status()["rhythm_ms"])
        for version, step in enumerate(steps[1:], 2):
            self.publish(step)
            mount.wait_version(version)
            self.assert_same_tree(mount.join("latest/"), step)
        rhythm = mount.wait_status(lambda status: status["rhythm_ms"], "a rhythm")["rhythm_ms"]
        self.assertLess(rhythm, 60_000)

    def test_latest_never_goes_back_and_is_always_whole(self):
        steps = self.make_run(6)
        self.init()
        self.publish(steps[0])
        mount = self.mount()
        hashes = [harness.hash_tree(step) for step in steps]
        publisher = None
        seen, to_publish = [], steps[1:]
        while True:
            version = mount.latest()
            self.assertEqual(harness.hash_tree(mount.join("versions", version)),
                             hashes[version - 1])
            seen.append(version)
            if publisher is not None and publisher.poll() is not None:
                self.assertEqual(publisher.returncode, 0, publisher.communicate())
                publisher.communicate()
                publisher = None
            if publisher is None and to_publish:
                publisher = harness.start("publish", self.url, to_publish.pop(0), "--store",
                                          os.path.join(self.dir, "publisher"))
            if publisher is None and not to_publish:
                break
        self.assertEqual(seen, sorted(seen))
        mount.wait_version(6)

    def test_versions_that_came_meanwhile_are_applied_together(self):
        steps = self.make_repository(2)
        mount = self.mount()
        mount.umount()
        more = self.make_more(steps[-1], 4)
        for step in more:
            self.publish(step)
        said = mount.start()
        self.assertIn(said["version"], (2, 6))  # what was here is shown at once
        mount.wait_version(6)
        self.assertFalse({3, 4, 5} & {int(name) for name in os.listdir(mount.join("versions"))})
        self.assert_same_tree(mount.join("latest/"), more[-1])

    def make_more(self, source, count):
        """Copies of a checkpoint, each with other bytes in a place of its own."""
        folders = []
        for i in range(count):
            folder = os.path.join(self.dir, f"more-{i}")
            os.makedirs(folder)
            for name in os.listdir(source):
                data = bytearray(harness.read_file(os.path.join(source, name)))
                if name == FILE:
                    data[-2 - 2 * i] ^= 1
                harness.write_file(os.path.join(folder, name), bytes(data))
            folders.append(folder)
        return folders

    def test_two_mounts_follow_one_repository(self):
        steps = self.make_run(2)
        self.init()
        self.publish(steps[0])
        mounts = [self.mount(name=f"mnt-{i}", store=f"store-{i}") for i in range(2)]
        self.publish(steps[1])
        for mount in mounts:
            mount.wait_version(2)
            self.assert_same_tree(mount.join("latest/"), steps[1])
        listed = {entry["mountpoint"]: entry.get("version") for entry in harness.call("status")}
        for mount in mounts:
            self.assertEqual(listed[mount.path], 2)

    def test_publishing_does_not_need_the_mounts_store(self):
        steps = self.make_run(2)
        self.init()
        self.publish(steps[0])
        mount = self.mount()
        harness.call("publish", self.url, steps[1], "--store", mount.store)  # held by the daemon
        mount.wait_version(2)
        self.assert_same_tree(mount.join("latest/"), steps[1])

    def test_commands_take_the_mount_point_for_the_url(self):
        steps = self.make_repository(2)
        mount = self.mount()
        self.assertEqual([entry["version"] for entry in harness.call("log", mount.path)], [2, 1])
        self.assertEqual(harness.call("show", mount.path)["version"], 2)
        self.assertGreater(harness.call("diff", mount.path, 1, 2)["changed"], 0)
        self.assertEqual(harness.call("verify", mount.path)["problems"], [])
        out = os.path.join(self.dir, "out")
        harness.call("export", mount.path, out, "--version", 1)
        self.assert_same_tree(out, steps[0])


if __name__ == "__main__":
    harness.main()
