#!/usr/bin/python3
"""Saving through a writer's mount, and from the hand-over to the manifest; ratios within one run.

    save_speed.py [--mib N] [--rounds R] [--json FILE]

Saves: one file of N MiB into staging and into a directory of the same file system, in turn. The time
is that of the saver; before the next save the file is synced and removed, and the daemon idle.
Hand-overs: from os.rename to the return of `weightfs wait`, beside `weightfs publish` of the same
directory into a second repository with the same history; about 1 % changed. `cp` as in publish_speed.
An interpreter without safetensors leaves out its rows.
"""

import argparse
import os
import shutil
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import measure  # noqa: E402
import runs  # noqa: E402
from measure import Workspace, median, timed  # noqa: E402
from publish_speed import copy_with_fsync, folder_bytes  # noqa: E402
from writer import Writer  # noqa: E402

try:
    from safetensors.numpy import save_file
except ImportError:
    save_file = None

PIECE = 16 << 20
VERSIONS = 4


class Savers:
    """Each writes `folder`/model.safetensors."""

    def __init__(self, size):
        self.data = np.random.default_rng(1).integers(0, 1 << 63, size // 8)
        self.bytes = memoryview(self.data).cast("B")

    def pattern(self, folder, at_the_end=lambda fd: None):
        """What safetensors 0.8 does, in system calls."""
        temporary = os.path.join(folder, ".tmp123456")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, len(self.bytes))
        for at in range(0, len(self.bytes), PIECE):
            os.write(fd, self.bytes[at:at + PIECE])
        at_the_end(fd)
        os.rename(temporary, os.path.join(folder, "model.safetensors"))
        os.close(fd)

    def pattern_with_fsync(self, folder):
        self.pattern(folder, os.fsync)

    def safetensors(self, folder):
        tensors = dict(enumerate(np.split(self.data, 16)))
        save_file({f"layer.{i}": part for i, part in tensors.items()},
                  os.path.join(folder, "model.safetensors"))

    def all(self):
        rows = [("temporary file, ftruncate, 16 MiB writes, rename, close", self.pattern),
                ("the same with fsync before the rename", self.pattern_with_fsync)]
        return rows + ([("safetensors.numpy.save_file", self.safetensors)] if save_file else [])


def save_rows(writer, savers, rounds):
    staged, plain = writer.staging("saves"), os.path.join(writer.work, "saves")
    os.mkdir(staged), os.mkdir(plain)

    def clean(folder):
        path = os.path.join(folder, "model.safetensors")
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        os.unlink(path)
        writer.wait_quiet()

    for label, save in savers.all():
        seconds = measure.alternate({folder: lambda folder=folder: save(folder) for folder in (plain, staged)},
                                    rounds, clean=clean, memory=2 * len(savers.bytes))
        yield [label, *measure.ratios(seconds[plain], seconds[staged]),
               f"{len(savers.bytes) / min(seconds[plain]) / 1e9:.1f}"]
    os.rmdir(staged)


class HandOvers:
    """A version by each way in turn, from the same folders into two repositories."""

    def __init__(self, writer, run):
        self.writer, self.renames = writer, []
        self.folders = [os.path.join(run, x) for x in sorted(os.listdir(run)) if x.startswith("step_")]
        self.other = os.path.join(writer.work, "other-bucket")
        writer.run("init", self.other)
        self.number, self.memory = 0, 3 * folder_bytes(self.folders[0])
        self.hand_over_of(self.folders[0], early=True), self.publish(self.folders[0])

    def hand_over_of(self, source, early):
        self.number += 1
        tag = f"version-{self.number}"
        subprocess.run(["cp", "-r", source, self.writer.staging(tag)], check=True)
        if early:
            self.writer.wait_quiet()
        self.renames.append(timed(lambda: self.writer.hand_over(tag)))
        return self.renames[-1] + timed(lambda: self.writer.wait(tag))

    def publish(self, source):
        self.writer.run("publish", self.other, source, "--store",
                        os.path.join(self.writer.work, "other-store"))

    def rows(self, rounds):
        names = ("cp", "publish", "hand-over right after the save", "hand-over when the early work is done")
        seconds = {name: [] for name in names}
        steps = measure.to_and_fro(self.folders, 2 * (rounds + measure.WARM_UP))
        for number in range(-measure.WARM_UP, rounds):
            first, second = (new for _, new in (steps.pop(0), steps.pop(0)))
            # Both hand-overs make a version of one history; each source is published beside it.
            sides = {
                "cp": lambda: copy_with_fsync(first, os.path.join(self.writer.work, "copy")),
                "publish": lambda: (timed(lambda: self.publish(first)) + timed(lambda: self.publish(second))) / 2,
                names[2 + number % 2]: lambda: self.hand_over_of(first, early=number % 2 == 1),
                names[3 - number % 2]: lambda: self.hand_over_of(second, early=number % 2 == 0),
            }
            # The history goes from `first` to `second`: only the others change their places.
            order = list(sides) if number % 2 else [*list(sides)[2:], *list(sides)[:2]]
            for name in order:
                self.writer.wait_quiet()
                os.sync()
                measure.touch_memory(self.memory)
                measured = []
                taken = timed(lambda: measured.append(sides[name]()))
                if number >= 0:
                    seconds[name].append(taken if measured[0] is None else measured[0])
        for name in names:
            yield [name, *measure.ratios(seconds[name], seconds["publish"]),
                   *measure.ratios(seconds[name], seconds["cp"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    measure.add_options(parser)
    args = parser.parse_args()
    report = measure.Report("save_speed", args.json)
    with Workspace() as work:
        with Writer(work) as writer:
            report.table("saves", ["saver", "speed / the disk beneath: best", "median", "disk, GB/s"],
                         save_rows(writer, Savers(args.mib << 20), args.rounds))
            run = os.path.join(work, "run")
            runs.make_run(run, versions=VERSIONS, params=args.mib << 19)
            both = HandOvers(writer, run)
            report.table("hand_overs", ["from the hand-over to the manifest", "time / publish: best", "median",
                                        "time / cp: best", "median"], both.rows(args.rounds))
            report.note("rename", f"The rename itself: {1e3 * median(both.renames):.1f} ms (median), "
                                  f"{1e3 * max(both.renames):.1f} ms (longest).")
            shutil.rmtree(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
