#!/usr/bin/python3
"""How time and memory grow with the files of a version, with versions, and with headers that differ.

    growth.py [--part files|versions|headers] [--latency-ms L] [--rounds R] [--json FILE]

Each table ends with an exponent: the slope of a straight line through the logarithms. 1 is linear,
2 quadratic, 0 is what does not grow at all.

files     a mount of an empty store streams in a version of so many small files; until all is here.
          Beside it the processor time of the daemon, and what the disk alone takes: so many files
          of this size, written and synced by two threads of this script
versions  a mount of an empty store, of a repository of so many small versions behind a server that
          takes L ms for every answer (tests/support/slow_bucket.py): until `latest` exists, until
          all of it is here, and until `tags/` has every tag; and `weightfs log` of all
headers   a mount that follows versions of 20,000 small tensors, the header of each with another
          step in it: anonymous memory of the daemon, size of its database, and seconds for the
          versions so far from the publish until it is there

The best of R rounds counts (files, versions), after one that only warms up.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import measure  # noqa: E402
import runs  # noqa: E402
import slow_bucket  # noqa: E402
from measure import Workspace, timed  # noqa: E402

FILES = (1000, 2000, 4000, 8000)
VERSIONS = (10, 30, 100, 300)
HEADERS = (10, 20, 40, 80)
TENSORS = 20_000


class Bench:
    """The commands, in a directory of their own."""

    def __init__(self, work, variables=None):
        self.weightfs, self.work = os.environ["WEIGHTFS_BIN"], work
        self.variables = variables or {}
        self.url = "file://" + self.path("bucket")
        self.mount = self.path("mnt")
        os.makedirs(self.mount, exist_ok=True)
        self.stores = 0

    def path(self, name):
        return os.path.join(self.work, name)

    def run(self, *arguments):
        return subprocess.run([self.weightfs, *map(str, arguments)], check=True, text=True,
                              stdout=subprocess.PIPE, env={**os.environ, **self.variables}).stdout

    def publish(self, folder, tag=""):
        tags = ["--tag", tag] if tag else []
        self.run("publish", self.url, folder, "--store", self.path("trainer"), *tags)

    def cold(self, url, steps):
        """Seconds from the beginning of `mount` with an empty store to the end of each step."""
        self.stores += 1
        store = self.path(f"store-{self.stores}")
        begin = time.monotonic()
        self.run("mount", url, self.mount, "--store", store)
        try:
            seconds = [time.monotonic() - begin]
            for step in steps:
                step()
                seconds.append(time.monotonic() - begin)
            return seconds
        finally:
            self.run("umount", self.mount, "--lazy")
            shutil.rmtree(store, ignore_errors=True)

    def wait_ready(self):
        self.run("wait", self.mount, "--ready", "--timeout", 600)


def exponent(sizes, values):
    """Of processor times, which are counted in ticks of 10 ms, none is taken for less than one."""
    return np.polyfit(np.log(sizes), np.log(np.maximum(values, 0.01)), 1)[0]


def print_table(report, name, title, columns, rows):
    """rows: {size: [value of each column]}"""
    found = [exponent(list(rows), [values[i] for values in rows.values()])
             for i in range(len(columns))]
    report.table(name, [title, *columns],
                 [*([f"{size:,}", *(f"{value:.2f}" for value in values)] for size, values in rows.items()),
                  ["**exponent**", *(f"**{value:.2f}**" for value in found)]])


def best_of(rounds, one_round):
    """The best of each of its values. The first round, in memory that was never used, is not counted."""
    return [min(values) for values in zip(*[one_round(number) for number in range(rounds + 1)][1:])]


# ---- files ---------------------------------------------------------------------------------------

def cpu_seconds(pid):
    """Of a process: in user mode, and in the kernel."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in fields[11:13]]


def write_synced(path, size):
    with open(path, "wb") as file:
        file.write(bytes(size))
        os.fsync(file.fileno())


def written_by_hand(folder, count, size):
    os.makedirs(folder)
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda i: write_synced(os.path.join(folder, f"{i:05}"), size), range(count)))
    seconds = time.monotonic() - begin
    shutil.rmtree(folder)
    return seconds


def stream_in(bench, count, size, number):
    """Seconds until all is here, the daemon's processor time, and what the disk alone takes: in turn."""
    cpu = []

    def ready():
        bench.wait_ready()
        with open(os.path.join(bench.mount, ".weightfs", "status")) as status:
            cpu.extend(cpu_seconds(json.load(status)["pid"]))

    seconds = {}

    def by_weightfs():
        seconds["weightfs"] = bench.cold(bench.url, [ready])[1]

    def by_hand():
        seconds["hand"] = written_by_hand(bench.path("by-hand"), count, size)

    for side in measure.in_turn((by_weightfs, by_hand), number):
        os.sync()
        side()
    return [seconds["weightfs"], *cpu, seconds["hand"]]


