#!/usr/bin/python3
"""Bytes and seconds to reach version N-k: of the store's patches, and of the bucket.

    history.py [--versions N] [--params P] [--json FILE]

A run of N versions (each weight moves a little, as with Adam: about 1 % of the bf16 values change) is
published one by one; a mount follows all of them and keeps their history. Then the bucket goes, and
versions N-k are opened by name, oldest first, each read whole: the bytes of patches that were read, and
seconds until the last byte. Beside it a host that joins at N, has the bucket, and no history: the bytes
that it fetches, and its seconds.

`--store-size` is six models, so that patches may take four. Needs root, /dev/fuse, numpy.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import measure  # noqa: E402
import runs  # noqa: E402

BACK = (1, 2, 4, 8, 16, 32, 63, 64, 100, 128, 200, 256, 384, 512, 768, 1000)
MIB = 1 << 20


class Run:
    """Checkpoints of one file, made one after another in one directory."""

    def __init__(self, folder, params):
        self.path, self.params = os.path.join(folder, "model.safetensors"), params
        self.folder = folder
        self.rng = np.random.default_rng(7)
        self.weights = self.rng.normal(0, 0.02, params).astype(np.float32)
        self.moves = self.rng.normal(0, 1, params + 65536).astype(np.float32) * 0.25e-6

    def step(self):
        """Writes the next one; returns the SHA-256 of its file."""
        at = int(self.rng.integers(0, 65536))  # a fresh part of the moves: drawing them anew costs more
        self.weights += self.moves[at:at + self.params] * self.rng.choice((-1, 1), 1)[0]
        os.makedirs(self.folder, exist_ok=True)
        runs.write_safetensors(self.path, [("model.weight", "BF16", (self.params,),
                                            runs.to_bf16(self.weights))])
        return runs.sha256_of(self.path)


class Host:
    """A mount of its own store."""

    def __init__(self, work, name, url, *options):
        self.binary = os.environ["WEIGHTFS_BIN"]
        self.path, self.store = (os.path.join(work, f"{name}-{part}") for part in ("mnt", "store"))
        self.url, self.options = url, options
        os.mkdir(self.path)

    def run(self, *arguments):
        return subprocess.run([self.binary, *map(str, arguments)], check=True, stdout=subprocess.PIPE,
                              text=True).stdout

    def __enter__(self):
        self.run("mount", self.url, self.path, "--store", self.store, *self.options)
        self.run("wait", self.path, "--ready", "--timeout", 120)
        return self

    def __exit__(self, *_):
        self.run("umount", self.path, "--lazy")

    def status(self):
        return json.loads(self.run("status", "--json", self.path))

    def wait_version(self, version):
        self.run("wait", self.path, "--version", version, "--timeout", 120)

    def wait_recorded(self, version):
        def recorded():
            history = self.status()["history"]
            return history["recorded"] == version and history
        return measure.wait_for(recorded, f"the patches of version {version}", pause=0.002)

    def read(self, version):
        """Reads a version whole: (seconds, SHA-256 of its file)."""
        found = []
        path = os.path.join(self.path, "versions", str(version), "model.safetensors")
        seconds = measure.timed(lambda: found.append(runs.sha256_of(path)))
        return seconds, found[0]

    def work_for(self, version):
        """What was done to bring it here."""
        for entry in json.loads(self.run("log", "--timing", "--json", self.path)):
            if entry["version"] == version and entry["brought"]:
                return entry["brought"]
        raise RuntimeError(f"no timing of version {version}")


def follow_all(run, publisher, host, versions, hashes):
    """Publishes all and waits until each is recorded, so that each has patches of its own."""
    for version in range(2, versions + 1):
        hashes[version] = run.step()
        publisher(run.folder)
        host.wait_version(version)
        host.wait_recorded(version)
        if version % 64 == 0:
            print(f"{version} versions", file=sys.stderr, flush=True)


def reach(host, newest, model_bytes, hashes, field):
    """Rows of versions N-k, the oldest first: {k: (bytes, seconds)}; None: not to be reached."""
    found = {}
    for k in sorted((k for k in BACK if k < newest), reverse=True):
        try:
            seconds, digest = host.read(newest - k)
        except OSError:
            found[k] = None
            continue
        if digest != hashes[newest - k]:
            raise RuntimeError(f"version {newest - k} has other bytes")
        found[k] = host.work_for(newest - k)[field] / model_bytes, seconds
    return found


def cells(value):
    return ["-", "-"] if value is None else [f"{value[0]:.3f}", f"{1e3 * value[1]:.0f}"]


def plain_read(host, version):
    """Seconds to read and hash what is here: what no way can save."""
    return min(host.read(version)[0] for _ in range(3))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--versions", type=int, default=1024)
    parser.add_argument("--params", type=int, default=4_000_000)
    measure.add_options(parser, rounds=0)
    args = parser.parse_args()
    report = measure.Report("history", args.json)
    with measure.Workspace() as work:
        bucket, size = os.path.join(work, "bucket"), f"{12 * args.params / MIB:.0f}MiB"
        url, model_bytes = "file://" + bucket, 2 * args.params
        run = Run(os.path.join(work, "step"), args.params)
        host = Host(work, "host", url, "--store-size", size)
        def publisher(folder):
            host.run("publish", url, folder, "--store", os.path.join(work, "publisher"))
        host.run("init", url)
        hashes = {1: run.step()}
        publisher(run.folder)
        with host:
            follow_all(run, publisher, host, args.versions, hashes)
            history = host.wait_recorded(args.versions)
            newest = args.versions
            with Host(work, "joins", url, "--history", "0") as joins:
                fetched = reach(joins, newest, model_bytes, hashes, "fetched_bytes")
            shutil.move(bucket, bucket + ".away")
            base = plain_read(host, newest)
            patched = reach(host, newest, model_bytes, hashes, "patched_bytes")
    report.note("circumstances", f"{newest} versions of {model_bytes / 1e6:.0f} MB; reading and hashing what is here "
                f"takes {1e3 * base:.0f} ms. Bytes are shares of the model.")
    report.table("reach", ["k", "patches read", "ms", "fetched without history", "ms"],
                 [[k, *cells(patched[k]), *cells(fetched[k])] for k in sorted(patched)])
    report.table("levels", ["level", "spans", "versions", "of the model"],
                 [[level["level"], level["spans"], f"{level['first']} to {level['last']}" if level["spans"] else "-",
                   f"{level['bytes'] / model_bytes:.3f}"] for level in history["levels"]])
    report.data("reach", {"patched": patched, "fetched": fetched})


if __name__ == "__main__":
    main()
