"""/deltas/N.safetensors: applied to version N - 1 it gives version N; and export --from --to."""

import errno
import os
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import numpy as np  # noqa: E402
import runs  # noqa: E402
from tensors import applied, tensors_of  # noqa: E402

PYTHON = os.environ.get("WEIGHTFS_VENV_PYTHON", "")
PARAMS = 1_000_000

# By the safetensors package: its own reader checks the whole file.
APPLY = """
import sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
import json

delta, older, newer = sys.argv[1:]
tensors, wanted = load_file(older), load_file(newer)
with safe_open(delta, framework="numpy") as file:
    names = json.loads(file.metadata()["changed_params"])
    assert len(file.keys()) == 2 * len(names)
    for name in names:
        flat = tensors[name].flatten()
        flat[file.get_tensor(name + ".indices")] = file.get_tensor(name + ".values")
        tensors[name] = flat.reshape(tensors[name].shape)
assert tensors.keys() == wanted.keys()
for name in wanted:
    assert tensors[name].tobytes() == wanted[name].tobytes(), name
print(len(names))
"""


class DeltaReader:
    """For a MountTest."""

    def assert_leads(self, delta, older, newer):
        wanted, got = tensors_of(newer), applied(delta, tensors_of(older))
        self.assertEqual(got.keys(), wanted.keys())
        for name, tensor in wanted.items():
            self.assertEqual(got[name].tobytes(), tensor.tobytes(), name)

    def built(self, mount):
        return sorted(os.listdir(os.path.join(mount.store, "deltas")))


