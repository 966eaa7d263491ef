"""Skip deltas: a writer's mount makes them beside its publishes, and `weightfs skip` anywhere."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
from writers import WriterTest  # noqa: E402

VERSIONS = 16


class Skips(WriterTest):
    def make_run(self, versions, params=200_000):
        self.init()
        return super().make_run(versions, params)

    def skips(self):
        """{(from, to): bytes of its packs} of the records in the bucket."""
        folder = os.path.join(self.bucket, "skips")
        found = {}
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            record = re.fullmatch(r"(\d{20})-(\d{20})\.json", name)
            if not record:
                continue
            packs = os.path.join(folder, name.removesuffix(".json"))
            sizes = [os.path.getsize(os.path.join(packs, pack)) for pack in os.listdir(packs)]
            found[int(record[2]), int(record[1])] = sum(sizes)
        return found

    def read_manifest(self, version):
        return json.loads(harness.read_file(self.manifest(version)))

    def wait_made(self, mount, count):
        return mount.wait_status(lambda status: status["writer"]["skips"]["made"] == count,
                                 f"{count} skips")["writer"]["skips"]

    def test_a_writers_mount_makes_them(self):
        steps = self.make_run(VERSIONS + 1)
        mount = self.writer("--snapshot-every", "8")
        for version, step in enumerate(steps[:8], 1):
            self.publish_through(mount, step, f"step-{version}")
        self.assertEqual(mount.status()["writer"]["skips"]["made"], 0)
        self.assertIn("snapshot", self.read_manifest(8))
        self.assertNotIn("snapshot", self.read_manifest(7))
        for version, step in enumerate(steps[8:15], 9):
            self.publish_through(mount, step, f"step-{version}")
        mount.umount()
        mount = self.writer()  # without snapshots; and another process has the patches
        self.publish_through(mount, steps[15], "step-16")
        skips = self.wait_made(mount, 1)
        self.assertEqual(skips["last"], {"from": 8, "to": 16})
        self.assertEqual(self.skips().keys(), {(8, 16)}, "8 is the snapshot as well")
        self.assertGreater(skips["bytes"], self.skips()[8, 16])
        self.assertIsNone(skips["error"])
        self.assertEqual(skips["out_of_reach"], [])
        self.assertIn("1 made", harness.run("status", mount.path).stdout)
        deltas = sum(os.path.getsize(self.pack(version)) for version in range(9, 17))
        self.assertLess(self.skips()[8, 16], deltas)
        # Nobody makes it again.
        said = harness.call("skip", self.url, "--store", os.path.join(self.dir, "bare"))
        self.assertEqual((said["skips"], said["uploaded_bytes"]), ([], 0))
        self.publish_through(mount, steps[16], "step-17")
        self.assert_same_tree(mount.join("latest/"), steps[16])
        self.assertEqual(mount.status()["writer"]["skips"]["made"], 1)

    def test_told_not_to_it_makes_none_and_the_command_does(self):
        steps = self.make_run(VERSIONS)
        mount = self.writer("--skips", "no")
        for version, step in enumerate(steps, 1):
            self.publish_through(mount, step, f"step-{version}")
        self.assertEqual(mount.status()["writer"]["skips"]["off"], "--skips no")
        self.assertIn("none are made: --skips no", harness.run("status", mount.path).stdout)
        self.assertEqual(self.skips(), {})
        store = ("--store", os.path.join(self.dir, "elsewhere"))
        said = harness.call("skip", self.url, "--dry-run", *store)
        self.assertEqual([(one["from"], one["to"]) for one in said["skips"]], [(1, 16), (8, 16)])
        self.assertEqual(self.skips(), {})
        done = harness.run("skip", self.url, *store)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("made 2 skips", done.stdout)
        self.assertEqual(self.skips().keys(), {(8, 16), (1, 16)})
        self.assertIn("no skip deltas are missing",
                      harness.run("skip", self.url, *store).stdout)
        mount.umount()
        mount.variables = {"WEIGHTFS_HISTORY": "0"}
        mount.start()
        self.assertIn("--skips no", mount.status()["writer"]["skips"]["off"])

    def test_without_a_history_it_says_so(self):
        self.make_run(1)
        mount = self.writer("--history", "0")
        self.assertIn("--history 0", mount.status()["writer"]["skips"]["off"])

    def test_a_killed_mount_goes_on(self):
        steps = self.make_run(VERSIONS)
        mount = self.writer("--skips", "no")
        for version, step in enumerate(steps, 1):
            self.publish_through(mount, step, f"step-{version}")
        mount.umount()
        mount.options = ("--writer",)
        for _ in range(3):  # before, in the middle, or after
            mount.start()
            mount.process.kill()
        mount.start()
        harness.wait_until(lambda: len(self.skips()) == 2, "both skips")
        packs = [name for _, _, names in os.walk(os.path.join(self.bucket, "skips"))
                 for name in names if name.endswith(".safetensors")]
        self.assertEqual(len(packs), 2, "nothing was doubled")
        self.assert_same_tree(mount.join("latest/"), steps[-1])


if __name__ == "__main__":
    harness.main()
