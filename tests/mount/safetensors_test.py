"""Python's safetensors reads through the mount what it reads from the source.

Needs an interpreter with safetensors and numpy: WEIGHTFS_VENV_PYTHON.
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import numpy as np  # noqa: E402
import runs  # noqa: E402

PYTHON = os.environ.get("WEIGHTFS_VENV_PYTHON", "")

COMPARE = """
import sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load, load_file

path, source = sys.argv[1:]
count = 0
with safe_open(path, framework="numpy") as got, safe_open(source, framework="numpy") as wanted:
    assert got.keys() == wanted.keys()
    assert got.metadata() == wanted.metadata()
    for name in wanted.keys():
        a, b = got.get_tensor(name), wanted.get_tensor(name)
        assert a.dtype == b.dtype and a.shape == b.shape, name
        assert a.tobytes() == b.tobytes(), name
        if b.ndim == 2 and len(b) > 0:
            assert got.get_slice(name)[1:, :3].tobytes() == wanted.get_slice(name)[1:, :3].tobytes()
        count += 1
whole, wanted = load_file(path), load_file(source)
assert whole.keys() == wanted.keys()
assert all(np.array_equal(whole[name], wanted[name], equal_nan=whole[name].dtype.kind == "f")
           for name in wanted)
with open(path, "rb") as file:
    assert load(file.read()).keys() == wanted.keys()
print(count)
"""

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
          "I8": "<i1", "U8": "<u1", "BOOL": "?"}


class Safetensors(harness.MountTest):
    def checkpoint(self, version):
        """One tensor of every dtype that numpy has, an empty one and a scalar."""
        folder = os.path.join(self.dir, f"checkpoint-{version}")
        os.makedirs(folder)
        rng = np.random.default_rng(version)
        tensors = []
        for name, dtype in DTYPES.items():
            values = (rng.normal(0, 30, (129, 257)) % 100).astype(dtype)
            tensors.append((f"layer.{name}", name, values.shape, values))
        tensors.append(("empty", "F32", (0, 4), np.zeros((0, 4), "<f4")))
        tensors.append(("scalar", "F32", (), np.full((), version, "<f4")))
        runs.write_safetensors(os.path.join(folder, "model.safetensors"), tensors,
                               {"format": "np", "version": str(version)})
        return folder

    def test_every_tensor_is_what_it_was(self):
        self.init()
        folders = [self.checkpoint(version) for version in (1, 2, 3)]
        self.publish(folders[0])
        mount = self.mount()
        daemon = self.mount("--serve", "daemon", name="daemon", store="daemon-store")
        for folder in folders[1:]:
            version = self.publish(folder)["version"]
            for reader in (mount, daemon):
                reader.wait_version(version)
                done = subprocess.run(
                    [PYTHON, "-c", COMPARE, reader.join("latest/model.safetensors"),
                     os.path.join(folder, "model.safetensors")], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(int(done.stdout), len(DTYPES) + 2)


if __name__ == "__main__":
    if not PYTHON:
        print("skipped: WEIGHTFS_VENV_PYTHON names no interpreter with safetensors")
        sys.exit(harness.SKIPPED)
    harness.main()
