"""du and gc on a real repository, beside a mount that follows it."""

import os
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
        before = self.files()
        held = harness.call("du", self.url, "--keep", "2", "--keep-tagged=")
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


if __name__ == "__main__":
    harness.main()