class Deltas(DeltaReader, harness.MountTest):
    def test_each_leads_to_the_next_version_and_has_its_size_from_the_start(self):
        steps = self.make_repository(1, PARAMS)
        mounts = [self.mount(),
                  self.mount("--serve", "daemon", name="daemon", store="daemon-store")]
        self.assertEqual([os.listdir(mount.join("deltas")) for mount in mounts], [[], []])
        steps = steps[:1] + [os.path.join(self.dir, "more", f"step_{i:06d}") for i in (1, 2)]
        runs.make_run(os.path.join(self.dir, "more"), 3, PARAMS)
        for step in steps[1:]:
            version = self.publish(step)["version"]
            for mount in mounts:
                mount.wait_version(version)
        for mount in mounts:
            self.assertEqual(sorted(os.listdir(mount.join("deltas"))),
                             ["2.safetensors", "3.safetensors"])
            sizes = {}
            for version in (2, 3):
                seen = os.stat(mount.join(f"deltas/{version}.safetensors"))
                self.assertEqual(seen.st_mtime, harness.call("show", self.url, version)["time"])
                self.assertEqual(seen.st_mode & 0o777, 0o444)
                sizes[version] = seen.st_size
            self.assertEqual(self.built(mount), [], "stat made a file")
            for version in (2, 3):
                path = mount.join(f"deltas/{version}.safetensors")
                self.assertEqual(len(harness.read_file(path)), sizes[version])
                self.assertEqual(os.stat(path).st_size, sizes[version])
                self.assert_leads(path, steps[version - 2], steps[version - 1])
            self.assertEqual(self.built(mount), ["2.safetensors", "3.safetensors"])
        self.assertLess(sizes[3], 2 * PARAMS * 0.1)

        for name in ("1.safetensors", "4.safetensors", "02.safetensors", "2", "2.safetensors.x"):
            with self.assertRaises(FileNotFoundError):
                os.stat(mounts[0].join("deltas", name))
        for change in (lambda: open(path, "ab"), lambda: os.unlink(path),
                       lambda: os.mkdir(mounts[0].join("deltas/x"))):
            with self.assertRaises(OSError) as raised:
                change()
            self.assertIn(raised.exception.errno, (errno.EROFS, errno.EACCES))

        # What was made is kept, and survives a kill.
        mount, made = mounts[0], os.stat(os.path.join(mounts[0].store, "deltas/2.safetensors"))
        mount.process.kill()
        mount.start()
        self.assert_leads(mount.join("deltas/2.safetensors"), steps[0], steps[1])
        again = os.stat(os.path.join(mount.store, "deltas/2.safetensors"))
        self.assertEqual((again.st_ino, again.st_mtime_ns), (made.st_ino, made.st_mtime_ns))

    def test_with_old_values_it_leads_back_too(self):
        steps = self.make_repository(3, PARAMS)
        mount = self.mount()
        for older, newer in ((1, 2), (2, 3)):
            path = mount.join(f"deltas/{older}-{newer}.with-old.safetensors")
            size = os.stat(path).st_size
            self.assertEqual(len(harness.read_file(path)), size)
            self.assert_leads(path, steps[older - 1], steps[newer - 1])
            wanted = tensors_of(steps[older - 1])
            got = applied(path, tensors_of(steps[newer - 1]), "old")
            for name, tensor in wanted.items():
                self.assertEqual(got[name].tobytes(), tensor.tobytes(), name)
        self.assertNotIn("1-2.with-old.safetensors", os.listdir(mount.join("deltas")))
        self.assertIn("1-2.with-old.safetensors", self.built(mount))

    def test_many_readers_get_one_file(self):
        steps = self.make_repository(2, PARAMS)
        mount = self.mount()
        path, results, start = mount.join("deltas/2.safetensors"), [], threading.Barrier(12)

        def read():
            start.wait()
            results.append(harness.sha256(harness.read_file(path)))

        threads = [threading.Thread(target=read) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(results), len(set(results))), (12, 1))
        self.assertEqual(os.listdir(os.path.join(mount.store, "tmp")), [])
        self.assert_leads(path, steps[0], steps[1])

    def test_a_version_with_other_tensors_has_none_and_the_log_says_why(self):
        folders = []
        for version in (1, 2):
            folder = os.path.join(self.dir, f"checkpoint-{version}")
            os.makedirs(folder)
            runs.write_safetensors(os.path.join(folder, "model.safetensors"),
                                   [(f"layer.{i}", "F32", (8,), np.zeros(8, "<f4"))
                                    for i in range(version)])
            folders.append(folder)
        self.init()
        for folder in folders:
            self.publish(folder)
        mount = self.mount()
        for action in (os.stat, harness.read_file):
            with self.assertRaises(OSError) as raised:
                action(mount.join("deltas/2.safetensors"))
            self.assertEqual(raised.exception.errno, errno.EOPNOTSUPP)
        log = harness.read_file(os.path.join(mount.store, "weightfs.log")).decode()
        self.assertIn("tensor 'layer.1' in 'model.safetensors' of version 2 has no tensor", log)

    def test_export_writes_the_change_between_any_two(self):
        steps = self.make_repository(3, PARAMS)
        mount = self.mount()
        for number, (older, newer) in enumerate([(1, 3), (3, 1), (2, 2), (1, 2)]):
            file = os.path.join(self.dir, f"delta-{number}.safetensors")
            said = harness.call("export", mount.path if number == 0 else self.url, file,
                                "--from", older, "--to", newer)
            self.assertEqual(said["bytes"], os.path.getsize(file))
            self.assertEqual((said["from"], said["to"], said["file"]), (older, newer, file))
            self.assert_leads(file, steps[older - 1], steps[newer - 1])
        self.assertEqual(harness.read_file(file),
                         harness.read_file(mount.join("deltas/2.safetensors")))
        for wrong in (("--from", "1"), ("--to", "1"), ("--from", "1", "--to", "2", "--version", "1")):
            self.assertEqual(harness.run("export", self.url, file + "-x", *wrong).returncode, 2)
        self.assertEqual(harness.run("export", self.url, file, "--from", "1", "--to", "2").returncode, 1)
        self.assertEqual([name for name in os.listdir(self.dir) if "partial" in name], [])

    @unittest.skipUnless(PYTHON, "WEIGHTFS_VENV_PYTHON names no interpreter with safetensors")
    def test_the_safetensors_package_reads_and_applies_it(self):
        dtypes = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4",
                  "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "?"}
        rng = np.random.default_rng(harness.SEED)
        values = {name: (rng.normal(0, 30, (129, 257)) % 100).astype(dtype)
                  for name, dtype in dtypes.items()}
        self.init()
        folders = []
        for version in (1, 2, 3):
            folder = os.path.join(self.dir, f"checkpoint-{version}")
            os.makedirs(folder)
            runs.write_safetensors(os.path.join(folder, "model.safetensors"),
                                   [(f"layer.{name}", name, tensor.shape, tensor)
                                    for name, tensor in values.items()])
            self.publish(folder)
            folders.append(os.path.join(folder, "model.safetensors"))
            for name, tensor in values.items():
                changed = rng.random(tensor.shape) < 0.05
                values[name] = np.where(changed, tensor + np.ones_like(tensor), tensor) \
                    .astype(tensor.dtype)
        mount = self.mount()
        for version in (2, 3):
            done = subprocess.run([PYTHON, "-c", APPLY, mount.join(f"deltas/{version}.safetensors"),
                                   folders[version - 2], folders[version - 1]],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreaterEqual(int(done.stdout), len(dtypes) - 1)


if __name__ == "__main__":
    harness.main()
