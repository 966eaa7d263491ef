#!/usr/bin/python3
"""What a host pays for each version, and for a restart, by the size of the model: for a size that does
not fit here.

    scale.py [--sizes 1GiB,2GiB,4GiB] [--versions V] [--changed 1.0] [--json FILE]

For each size and each home of images (disk, memory) a mount follows V versions after some that are not
counted. Of its daemon: bytes to the disk and processor time for each version, of that the time of the
threads that keep the history (proc's task times), and the seconds of a mount after a kill -9. Beside
them the straight line through the sizes: its slope per GiB, and what it says for 140 GB.

Needs root, /dev/fuse, numpy, a C++ compiler, and three times the largest size of memory.
"""

import argparse
import json
import os
import signal
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import end_to_end  # noqa: E402
import measure  # noqa: E402
import peers  # noqa: E402

GIB = 1 << 30
BIG = 140e9 / GIB  # 70 billion bf16 weights
HOMES = ("disk", "memory")
WARM_UP = 3


class Follower(end_to_end.Mounts):
    """A writer that publishes and a reader that follows; the reader is what is measured."""

    def status(self):
        return json.loads(self.run("status", "--json", self.reader))

    def settle(self):
        """All that comes after `latest` is done."""
        def settled():
            status = self.status()
            history = status["history"]
            return status["unsynced"] == [] and history["backlog"] == 0
        measure.wait_for(settled, "the history is kept", pause=0.02)
        self.wait_quiet()

    def processor_seconds(self):
        return measure.family_seconds(self.pids["reader"])

    def history_bytes(self):
        history = self.status()["history"]
        return history["taken_bytes"] + history["folded_bytes"]

    def restart(self):
        """Kills the reader's daemon, and mounts again. Returns seconds until `latest` is there."""
        os.kill(self.pids["reader"], signal.SIGKILL)
        self.run("umount", self.reader, "--lazy")
        os.rmdir(self.reader)
        return measure.timed(lambda: self.mount("reader", *self.options.split()))


def measure_one(library, size, home, args):
    """What one version costs, at this size and with images there."""
    model = end_to_end.Model(library, size, args.changed / 100)
    with measure.Workspace() as work:
        place = end_to_end.DirectoryPlace(work)
        with Follower(model, work, place, f"--images {home}") as mounts:
            for _ in range(WARM_UP):
                model.step()
                mounts.step()
            mounts.settle()
            before = mounts.written()["reader"], mounts.processor_seconds(), mounts.history_bytes()
            for _ in range(args.versions):
                model.step()
                mounts.step()
                mounts.settle()
            after = mounts.written()["reader"], mounts.processor_seconds(), mounts.history_bytes()
            mounts.check()
            written, processor, history = ((b - a) / args.versions for a, b in zip(before, after))
            restart = mounts.restart()
            mounts.check()
    return {"written": written / size, "history": history / size, "processor": processor,
            "restart": restart}


def fitted(sizes, values):
    """(slope per GiB, value at 140 GB) of the straight line through these."""
    slope, zero = np.polyfit([size / GIB for size in sizes], values, 1)
    return slope, zero + slope * BIG


def rows(found, sizes):
    for home in HOMES:
        for what, label in (("processor", "processor time a version, s"), ("restart", "restart after kill -9, s")):
            values = [found[home, size][what] for size in sizes]
            slope, big = fitted(sizes, values)
            grows = slope > 0  # else it does not depend on the size, or is too short to measure here
            yield [home, label, *(f"{value:.2f}" for value in values), f"{slope:.3f}" if grows else "-",
                   f"{big:.0f}" if grows else "-"]
        for what, label in (("written", "disk bytes a version, of the model"),
                            ("history", "patches written a version, of the model")):
            values = [found[home, size][what] for size in sizes]
            yield [home, label, *(f"{value:.4f}" for value in values), "-",
                   f"{140 * np.mean(values):.2f} GB"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="1GiB,2GiB,4GiB")
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--changed", type=float, default=1.0, help="per cent of the weights, a step")
    measure.add_options(parser, rounds=0)
    args = parser.parse_args()
    sizes = [end_to_end.parse_size(text) for text in args.sizes.split(",")]
    report = measure.Report("scale", args.json)
    found = {}
    with measure.Workspace() as work:
        library = peers.Library(work)
        for size in sizes:
            for home in HOMES:
                found[home, size] = measure_one(library, size, home, args)
                print(f"{size / GIB:g} GiB, {home}: {found[home, size]}", file=sys.stderr, flush=True)
    report.table("sizes", ["images", "what", *(f"{size / GIB:g} GiB" for size in sizes), "a GiB more", "140 GB"],
                 rows(found, sizes))


if __name__ == "__main__":
    main()
