"""Images on the disk: versions whose images are gone are made of the newest one and patches."""

import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
from synced import Service, SyncTest  # noqa: E402

PARAMS = 4_000_000  # 8 MiB a version


class SyncHistory(SyncTest):
    def test_a_directory_of_files_has_a_history_too(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        service = Service(self)
        service.ready()
        for version, step in enumerate(steps[1:], 2):
            self.publish(step)
            self.wait_latest(version)
            harness.wait_until(
                lambda: harness.call("status", self.path)["history"]["recorded"] == version,
                f"patches to version {version}")
        self.assertEqual(service.stop(), 0)

    def test_once_records_what_it_noted(self):
        steps = self.make_run(6, PARAMS)
        self.init()
        for version, step in enumerate(steps, 1):
            self.publish(step)
            if version in (2, 3):
                continue  # those come with the next one, in one pass
            self.assertEqual(self.once()["version"], version)
            history = harness.call("status", self.path)["history"]
            if version > 1:
                self.assertEqual((history["recorded"], history["backlog"]), (version, 0))
                self.assertEqual((history["spans_fresh"], history["spans_from_images"]), (1, 0))
        self.assertEqual(history["levels"][0]["spans"], 3, "1 to 4, 4 to 5, 5 to 6")
        self.assertEqual((history["first"], history["versions"]), (1, 4))


class History(harness.MountTest):
    def wait_recorded(self, mount, version):
        return mount.wait_status(
            lambda status: status["history"]["recorded"] == version and
            status["history"]["backlog"] == 0, f"patches to version {version}")["history"]

    def publish_all(self, mount, steps, first):
        """One after another, each seen at the mount, and recorded."""
        for version, step in enumerate(steps, first):
            self.publish(step)
            mount.wait_version(version)
            self.wait_recorded(mount, version)

    def take_away_the_bucket(self, mount):
        os.rename(self.bucket, self.bucket + ".away")
        mount.wait_status(lambda status: status["offline_since"], "the bucket to be missed")

    def images(self, mount):
        return sorted(int(name) for name in os.listdir(os.path.join(mount.store, "images")))

    def test_old_versions_open_without_the_bucket(self):
        steps = self.make_run(12, PARAMS)
        for version, step in enumerate(steps, 1):
            harness.write_file(os.path.join(step, "state.json"), b'{"step": %d}' % version)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--store-size", "30M")
        mount.wait_version(1)
        self.publish_all(mount, steps[1:], 2)
        self.assertLessEqual(len(self.images(mount)), 3)
        self.assertNotIn(3, self.images(mount))
        history = mount.status()["history"]
        self.assertEqual((history["first"], history["versions"]), (1, 12))
        self.assertIn("back to version 1: ", harness.run("status", mount.path).stdout)

        self.take_away_the_bucket(mount)
        fetched = mount.status()["bytes"]["fetched"]
        for version in (3, 1, 9):
            self.assert_same_tree(mount.join("versions", version), steps[version - 1])
            status = mount.wait_status(lambda status: status["partial"] == [], "it to be complete")
            self.assertEqual(status["bytes"]["fetched"], fetched)

        # Another process knows the same.
        mount.umount()
        self.assertEqual(mount.start()["version"], 12)
        self.assert_same_tree(mount.join("versions/5"), steps[4])
        self.assertEqual(mount.status()["bytes"]["fetched"], 0)
        self.assert_same_tree(mount.join("latest/"), steps[11])

    def test_a_writers_mount_has_a_history_too(self):
        steps = self.make_run(4, PARAMS)
        self.init()
        mount = self.writer("--store-size", "26M")
        for version, step in enumerate(steps, 1):
            shutil.copytree(step, mount.staging(f"step-{version}"))
            os.rename(mount.staging(f"step-{version}"), mount.join("publish", f"step-{version}"))
            mount.wait_version(version)
            if version > 1:
                self.wait_recorded(mount, version)
        self.assertNotIn(1, self.images(mount))
        os.rename(self.bucket, self.bucket + ".away")
        self.assert_same_tree(mount.join("versions/1"), steps[0])

    def test_what_a_writer_publishes_is_noted_while_it_is_coded(self):
        steps = self.make_run(6, PARAMS)
        self.init()
        mount = self.writer()
        for version, step in enumerate(steps, 1):
            shutil.copytree(step, mount.staging(f"step-{version}"))
            if version > 3:  # its files are coded before they are handed over
                mount.wait_status(
                    lambda status: status["writer"].get("early", {}).get("coded_bytes", 0) > 0,
                    "a file is coded early")
            os.rename(mount.staging(f"step-{version}"), mount.join("publish", f"step-{version}"))
            mount.wait_version(version)
            if version > 1:
                history = self.wait_recorded(mount, version)
                self.assertEqual(history["spans_fresh"], version - 1, "no image was read for them")
        self.assertEqual((history["spans_from_images"], history["given_up"]), (0, 0))
        self.assertEqual(history["levels"][0]["spans"], 5, "one a version")
        self.assertGreater(mount.status()["writer"]["published"]["last"][-1]["early_bytes"], 0)

        # They lead to the right bytes.
        os.rename(self.bucket, self.bucket + ".away")
        for version in (1, 2, 5):
            self.assert_same_tree(mount.join("versions", version), steps[version - 1])

    def test_a_version_that_a_power_cut_took_is_made_again(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount()
        self.publish_all(mount, steps[1:], 2)
        mount.umount()
        # As if it had never come to the disk.
        for name in os.listdir(os.path.join(mount.store, "images", "3")):
            os.unlink(os.path.join(mount.store, "images", "3", name))
        os.rename(self.bucket, self.bucket + ".away")
        mount.start()
        mount.wait_version(3)
        self.assert_same_tree(mount.join("latest/"), steps[2])
        self.assertEqual(mount.status()["bytes"]["fetched"], 0)

    def test_without_a_history_there_are_no_patches_and_none_stay(self):
        steps = self.make_run(4, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount()
        self.publish_all(mount, steps[1:3], 2)
        mount.umount()
        mount.variables = {"WEIGHTFS_HISTORY": "0"}
        mount.start()
        history = mount.wait_status(lambda status: status["history"]["bytes"] == 0,
                                    "the patches to be gone")["history"]
        self.assertEqual(history["off"], "--history 0")
        self.publish(steps[3])
        mount.wait_version(4)
        self.assertEqual(mount.status()["history"]["bytes"], 0)
        self.assert_same_tree(mount.join("versions/1"), steps[0])

    def test_it_has_what_the_store_size_leaves_beside_two_versions(self):
        steps = self.make_run(12, PARAMS)
        self.init()
        self.publish(steps[0])
        size = sum(os.path.getsize(os.path.join(steps[0], name)) for name in os.listdir(steps[0]))
        limit = 2 * size + size // 40
        mount = self.mount("--store-size", str(limit))
        mount.wait_version(1)
        self.publish_all(mount, steps[1:], 2)
        history = mount.status()["history"]
        self.assertLessEqual(history["bytes"], history["bytes_max"])
        self.assertLessEqual(history["bytes_max"], limit - 2 * size)
        self.assertGreater(history["first"], 1)
        self.assertLess(history["first"], 11)
        self.take_away_the_bucket(mount)
        self.assert_same_tree(mount.join("versions", history["first"]),
                              steps[history["first"] - 1])

    def test_a_host_that_keeps_a_part_takes_no_patches_and_says_so(self):
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--only", "*-00001-*")
        self.publish(steps[1])
        mount.wait_version(2)
        self.assertIn("--only", mount.status()["history"]["off"])
        self.assertEqual(mount.status()["history"]["taken_bytes"], 0)
        self.assertIn("--only", harness.run("status", mount.path).stdout)


if __name__ == "__main__":
    harness.main()
