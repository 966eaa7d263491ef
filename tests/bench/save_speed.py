#!/usr/bin/python3
"""Saving through a writer's mount, and from the hand-over to the manifest; ratios within one run.

    save_speed.py [--mib N] [--rounds R]

Saves: one file of N MiB into staging and into a directory of the same file system, alternating. The
time is that of the saver; before the next save the file is synced and removed, and the daemon idle.
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
import runs  # noqa: E402
from publish_speed import copy_with_fsync  # noqa: E402
from writer import Workspace, Writer, median, timed  # noqa: E402

try:
    from safetensors.numpy import save_file
except ImportError:
    save_file = None

PIECE = 16 << 20


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


def clean(folder):
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    os.unlink(path)


def bench_saves(writer, savers, rounds):
    staged, plain = writer.staging("saves"), os.path.join(writer.work, "saves")
    os.mkdir(staged), os.mkdir(plain)
    print("| saver | speed of the disk beneath: best | median | disk, GB/s |")
    print("|---|---|---|---|")
    for label, save in savers.all():
        seconds = {staged: [], plain: []}
        for turn in range(rounds + 1):  # the first is not counted
            for folder in (plain, staged) if turn % 2 else (staged, plain):
                taken = timed(lambda: save(folder))
                clean(folder)
                writer.wait_quiet()
                if turn > 0:
                    seconds[folder].append(taken)
        print(f"| {label} | {min(seconds[plain]) / min(seconds[staged]):.2f} "
              f"| {median(seconds[plain]) / median(seconds[staged]):.2f} "
              f"| {len(savers.bytes) / min(seconds[plain]) / 1e9:.1f} |", flush=True)
    os.rmdir(staged)


def bench_hand_overs(writer, run):
    other = os.path.join(writer.work, "other-bucket")
    writer.run("init", other)
    seconds, renames = {}, []

    def note(name, action):
        seconds[name] = min(seconds.get(name, float("inf")), timed(action))

    def hand_over_and_wait(tag):
        renames.append(timed(lambda: writer.hand_over(tag)))
        writer.wait(tag)

    for number, step in enumerate(sorted(x for x in os.listdir(run) if x.startswith("step_"))):
        source = os.path.join(run, step)
        note("cp", lambda: copy_with_fsync(source, os.path.join(writer.work, "copy")))
        subprocess.run(["cp", "-r", source, writer.staging(step)], check=True)
        early = number % 2 == 0
        if early:
            writer.wait_quiet()
        snapshot = ", snapshot" if number == 0 else ""
        label = "when the early work is done" if early else "right after the save"
        note(f"hand-over {label}{snapshot}", lambda: hand_over_and_wait(step))
        writer.wait_quiet()
        note(f"publish{snapshot}", lambda: writer.run(
            "publish", other, source, "--tag", step, "--store", os.path.join(writer.work, "other-store")))
        os.sync()
    print("\n| from the hand-over to the manifest | time / publish | time / cp |")
    print("|---|---|---|")
    for name, taken in seconds.items():
        beside = "publish, snapshot" if name.endswith(", snapshot") else "publish"
        print(f"| {name} | {taken / seconds[beside]:.2f} | {taken / seconds['cp']:.2f} |")
    print(f"\nThe rename itself: {1e3 * median(renames):.1f} ms (median), {1e3 * max(renames):.1f} ms (longest).",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with Workspace() as work:
        with Writer(work) as writer:
            bench_saves(writer, Savers(args.mib << 20), args.rounds)
            run = os.path.join(work, "run")
            runs.make_run(run, versions=7, params=args.mib << 19)
            bench_hand_overs(writer, run)
            shutil.rmtree(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
