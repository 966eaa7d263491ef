"""rollback: a new version with the content of an older one, by URL and through a writer's mount."""

import json
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import writers  # noqa: E402

PYTHON = os.environ.get("WEIGHTFS_VENV_PYTHON", "")
PARAMS = 1_000_000

# By the safetensors package: the same keys and bytes, whatever numpy thinks of the dtype.
SAME = """
import sys
from safetensors import safe_open, deserialize

def tensors(path):
    with open(path, "rb") as file:
        data = file.read()
    return {name: (info["dtype"], tuple(info["shape"]), bytes(info["data"]))
            for name, info in deserialize(data)}

for older, newer in zip(sys.argv[1::2], sys.argv[2::2]):
    assert tensors(older) == tensors(newer), older
"""


class Rollback(writers.WriterTest):
    def roll_back(self, target, version, *options):
        return harness.call("rollback", target, version, *options)

    def by_url(self, version, *options):
        return self.roll_back(self.url, version, "--store", os.path.join(self.dir, "publisher"),
                              *options)

    def test_by_url(self):
        steps = self.make_repository(4, PARAMS)
        mount = self.mount()
        said = self.by_url(2, "--tag", "stable", "--meta", "why=loss")
        self.assertEqual((said["version"], said["parent"], said["tag"]), (5, 4, "stable"))
        self.assertLess(said["uploaded_bytes"], 0.2 * said["version_bytes"])
        mount.wait_version(5)
        self.assert_same_tree(mount.join("tags/stable/"), steps[1])
        shown = harness.call("show", self.url, "stable")
        self.assertEqual(shown["meta"], {"rollback": "2", "why": "loss"})
        self.assertEqual(self.by_url("step-1")["version"], 6)
        self.assertEqual(self.by_url("latest")["changed_elements"], 0)
        mount.wait_version(7)
        self.assert_same_tree(mount.join("latest/"), steps[0])
        self.assert_clean()

    def test_what_cannot_be_is_refused(self):
        self.make_repository(2)
        mount = self.mount()
        for arguments, code, words in (
                ((self.url, 3), 1, "3"), ((self.url, 0), 2, "numbers from 1"),
                ((self.url, "nonsense"), 1, "nonsense"), ((mount.path, 1), 1, "--writer"),
                ((self.url, 1, "--meta", "rollback=7"), 2, "rollback"), ((self.url,), 2, "needs")):
            done = harness.run("rollback", *arguments)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)
        self.assertEqual(self.version_count(), 2)
        self.assert_clean()

    def test_through_a_writers_mount(self):
        steps = self.make_run(4, PARAMS)
        self.init()
        mount = self.writer()
        for number, step in enumerate(steps, 1):
            self.publish_through(mount, step, f"step-{number}")
        said = self.roll_back(mount.path, "step-2", "--tag", "stable")
        self.assertEqual((said["version"], said["path"]), (5, mount.join("versions/5")))
        self.assertIsNone(said["left"])
        self.assert_same_tree(mount.join("latest/"), steps[1])
        self.assert_same_tree(mount.join("tags/stable/"), steps[1])
        self.assertEqual((os.listdir(mount.join("staging")), os.listdir(mount.join("publish"))),
                         ([], []))
        self.assertEqual(harness.call("show", self.url, 5)["meta"], {"rollback": "2"})
        self.publish_through(mount, steps[3], "again")  # the next one follows it
        missing = harness.run("rollback", mount.path, 9)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("9", missing.stderr)
        self.assertEqual((os.listdir(mount.join("staging")), os.listdir(mount.join("publish"))),
                         ([], []))
        self.assert_clean()

    def test_chunks_are_made_of_the_parents_by_patches(self):
        """The fast path is taken; the bucket has no packs any more."""
        steps = self.make_run(4, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        for number, step in enumerate(steps[1:], 2):
            self.publish(step)
            mount.wait_version(number)
            mount.wait_status(lambda status, at=number: status["history"]["recorded"] == at,
                              f"patches to version {number}")
        mount.umount()
        shutil.rmtree(os.path.join(self.bucket, "packs"))
        chunks = self.roll_back(self.url, 3, "--store", mount.store)["chunks"]
        self.assertGreater(chunks["patched"], 0)
        self.assertEqual(chunks["other"], 0)
        mount.start()
        mount.wait_version(5)
        self.assert_same_tree(mount.join("latest/"), steps[2])

    def test_another_writer_is_a_conflict_and_rebase_goes_on(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        mount = self.writer()
        self.publish_through(mount, steps[0], "one")
        self.publish_through(mount, steps[1], "two")
        self.publish(steps[2])
        done = harness.run("rollback", mount.path, 1, "--json")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(json.loads(done.stdout)["error"]["code"], "conflict")
        self.assertEqual(self.version_count(), 3)
        harness.call("rebase", mount.path)
        mount.wait_version(4)
        self.assert_same_tree(mount.join("latest/"), steps[0])
        self.assert_clean()

    def test_two_at_once_both_end(self):
        self.make_repository(3, PARAMS)
        publishers = [harness.start("rollback", self.url, version, "--rebase", "--json", "--store",
                                    os.path.join(self.dir, f"store-{version}"))
                      for version in (1, 2)]
        for publisher in publishers:
            out, err = publisher.communicate(timeout=120)
            self.assertEqual(publisher.returncode, 0, out + err)
        notes = [harness.call("show", self.url, version)["meta"]["rollback"] for version in (4, 5)]
        self.assertEqual(sorted(notes), ["1", "2"])
        self.assert_clean()

    def test_killed_at_random_points_and_again(self):
        steps = self.make_repository(3, PARAMS)
        killed = 0
        for i in range(6):
            before = self.version_count()
            publisher = harness.start("rollback", self.url, i % 3 + 1, "--json", "--store",
                                      os.path.join(self.dir, "publisher"))
            try:
                publisher.wait(timeout=harness.RANDOM.random() * 0.5)
            except subprocess.TimeoutExpired:
                publisher.kill()
                killed += 1
            publisher.communicate()
            after = self.version_count()
            self.assertIn(after, (before, before + 1))
            self.assertEqual(self.by_url(i % 3 + 1)["version"], after + 1)
        self.assert_clean()
        folder = os.path.join(self.dir, "exported")
        harness.call("export", self.url, folder)
        self.assert_same_tree(folder, steps[2])
        print(f"killed {killed} of 6", file=sys.stderr)

    @unittest.skipUnless(PYTHON, "WEIGHTFS_VENV_PYTHON has no safetensors")
    def test_the_safetensors_package_reads_it(self):
        steps = self.make_repository(3, PARAMS)
        mount = self.mount()
        self.by_url(1)
        mount.wait_version(4)
        names = sorted(name for name in os.listdir(steps[0]) if name.endswith(".safetensors"))
        pairs = [path for name in names
                 for path in (os.path.join(steps[0], name), mount.join("versions/4", name))]
        done = subprocess.run([PYTHON, "-c", SAME, *pairs], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    harness.main()
