#!/usr/bin/python3
"""How quick staging is while a publish runs, and while it hangs on a dead bucket.

    staging_latency.py [--mib N] [--cycles C] [--json FILE]

The bucket is a directory of an ext4 of its own. Dead means frozen (fsfreeze): whoever writes into
it hangs in the kernel, the daemon's publishing thread first. Each cycle does every operation once;
cycles on the idle mount come before, between and after, and count together. Needs root and loop devices.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import measure  # noqa: E402
import runs  # noqa: E402
from measure import Workspace, median  # noqa: E402
from writer import Writer  # noqa: E402

BLOCK = os.urandom(4096)
SMALL_FILE = os.urandom(1 << 20)


class Operations:
    """The operations of one cycle, each timed, in a directory of staging with 20 files."""

    def __init__(self, folder):
        self.folder, self.seconds = folder, {}
        os.makedirs(folder)
        for i in range(20):
            with open(os.path.join(folder, f"there-{i}"), "wb"):
                pass

    def note(self, name, action, *arguments):
        start = time.perf_counter()
        result = action(*arguments)
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)
        return result

    def cycle(self, number):
        path, other = (os.path.join(self.folder, f"{name}-{number}") for name in ("file", "other"))
        fd = self.note("create", os.open, path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.note("write 4 KiB", os.pwrite, fd, BLOCK, 0)
        self.note("close", os.close, fd)
        self.note("rename", os.rename, path, other)
        self.note("stat", os.stat, other)
        self.note("ls", os.listdir, self.folder)
        self.note("unlink", os.unlink, other)
        self.note("mkdir", os.mkdir, path)
        self.note("rmdir", os.rmdir, path)
        if number % 10 == 0:
            self.note("save 1 MiB", self.save)

    def save(self):
        """As safetensors does; early work looks at it when it is closed."""
        path = os.path.join(self.folder, "small.safetensors")
        fd = os.open(path + ".tmp", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.ftruncate(fd, len(SMALL_FILE))
        os.write(fd, SMALL_FILE)
        os.rename(path + ".tmp", path)
        os.close(fd)

    def take(self):
        seconds, self.seconds = self.seconds, {}
        return seconds


class FreezableDisk:
    """An ext4 in a file; thawed and unmounted at the end, also when this process is killed."""

    def __init__(self, work, size):
        self.image, self.path = os.path.join(work, "disk.ext4"), os.path.join(work, "disk")
        self.size, self.guard = size, None

    def __enter__(self):
        os.mkdir(self.path)
        with open(self.image, "wb") as file:
            file.truncate(self.size)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)
        subprocess.run(["mount", "-o", "loop", self.image, self.path], check=True)
        return self

    def __exit__(self, *_):
        self.thaw()
        subprocess.run(["umount", "-l", self.path], check=True)

    def freeze(self):
        """The guard thaws when its input ends: when we say so, or are gone."""
        self.guard = subprocess.Popen(["sh", "-c", 'read _; exec fsfreeze -u "$1"', "guard", self.path],
                                      stdin=subprocess.PIPE)
        subprocess.run(["fsfreeze", "-f", self.path], check=True)

    def thaw(self):
        if self.guard:
            self.guard.stdin.close()
            self.guard.wait()
            self.guard = None


def hanging_threads(pid):
    """How many of its threads sleep uninterruptibly."""
    count = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            count += file.read().rsplit(")", 1)[1].split()[0] == "D"
    return count


def wait_hanging(pid):
    """Until one hangs for half a second without a break."""
    end, since = time.monotonic() + 60, time.monotonic()
    while time.monotonic() - since < 0.5:
        if time.monotonic() > end:
            raise TimeoutError("the publish does not hang")
        if hanging_threads(pid) == 0:
            since = time.monotonic()
        time.sleep(0.01)


def run_cycles(operations, cycles, go_on=lambda: True):
    """At most this many cycles, while go_on() says so."""
    for number in range(cycles):
        if number % 20 == 0 and not go_on():
            break
        operations.cycle(number)
    return operations.take()


def bench(report, writer, disk, run, cycles):
    """{state: {operation: seconds}}. Operations are small and on the same names again and again: the
    first cycles warm up, and idle ones come before, between and after."""
    steps = sorted(x for x in os.listdir(run) if x.startswith("step_"))
    for step in steps:
        subprocess.run(["cp", "-r", os.path.join(run, step), writer.staging(step)], check=True)
    *running, first, last = steps
    writer.hand_over(first)
    writer.wait(first)
    operations = Operations(writer.staging("operations"))
    writer.wait_quiet()
    run_cycles(operations, cycles // 10)  # warms up
    idle = [run_cycles(operations, cycles)]

    for step in running:
        writer.hand_over(step)
    publishing = run_cycles(operations, cycles, lambda: os.listdir(writer.published()))
    writer.wait(running[-1])
    writer.wait_quiet()
    idle.append(run_cycles(operations, cycles))

    disk.freeze()
    writer.hand_over(last)
    wait_hanging(writer.pid)
    dead = run_cycles(operations, cycles)
    report.note("circumstances", f"Threads of the daemon that hang in the bucket: {hanging_threads(writer.pid)}. "
                f"Cycles while a publish runs: {len(publishing['create'])}.")
    disk.thaw()
    writer.wait(last)
    writer.wait_quiet()
    idle.append(run_cycles(operations, cycles))
    together = {name: sum((part[name] for part in idle), []) for name in idle[0]}
    return {"idle": together, "publishing": publishing, "dead": dead}


def percentile_99(values):
    return sorted(values)[len(values) * 99 // 100]


def rows(states):
    for name, idle in states["idle"].items():
        row = [name, f"{1e6 * median(idle):.0f}", f"{1e6 * percentile_99(idle):.0f}"]
        for state in ("publishing", "dead"):
            row += [f"{of(states[state][name]) / of(idle):.2f}" for of in (median, percentile_99)]
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--cycles", type=int, default=3000)
    measure.add_options(parser, rounds=None)
    args = parser.parse_args()
    report = measure.Report("staging_latency", args.json)
    with Workspace() as work:
        run = os.path.join(work, "run")
        runs.make_run(run, versions=8, params=args.mib << 19)
        with FreezableDisk(work, (args.mib << 20) * 4 + (1 << 30)) as disk:
            with Writer(work, os.path.join(disk.path, "bucket")) as writer:
                states = bench(report, writer, disk, run, args.cycles)
                report.table("operations", ["operation", "idle: median, us", "p99, us",
                                            "publish runs / idle: median", "p99",
                                            "bucket dead / idle: median", "p99"], rows(states))
            shutil.rmtree(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
