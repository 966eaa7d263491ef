"""`weightfs mount --again`: a mount whose daemon was killed comes back as it was."""

import glob
import hashlib
import json
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

FILE = "model-00001-of-00002.safetensors"


def record_of(mount_point):
    digits = hashlib.sha256(mount_point.encode()).hexdigest()[:16]
    return f"/run/weightfs/{digits}.mount"


class Again(harness.MountTest):
    def setUp(self):
        self.steps = self.make_repository(2)

    def again(self, mount, *options, **more):
        return mount.adopt(harness.call("mount", "--again", mount.path, *options, cwd="/", **more))

    def refused(self, *arguments, code, **more):
        done = harness.run("mount", *arguments, **more)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_options_environment_and_relative_paths_are_as_they_were(self):
        config = os.path.join(self.dir, "home/.config/weightfs/config.toml")
        harness.write_file(config, b'follow = "1"\n')
        mount = harness.Mount(self, self.url, name="a b", store="it's")
        mount.adopt(harness.call("mount", "./bucket", "a b/", "--store", "it's", "--uid=1000",
                                 cwd=self.dir, variables={
                                     "WEIGHTFS_SERVE": "daemon", "WEIGHTFS_KERNELS": "scalar",
                                     "HOME": os.path.join(self.dir, "home"),
                                     "HF_TOKEN": "hf_hush"}))
        before = mount.status()
        record = harness.read_file(record_of(mount.path))
        self.assertNotIn(b"hf_hush", record)
        mount.process.kill()

        done = harness.run("status", mount.path)
        self.assertTrue(done.stderr.strip().endswith(f"weightfs mount --again '{mount.path}'"),
                        done.stderr)
        self.assertIn("HF_TOKEN", self.refused("--again", mount.path, code=2))
        self.again(mount, variables={"HF_TOKEN": "hf_hush", "WEIGHTFS_UID": "7",
                                     "WEIGHTFS_WARM": "off", "WEIGHTFS_SERVE": "bind"})
        after = mount.status()
        for key in ("url", "serve", "store", "follow", "version", "kernels"):
            self.assertEqual(before[key], after[key], key)
        self.assertEqual(os.stat(mount.join("latest/")).st_uid, 1000)
        self.assertEqual(json.loads(harness.read_file(record_of(mount.path)))["words"],
                         json.loads(record)["words"])
        mount.umount()
        self.assertFalse(os.path.exists(record_of(mount.path)))

    def test_open_files_live_on(self):
        mount = self.mount("--serve", "passthrough")
        with open(mount.join("latest", FILE), "rb") as file:
            mount.process.kill()
            self.again(mount)
            self.assertEqual(file.read(), harness.read_file(os.path.join(self.steps[1], FILE)))
        self.assert_same_tree(mount.join("latest/"), self.steps[1])
        with open("/proc/self/mountinfo") as file:
            self.assertEqual(sum(line.split()[4] == mount.path for line in file), 1)

    def test_a_writer_comes_back_with_what_was_staged(self):
        mount = self.writer()
        harness.write_file(mount.join("staging", "x"), b"staged")
        mount.process.kill()
        self.again(mount)
        self.assertEqual(harness.read_file(mount.join("staging", "x")), b"staged")
        self.assertTrue(os.path.isdir(mount.join("publish")))

    def test_a_live_mount_is_left_alone(self):
        mount = self.mount()
        said = harness.call("mount", "--again", mount.path)
        self.assertEqual((said["already"], said["pid"]), (True, mount.process.pid))
        self.assertEqual(mount.status()["pid"], mount.process.pid)

    def test_a_stopped_daemon_is_named(self):
        mount = self.mount()
        os.kill(mount.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, mount.process.pid, signal.SIGCONT)
        self.assertIn(f"pid {mount.process.pid}", self.refused("--again", mount.path, code=5))
        os.kill(mount.process.pid, signal.SIGCONT)

    def test_without_a_record_it_says_what_to_do(self):
        mount = self.mount()
        mount.process.kill()
        os.remove(record_of(mount.path))
        said = self.refused("--again", mount.path, code=1)
        self.assertIn(f"weightfs mount {self.url} {mount.path}", said)
        mount.start()

    def test_a_damaged_or_older_record_is_refused(self):
        mount = self.mount()
        mount.process.kill()
        record = record_of(mount.path)
        good = json.loads(harness.read_file(record))
        for damaged in (b"", b"{}", b"[1]", json.dumps({**good, "words": [1]}).encode(),
                        json.dumps({**good, "environment": 7}).encode()):
            harness.write_file(record, damaged)
            self.assertIn("no record", self.refused("--again", mount.path, code=1))
        unknown = {**good, "words": ["mount", "x", "--bogus"]}
        harness.write_file(record, json.dumps(unknown).encode())
        self.assertIn("--bogus", self.refused("--again", mount.path, code=2))
        older = {key: good[key] for key in ("mountpoint", "pid", "command", "control")}
        harness.write_file(record, json.dumps(older).encode())
        self.assertIn(good["command"], self.refused("--again", mount.path, code=1))
        harness.write_file(record, json.dumps(good).encode())
        self.again(mount)

    def test_a_killed_mount_that_was_unmounted_by_hand_comes_back_too(self):
        mount = self.mount()
        mount.process.kill()
        os.system(f"umount {mount.path}")
        self.again(mount)
        self.assert_same_tree(mount.join("latest/"), self.steps[1])

    def test_other_options_do_not_go_with_it(self):
        mount = self.mount()
        self.assertIn("--store does not go with --again",
                      self.refused("--again", mount.path, "--store", "/x", code=2))
        self.assertIn("needs MOUNTPOINT", self.refused("--again", code=2))

    def test_killed_again_and_again(self):
        mount = self.mount()
        for _ in range(5):
            mount.process.kill()
            self.again(mount)
        self.assert_same_tree(mount.join("latest/"), self.steps[1])
        self.assertEqual(len(glob.glob(record_of(mount.path))), 1)


if __name__ == "__main__":
    harness.main()
