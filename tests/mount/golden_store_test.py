"""Stores of older releases open as they are: nothing is fetched again, nothing staged is lost."""

import json
import os
import shutil
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
GOLDEN = os.path.join(DATA, "format-1-xr")
STORES = sorted(name for name in os.listdir(DATA) if name.startswith("store-"))


class GoldenStores(harness.MountTest):
    def setUp(self):
        with open(GOLDEN + ".json") as file:
            self.trees = [version["files"] for version in json.load(file)]

    def open_store(self, archive, *options):
        """Mounts a copy of the store with a copy of its repository, which lies elsewhere now."""
        self.bucket = os.path.join(self.dir, "bucket-" + archive)
        self.url = "file://" + self.bucket
        shutil.copytree(GOLDEN, self.bucket)
        store = "store-of-" + archive
        with tarfile.open(os.path.join(DATA, archive)) as packed:
            packed.extractall(os.path.join(self.dir, store))
        mount = harness.Mount(self, self.url, "--writer", *options, store=store)
        mount.start()
        return mount

    def test_they_show_what_they_had(self):
        self.assertGreater(len(STORES), 0)
        for archive in STORES:
            with self.subTest(archive):
                mount = self.open_store(archive)
                self.assertEqual(mount.latest(), 3)
                for version, tree in enumerate(self.trees, 1):
                    self.assertEqual(harness.hash_tree(mount.join("versions", version)), tree)
                status = mount.status()
                self.assertEqual(status["bytes"]["fetched"], 0, "nothing was fetched again")
                self.assertEqual([pin["version"] for pin in status["pins"]], [2])
                with open(mount.staging("step-9", "notes.txt")) as file:
                    self.assertTrue(file.read().startswith("staged by "))
                self.publish_on(mount)
                mount.umount()

    def publish_on(self, mount):
        """The next version, from what was there; then all of it once more."""
        staged = mount.staging("next")
        shutil.copytree(mount.join("versions", 3), staged)
        path = os.path.join(staged, "model.safetensors")
        os.chmod(path, 0o644)
        with open(path, "r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(b"\x11\x3c")
        wanted = harness.hash_tree(staged)
        os.rename(staged, mount.join("publish", "next"))
        mount.wait_version(4)
        self.assertEqual(harness.hash_tree(mount.join("versions", 4)), wanted)
        mount.umount()
        mount.start()
        self.assertEqual(mount.latest(), 4)
        self.assertEqual(harness.hash_tree(mount.join("versions", 4)), wanted)
        self.assertEqual(harness.hash_tree(mount.join("versions", 3)), self.trees[2])


if __name__ == "__main__":
    harness.main()
