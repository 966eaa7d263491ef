"""What the history on this host gives, with the bucket away: deltas of any two versions, diff, export."""

import errno
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import deltas_test  # noqa: E402
import harness  # noqa: E402
import numpy as np  # noqa: E402
import runs  # noqa: E402

PARAMS = 1_000_000
VERSIONS = 6


class History(deltas_test.DeltaReader, harness.MountTest):
    def setUp(self):
        super().setUp()
        self.steps = self.make_run(VERSIONS, PARAMS)
        self.init()
        self.publish(self.steps[0])

    def mount_history(self, first=1):
        """A mount whose patches lead from every version from `first` on to every other."""
        mount = self.mount("--images", "memory")
        for version, step in enumerate(self.steps[1:], first + 1):
            self.publish(step, "--tag", f"step-{version}")
            mount.wait_version(version)
            mount.wait_status(lambda status, at=version: status["history"]["recorded"] == at,
                              f"patches to version {version}")
        return mount

    def take_bucket(self):
        os.rename(self.bucket, self.bucket + ".away")

    def test_deltas_of_any_two_versions_without_the_bucket(self):
        mount = self.mount_history()
        self.take_bucket()
        self.assertEqual(sorted(os.listdir(mount.join("deltas"))),
                         sorted(f"{int(name)}.safetensors"
                                for name in os.listdir(mount.join("versions")) if name != "1"))
        for older, newer in ((1, VERSIONS), (VERSIONS, 1), (2, 5), (5, 2), (3, 4), (4, 3)):
            path = mount.join(f"deltas/{older}-{newer}.safetensors")
            size = os.stat(path).st_size
            self.assertEqual(len(harness.read_file(path)), size)
            self.assert_leads(path, self.steps[older - 1], self.steps[newer - 1])
        self.assertEqual(os.stat(mount.join("deltas/3-4.safetensors")).st_ino,
                         os.stat(mount.join("deltas/4.safetensors")).st_ino)
        for name in ("0-2", "2-2", f"2-{VERSIONS + 1}", "2-", "-2", "02-3", "2-3-4", "a-b"):
            with self.assertRaises(FileNotFoundError):
                os.stat(mount.join("deltas", name + ".safetensors"))
        self.assertIn("2-5.safetensors", self.built(mount))
        inode = os.stat(mount.join("deltas/5-2.safetensors")).st_ino
        mount.process.kill()
        mount.start()
        self.assertEqual(self.built(mount), ["4.safetensors"], "pairs were kept")
        self.assertEqual(os.stat(mount.join("deltas/5-2.safetensors")).st_ino, inode)
        self.assert_leads(mount.join("deltas/5-2.safetensors"), self.steps[4], self.steps[1])

    @unittest.skipUnless(deltas_test.PYTHON, "WEIGHTFS_VENV_PYTHON has no safetensors")
    def test_the_safetensors_package_applies_them(self):
        rng = np.random.default_rng(harness.SEED)
        values = {name: (rng.normal(0, 30, (129, 257)) % 100).astype(dtype)
                  for name, dtype in (("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"), ("U8", "u1"))}
        self.steps, folders = [], []
        for version in range(1, VERSIONS + 1):
            folder = os.path.join(self.dir, f"checkpoint-{version}")
            os.makedirs(folder)
            runs.write_safetensors(os.path.join(folder, "model.safetensors"),
                                   [(f"layer.{name}", name, tensor.shape, tensor)
                                    for name, tensor in values.items()])
            self.steps.append(folder)
            folders.append(os.path.join(folder, "model.safetensors"))
            for name, tensor in values.items():
                changed = rng.random(tensor.shape) < 0.05
                values[name] = np.where(changed, tensor + np.ones_like(tensor), tensor) \
                    .astype(tensor.dtype)
        self.publish(self.steps[0])
        mount = self.mount_history(first=2)
        self.take_bucket()
        for older, newer in ((1, 5), (5, 1), (2, 6)):
            done = subprocess.run(
                [deltas_test.PYTHON, "-c", deltas_test.APPLY,
                 mount.join(f"deltas/{older + 1}-{newer + 1}.safetensors"), folders[older - 1],
                 folders[newer - 1]], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(int(done.stdout), len(values))

    def test_diff_answers_from_patches_without_the_bucket(self):
        mount = self.mount_history()
        expected = {}
        for pair in ((1, VERSIONS), (VERSIONS, 1), (3, 3)):
            expected[pair] = harness.call("diff", self.url, *pair)
            self.assertEqual(expected[pair]["compared"], "bytes")
        missing = harness.run("diff", mount.path, 1, VERSIONS + 1)
        self.assertEqual(missing.returncode, 1)
        self.assertIn(f"version {VERSIONS + 1}", missing.stderr)
        self.take_bucket()
        for pair, wanted in expected.items():
            found = harness.call("diff", mount.path, *pair)
            self.assertEqual(found.pop("compared"), "patches")
            wanted.pop("compared")
            for one in (wanted, *wanted["tensors"]):
                if one["largest_ulp"] > 0:
                    one["largest_ulp"] = None  # patches cannot tell
            self.assertEqual(found, wanted)
        self.assertEqual(harness.call("diff", mount.path, "step-3", "latest")["from"], 3)
        text = harness.run("diff", mount.path, 1, 2).stdout
        self.assertRegex(text, r"elements changed \(.*\) in \d+ of \d+ tensors")

    def test_diff_by_patches_claims_no_largest_difference(self):
        self.steps = []
        for number, value in enumerate((1, -4, 4), 1):  # -4 to 4: more than half of the range
            folder = os.path.join(self.dir, f"checkpoint-{number}")
            os.makedirs(folder)
            tensor = np.ones(1000, "<f2")
            tensor[7] = value
            runs.write_safetensors(os.path.join(folder, "model.safetensors"),
                                   [("x", "F16", tensor.shape, tensor)])
            self.steps.append(folder)
        self.publish(self.steps[0])
        mount = self.mount_history(first=2)
        exact, found = (harness.call("diff", where, 3, 4) for where in (self.url, mount.path))
        self.assertEqual((exact["compared"], found["compared"]), ("bytes", "patches"))
        largest = 2 * 0x4400 + 1  # both zeros lie between them
        for one in (exact, exact["tensors"][0]):
            self.assertEqual((one["largest_ulp"], one["largest_ulp_min"]), (largest, largest))
        for one in (found, found["tensors"][0]):
            self.assertEqual((one["largest_ulp"], one["largest_ulp_min"]), (None, 65536 - largest))
        self.assertIn(f"the largest by {largest} ulp\n", harness.run("diff", self.url, 3, 4).stdout)
        text = harness.run("diff", mount.path, 3, 4).stdout
        self.assertIn(f">={65536 - largest}", text)
        self.assertIn(f"the largest by {65536 - largest} ulp or more\n", text)

    def test_diff_without_patches_says_so_and_reads_the_bucket(self):
        for step in self.steps[1:3]:
            self.publish(step)
        mount = self.mount()
        done = harness.run("diff", mount.path, 1, 3, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no patches lead from version 1 to 3", done.stderr)
        self.assertEqual(json.loads(done.stdout)["compared"], "bytes")

    def test_export_copies_what_the_mount_shows_without_the_bucket(self):
        mount = self.mount_history()
        self.take_bucket()
        for word, version in ((None, VERSIONS), ("3", 3), ("step-2", 2), ("1", 1)):
            folder = os.path.join(self.dir, f"exported-{version}")
            options = ("--version", word) if word else ()
            said = harness.call("export", mount.path, folder, *options)
            self.assertEqual((said["version"], said["directory"]), (version, folder))
            self.assert_same_tree(folder, self.steps[version - 1])
            self.assertEqual(said["bytes"], sum(os.path.getsize(os.path.join(at, name))
                                                for at, _, names in os.walk(folder)
                                                for name in names))
        file = os.path.join(self.dir, "change.safetensors")
        said = harness.call("export", mount.path, file, "--from", "latest", "--to", "step-2")
        self.assertEqual((said["from"], said["to"]), (VERSIONS, 2))
        self.assertEqual(said["bytes"], os.path.getsize(file))
        self.assertEqual(os.stat(file).st_mode & 0o777, 0o644)
        self.assertGreater(said["changed"], 0)
        self.assert_leads(file, self.steps[VERSIONS - 1], self.steps[1])
        for arguments in ((file, "--from", "1", "--to", "2"), (folder,)):
            done = harness.run("export", mount.path, *arguments)
            self.assertEqual(done.returncode, 1)
            self.assertIn("exists", done.stderr)
        gone = harness.run("export", mount.path, folder + "-x", "--version", VERSIONS + 1)
        self.assertNotEqual(gone.returncode, 0)
        self.assertFalse(os.path.exists(folder + "-x"))
        self.assertEqual([name for name in os.listdir(self.dir) if "partial" in name], [])

    def test_a_pair_without_patches_says_what_to_do(self):
        for step in self.steps[1:4]:
            self.publish(step)
        mount = self.mount()
        with self.assertRaises(OSError) as raised:
            os.stat(mount.join("deltas/1-3.safetensors"))
        self.assertEqual(raised.exception.errno, errno.EIO)
        log = harness.read_file(os.path.join(mount.store, "weightfs.log")).decode()
        self.assertIn("weightfs export --from 1 --to 3 writes the file", log)
        file = os.path.join(self.dir, "change.safetensors")
        harness.call("export", mount.path, file, "--from", 1, "--to", 3)
        self.assert_leads(file, self.steps[0], self.steps[2])


if __name__ == "__main__":
    harness.main()
