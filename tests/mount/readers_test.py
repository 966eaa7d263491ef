"""Many processes with Python's safetensors load through `latest`, mapped and read as bytes, and each time a
version comes in between: each load is one version, whole.

Needs an interpreter with safetensors and numpy: WEIGHTFS_VENV_PYTHON.
"""

import collections
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import numpy as np  # noqa: E402
import runs  # noqa: E402

PYTHON = os.environ.get("WEIGHTFS_VENV_PYTHON", "")
READERS = 16
VERSIONS = 12
SHARDS = 4
LIMIT = 120  # seconds; it usually takes five

# Loads, prints a line of JSON, and loads again when `latest` is another version, until the last one. Behind
# its first shard each load waits until the mount shows a newer version.
READER = """
import hashlib, json, os, sys, time
from safetensors import safe_open
from safetensors.numpy import load

mount, how, last, limit = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
end = time.monotonic() + limit

def read(path):
    if how == "mapped":
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    with open(path, "rb") as file:
        return load(file.read())

def wait(condition):
    while not condition():
        assert time.monotonic() < end, "nothing new"
        time.sleep(0.01)

def latest():
    return int(os.readlink(f"{mount}/latest").split("/")[-1])

def newest():
    return max(map(int, os.listdir(f"{mount}/versions")))

shown = 0
while shown < last:
    wait(lambda: latest() != shown)
    with open(f"{mount}/latest/model.safetensors.index.json") as file:
        shards = sorted(set(json.load(file)["weight_map"].values()))
    tensors = {}
    for shard in shards:
        tensors.update(read(f"{mount}/latest/{shard}"))
        if shard == shards[0]:
            wait(lambda: newest() > int(tensors["version"]) or newest() == last)
    shown = int(tensors["version"])
    print(json.dumps({name: hashlib.sha256(tensor.tobytes()).hexdigest()
                      for name, tensor in tensors.items()}), flush=True)
"""


class Readers(harness.MountTest):
    def checkpoint(self, version):
        """Shards of two tensors, which are other ones in each version; returns (folder, hashes)."""
        folder = os.path.join(self.dir, f"checkpoint-{version}")
        os.makedirs(folder)
        rng = np.random.default_rng([harness.SEED, version])
        weight_map, hashes = {}, {}
        for shard in range(SHARDS):
            name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
            tensors = [(f"layers.{shard}.{part}", "F32", (64, 96), rng.normal(size=(64, 96)).astype("<f4"))
                       for part in ("up", "down")]
            if shard == 0:
                tensors.append(("version", "I64", (), np.full((), version, "<i8")))
            runs.write_safetensors(os.path.join(folder, name), tensors)
            weight_map.update({tensor: name for tensor, *_ in tensors})
            hashes.update({tensor: harness.sha256(values.tobytes()) for tensor, _, _, values in tensors})
        harness.write_file(os.path.join(folder, "model.safetensors.index.json"),
                           json.dumps({"weight_map": weight_map}).encode())
        return folder, hashes

    def start_reader(self, mount, how):
        reader = subprocess.Popen([PYTHON, "-c", READER, mount.path, how, str(VERSIONS), str(LIMIT)],
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  start_new_session=True)
        self.addCleanup(reader.communicate)
        self.addCleanup(reader.kill)
        return reader

    def test_every_load_of_every_process_is_one_version(self):
        checkpoints = [self.checkpoint(version) for version in range(1, VERSIONS + 1)]
        versions = {json.dumps(hashes, sort_keys=True): version
                    for version, (_, hashes) in enumerate(checkpoints, 1)}
        self.init()
        self.publish(checkpoints[0][0])
        # A reader that has loaded a version sees the next one when its pin has ended.
        mount = self.mount("--pin-grace", "0.3", "--store-size", "1M")
        readers = [self.start_reader(mount, ("mapped", "bytes")[i % 2]) for i in range(READERS)]
        for folder, _ in checkpoints[1:]:
            self.publish(folder)
        loads = collections.Counter()
        for reader in readers:
            output, errors = reader.communicate(timeout=LIMIT + 60)
            self.assertEqual(reader.returncode, 0, errors)
            loaded = [versions.get(json.dumps(json.loads(line), sort_keys=True))
                      for line in output.splitlines()]
            self.assertNotIn(None, loaded, "a mixture of two versions")
            self.assertEqual(loaded, sorted(set(loaded)))
            self.assertEqual(loaded[-1], VERSIONS)
            loads.update(loaded)
        self.assertGreater(len(loads), 2, loads)
        print(f"{loads.total()} loads of {len(loads)} versions", flush=True)


if __name__ == "__main__":
    if not PYTHON:
        print("skipped: WEIGHTFS_VENV_PYTHON names no interpreter with safetensors")
        sys.exit(harness.SKIPPED)
    harness.main()
