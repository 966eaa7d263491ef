#!/usr/bin/python3
"""A host with an empty store against a plain download of the same objects from the same server.

    cold_read.py [--mib N] [--rounds R] [--json FILE]

The server is tests/support/slow_bucket.py, on this machine: no network, so what is compared is the
work. It sends files by sendfile(2), which takes a tenth of the processor time of a client. Download:
curl, all files at a time, into a directory. weightfs: `mount` of an empty store, and
then at once (first byte) 4 KiB in the middle of the last shard, or (full read) every file through the
mount, or (ready) nothing but `wait --ready`. All times from the beginning of the command. They
take turns, and what one has written is removed before the next one. The last columns are the
processor time of curl or of the daemon, without reader and server: a busy machine changes it least.
"""

import argparse
import glob
import json
import os
import resource
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

SHARDS = 4


def make_checkpoint(folder, size):
    os.mkdir(folder)
    rng = np.random.default_rng(1)
    for i in range(SHARDS):
        data = rng.integers(0, 1 << 16, size // SHARDS // 2, dtype="<u2")
        runs.write_safetensors(os.path.join(folder, f"model-{i + 1}.safetensors"),
                               [(f"w{i}", "BF16", [data.size], data)])


class Bench:
    def __init__(self, work, bucket, url):
        self.weightfs, self.work, self.bucket, self.url = os.environ["WEIGHTFS_BIN"], work, bucket, url
        self.mount = os.path.join(work, "mnt")
        os.mkdir(self.mount)
        self.made = 0
        self.processor = {}  # {side: [seconds of each round]}

    def run(self, *arguments):
        return subprocess.run([self.weightfs, *arguments], check=True, stdout=subprocess.PIPE,
                              env={**os.environ, **self.bucket.variables()}).stdout

    def download(self, names):
        """Seconds of curl for these objects."""
        self.made += 1
        out = os.path.join(self.work, f"plain-{self.made}")
        arguments = []
        for name in names:
            arguments += [f"{self.bucket.endpoint}{slow_bucket.PLACE}{name}", "-o",
                          os.path.join(out, os.path.basename(name))]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = timed(lambda: subprocess.run(
            ["curl", "--silent", "--no-progress-meter", "--fail", "--parallel", "--create-dirs", *arguments], check=True))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.note("download", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        shutil.rmtree(out)
        return seconds

    def note(self, side, seconds):
        self.processor.setdefault(side, []).append(seconds)

    def cold(self, side, read):
        """Seconds of a mount of an empty store and `read`."""
        self.made += 1
        store = os.path.join(self.work, f"store-{self.made}")

        def mount_and_read():
            said = self.run("mount", slow_bucket.URL, self.mount, "--store", store, "--json")
            read()
            return json.loads(said)["pid"]

        try:
            start = time.perf_counter()
            pid = mount_and_read()
            seconds = time.perf_counter() - start
            self.note(side, measure.family_seconds(pid))
            return seconds
        finally:
            self.run("umount", self.mount, "--lazy")
            shutil.rmtree(store, ignore_errors=True)

    def read_first(self):
        path = os.path.join(self.mount, "latest", f"model-{SHARDS}.safetensors")
        with open(path, "rb", 0) as file:
            file.seek(os.path.getsize(path) // 2)
            assert len(file.read(4096)) == 4096

    def read_all(self):
        buffer = bytearray(4 << 20)
        for name in sorted(os.listdir(os.path.join(self.mount, "latest"))):
            with open(os.path.join(self.mount, "latest", name), "rb", 0) as file:
                while file.readinto(buffer):
                    pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=512)
    measure.add_options(parser)
    args = parser.parse_args()
    report = measure.Report("cold_read", args.json)
    with Workspace() as work:
        folder, objects = os.path.join(work, "checkpoint"), os.path.join(work, "bucket")
        make_checkpoint(folder, args.mib << 20)
        bucket = slow_bucket.SlowBucket(objects)
        bench = Bench(work, bucket, "file://" + objects)
        try:
            bench.run("init", bench.url)
            bench.run("publish", bench.url, folder, "--store", os.path.join(work, "trainer"))
            names = [os.path.relpath(path, objects)
                     for path in glob.glob(os.path.join(objects, "snapshots/1/*/*.safetensors"))]
            sides = {"download": lambda: bench.download(names),
                     "first byte": lambda: bench.cold("first byte", bench.read_first),
                     "full read": lambda: bench.cold("full read", bench.read_all),
                     "ready": lambda: bench.cold("ready", lambda: bench.run("wait", bench.mount, "--ready"))}
            seconds = measure.alternate(sides, args.rounds, prepare=lambda name: os.sync(),
                                        memory=2 * args.mib << 20)
        finally:
            bucket.close()
    processor = {what: values[-args.rounds:] for what, values in bench.processor.items()}
    report.table("ways", ["cold host", "time / plain download: best", "median", "seconds, best",
                          "processor time / plain download: best", "median", "seconds, best"],
                 [[what, *measure.ratios(values, seconds["download"]), f"{min(values):.2f}",
                   *measure.ratios(processor[what], processor["download"]),
                   f"{min(processor[what]):.2f}"] for what, values in seconds.items()])


if __name__ == "__main__":
    main()
