"""Room for the next version is made after `latest` has moved, not when it comes."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

FILE = "model-00001-of-00002.safetensors"
PARAMS = 4_000_000  # 8 MiB a version
KILLS = 12


class RoomAhead(harness.MountTest):
    def bring(self, mount, version):
        self.publish(self.steps[version - 1])
        mount.wait_version(version)

    def ahead(self, mount):
        return mount.status()["images"]["room_ahead"]

    def wait_gone(self, mount, version):
        """Until that version has gone ahead."""
        harness.wait_until(lambda: self.ahead(mount)["last"] == version, f"version {version} gone")

    def shown(self, mount):
        return sorted(map(int, os.listdir(mount.join("versions"))))

    def images(self, mount):
        return sorted(map(int, os.listdir(os.path.join(mount.store, "images"))))

    def temporary(self, mount):
        return set(os.listdir(os.path.join(mount.store, "tmp")))

    def begin(self, versions, *options):
        self.steps = self.make_run(versions, PARAMS)
        self.init()
        self.publish(self.steps[0])
        return self.mount(*options)

    def test_between_two_versions_the_next_has_its_room(self):
        mount = self.begin(6)
        for version in range(2, 7):
            self.bring(mount, version)
            if version > 2:
                self.wait_gone(mount, version - 2)
            self.assertEqual(self.shown(mount), [version - 1, version])
            self.assertEqual(self.images(mount), [version - 1, version])
        room = self.ahead(mount)
        self.assertEqual(room["versions"], 4, "every one that went did so ahead")
        self.assertGreater(room["last_ms"], 0)
        for version in (5, 6, 1):  # what has gone streams in again
            self.assert_same_tree(mount.join("versions", version), self.steps[version - 1])

    def test_in_a_store_for_two_the_one_before_latest_stays_until_the_next_comes(self):
        mount = self.begin(4, "--store-size", "20M")
        for version in range(2, 5):
            self.bring(mount, version)
            mount.wait_status(lambda status: status["unsynced"] == [], "all on the disk")
            harness.wait_until(lambda: self.shown(mount) == [version - 1, version], "two versions")
        self.assertEqual(self.ahead(mount), {"versions": 0, "last": None, "last_ms": 0})

    def test_a_host_that_is_frozen_makes_no_room(self):
        mount = self.begin(1, "--follow", "1")
        self.assertIsNone(self.ahead(mount))

    def test_what_is_read_stays_and_goes_when_it_is_closed(self):
        mount = self.begin(3)
        with open(mount.join("versions/1", FILE), "rb") as opened:
            for version in (2, 3):
                self.bring(mount, version)
            mount.wait_status(lambda status: status["unsynced"] == [], "all on the disk")
            self.assertEqual(self.shown(mount), [1, 2, 3])
            self.assertEqual(opened.read(), harness.read_file(os.path.join(self.steps[0], FILE)))
        self.wait_gone(mount, 1)  # no further version comes
        self.assertEqual(self.shown(mount), [2, 3])

    def test_a_pinned_version_stays(self):
        mount = self.begin(5)
        harness.call("pin", mount.path, "--version", 1)
        for version in range(2, 6):
            self.bring(mount, version)
        self.wait_gone(mount, 3)
        self.assertEqual(self.shown(mount), [1, 4, 5])

    def test_kill_at_random_points(self):
        mount = self.begin(5)
        version, trees = 1, [harness.hash_tree(step) for step in self.steps]
        for _ in range(KILLS):
            version += 1
            self.publish(self.steps[(version - 1) % 5])
            mount.wait_version(version)
            mount.process.has_ended(harness.RANDOM.random() * 0.2)
            mount.process.kill()
            harness.libc.umount2(mount.path.encode(), harness.MNT_DETACH)
            left = self.temporary(mount)
            self.assertEqual(mount.start()["version"], version)
            # What lies there now is this process's own: it takes the patches at once.
            self.assertEqual(self.temporary(mount) & left, set())
            self.assertLessEqual(len(self.images(mount)), 3)
            for number in self.shown(mount):
                self.assertEqual(harness.hash_tree(mount.join("versions", number)),
                                 trees[(number - 1) % 5], f"version {number}")
            self.assertIn(version - 1, self.shown(mount))


if __name__ == "__main__":
    harness.main()
