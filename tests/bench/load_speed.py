#!/usr/bin/python3
"""Loads a checkpoint through a mount, as ratios to the same loads from an ordinary directory.

    load_speed.py [--mib N] [--rounds R] [--json FILE]       WEIGHTFS_BIN, WEIGHTFS_VENV_PYTHON (safetensors, numpy)

Loaders: the safetensors package, mapped and as bytes; and with the environment of `scripts/engines.sh vllm`
transformers, and a reload of vLLM on the CPU between two versions: the pause of an engine that serves
(the other calls of the hook cost the same either way). The ordinary directory is a copy on the same
disk. Both take turns within one run, in an order that changes. Warm:
files are in the page cache. Cold: their pages were dropped before each load, and --warm is off, which
would bring them back.
"""

import argparse
import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import engines_python  # noqa: E402
import harness  # noqa: E402
import measure  # noqa: E402
import runs  # noqa: E402
import vllm_engines  # noqa: E402
from measure import timed  # noqa: E402
from publish_speed import folder_bytes  # noqa: E402
from read_speed import drop  # noqa: E402

SHARDS = 4

# Reads every tensor; says how long that took, without the start of Python.
LOADER = """
import glob, sys, time
from safetensors import safe_open
from safetensors.numpy import load

folder, how = sys.argv[1:]
start = time.perf_counter()
total = 0
for path in sorted(glob.glob(f"{folder}/*.safetensors")):
    if how == "mapped":
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                total += int(file.get_tensor(name).view("<i4").sum())
    else:
        with open(path, "rb") as file:
            for tensor in load(file.read()).values():
                total += int(tensor.view("<i4").sum())
print(time.perf_counter() - start, total)
"""


class Places:
    """Versions in a mount and as copies on the same disk."""

    def __init__(self, workspace, name, folders):
        self.workspace, self.dir, self.folders = workspace, os.path.join(workspace.path, name), folders
        url, publisher = "file://" + os.path.join(self.dir, "bucket"), os.path.join(self.dir, "publisher")
        harness.call("init", url)
        self.mount = harness.Mount(self, url, "--store-size", "1T", "--warm", "off")
        for version, folder in enumerate(folders, 1):
            sync_files(folder)
            harness.call("publish", url, folder, "--store", publisher, timeout=600)
            if version == 1:
                self.mount.start()  # a mount has the versions that come after it, too
        self.mount.wait_version(len(folders), 600)
        self.size = folder_bytes(folders[0])
        self.served = self.mount.status()["serve"]["mode"]

    def mounted(self, version):
        return self.mount.join("versions", version)

    def drop(self, version):
        """The pages of the version everywhere: of the mount, of the image beneath, and of the copy."""
        for folder in (self.mounted(version), self.folders[version - 1],
                       os.path.join(self.mount.store, "images", str(version))):
            drop(*(os.path.join(folder, name) for name in os.listdir(folder)))


def sync_files(folder):
    """Pages that were not written yet cannot be dropped."""
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def ratio(load, places, version, cold, rounds):
    """Time through the mount / time from the copy (best, median), and seconds from the copy."""
    folders = {"mount": places.mounted(version), "copy": places.folders[version - 1]}

    def prepare(_):
        if cold:
            places.drop(version)

    seconds = measure.alternate({where: lambda path=path: load(path) for where, path in folders.items()},
                                rounds, warm_up=1, prepare=prepare, memory=2 * places.size)
    return measure.ratios(seconds["mount"], seconds["copy"]), min(seconds["copy"])


def row(places, name, load, rounds, version=1):
    found = [ratio(load, places, version, cold, rounds) for cold in (False, True)]
    return [name, places.served, *(cell for values, seconds in found
                                   for cell in (" / ".join(values), f"{1e3 * seconds:.0f}"))]


def packages(workspace, args):
    """The safetensors package on made-up fp32, which numpy has."""
    folder = os.path.join(workspace.path, "plain")
    os.makedirs(folder)
    rng = np.random.default_rng(1)
    rows = args.mib * 1024 // 4 // SHARDS // 4  # of 1024 fp32, four tensors a shard
    for shard in range(SHARDS):
        tensors = [(f"layers.{shard}.{i}", "F32", (rows, 1024), rng.normal(size=(rows, 1024)).astype("<f4"))
                   for i in range(4)]
        runs.write_safetensors(os.path.join(folder, f"model-{shard}.safetensors"), tensors)
    places = Places(workspace, "packages", [folder])
    for how in ("mapped", "bytes"):
        def load(path):
            said = subprocess.run([os.environ["WEIGHTFS_VENV_PYTHON"], "-c", LOADER, path, how], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout
            return float(said.split()[0])
        yield row(places, f"safetensors, {how}", load, args.rounds)


def engines(workspace, args):
    """A real model of that size, in two versions."""
    worker = engines_python.Worker(workspace, "transformers_worker.py")
    folders = [os.path.join(workspace.path, f"model-{i}") for i in (1, 2)]
    worker.make_large(folders, args.mib)
    places = Places(workspace, "engines", folders)
    for name, more in (("mapped", {}), ("as bytes", {"disable_mmap": True})):
        yield row(places, f"transformers, {name}",
                  lambda path: timed(worker.load_and_read, path, more), args.rounds)
    worker.close()
    offline = vllm_engines.Offline(workspace)
    for strategy in ("lazy", "prefetch"):
        offline.load(folders[0], strategy)
        yield row(places, f"reload of vLLM, {strategy}", lambda path: timed(offline.reload, path),
                  args.rounds, version=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=512)
    measure.add_options(parser)
    args = parser.parse_args()
    os.environ.setdefault("TMPDIR", "/var/tmp")
    workspace = harness.Workspace()
    report = measure.Report("load_speed", args.json)

    def rows():
        yield from packages(workspace, args)
        if os.path.exists(vllm_engines.PYTHON):
            yield from engines(workspace, args)
        else:
            print(f"{vllm_engines.PYTHON} does not exist: without transformers and vLLM", file=sys.stderr)

    report.table("loads", ["loader", "served by", "warm: mount / copy, best / median", "copy, ms",
                           "cold: mount / copy, best / median", "copy, ms"], rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())
