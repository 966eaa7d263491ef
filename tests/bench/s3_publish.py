#!/usr/bin/python3
"""From a checkpoint on the trainer's disk to one that can be read on another host, through a bucket.

    s3_publish.py [--mib N] [--rounds R] [--json FILE]

weightfs: `publish`, until a mount of another store, which polls every 50 ms, opens the version. Beside
it the same step in other ways, with the bucket's objects put and got by the same client:

    whole   every file, as it is
    TRL     gap_delta: u16 gaps (u32 if one is longer) and new values of the changed elements
    slime   zstd-1 of new XOR old, tensor by tensor, with adler32 of the new bytes

These two are encoded by numpy and libzstd and applied to the receiver's checkpoint through mmap, as
slime's receiver does; nobody waits there for a poll. Every version is compared with its source. The
runs are rl-run-a where it is, and a made-up pair of N MiB of which 1 % changes. The gateway is a
private one on this machine, in memory. WEIGHTFS_BIN names the program, WEIGHTFS_TESTS the folder of
weightfs_s3_driver; needs root and /dev/fuse.
"""

import argparse
import ctypes
import ctypes.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gateway as gateways  # noqa: E402
import harness  # noqa: E402
import measure  # noqa: E402
import runs  # noqa: E402
from publish_speed import folder_bytes  # noqa: E402
import size_bench  # noqa: E402

MIB = 1 << 20


# ---- safetensors ---------------------------------------------------------------------------------

