"""mount --only: a host keeps a part of every version, and shows, and serves, the whole."""

import mmap
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"
KEEP_FIRST, KEEP_SECOND = ("--only", "*-00001-of-*"), ("--only", "*-00002-of-*")
PARAMS = 1_000_000  # 1 MiB a shard


class Only(harness.MountTest):
    def images(self, mount, version):
        """Names of the files of a version that lie in the store."""
        return sorted(os.listdir(os.path.join(mount.store, "images", str(version))))

    def snapshot(self, version, name):
        """The object of one file of a snapshot."""
        folder = self.object(f"snapshots/{version}")
        (nonce,) = os.listdir(folder)
        return os.path.join(folder, nonce, name)

    def passthrough_opens(self, mount, path):
        """How many files are open by passthrough while `path` is; None if there is none here."""
        if mount.status()["serve"]["mode"] != "passthrough":
            return None
        with open(path, "rb"):
            return mount.status()["serve"]["open_passthrough"]

    def test_what_fits_is_kept_and_the_whole_is_shown(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        self.publish(steps[1])
        away = self.snapshot(1, FIRST)
        os.rename(away, away + ".away")  # so nothing of it can be fetched
        mount = self.mount(*KEEP_SECOND)
        for version, step in list(enumerate(steps, 1))[1:]:
            if version > 2:
                self.publish(step)
                mount.wait_version(version)
            self.assertEqual(self.images(mount, version),
                             ["config.json", SECOND, "model.safetensors.index.json"])
            for name in os.listdir(step):
                self.assertEqual(os.stat(mount.join("latest", name)).st_size,
                                 os.stat(os.path.join(step, name)).st_size)
            for name in ("config.json", SECOND):  # a load that ends with config begins another one
                self.assert_same_file(mount.join("latest", name), os.path.join(step, name))
        self.assertIn(self.passthrough_opens(mount, mount.join("versions/3", SECOND)), (None, 1))
        status = mount.status()
        self.assertEqual(status["kept"]["only"], [KEEP_SECOND[1]])
        sizes = {name: os.stat(os.path.join(steps[2], name)).st_size for name in os.listdir(steps[2])}
        self.assertEqual(status["kept"]["version_bytes"], sum(sizes.values()))
        self.assertEqual(status["kept"]["kept_bytes"], sum(sizes.values()) - sizes[FIRST])
        self.assertEqual(status["kept"]["made_bytes"], 0)
        self.assertLess(status["bytes"]["images"], 2 * (sum(sizes.values()) - sizes[FIRST]) + 1)
        self.assertIn("only *-00002-of-*", harness.run("status", mount.path).stdout)

        # What is not here is an error until it can be had, and never other bytes.
        with self.assertRaises(OSError):
            harness.read_file(mount.join("versions/3", FIRST))
        os.rename(away + ".away", away)
        for version in (3, 1):
            data = harness.read_file(os.path.join(steps[version - 1], FIRST))
            with open(mount.join(f"versions/{version}", FIRST), "rb") as file:
                self.assertEqual(os.pread(file.fileno(), 5000, 700_000), data[700_000:705_000])
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
                    self.assertEqual(mapping[:], data)
                self.assertEqual(file.read(), data)
            self.assert_same_tree(mount.join(f"versions/{version}"), steps[version - 1])
        for version in (3, 1):  # version 1 was only opened by name
            mount.wait_status(lambda s: version in s["versions"], f"version {version}")
            self.assertNotIn(FIRST, self.images(mount, version))
        self.assertGreaterEqual(mount.status()["kept"]["made_bytes"], 2 * sizes[FIRST] - 4096)
        self.assertEqual(harness.run("verify", mount.path).returncode, 0)

        # The delta is that of all files.
        exported = os.path.join(self.dir, "delta.safetensors")
        harness.call("export", self.url, exported, "--from", 2, "--to", 3)
        self.assert_same_file(mount.join("deltas/3.safetensors"), exported)

    def test_what_is_kept_may_change_from_one_mount_to_the_next(self):
        steps = self.make_repository(2, PARAMS)
        mount = self.mount(*KEEP_SECOND)
        self.assertNotIn(FIRST, self.images(mount, 2))
        mount.umount()

        mount.options = ()  # all: what is here is shown at once, and the rest comes
        mount.start()
        self.assertEqual(mount.latest(), 2)
        self.assert_same_tree(mount.join("versions/2"), steps[1])
        harness.call("wait", mount.path, "--ready", "--timeout", 60)
        self.assertIn(FIRST, self.images(mount, 2))
        self.assertIn(self.passthrough_opens(mount, mount.join("versions/2", FIRST)), (None, 1))
        self.assert_same_tree(mount.join("versions/2"), steps[1])
        mount.umount()

        mount.options = KEEP_FIRST  # what is here stays, and what comes is less
        mount.start()
        self.publish(steps[0])
        mount.wait_version(3)
        self.assertEqual(self.images(mount, 3), ["config.json", FIRST, "model.safetensors.index.json"])
        self.assertIn(SECOND, self.images(mount, 2))
        self.assert_same_tree(mount.join("versions/3"), steps[0])
        mount.umount()

        mount.options = KEEP_SECOND  # the newest lacks just what is wanted
        mount.start()
        harness.call("wait", mount.path, "--ready", "--timeout", 60)
        self.assertIn(SECOND, self.images(mount, 3))
        self.publish(steps[1])
        mount.wait_version(4)
        self.assertEqual(self.images(mount, 4), ["config.json", SECOND, "model.safetensors.index.json"])
        self.assert_same_tree(mount.join("versions/4"), steps[1])

    def test_without_the_bucket_what_is_kept_is_served(self):
        steps = self.make_repository(2, PARAMS)
        mount = self.mount(*KEEP_SECOND)
        mount.umount()
        os.rename(self.bucket, self.bucket + ".away")
        self.assertTrue(mount.start()["offline"])
        self.assertEqual(harness.read_file(mount.join("latest", SECOND)),
                         harness.read_file(os.path.join(steps[1], SECOND)))
        self.assertEqual(os.stat(mount.join("latest", FIRST)).st_size,
                         os.stat(os.path.join(steps[1], FIRST)).st_size)
        with open(mount.join("versions/2", FIRST), "rb", buffering=0) as file:
            reader = os.fork()
            if reader == 0:
                try:
                    os._exit(0 if len(file.read(1000)) == 1000 else 1)
                finally:
                    os._exit(2)
            os.rename(self.bucket + ".away", self.bucket)  # back before it gives up
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]), 0)
        self.assert_same_tree(mount.join("versions/2"), steps[1])

    def test_an_open_file_outlives_its_versions_name(self):
        """The catalog knows the last 64 versions that were opened by name; readers know more."""
        forgotten = 66
        steps = self.make_run(2, 50_000)
        self.init()
        self.publish(steps[0])
        for _ in range(forgotten):
            self.publish(steps[1])
        mount = self.mount(*KEEP_SECOND)
        data = harness.read_file(os.path.join(steps[0], FIRST))
        with open(mount.join("versions/1", FIRST), "rb", buffering=0) as file:
            for version in range(2, forgotten + 1):
                os.stat(mount.join("versions", str(version)))
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self.assertEqual(file.read(), data)
            self.assertEqual(mapping[:], data)

    def test_a_glob_that_fits_nothing_is_a_warning(self):
        steps = self.make_repository(1, PARAMS)
        mount = self.mount("--only", "model-00001-of-00004*", "--only", "sub/*")
        self.assertEqual(self.images(mount, 1), ["config.json", "model.safetensors.index.json"])
        log = harness.read_file(os.path.join(mount.store, "weightfs.log")).decode()
        self.assertIn("--only matches no weights file of version 1", log)
        self.assert_same_tree(mount.join("latest/"), steps[0])

    def test_it_is_for_readers_mounts(self):
        self.init()
        path = os.path.join(self.dir, "never")
        os.mkdir(path)
        for arguments, why in ((("mount", self.url, path, "--writer", *KEEP_FIRST), "--only"),
                               (("sync", self.url, path, *KEEP_FIRST), "--only"),
                               (("mount", self.url, path, "--only", ""), "--only")):
            done = harness.run(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(why, done.stderr)
        self.assertEqual(os.listdir(path), [])


if __name__ == "__main__":
    harness.main()
