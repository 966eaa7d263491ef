"""du and gc on a real repository, beside a mount that follows it."""

import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

PARAMS = 20_000


class Retention(harness.MountTest):
    def publish_steps(self):
        """Versions 1 to 6; 1 and 4 have snapshots; 2 has a tag."""
        steps = self.make_run(6, PARAMS)
        self.init()
        for i, step in enumerate(steps):
            more = ["--snapshot"] if i == 3 else ["--tag", "best"] if i == 1 else []
            self.publish(step, *more)
        return steps

    def files(self):
        return sorted(os.path.join(folder, name) for folder, _, names in os.walk(self.bucket)
                      for name in names)

    def gc(self, *options):
        return harness.call("gc", self.url, "--keep", "2", "--keep-tagged=", *options)

    def test_du_and_the_dry_run_change_nothing(self):
        self.publish_steps()
        with open(os.path.join(self.bucket, "README"), "w") as file:
            file.write("somebody else's")
        before = self.files()
        held = harness.call("du", self.url, "--keep", "2", "--keep-tagged=")
        self.assertEqual(held["kinds"]["other"]["objects"], 1)
        self.assertEqual(held["head"], 6)
        self.assertEqual(held["gc"]["versions"], [[1, 3]])
        self.assertEqual(held["total"]["objects"], len(before))
        self.assertEqual(held["total"]["bytes"], sum(os.path.getsize(name) for name in before))
        self.assertEqual(held["orphans"]["objects"], 0)
        self.assertEqual([one["state"] for one in held["versions"]],
                         ["old", "old", "old", "needed", "kept", "kept"])
        dry = self.gc()
        self.assertTrue(dry["dry_run"])
        self.assertEqual(dry["retired"]["bytes"], held["gc"]["bytes"])
        # By default a tagged version stays, and what it is built from.
        self.assertEqual(harness.call("gc", self.url, "--keep", "2")["retired"]["versions"],
                         [[3, 3]])
        self.assertEqual(self.files(), before)

    def test_what_is_retired_is_removed_after_its_grace(self):
        steps = self.publish_steps()
        mount = self.mount(store="reader")
        before = self.files()
        first = self.gc("--delete")
        self.assertEqual(first["retired"]["versions"], [[1, 3]])
        self.assertEqual(first["removed"]["objects"], 0)
        self.assertEqual(first["waiting"]["objects"], len(first["retired"]["keys"]))
        second = self.gc("--delete", "--grace", "0s")  # the record has its own grace
        self.assertEqual(second["removed"]["objects"], 0)
        self.assertLess(set(before), set(self.files()))
        record = os.path.join(self.bucket, "gc", f"{1:020}.json")
        day_ago = os.stat(record).st_mtime - 24 * 3600
        os.utime(record, (day_ago, day_ago))
        third = self.gc("--delete")
        self.assertEqual(third["removed"]["objects"], len(first["retired"]["keys"]))
        gone = set(before) - set(self.files())
        self.assertEqual(gone, {os.path.join(self.bucket, key) for key in first["retired"]["keys"]})
        # What is left is whole, and the rest is called what it is.
        self.assertEqual(harness.call("verify", self.url)["problems"], [])
        self.assertEqual([one["retired"] for one in harness.call("log", self.url)],
                         [False] * 3 + [True] * 3)
        self.assertIn("(retired)", harness.run("log", self.url).stdout)
        for version in (4, 5, 6):
            out = os.path.join(self.dir, f"out-{version}")
            harness.call("export", self.url, out, "--version", str(version))
            self.assert_same_tree(out, steps[version - 1])
        done = harness.run("export", self.url, os.path.join(self.dir, "no"), "--version", "2")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("version 2 was removed by gc at", done.stderr)
        self.assertIn("the oldest version that is left is 4", done.stderr)
        # Life goes on.
        self.publish(steps[0])
        harness.call("wait", mount.path, "--version", "7")
        self.assert_same_tree(os.path.join(mount.path, "latest"), steps[0])

    # ---- skip deltas that replace deltas ----

    def versions_with_packs(self):
        folder = os.path.join(self.bucket, "packs")
        return {int(version) for version in os.listdir(folder)
                if os.listdir(os.path.join(folder, version))}

    def assert_readable(self, steps, versions):
        """By hosts that have nothing: one exports each, one mounts the newest."""
        for version in versions:
            out = os.path.join(self.dir, f"kept-{version}-of-{max(versions)}")
            harness.call("export", self.url, out, "--version", str(version))
            self.assert_same_tree(out, steps[version - 1])
        mount = self.mount(name="new", store=f"new-store-{max(versions)}")
        self.assertEqual(mount.latest(), max(versions))
        self.assert_same_tree(mount.join("latest/"), steps[max(versions) - 1])
        mount.umount()
        self.assert_clean()

    def test_a_skip_is_made_and_needed_where_deltas_go(self):
        steps = self.make_run(18, PARAMS)
        self.init()
        for step in steps:
            self.publish(step)
        store = os.path.join(self.dir, "gc-store")
        gc = ("gc", self.url, "--keep", "1", "--keep-every", "16", "--keep-tagged=",
              "--grace", "0s", "--store", store)
        dry = harness.call(*gc)
        self.assertEqual((dry["skips_missing"], dry["skips_made"]), ([[1, 16]], []))
        self.assertFalse(os.path.exists(store))
        did = harness.call(*gc, "--delete")
        self.assertEqual((did["skips_made"], did["skips_needed"]), ([[1, 16]], [[1, 16]]))
        self.assertEqual(did["retired"]["versions"], [[2, 15]])
        self.assertEqual(did["waiting"]["objects"], 0)
        self.assertGreaterEqual(did["removed"]["objects"], 15)
        self.assertEqual(self.versions_with_packs(), {17, 18})
        self.assertTrue(os.path.isdir(store), "--store was not used")
        self.assert_readable(steps, (16, 18))
        # The next run finds nothing to do, and the history goes on.
        again = harness.call(*gc, "--delete")
        self.assertEqual((again["skips_made"], again["removed"]["objects"]), ([], 0))
        self.publish(steps[0])
        self.assert_readable([*steps, steps[0]], (16, 19))

    def gc_state(self, mount):
        return mount.status()["writer"]["gc"]

    def hand_over(self, mount, step, name):
        shutil.copytree(step, mount.staging(name))
        os.rename(mount.staging(name), mount.join("publish", name))

    def test_a_writers_mount_collects_by_itself(self):
        steps = self.make_run(6, PARAMS)
        self.init()
        self.publish(steps[0])
        self.publish(steps[1], "--snapshot")
        mount = self.writer("--gc", "--gc-keep", "1", "--gc-keep-tagged=", "--gc-grace", "0s",
                            "--gc-interval", "1h")  # the first run comes after a new version
        state = self.gc_state(mount)
        self.assertEqual((state["runs"], state["removed"]["objects"]), (0, 0))
        self.assertEqual(len(harness.call("log", self.url)), 2)
        self.hand_over(mount, steps[2], "third")
        status = mount.wait_status(
            lambda status: status["writer"]["gc"]["removed"]["objects"] > 0 and
            status["writer"]["gc"]["waiting"]["objects"] == 0, "what the mount removed")
        gc = status["writer"]["gc"]
        self.assertEqual(gc["retired_versions"], 1)
        self.assertIsNone(gc["error"])
        self.assertGreater(gc["removed"]["bytes"], 0)
        self.assertGreaterEqual(gc["last"], 1_500_000_000)
        self.assertEqual([one["retired"] for one in harness.call("log", self.url)],
                         [False, False, True])
        text = harness.run("status", mount.path).stdout
        self.assertRegex(text, r"gc +.*; removed .* objects")
        self.assertEqual(harness.call("verify", self.url)["problems"], [])
        # Publishing goes on.
        self.hand_over(mount, steps[3], "fourth")
        harness.call("wait", mount.path, "--version", "4")
        self.assert_same_tree(os.path.join(mount.path, "latest"), steps[3])

    def test_a_writers_mount_makes_the_skips_that_kept_versions_need(self):
        steps = self.make_run(12, PARAMS)
        # No other skip leads to 10: the mount's own lead to versions divisible by 8.
        mount = self.writer("--gc", "--gc-keep", "1", "--gc-keep-every", "10", "--gc-keep-tagged=",
                            "--gc-grace", "0s", "--gc-interval", "0s")
        for version, step in enumerate(steps, 1):
            self.hand_over(mount, step, f"step-{version}")
            harness.call("wait", mount.path, "--version", str(version))
        gc = mount.wait_status(
            lambda status: status["writer"]["gc"]["skips_made"] > 0 and
            self.versions_with_packs() == {11, 12}, "a skip to version 10")["writer"]["gc"]
        self.assertEqual(gc["skips_made"], 1)
        self.assertIsNone(gc["error"])
        self.assertEqual(harness.call("gc", self.url, "--keep", "1", "--keep-every", "10",
                                      "--keep-tagged=")["skips_needed"], [[1, 10]])
        self.assert_readable(steps, (10, 12))

    def test_without_gc_a_writers_mount_removes_nothing(self):
        steps = self.make_run(2, PARAMS)
        self.init()
        mount = self.writer()
        for name, step in zip("ab", steps):
            self.hand_over(mount, step, name)
        harness.call("wait", mount.path, "--version", "2")
        self.assertIsNone(self.gc_state(mount))
        self.assertFalse(os.path.exists(os.path.join(self.bucket, "gc")))
        refused = harness.run("mount", self.url, os.path.join(self.dir, "reader"), "--gc")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--gc needs --writer", refused.stderr)

    def test_a_gc_that_fails_is_in_the_status_and_stops_nothing(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        self.publish(steps[1])
        manifest = os.path.join(self.bucket, "versions", f"{1:020}.json")
        mount = self.writer("--gc", "--gc-interval", "0s")
        os.rename(manifest, manifest + ".away")
        self.hand_over(mount, steps[2], "third")
        mount.wait_status(lambda status: status["writer"]["gc"]["error"], "the error of gc")
        self.assertIn("is missing", self.gc_state(mount)["error"])
        self.assertFalse(os.path.exists(os.path.join(self.bucket, "gc")))
        harness.call("wait", mount.path, "--version", "3")
        os.rename(manifest + ".away", manifest)
        mount.wait_status(lambda status: status["writer"]["gc"]["error"] is None,
                          "a gc that succeeds")


if __name__ == "__main__":
    harness.main()