def map_tensors(folder, mode="r"):
    """{name: flat array of the elements' bits} of all files, mapped."""
    found = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        path = os.path.join(folder, file)
        for name, (dtype, _, begin, end) in runs.read_header(path).items():
            width = runs.DTYPE_BYTES[dtype]
            found[name] = np.memmap(path, f"<u{width}", mode, begin, ((end - begin) // width,))
    return found


def write_arrays(path, arrays, metadata):
    """Arrays of unsigned numbers, by name."""
    dtypes = {1: "U8", 2: "U16", 4: "U32"}
    runs.write_safetensors(path, [(name, dtypes[data.itemsize], data.shape, data)
                                  for name, data in arrays.items()], metadata)


def read_arrays(path):
    arrays = {}
    widths = {"U8": 1, "U16": 2, "U32": 4}
    for name, (dtype, _, begin, end) in runs.read_header(path).items():
        width = widths[dtype]
        arrays[name] = np.memmap(path, f"<u{width}", "r", begin, ((end - begin) // width,))
    return arrays


# ---- the formats of others -----------------------------------------------------------------------

class Zstd(size_bench.Zstd):
    """Level 1."""

    def __init__(self):
        super().__init__()
        self.lib.ZSTD_decompress.restype = ctypes.c_size_t
        self.lib.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                                             ctypes.c_size_t]

    def compress(self, array):
        room = np.empty(self.lib.ZSTD_compressBound(array.nbytes), np.uint8)
        size = self.lib.ZSTD_compress(room.ctypes.data, room.nbytes, array.ctypes.data,
                                      array.nbytes, 1)
        return room[:size]

    def decompress(self, array, size):
        out = np.empty(size, np.uint8)
        if self.lib.ZSTD_decompress(out.ctypes.data, size, array.ctypes.data, array.nbytes) != size:
            raise RuntimeError("zstd failed")
        return out


class Trl:
    name = "TRL, gap_delta"

    def encode(self, old, new, path):
        arrays = {}
        for name, values in map_tensors(new).items():
            where = np.flatnonzero(old[name] != values)
            if not len(where):
                continue
            gaps = np.diff(where, prepend=-1) - 1
            arrays[name + ".idx"] = gaps.astype("<u4" if gaps.max() > 0xFFFF else "<u2")
            arrays[name + ".val"] = values[where]
        write_arrays(path, arrays, {"format": "sparse_weight_patch", "encoding": "gap_delta"})

    def apply(self, path, folder):
        target, arrays = map_tensors(folder, "r+"), read_arrays(path)
        for name in arrays:
            if name.endswith(".idx"):
                where = np.cumsum(arrays[name].astype(np.int64) + 1) - 1
                target[name[:-4]][where] = arrays[name[:-4] + ".val"]


class Slime:
    name = "slime, XOR and zstd-1"

    def __init__(self):
        self.zstd = Zstd()

    def encode(self, old, new, path):
        arrays, sums = {}, {}
        for name, values in map_tensors(new).items():
            changes = np.bitwise_xor(values, old[name])
            if changes.any():
                arrays[name] = self.zstd.compress(changes.view(np.uint8))
                sums[name] = f"{zlib.adler32(values):08x}"
        write_arrays(path, arrays, sums)

    def apply(self, path, folder):
        target, arrays = map_tensors(folder, "r+"), read_arrays(path)
        with open(path, "rb") as file:
            sums = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
        for name, frame in arrays.items():
            tensor = target[name]
            changes = self.zstd.decompress(np.ascontiguousarray(frame), tensor.nbytes)
            np.bitwise_xor(tensor, changes.view(tensor.dtype), out=tensor)
            if f"{zlib.adler32(tensor):08x}" != sums[name]:
                raise RuntimeError(f"{name}: adler32")


# ---- the ways ------------------------------------------------------------------------------------

class Bucket:
    """One prefix of the gateway's bucket."""

    def __init__(self, gateway, prefix):
        self.gateway, self.url = gateway, f"s3://{gateways.BUCKET}/{prefix}"
        self.client, self.prefix = gateway.client(), prefix

    def transfer(self, way, key, path):
        subprocess.run([gateways.program("weightfs_s3_driver"), way, self.gateway.url, self.url, key,
                        path], check=True)

    def sizes(self):
        """{key: bytes} of everything."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=gateways.BUCKET, Prefix=self.prefix + "/")
        return {entry["Key"]: entry["Size"] for page in pages for entry in page.get("Contents", [])}

    def clear(self):
        for key in self.sizes():
            self.client.delete_object(Bucket=gateways.BUCKET, Key=key)


class Weightfs:
    """A publisher's store, and a mount elsewhere."""

    name = "weightfs"

    def __init__(self, bucket, first, work):
        self.bucket, self.work = bucket, work
        self.mount = os.path.join(work, "mnt")
        os.makedirs(self.mount)
        self.run("init", bucket.url)
        self.publish(first)
        self.run("mount", bucket.url, self.mount, "--store", os.path.join(work, "reader"), "--poll",
                 "0.05", "--store-size", "100G")

    def run(self, *arguments):
        return json.loads(subprocess.run([harness.BINARY, *arguments, "--json"], check=True,
                                         env=harness.environment(), stdout=subprocess.PIPE).stdout)

    def publish(self, folder):
        return self.run("publish", self.bucket.url, folder, "--store",
                        os.path.join(self.work, "trainer"))["version"]

    def step(self, old, new):
        """Returns when the new version can be read; its folder."""
        version = self.publish(new)
        self.run("wait", self.mount, "--version", str(version), "--timeout", "600")
        return os.path.join(self.mount, "versions", str(version))

    def close(self):
        self.run("umount", self.mount, "--lazy")


class Whole:
    name = "whole files"

    def __init__(self, bucket, first, work):
        self.bucket, self.folder = bucket, os.path.join(work, "whole")
        os.makedirs(self.folder)

    def step(self, old, new):
        for name in sorted(os.listdir(new)):
            self.bucket.transfer("put", name, os.path.join(new, name))
        for name in sorted(os.listdir(new)):
            self.bucket.transfer("get", name, os.path.join(self.folder, name))
        return self.folder

    def close(self):
        pass


class Delta:
    """One object a step, in somebody's format, applied to the receiver's checkpoint."""

    def __init__(self, bucket, first, work, coder):
        self.bucket, self.coder, self.name = bucket, coder, coder.name
        self.folder = os.path.join(work, type(coder).__name__)
        self.sent, self.got = self.folder + ".sent", self.folder + ".got"
        shutil.copytree(first, self.folder)

    def step(self, old, new):
        self.coder.encode(map_tensors(old), new, self.sent)
        self.bucket.transfer("put", "delta", self.sent)
        self.bucket.transfer("get", "delta", self.got)
        self.coder.apply(self.got, self.folder)
        return self.folder

    def close(self):
        pass


def check(label, folder, source):
    for name in os.listdir(source):
        if name.endswith(".safetensors") and runs.sha256_of(os.path.join(folder, name)) != \
                runs.sha256_of(os.path.join(source, name)):
            raise RuntimeError(f"{label}: {name} has other bytes")


def bench_run(gateway, label, folders, work, rounds):
    """Steps of the run in every way, in turn; its rows."""
    makers = [Weightfs, Whole, lambda *where: Delta(*where, Trl()), lambda *where: Delta(*where, Slime())]
    ways, seconds, sent, size = [], {}, {}, folder_bytes(folders[0])
    try:
        for i, make in enumerate(makers):
            bucket = Bucket(gateway, f"{label}-{i}".replace(" ", "-"))
            ways.append(make(bucket, folders[0], work))
        for number, (old, new) in enumerate(measure.to_and_fro(folders, measure.WARM_UP + rounds)):
            for way in measure.in_turn(ways, number):
                os.sync()
                measure.touch_memory(3 * size)
                before = way.bucket.sizes()
                began = time.perf_counter()
                folder = way.step(old, new)
                seconds.setdefault(way.name, []).append(time.perf_counter() - began)
                after = way.bucket.sizes()
                sent.setdefault(way.name, []).append(
                    sum(after.values()) - sum(before.values()) if way.name == "weightfs" else
                    sum(after.values()))
                check(way.name, folder, new)
    finally:
        for way in ways:
            way.close()
            way.bucket.clear()
    seconds = {name: values[measure.WARM_UP:] for name, values in seconds.items()}
    size = statistics.mean(sent["whole files"])
    for way in ways:
        took, moved = seconds[way.name], statistics.mean(sent[way.name])
        yield [label, way.name, f"{moved:,.0f}", f"{100 * moved / size:.2f} %",
               f"{1000 * min(took):.0f} / {1000 * statistics.median(took):.0f}",
               " / ".join(measure.ratios(took, seconds["whole files"]))]


def rows(gateway, work, args):
    source = runs.find_source()
    if source:
        out = os.path.join(work, "recorded")
        made = runs.make_run(out, source=source)
        yield from bench_run(gateway, "rl-run-a", [os.path.join(out, step) for step in sorted(made)],
                             os.path.join(work, "rl"), args.rounds)
    folders = [os.path.join(work, "made", name) for name in ("old", "new")]
    size_bench.write_pair(folders, size_bench.plain_shapes(args.mib * MIB // 2), "BF16",
                          size_bench.rate_for(0.01, "BF16"))
    yield from bench_run(gateway, f"made up, {args.mib} MiB", folders, os.path.join(work, "made-up"),
                         args.rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    measure.add_options(parser)
    args = parser.parse_args()
    report = measure.Report("s3_publish", args.json)
    work = tempfile.mkdtemp(prefix="weightfs-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        gateway = gateways.Gateway()
        os.environ.update(gateway.variables())
        gateway.client().create_bucket(Bucket=gateways.BUCKET)
        report.table("ways", ["run", "way", "bytes a step", "of whole files",
                              "ms to readable: best / median", "time / whole files"],
                     rows(gateway, work, args))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
