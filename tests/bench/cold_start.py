#!/usr/bin/python3
"""The first load of a version: an mmap scan through a mount, as a ratio to a plain file's.

    cold_start.py [--mib N] [--rounds R]

Plain is a copy by cp, which is in the page cache after its first scan. A version is scanned once, for
the first time: when `latest` has just moved to it; cold, with --warm off, after its pages were dropped
and the daemon was started again; and likewise with --warm auto, when status says that all is there.
The best round of each counts. Faults are the minor and major ones of the scan.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from read_speed import drop, largest_file, map_scan, status  # noqa: E402

BINARY = os.environ.get("WEIGHTFS_BIN", "weightfs")


def weightfs(*arguments):
    subprocess.run([BINARY, *map(str, arguments), "--quiet"], check=True, stdout=subprocess.DEVNULL)


def faults():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


class Table:
    """The best scan of each kind: (seconds, faults for each GiB)."""

    def __init__(self):
        self.best = {}

    def scan(self, kind, path):
        before, start = faults(), time.perf_counter()
        map_scan(path)
        seconds = time.perf_counter() - start
        found = (seconds, (faults() - before) * 2**30 / os.path.getsize(path))
        self.best[kind] = min(self.best.get(kind, found), found)

    def print(self, size):
        plain = self.best["plain file, warm"][0]
        print("| first mmap scan of | speed / plain warm | GB/s | faults per GiB |\n|---|---|---|---|")
        for kind, (seconds, count) in self.best.items():
            print(f"| {kind} | {plain / seconds:.2f} | {size / seconds / 1e9:.1f} | {count:.0f} |")


def drop_to_disk(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    drop(path)


def wait_for(condition, what):
    end = time.monotonic() + 300
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"waited 300 s for: {what}")
        time.sleep(0.005)


def is_warm(cache):
    return cache["percent"] == 100 and cache["warming"] == "idle"


def checkpoint(folder, mib):
    os.makedirs(folder)
    size = mib << 20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(mib):
            file.write(os.urandom(1024) * 1024)
    return folder


def measure(work, table, mib, rounds):
    bucket, mount, store = (os.path.join(work, name) for name in ("bucket", "mnt", "store"))
    os.mkdir(mount)
    weightfs("init", bucket)

    def start(*options):
        weightfs("mount", bucket, mount, "--store", store, "--poll", "0.05", *options)

    start()
    try:
        for number in range(1, rounds + 1):
            folder = checkpoint(os.path.join(work, f"step-{number}"), mib)
            weightfs("publish", bucket, folder, "--store", os.path.join(work, "publisher"))
            wait_for(lambda: status(mount)["version"] == number, f"version {number}")
            mounted, image = largest_file(mount, store)
            table.scan("a version when `latest` has moved", mounted)

            plain = os.path.join(work, "plain")
            subprocess.run(["cp", os.path.join(folder, "model.safetensors"), plain], check=True)
            map_scan(plain)
            table.scan("plain file, warm", plain)
            drop_to_disk(plain)
            table.scan("plain file, cold", plain)

            # auto twice: memory that a virtual machine has never touched is slow the first time.
            for warm in ("off", "auto", "auto"):
                weightfs("umount", mount)
                drop_to_disk(image)
                start("--warm", warm)
                if warm == "auto":
                    wait_for(lambda: is_warm(status(mount)["cache"]), "a warm version")
                table.scan(f"a cold version after a restart, --warm {warm}", mounted)
            shutil.rmtree(folder)
    finally:
        weightfs("umount", mount)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    work = tempfile.mkdtemp(prefix="weightfs-bench-")
    table = Table()
    try:
        measure(work, table, options.mib, options.rounds)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    table.print(options.mib << 20)


if __name__ == "__main__":
    main()
