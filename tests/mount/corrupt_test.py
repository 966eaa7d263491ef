"""Objects that are corrupt or missing: the old version stays, the object is named, and the reader
recovers by itself once it is mended."""

import errno
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402


def spoiled(data):
    """The same with one bit changed, somewhere."""
    at = harness.RANDOM.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << harness.RANDOM.randrange(8)]) + data[at + 1:]


class Damage(harness.MountTest):
    def setUp(self):
        self.steps = self.make_repository(3)
        self.hidden = harness.read_file(self.manifest(3))
        os.unlink(self.manifest(3))
        self.mounted = self.mount()
        self.assertEqual(self.mounted.latest(), 2)

    def put(self, path, data):
        """Writes an object as a bucket does: whole or not at all."""
        harness.write_file(path + ".new", data)
        os.rename(path + ".new", path)

    def fails_and_recovers(self, damage, mend, key, code):
        """Version 3 comes with the damage; it is reported, and gone when it is mended."""
        damage()
        if not os.path.exists(self.manifest(3)):
            self.put(self.manifest(3), self.hidden)
        status = self.mounted.wait_status(lambda status: status["error"], "the error")
        self.assertIn(key, status["error"]["message"])
        self.assertEqual(status["error"]["code"], code)
        self.assertEqual(status["version"], 2)
        self.assertEqual(os.readlink(self.mounted.join("latest")), "versions/2")
        self.assertNotIn("3", os.listdir(self.mounted.join("versions")))
        self.assert_same_tree(self.mounted.join("latest/"), self.steps[1])
        with open(status["log"]) as log:
            self.assertIn(key, log.read())

        mend()
        self.mounted.wait_version(3, timeout=90)
        self.mounted.wait_status(lambda status: status["error"] is None, "no error")
        self.assert_same_tree(self.mounted.join("latest/"), self.steps[2])

    def test_a_corrupt_pack(self):
        pack = self.pack(3)
        data = harness.read_file(pack)
        self.fails_and_recovers(lambda: self.put(pack, spoiled(data)),
                                lambda: self.put(pack, data),
                                os.path.relpath(pack, self.bucket), "corrupt")

    def test_a_pack_that_is_cut_off(self):
        pack = self.pack(3)
        data = harness.read_file(pack)
        cut = harness.RANDOM.randrange(len(data))
        self.fails_and_recovers(lambda: self.put(pack, data[:cut]),
                                lambda: self.put(pack, data),
                                os.path.relpath(pack, self.bucket), "corrupt")

    def test_a_missing_pack(self):
        pack = self.pack(3)
        data = harness.read_file(pack)
        self.fails_and_recovers(lambda: os.unlink(pack), lambda: self.put(pack, data),
                                os.path.relpath(pack, self.bucket), "not_found")

    def test_a_manifest_that_is_no_manifest(self):
        self.fails_and_recovers(lambda: self.put(self.manifest(3), b"{}"),
                                lambda: self.put(self.manifest(3), self.hidden),
                                os.path.relpath(self.manifest(3), self.bucket), "corrupt")

    def test_a_version_behind_the_damage_is_reached_when_it_is_mended(self):
        pack = self.pack(3)
        data = harness.read_file(pack)
        self.put(pack, spoiled(data))
        self.put(self.manifest(3), self.hidden)
        self.mounted.wait_status(lambda status: status["error"], "the error")
        self.put(pack, data)
        self.publish(self.steps[0])
        self.put(pack, spoiled(data))
        status = self.mounted.status()
        self.put(pack, data)
        self.assertIn(status["version"], (2, 3, 4))
        self.mounted.wait_version(4, timeout=90)
        self.assert_same_tree(self.mounted.join("latest/"), self.steps[0])

    def test_versions_before_the_damaged_one_still_arrive(self):
        mount = self.mounted
        mount.umount()
        second = harness.read_file(self.manifest(2))
        os.unlink(self.manifest(2))
        mount = self.mount(name="late", store="late-store")
        self.assertEqual(mount.latest(), 1)
        pack = self.pack(3)
        data = harness.read_file(pack)
        self.put(pack, spoiled(data))
        self.put(self.manifest(3), self.hidden)
        self.put(self.manifest(2), second)
        mount.wait_status(lambda status: status["error"] and status["version"] == 2,
                          "version 2, and the error of version 3")
        self.assert_same_tree(mount.join("latest/"), self.steps[1])
        self.put(pack, data)
        mount.wait_version(3, timeout=90)
        self.assert_same_tree(mount.join("latest/"), self.steps[2])

    def test_verify_names_what_is_damaged(self):
        self.put(self.manifest(3), self.hidden)
        pack = self.pack(2)
        data = harness.read_file(pack)
        self.put(pack, spoiled(data))
        done = harness.run("verify", self.url)
        self.assertEqual(done.returncode, 4)
        self.assertIn(os.path.relpath(pack, self.bucket), done.stdout)

    def test_an_image_that_rotted_is_found_by_verify_and_not_built_upon(self):
        name = "model-00001-of-00002.safetensors"
        image = os.path.join(self.mounted.store, "images", "2", name)
        data = harness.read_file(image)
        with open(image, "r+b") as file:
            file.seek(len(data) // 2)
            file.write(bytes([data[len(data) // 2] ^ 1]))
        done = harness.run("verify", self.mounted.path)
        self.assertEqual(done.returncode, 4)
        self.assertIn(name, done.stdout)
        self.put(self.manifest(3), self.hidden)
        self.mounted.wait_version(3)
        self.assert_same_tree(self.mounted.join("latest/"), self.steps[2])

    def test_what_is_made_again_is_not_read_from_the_pages_of_the_damaged_one(self):
        """Of mounts whose daemon answers reads: the kernel caches by the mount's own inodes."""
        mount = self.mount("--serve", "daemon", name="served", store="served-store")
        name = "model-00001-of-00002.safetensors"
        image = os.path.join(mount.store, "images", "2", name)
        right = harness.read_file(image)
        with open(image, "r+b") as file:
            file.seek(len(right) // 2)
            file.write(bytes([right[len(right) // 2] ^ 1]))
        self.assertNotEqual(harness.read_file(mount.join("versions/2", name)), right)  # is cached
        self.put(self.manifest(3), self.hidden)
        mount.wait_version(3)
        self.assertEqual(harness.read_file(mount.join("versions/2", name)), right)

    def test_latest_that_is_damaged_and_cannot_be_made_again_keeps_its_name(self):
        image = os.path.join(self.mounted.store, "images", "2", "model-00001-of-00002.safetensors")
        data = harness.read_file(image)
        self.put(image, spoiled(data[:len(data) // 2]) + data[len(data) // 2:])
        pack = self.pack(2)
        os.rename(pack, pack + ".away")
        self.put(self.manifest(3), self.hidden)
        self.mounted.wait_status(lambda status: status["error"] and 2 not in status["versions"],
                                 "2 to be hidden")
        for _ in range(20):  # more than the mount has threads
            done = subprocess.run(["readlink", self.mounted.join("latest")], capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual(done.stdout.strip(), "versions/2")
        os.rename(pack + ".away", pack)
        self.mounted.wait_version(3)
        self.assert_same_tree(self.mounted.join("latest/"), self.steps[2])

    def test_an_image_that_is_lost_is_an_error_in_words_and_repaired_by_a_new_mount(self):
        images = os.path.join(self.mounted.store, "images", "2")
        shutil.rmtree(images)
        with self.assertRaises(OSError) as raised:
            open(self.mounted.join("versions/2/config.json"))
        self.assertEqual(raised.exception.errno, errno.EIO)
        with open(self.mounted.status()["log"]) as log:
            said = [line for line in log
                    if f"{os.path.join(images, 'config.json')} is missing" in line]
        self.assertEqual(len(said), 1, said)
        for words in (" error ", f"weightfs verify {self.mounted.path}", "mount again"):
            self.assertIn(words, said[0])
        self.mounted.umount()
        self.mounted.start()
        self.mounted.wait_version(2)
        self.assert_same_tree(self.mounted.join("latest/"), self.steps[1])

    def test_a_damaged_database_is_rebuilt_from_the_bucket(self):
        self.mounted.umount()
        database = os.path.join(self.mounted.store, "db")
        for name in os.listdir(database):
            if name.startswith("MANIFEST-") or name == "CURRENT":
                harness.write_file(os.path.join(database, name), b"damaged")
        self.mounted.start()
        self.mounted.wait_version(2)
        self.assert_same_tree(self.mounted.join("latest/"), self.steps[1])


if __name__ == "__main__":
    harness.main()
