#!/usr/bin/python3
"""Publishing and bringing in a version, as ratios to cp and memcpy; bytes per changed element.

    publish_speed.py [--mib N]

Made-up runs of N MiB, and the recorded one if it is there. `cp` copies the same checkpoint files
within the same file system, with fsync as weightfs has it; the sources are in the page cache.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import runs  # noqa: E402


def timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def folder_bytes(folder):
    return sum(os.path.getsize(os.path.join(at, name))
               for at, _, names in os.walk(folder) for name in names)


def memcpy_seconds(size, rounds=5):
    source = np.ones(min(size, 1 << 29), np.uint8)
    target = np.zeros_like(source)
    return min(timed(lambda: np.copyto(target, source)) for _ in range(rounds)) * size / len(source)


def copy_with_fsync(source, target):
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-r", source, target], check=True)
    for name in os.listdir(target):
        fd = os.open(os.path.join(target, name), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


class Bench:
    def __init__(self, weightfs, work):
        self.weightfs, self.work = weightfs, work
        self.bucket, self.mount = os.path.join(work, "bucket"), os.path.join(work, "mnt")
        os.mkdir(self.mount)
        self.run("init", self.bucket)

    def run(self, *arguments):
        return subprocess.run([self.weightfs, *arguments], check=True, stdout=subprocess.PIPE).stdout

    def publish(self, folder):
        return json.loads(self.run("publish", self.bucket, folder, "--store",
                                   os.path.join(self.work, "trainer"), "--json"))

    def status(self):
        with open(os.path.join(self.mount, ".weightfs", "status")) as file:
            return json.load(file)

    def wait_for(self, version):
        end = time.monotonic() + 300
        while not os.path.exists(os.path.join(self.mount, "versions", str(version))):
            if time.monotonic() > end:
                raise TimeoutError(f"version {version}: {self.status()}")
            time.sleep(0.001)


def bench_run(weightfs, label, run, size_label):
    """Publishes all versions of a run, the mount following; prints its rows."""
    work = tempfile.mkdtemp(prefix="weightfs-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        bench = Bench(weightfs, work)
        steps = sorted(x for x in os.listdir(run) if x.startswith("step_"))
        size = folder_bytes(os.path.join(run, steps[0]))
        memcpy = memcpy_seconds(size)
        rows, changed, uploaded = {}, 0, 0

        def note(name, seconds):
            rows[name] = min(rows.get(name, float("inf")), seconds)

        note("cp", timed(lambda: copy_with_fsync(os.path.join(run, steps[0]),
                                                 os.path.join(work, "copy"))))
        note("publish, snapshot", timed(lambda: bench.publish(os.path.join(run, steps[0]))))
        note("mount of an empty store", timed(lambda: (
            bench.run("mount", bench.bucket, bench.mount, "--store", os.path.join(work, "store"),
                      "--poll", "0.02"),
            bench.run("wait", bench.mount, "--ready"))))
        try:
            for number, step in enumerate(steps[1:], 2):
                results = []
                note("publish, delta", timed(
                    lambda: results.append(bench.publish(os.path.join(run, step)))))
                note("version N to N+1 on the host", timed(lambda: bench.wait_for(number)))
                note("cp", timed(lambda: copy_with_fsync(os.path.join(run, step),
                                                         os.path.join(work, "copy"))))
                changed += results[0]["changed_elements"]
                uploaded += results[0]["uploaded_bytes"]
                elements = results[0]["elements"]
        finally:
            bench.run("umount", bench.mount, "--lazy")
        for name, seconds in rows.items():
            print(f"| {label}, {size_label} | {name} | {seconds / rows['cp']:.2f} "
                  f"| {seconds / memcpy:.1f} |")
        count = len(steps) - 1
        print(f"| {label}, {size_label} | delta: {100 * changed / count / elements:.2f} % changed, "
              f"{uploaded / count:,.0f} B a version, **{uploaded / changed:.3f} B per change** "
              f"(TRL: 6) | | |", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    args = parser.parse_args()
    weightfs = os.environ["WEIGHTFS_BIN"]
    print("| run | what | time / cp | time / memcpy |")
    print("|---|---|---|---|")
    scratch = tempfile.mkdtemp(prefix="weightfs-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        source = runs.find_source()
        if source:
            runs.make_run(os.path.join(scratch, "recorded"), source=source)
            bench_run(weightfs, "rl-run-a", os.path.join(scratch, "recorded"), "21 MB")
        runs.make_run(os.path.join(scratch, "made"), versions=4, params=args.mib << 19)
        bench_run(weightfs, "made up", os.path.join(scratch, "made"), f"{args.mib} MiB")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
