"""mount --writer --part: what several trainers hand over, each through its own mount, is one
version."""

import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import runs  # noqa: E402
import writers  # noqa: E402

RANK_FILE = "model-00002-of-00002.safetensors"  # of host 2; host 1 has the rest


class PartWriters(writers.WriterTest):
    def setUp(self):
        self.steps = self.make_run(3)
        self.init()

    def host(self, part, *options, run="run-1", **more):
        return self.writer("--part", f"{part}/2", "--run", run, *options, name=f"host-{part}",
                           store=f"host-{part}-store", **more)

    def part(self, step, part):
        """A directory with the host's files of the checkpoint."""
        path = os.path.join(self.dir, f"part-{part}-of-{os.path.basename(step)}")
        if not os.path.exists(path):
            shutil.copytree(step, path)
            for name in os.listdir(path):
                if (name == RANK_FILE) != (part == 2):
                    os.remove(os.path.join(path, name))
        return path

    def hand_part_over(self, mount, part, step, name):
        self.save_and_hand_over(mount, self.part(step, part), name)

    def waits_for_part(self, mount, name, part):
        entry = self.wait_queue(mount, name, "waiting")
        self.assertEqual((entry["missing"], entry["parts"], entry["error"]), ([part], 2, None))

    def assert_shown(self, mount, version, step):
        self.assertEqual(self.wait(mount, "--version", version), version)
        self.assert_same_tree(mount.join("versions", version), step)
        self.assertEqual(mount.latest(), version)

    def test_two_mounts_make_one_version_for_both_and_for_a_reader(self):
        hosts = {part: self.host(part) for part in (1, 2)}
        reader = self.mount(name="reader", store="reader-store")
        writer = hosts[2].status()["writer"]
        self.assertEqual((writer["part"], writer["parts"], writer["run"]), (2, 2, "run-1"))
        for version, step in enumerate(self.steps[:2], 1):
            name = f"step-{version}"
            self.hand_part_over(hosts[1], 1, step, name)
            self.waits_for_part(hosts[1], name, 2)
            status = harness.run("status", hosts[1].path).stdout
            self.assertIn(f"{name}: waiting for part 2 of 2", status)
            self.assertIn("1 of 2, run run-1", status)
            self.assertEqual(harness.read_file(hosts[1].join(".weightfs/health")).strip(),
                             b"healthy")
            self.hand_part_over(hosts[2], 2, step, name)
            for mount in hosts.values():
                self.assertEqual(self.wait(mount, "--tag", name), version)
                self.assert_shown(mount, version, step)
                self.assertEqual(os.listdir(mount.join("staging")), [])
                self.assertEqual(os.listdir(mount.join("publish")), [])
            self.assert_shown(reader, version, step)
        self.assert_clean()

    def test_publish_to_the_mount_is_a_part_too(self):
        hosts = {part: self.host(part) for part in (1, 2)}
        self.hand_part_over(hosts[1], 1, self.steps[0], "step-1")
        done = harness.call("publish", hosts[2].path, self.part(self.steps[0], 2),
                            "--tag", "step-1")
        self.assertEqual(done["version"], 1)
        self.assert_shown(hosts[2], 1, self.steps[0])
        refused = harness.run("publish", hosts[2].path, self.part(self.steps[0], 2), "--tag", "x",
                              "--part", "2/2", "--run", "run-1")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--part is for a bucket, not for a mount", refused.stderr)

    def test_a_killed_daemon_comes_back_with_its_token_and_completes(self):
        mount = self.writer("--part", "1/2", name="host-1", store="host-1-store",
                            variables={"SLURM_JOB_ID": "77"})
        self.hand_part_over(mount, 1, self.steps[0], "step-1")
        self.waits_for_part(mount, "step-1", 2)
        mount.process.kill()
        mount.adopt(harness.call("mount", "--again", mount.path))
        self.assertEqual(mount.status()["writer"]["run"], "77.0")
        self.waits_for_part(mount, "step-1", 2)
        other = self.host(2, run="77.0")
        self.hand_part_over(other, 2, self.steps[0], "step-1")
        for one in (mount, other):
            self.assertEqual(self.wait(one, "--tag", "step-1"), 1)
            self.assert_shown(one, 1, self.steps[0])
        self.assert_clean()

    def test_a_mount_with_a_new_token_finishes_what_was_handed_over_with_the_old_one(self):
        mount = self.host(1)
        self.hand_part_over(mount, 1, self.steps[0], "step-1")
        self.waits_for_part(mount, "step-1", 2)
        mount.umount()
        mount = self.host(1, run="run-2")
        other = self.host(2, run="run-1")
        self.hand_part_over(other, 2, self.steps[0], "step-1")
        for one in (mount, other):
            self.assertEqual(self.wait(one, "--tag", "step-1"), 1)
        self.assert_shown(mount, 1, self.steps[0])

    def test_a_part_that_never_comes_is_named_and_then_comes(self):
        mount = self.host(1, "--part-wait", "0.2")
        self.hand_part_over(mount, 1, self.steps[0], "step-1")
        code, error = self.wait_ends(mount, "--tag", "step-1")
        self.assertIn("part 2 of 2 did not come within 0.2 s", error["message"])
        self.assertNotEqual(code, 0)
        entry = self.wait_queue(mount, "step-1", "failed")
        self.assertEqual(entry["error"]["code"], "timed_out")
        os.rename(mount.join("publish/step-1"), mount.join("staging/step-1"))
        other = self.host(2)
        self.hand_part_over(other, 2, self.steps[0], "step-1")
        self.assertEqual(self.wait(other, "--tag", "step-1"), 1)
        self.hand_over(mount, "step-1")
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)
        self.assert_shown(mount, 1, self.steps[0])
        self.assert_clean()

    def test_other_tensors_take_snapshots_and_a_new_name(self):
        hosts = {part: self.host(part, "--part-wait", "0.5") for part in (1, 2)}
        for part, mount in hosts.items():
            self.hand_part_over(mount, part, self.steps[0], "step-1")
        for mount in hosts.values():
            self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)
        shard = os.path.join(self.steps[1], RANK_FILE)
        rows, columns = next(iter(runs.read_header(shard).values()))[1]
        harness.write_file(shard, harness.read_file(shard).replace(
            b'"shape":[%d,%d]' % (rows, columns), b'"shape":[%d,%d]' % (columns, rows)))
        for part, mount in hosts.items():
            self.hand_part_over(mount, part, self.steps[1], "step-2")
        error = self.wait_queue(hosts[2], "step-2", "failed")["error"]["message"]
        for word in (RANK_FILE, "--snapshot", "a new token (--run) or tag"):
            self.assertIn(word, error)
        self.wait_queue(hosts[1], "step-2", "failed")
        for part, mount in hosts.items():
            os.rename(mount.join("publish/step-2"), mount.join("staging/step-2"))
            mount.umount()
            hosts[part] = self.host(part, "--snapshot-every", 1)
            self.hand_over(hosts[part], "step-2", "step-2b")
        for mount in hosts.values():
            self.assertEqual(self.wait(mount, "--tag", "step-2b"), 2)
            self.assert_shown(mount, 2, self.steps[1])
        self.assert_clean()

    def test_the_command_line_refuses_what_would_do_nothing(self):
        path = os.path.join(self.dir, "mnt")
        os.makedirs(path)
        for options, words in (
                (("--part", "1/2", "--run", "a"), "--part needs --writer"),
                (("--writer", "--run", "a"), "--run needs --part"),
                (("--writer", "--part", "1/2", "--run", "a", "--part-wait", "0"), "--part-wait 0"),
                (("--writer", "--part", "1/2"), "--run"),
                (("--writer", "--part", "3/2", "--run", "a"), "no part 3 of 2")):
            done = harness.run("mount", self.url, path, *options)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    harness.main()
