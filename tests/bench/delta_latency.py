#!/usr/bin/python3
"""How long after `latest` has moved a reader has read the delta with old values.

    delta_latency.py [--mib N] [--rounds R] [--memory] [--json FILE]

Made with its version (ahead), and made when it is opened (on demand): in turns on one mount, by
rounds of four versions. Of the first the delta is opened, and must be made on demand; so those of
the next are made ahead. That of the second is opened; those of the third and fourth are not, so the
mount stops. How each was made is checked by the counters of `status`.

What it costs is seen in the same run: how long the pass that writes a version takes (build_ms) with
and without a delta that is made ahead. bf16 weights of which 1.1 % change by one unit.
"""

import argparse
import json
import os
import signal
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import measure  # noqa: E402
import runs  # noqa: E402
from measure import Workspace, median  # noqa: E402
from writer import Writer  # noqa: E402

CHANGED, TENSORS = 0.011, 16


class Reader(Writer):
    """A reader's mount."""

    def __init__(self, work, url, options):
        super().__init__(work)
        self.bucket, self.options = url, options
        self.path, self.store = os.path.join(work, "reader"), os.path.join(work, "reader-store")

    def __enter__(self):
        os.mkdir(self.path)
        self.run("mount", self.bucket, self.path, "--store", self.store, "--poll", "0.05",
                 *self.options)
        return self

    def status(self):
        return json.loads(self.run("status", self.path, "--json"))

    def timing(self, version):
        """None: it is not recorded yet."""
        timing = self.status()["timing"]["latest"]
        return timing["brought"] if timing and timing["version"] == version else None

    def latest(self):
        return os.readlink(os.path.join(self.path, "latest")).split("/")[-1]


class Model:
    def __init__(self, folder, mib):
        self.folder, self.rng = folder, np.random.default_rng(1)
        weights = self.rng.standard_normal(mib << 19, dtype=np.float32) * 0.02
        self.bits = (weights.view(np.uint32) >> 16).astype(np.uint16)

    def step(self):
        """Saves the next version.  Returns: its folder."""
        count = int(len(self.bits) * CHANGED)
        self.bits[self.rng.integers(0, len(self.bits), count)] ^= 1
        parts = np.array_split(self.bits, TENSORS)
        os.makedirs(self.folder, exist_ok=True)
        runs.write_safetensors(os.path.join(self.folder, "model.safetensors"),
                               [(f"layers.{i}.weight", "BF16", part.shape, part)
                                for i, part in enumerate(parts)])
        return self.folder


def read_whole(path, buffer):
    """Seconds, and bytes."""
    start, size = time.perf_counter(), 0
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer):
            size += got
    return time.perf_counter() - start, size


def bench(work, args):
    """Rows of (side, seconds to read or None, ms of the pass), and the size of a delta."""
    model = Model(os.path.join(work, "run"), args.mib)
    url, store = "file://" + os.path.join(work, "bucket"), os.path.join(work, "publisher")
    publisher = Writer(work)
    publisher.run("init", url)
    publisher.run("publish", url, model.step(), "--store", store)
    buffer, rows, size = bytearray(4 << 20), [], 0
    with Reader(work, url, ["--images", "memory"] if args.memory else []) as reader:
        measure.wait_for(lambda: reader.latest() == "1", "the first version")
        for version in range(2, 2 + 4 * (args.rounds + measure.WARM_UP)):
            part = (version - 2) % 4
            before = reader.status()["deltas"]
            publisher.run("publish", url, model.step(), "--store", store)
            measure.wait_for(lambda: reader.latest() == str(version), f"version {version}", pause=0.0002)
            seconds = None
            if part < 2:
                path = os.path.join(reader.path, "deltas",
                                    f"{version - 1}-{version}.with-old.safetensors")
                seconds, size = read_whole(path, buffer)
            after = reader.status()
            made = {key: after["deltas"][key] - before[key] for key in before}
            wanted = {"ahead": int(part > 0), "on_demand": int(part == 0),
                      "served_ahead": int(part == 1), "given_up": 0}
            if made != wanted:
                sys.exit(f"version {version}: {made}, expected {wanted}")
            if version - 2 >= 4 * measure.WARM_UP:
                timing = measure.wait_for(lambda: reader.timing(version), "its timing", pause=0.05)
                rows.append((part, seconds, timing["build_ms"]))
    return rows, size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--memory", action="store_true", help="--images memory")
    measure.add_options(parser)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))  # unmounts
    with Workspace() as work:
        rows, size = bench(work, args)
    demand = [seconds for part, seconds, _ in rows if part == 0]
    ahead = [seconds for part, seconds, _ in rows if part == 1]
    plain = [build for part, _, build in rows if part == 0]
    noted = [build for part, _, build in rows if part > 0]
    report = measure.Report("delta_latency", args.json)
    report.note("circumstances", f"{args.mib} MiB of bf16, 1.1 % changed, a delta of {size >> 20} MiB "
                f"with old values, images {'in memory' if args.memory else 'on the disk'}, "
                f"{args.rounds} rounds of four versions")
    report.table("read", ["from `latest` to the last byte of the delta", "best, ms", "median, ms",
                          "median / on demand"],
                 [[name, f"{1e3 * min(times):.1f}", f"{1e3 * median(times):.1f}",
                   f"{median(times) / median(demand):.3f}"]
                  for name, times in (("on demand", demand), ("ahead", ahead))])
    report.table("pass", ["the pass that writes a version", "best, ms", "median, ms",
                          "median / without"],
                 [[name, f"{min(times):.1f}", f"{median(times):.1f}",
                   f"{median(times) / median(plain):.3f}"]
                  for name, times in (("without a delta", plain), ("with one, ahead", noted))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
