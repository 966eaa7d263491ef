#!/usr/bin/python3
"""The first load of a version: an mmap scan through a mount, as a ratio to a plain file's.

    cold_start.py [--mib N] [--rounds R] [--json FILE]

Plain is a copy by cp, which is in the page cache after its first scan. A version is scanned once, for
the first time: when `latest` has just moved to it; cold, with --warm off, after its pages were dropped
and the daemon was started again; and likewise with --warm auto, when status says that all is there.
The first rounds are not counted: their memory
was never used before. Faults are the minor and major ones of the scan.
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
import measure  # noqa: E402
from measure import wait_for  # noqa: E402
from read_speed import drop, largest_file, map_scan, status  # noqa: E402

BINARY = os.environ.get("WEIGHTFS_BIN", "weightfs")


def weightfs(*arguments):
    subprocess.run([BINARY, *map(str, arguments), "--quiet"], check=True, stdout=subprocess.DEVNULL)


def faults():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


class Table:
    """The scans of each kind: [(seconds, faults for each GiB)]."""

    def __init__(self):
        self.scans = {}

    def scan(self, kind, path):
        before, start = faults(), time.perf_counter()
        map_scan(path)
        seconds = time.perf_counter() - start
        found = (seconds, (faults() - before) * 2**30 / os.path.getsize(path))
        self.scans.setdefault(kind, []).append(found)

    def forget(self):
        """What was measured so far was the warm-up."""
        self.scans.clear()

    def rows(self, size):
        plain = [seconds for seconds, _ in self.scans["plain file, warm"]]
        for kind, found in self.scans.items():
            seconds, (best, count) = [seconds for seconds, _ in found], min(found)
            yield [kind, *measure.ratios(plain, seconds), f"{size / best / 1e9:.1f}", f"{count:.0f}"]


def drop_to_disk(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    drop(path)



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


def scan_all(work, table, mib, rounds):
    bucket, mount, store = (os.path.join(work, name) for name in ("bucket", "mnt", "store"))
    os.mkdir(mount)
    weightfs("init", bucket)

    def start(*options):
        weightfs("mount", bucket, mount, "--store", store, "--poll", "0.05", *options)

    start()
    try:
        for number in range(1, measure.WARM_UP + rounds + 1):
            if number == measure.WARM_UP + 1:
                table.forget()
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

            for warm in measure.in_turn(("off", "auto"), number):
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
    measure.add_options(parser)
    options = parser.parse_args()
    work = tempfile.mkdtemp(prefix="weightfs-bench-")
    table = Table()
    try:
        scan_all(work, table, options.mib, options.rounds)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    measure.Report("cold_start", options.json).table(
        "scans", ["first mmap scan of", "speed / plain warm: best", "median", "GB/s", "faults per GiB"],
        table.rows(options.mib << 20))


if __name__ == "__main__":
    main()
