"""--store-size: old versions go, but never what is read."""

import mmap
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

FILE = "model-00001-of-00002.safetensors"
PARAMS = 4_000_000  # 8 MiB a version


def shown(mount):
    """The versions that the mount lists."""
    return sorted(map(int, os.listdir(mount.join("versions"))))


class StoreSize(harness.MountTest):
    def wait_shown(self, mount, versions):
        """Room is made when `latest` has moved."""
        harness.wait_until(lambda: shown(mount) == versions, f"{versions} to be shown")

    def test_the_store_size_is_kept_but_what_is_read_stays(self):
        steps = self.make_run(6, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--store-size", "20M")  # two versions
        data = [harness.read_file(os.path.join(step, FILE)) for step in steps]

        opened = os.open(mount.join("versions/1", FILE), os.O_RDONLY)
        self.addCleanup(os.close, opened)
        self.publish(steps[1])
        mount.wait_version(2)
        with open(mount.join("versions/2", FILE), "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        for version in range(3, 7):
            self.publish(steps[version - 1])
            mount.wait_version(version)
        self.wait_shown(mount, [1, 2, 5, 6])
        self.assertEqual(os.pread(opened, len(data[0]), 0), data[0])
        self.assertEqual(mapping[:], data[1])
        self.assert_same_tree(mount.join("versions/1"), steps[0])
        self.assert_same_tree(mount.join("versions/2"), steps[1])

        mapping.close()
        self.publish(steps[0])
        mount.wait_version(7)
        self.wait_shown(mount, [1, 6, 7])
        self.assertFalse(os.path.exists(os.path.join(mount.store, "images", "2")))

    def test_a_store_that_is_too_small_for_the_next_version_stays_on_the_old_one(self):
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--store-size", "9M")
        self.publish(steps[1])
        status = mount.wait_status(lambda status: status["error"], "an error")
        self.assertEqual(status["error"]["code"], "no_space")
        self.assertIn("--store-size", status["error"]["message"])
        self.assertEqual(status["version"], 1)
        self.assertEqual(status["lag_versions"], 1)
        self.assert_same_tree(mount.join("latest/"), steps[0])

        mount.umount()
        mount.options = ("--store-size", "17M")
        mount.start()
        mount.wait_version(2)
        self.assert_same_tree(mount.join("latest/"), steps[1])


if __name__ == "__main__":
    harness.main()