def bench_files(report, work, args):
    rows = {}
    for count in FILES:
        bench = Bench(os.path.join(work, f"files-{count}"))
        folder = bench.path("checkpoint")
        os.makedirs(folder)
        for i in range(count):
            data = np.full(64, i, dtype="<u2")
            runs.write_safetensors(os.path.join(folder, f"expert-{i:05}.safetensors"),
                                   [(f"w{i}", "BF16", [64], data)])
        bench.run("init", bench.url)
        bench.publish(folder)
        size = os.path.getsize(os.path.join(folder, "expert-00000.safetensors"))
        rows[count] = best_of(args.rounds, lambda number: stream_in(bench, count, size, number))
        shutil.rmtree(bench.work)
    print_table(report, "files", "files", ["all here, s", "user CPU, s", "kernel CPU, s", "disk alone, s"], rows)


# ---- versions ------------------------------------------------------------------------------------

def publish_versions(bench, count):
    bench.run("init", bench.url)
    folder = bench.path("checkpoint")
    os.makedirs(folder)
    data = np.arange(1000, dtype="<u2")
    for version in range(1, count + 1):
        data[version % data.size] += 1
        runs.write_safetensors(os.path.join(folder, "model.safetensors"),
                               [("w", "BF16", [data.size], data)])
        bench.publish(folder, f"step-{version}")


def first_versions(bucket, count, into):
    """A bucket with the first `count` versions of another."""
    shutil.copytree(bucket, into, copy_function=os.link)
    for name in os.listdir(os.path.join(into, "versions")):
        if int(name.split(".")[0]) > count:
            os.remove(os.path.join(into, "versions", name))


def wait_for_tags(bench, count):
    while len(os.listdir(os.path.join(bench.mount, "tags"))) < count:
        time.sleep(0.01)


def bench_versions(report, work, args):
    bench = Bench(os.path.join(work, "versions"))
    publish_versions(bench, max(VERSIONS))
    rows = {}
    for count in VERSIONS:
        folder = bench.path(f"first-{count}")
        first_versions(bench.path("bucket"), count, folder)
        bucket = slow_bucket.SlowBucket(folder)
        bucket.latency = args.latency_ms / 1e3
        bench.variables = bucket.variables()
        steps = [bench.wait_ready, lambda: wait_for_tags(bench, count)]
        try:
            rows[count] = best_of(args.rounds, lambda _: [
                *bench.cold(slow_bucket.URL, steps),
                timed(lambda: bench.run("log", slow_bucket.URL, "--limit", count))])
        finally:
            bucket.close()
    report.note("versions_circumstances", f"{args.latency_ms:g} ms for every answer.")
    print_table(report, "versions", "versions", ["`latest`, s", "all here, s", "all tags, s", "log, s"], rows)


# ---- headers -------------------------------------------------------------------------------------

def write_with_step(path, step):
    data = np.full(16, 1 + step, dtype="<u2")
    tensors = [(f"model.layers.{i // 10}.mlp.experts.{i % 10}.weight", "BF16", [4, 4], data)
               for i in range(TENSORS)]
    runs.write_safetensors(path, tensors, {"step": f"{step:06}", "loss": f"{1 / step:.6f}"})


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) << 10
    raise RuntimeError("smaps_rollup says nothing of anonymous memory")


def bytes_below(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def bench_headers(report, work, args):
    bench = Bench(os.path.join(work, "headers"))
    bench.run("init", bench.url)
    folder, store = bench.path("checkpoint"), bench.path("reader")
    os.makedirs(folder)
    daemon = json.loads(bench.run("mount", bench.url, bench.mount, "--store", store, "--poll", 0.05,
                                  "--json"))["pid"]
    rows, seconds = {}, 0
    try:
        for version in range(1, max(HEADERS) + 1):
            write_with_step(os.path.join(folder, "model.safetensors"), version)
            bench.publish(folder)
            seconds += timed(lambda: bench.run("wait", bench.mount, "--version", version,
                                               "--timeout", 600))
            if version in HEADERS:
                rows[version] = [anonymous_bytes(daemon) / 1e6,
                                 bytes_below(os.path.join(store, "db")) / 1e6, seconds]
    finally:
        bench.run("umount", bench.mount, "--lazy")
    print_table(report, "headers", f"versions of {TENSORS:,} tensors",
                ["anonymous memory, MB", "database, MB", "seconds"], rows)
    first, last = sorted(HEADERS)[-2:]
    more = [(rows[last][i] - rows[first][i]) / (last - first) for i in range(2)]
    report.note("headers_growth", f"More with each version from {first} to {last}: {more[0]:.2f} MB of memory, "
                                  f"{more[1]:.2f} MB of database.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = {"files": bench_files, "versions": bench_versions, "headers": bench_headers}
    parser.add_argument("--part", choices=parts, action="append")
    parser.add_argument("--latency-ms", type=float, default=20)
    measure.add_options(parser, rounds=2)
    args = parser.parse_args()
    report = measure.Report("growth", args.json)
    with Workspace() as work:
        for part in args.part or parts:
            parts[part](report, work, args)


if __name__ == "__main__":
    main()
