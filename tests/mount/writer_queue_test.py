"""What was handed over waits for the bucket, for its turn, and for another mount; fences hold."""

import concurrent.futures
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import writers  # noqa: E402

WRITERS = 8


class Queue(writers.WriterTest):
    def setUp(self):
        self.steps = self.make_run(4)
        self.init()

    # ---- the bucket ----

    def test_a_hand_over_waits_for_the_bucket_and_staging_goes_on(self):
        mount = self.writer()
        self.publish_through(mount, self.steps[0], "step-1")
        self.take_bucket_away()
        self.save_and_hand_over(mount, self.steps[1], "step-2")
        entry = self.wait_queue(mount, "step-2", "waiting")
        self.assertEqual(entry["error"]["code"], "unavailable")
        self.assertIn(self.bucket, entry["error"]["message"])
        done = harness.run("wait", mount.path, "--tag", "step-2", "--timeout", "0.05")
        self.assertEqual(done.returncode, 5)
        self.assertIn("step-2: waiting for the bucket: ", done.stderr)
        self.save_and_hand_over(mount, self.steps[2], "step-3")
        shutil.copytree(mount.join("staging"), os.path.join(self.dir, "copy"))
        self.assert_same_tree(mount.join("latest/"), self.steps[0])
        self.bring_bucket_back()
        self.assertEqual(self.wait(mount, "--tag", "step-3"), 3)
        self.assertEqual(self.wait(mount, "--tag", "step-2"), 2)
        self.assert_same_tree(mount.join("versions/2"), self.steps[1])
        self.assert_same_tree(mount.join("versions/3"), self.steps[2])
        self.assertEqual(mount.status()["writer"]["queue"], [])
        self.assert_clean()

    # ---- fences ----

    def conflict(self, *options):
        """A writer's mount, and a version of another publisher that it did not expect."""
        mount = self.writer(*options)
        self.publish_through(mount, self.steps[0], "step-1")
        self.publish(self.steps[1], "--tag", "other")
        self.save_and_hand_over(mount, self.steps[2], "step-2")
        return mount

    def test_another_publisher_is_a_conflict_until_the_next_mount(self):
        mount = self.conflict()
        code, error = self.wait_ends(mount, "--tag", "step-2")
        self.assertEqual((code, error["code"]), (3, "conflict"))
        self.assertIn("step-2", error["message"])
        entry = self.queue(mount)["step-2"]
        self.assertEqual((entry["state"], entry["error"]["code"]), ("conflict", "conflict"))
        self.assertIn("step-2: conflict: ", harness.run("status", mount.path).stdout)
        self.assertEqual(os.listdir(mount.join("publish")), ["step-2"])

        os.rename(mount.join("publish/step-2"), mount.join("staging/step-2"))
        self.assert_same_tree(mount.join("staging/step-2"), self.steps[2])
        self.hand_over(mount, "step-2")
        self.assertEqual(self.wait_ends(mount, "--tag", "step-2")[0], 3)  # still the same mount
        os.rename(mount.join("publish/step-2"), mount.join("staging/step-2"))
        mount.umount()
        mount.start()
        self.hand_over(mount, "step-2")
        self.assertEqual(self.wait(mount, "--tag", "step-2"), 3)
        self.assert_same_tree(mount.join("latest/"), self.steps[2])
        self.assert_clean()

    def test_a_rebase_goes_on_from_the_newest_version(self):
        mount = self.conflict()
        _, error = self.wait_ends(mount, "--tag", "step-2")
        command = f"weightfs rebase {mount.path}"
        self.assertIn(f"run: {command} ", error["message"])
        self.assertIn(command, harness.run("status", mount.path).stdout)
        self.save_and_hand_over(mount, self.steps[3], "step-3")
        self.assertEqual(self.wait_ends(mount, "--tag", "step-3")[0], 3)
        done = harness.run(*command.split()[1:])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, f"{mount.path} continues from version 2\n"
                         "publish/step-2 is retried\npublish/step-3 is retried\n")
        self.assertEqual(self.wait(mount, "--tag", "step-2"), 3)
        self.assertEqual(self.wait(mount, "--tag", "step-3"), 4)
        self.assert_same_tree(mount.join("versions/3"), self.steps[2])
        self.assert_same_tree(mount.join("latest/"), self.steps[3])
        self.assertEqual(self.publish_through(mount, self.steps[1], "step-4"), 5)
        self.assert_clean()

    def test_a_rebase_without_a_conflict_is_for_what_comes(self):
        mount = self.writer()
        self.publish_through(mount, self.steps[0], "step-1")
        self.publish(self.steps[1], "--tag", "other")
        self.assertEqual(harness.call("rebase", mount.path),
                         {"mountpoint": mount.path, "version": 2, "retried": []})
        self.assertEqual(self.publish_through(mount, self.steps[2], "step-2"), 3)

    def test_who_may_not_hand_over_may_not_rebase(self):
        mount = self.conflict()
        self.wait_queue(mount, "step-2", "conflict")
        done = harness.run("rebase", mount.path, user=65534, group=65534, extra_groups=[])
        self.assertEqual(done.returncode, 1)
        self.assertIn("uid 65534 has no permission to write to publish/", done.stderr)
        self.assertEqual(self.queue(mount)["step-2"]["state"], "conflict")
        reader = self.mount(name="reader", store="reader-store")
        done = harness.run("rebase", reader.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is a reader's mount", done.stderr)

    def test_publish_tells_of_a_conflict_too(self):
        mount = self.conflict()
        done = harness.run("publish", mount.path, self.steps[3], "--tag", "step-3", "--json")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(harness.json.loads(done.stdout)["error"]["code"], "conflict")
        said = harness.call("publish", mount.path, self.steps[3], "--tag", "step-4", "--rebase")
        self.assertEqual(said["version"], 3)
        self.assert_same_tree(mount.join("latest/"), self.steps[3])

    def test_a_mount_that_rebases_takes_the_winner_for_its_parent(self):
        mount = self.conflict("--rebase")
        self.assertEqual(self.wait(mount, "--tag", "step-2"), 3)
        self.assertEqual([entry["tag"] for entry in harness.call("log", self.url)],
                         ["step-2", "other", "step-1"])
        self.assert_same_tree(mount.join("latest/"), self.steps[2])
        self.assert_clean()

    # ---- other mounts ----

    def test_umount_names_the_queue_and_the_next_writers_mount_goes_on(self):
        mount = self.writer()
        self.publish_through(mount, self.steps[0], "step-1")
        self.take_bucket_away()
        for i in (1, 2):
            self.save_and_hand_over(mount, self.steps[i], f"step-{i + 1}")
        self.save(mount, self.steps[3], "unfinished")
        said = harness.run("umount", mount.path)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("2 hand-overs wait in the store: step-2, step-3", said.stdout)
        self.assertIn(f"--writer with --store {mount.store}", said.stdout)
        self.assertTrue(mount.process.has_ended(10))

        reader = harness.Mount(self, self.url)  # on the same store
        reader.start()
        self.assertEqual(reader.status()["queued"], ["step-2", "step-3"])
        self.assertIsNone(reader.status()["writer"])
        self.assertIn("2 hand-overs wait", harness.run("status", reader.path).stdout)
        self.assertFalse(os.path.exists(reader.join("staging")))
        self.assertEqual(harness.umount(reader.path)["queued"], ["step-2", "step-3"])

        mount.start()  # the bucket is still away
        self.assertEqual(sorted(os.listdir(mount.join("publish"))), ["step-2", "step-3"])
        self.assert_same_tree(mount.join("publish/step-2"), self.steps[1])
        self.assert_same_tree(mount.join("staging/unfinished"), self.steps[3])
        self.bring_bucket_back()
        self.assertEqual(self.wait(mount, "--tag", "step-3"), 3)
        self.assert_same_tree(mount.join("versions/2"), self.steps[1])
        self.assert_clean()

    def test_of_eight_writers_the_losers_are_told_and_come_after(self):
        base = self.publish(self.steps[0])["version"]
        mounts = [self.writer(name=f"mnt-{i}", store=f"store-{i}") for i in range(WRITERS)]

        def race(i):
            self.save_and_hand_over(mounts[i], self.steps[1 + i % 3], f"writer-{i}")
            code, error = self.wait_ends(mounts[i], "--tag", f"writer-{i}")
            self.assertIn((code, error and error["code"]), [(0, None), (3, "conflict")])
            return code

        def come_after(i):
            back = mounts[i].join("staging/again")
            os.rename(mounts[i].join(f"publish/writer-{i}"), back)
            harness.call("publish", mounts[i].path, back, "--tag", f"writer-{i}", "--rebase")

        with concurrent.futures.ThreadPoolExecutor(WRITERS) as threads:
            codes = list(threads.map(race, range(WRITERS)))
            self.assertEqual(codes.count(0), 1)  # all had the same fence
            self.assertEqual(self.version_count(), base + 1)
            losers = [i for i in range(WRITERS) if codes[i] != 0]
            list(threads.map(come_after, losers))

        log = harness.call("log", self.url)
        self.assertEqual([entry["version"] for entry in log],
                         list(range(base + WRITERS, 0, -1)))
        self.assertEqual(sorted(entry["tag"] for entry in log if entry["tag"]),
                         [f"writer-{i}" for i in range(WRITERS)])
        self.assert_clean()
        for i, mount in enumerate(mounts):
            mount.wait_version(base + WRITERS)
            self.assertEqual(os.listdir(mount.join("publish")), [])
            self.assertEqual(os.listdir(mount.join("staging")), [])
        for i in range(WRITERS):
            version = next(entry["version"] for entry in log if entry["tag"] == f"writer-{i}")
            out = os.path.join(self.dir, f"out-{i}")
            harness.call("export", self.url, out, "--version", version)
            self.assert_same_tree(out, self.steps[1 + i % 3])


if __name__ == "__main__":
    harness.main()
