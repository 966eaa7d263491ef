"""--follow: what latest means on a host: the newest version, a tag's, or one and no other."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

PARAMS = 20_000


class FollowChoice(harness.MountTest):
    def test_a_tag_moves_latest_and_nothing_else_does(self):
        steps = self.make_run(4, PARAMS)
        self.init()
        self.publish(steps[0], "--tag", "canary")
        self.publish(steps[1])
        mount = self.mount("--follow", "canary")
        self.assert_same_tree(mount.join("latest/"), steps[0])
        status = mount.wait_status(lambda s: s["newest"] == 2, "the newest version")
        self.assertEqual((status["version"], status["lag_versions"]), (1, 1))
        self.assertEqual(status["follow"], {"what": "canary", "version": 1, "waiting": None})
        self.assertEqual(os.listdir(mount.join("versions")), ["1"])

        self.publish(steps[2], "--tag", "canary")
        self.publish(steps[3])
        mount.wait_version(3)
        self.assert_same_tree(mount.join("latest/"), steps[2])
        mount.wait_status(lambda s: s["newest"] == 4 and s["state"] == "current", "version 4")
        self.assertEqual(mount.latest(), 3)
        self.assertNotIn("4", os.listdir(mount.join("versions")))
        self.assertIn("canary: version 3", harness.run("status", mount.path).stdout)

    def test_a_frozen_host_stays(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        self.publish(steps[1])
        mount = self.mount("--follow", "1")
        self.publish(steps[2])
        mount.wait_status(lambda s: s["newest"] == 3 and s["state"] == "current", "version 3")
        self.assertEqual(mount.latest(), 1)
        self.assert_same_tree(mount.join("latest/"), steps[0])
        done = harness.run("wait", mount.path, "--newer-than", 1)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--follow 1", done.stderr)
        self.assertEqual(harness.call("wait", mount.path, "--version", 3)["version"], 3)
        self.assert_same_tree(mount.join("versions/3"), steps[2])  # by its name all the same
        self.assertEqual(mount.latest(), 1)
        mount.umount()
        mount.options = ()
        self.assertEqual(mount.start()["follow"], "latest")  # thawed
        mount.wait_version(3)

    def test_what_does_not_exist_yet_is_waited_for(self):
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        canary = self.mount("--follow", "canary")
        second = self.mount("--follow", "2", name="mnt-2", store="store-2")
        for mount, waiting in ((canary, "the tag canary"), (second, "version 2")):
            self.assertFalse(os.path.lexists(mount.join("latest")))
            status = mount.status()
            self.assertEqual((status["version"], status["newest"]), (0, 1))
            self.assertEqual(status["follow"]["waiting"], waiting)
            self.assertIn(f"{waiting}, which does not exist yet",
                          harness.run("status", mount.path).stdout)
        self.publish(steps[1], "--tag", "canary")
        for mount in (canary, second):
            mount.wait_version(2)
            self.assert_same_tree(mount.join("latest/"), steps[1])

    def test_a_writer_follows_itself(self):
        self.init()
        done = harness.run("mount", self.url, os.path.join(self.dir, "mnt"), "--writer",
                           "--follow", "3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--follow 3 is for readers", done.stderr)


if __name__ == "__main__":
    harness.main()
