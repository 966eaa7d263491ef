#!/usr/bin/python3
"""Publishing and bringing in a version, as ratios to cp and memcpy; bytes per changed element.

    publish_speed.py [--mib N] [--rounds R] [--json FILE]

Made-up runs of N MiB, and the recorded one if it is there. `cp` copies the same checkpoint files
within the same file system, with fsync; the sources are in the page cache. All take turns, and what a
round made (a repository, a store, a copy) is removed before the next one.

A publish has two times: until the manifest is in the bucket, from when others have the version, and until
the command ends, which then keeps the files for the next publish. The mount that follows stands still
(SIGSTOP) while one publishes: it would use the same cores.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import measure  # noqa: E402
import runs  # noqa: E402
from measure import timed  # noqa: E402

VERSIONS = 4
SNAPSHOT, SNAPSHOT_END = "publish, snapshot: until the manifest", "publish, snapshot: until its end"
DELTA, DELTA_END = "publish, delta: until the manifest", "publish, delta: until its end"


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
        self.bucket, self.mount = self.path("bucket"), self.path("mnt")
        os.mkdir(self.mount)
        self.run("init", self.bucket)

    def path(self, name):
        return os.path.join(self.work, name)

    def run(self, *arguments):
        return subprocess.run([self.weightfs, *arguments], check=True, stdout=subprocess.PIPE).stdout

    def publish(self, folder, bucket=None, store="trainer", version=1):
        """(seconds until the manifest, seconds until the end, what the command said)."""
        bucket = bucket or self.bucket
        manifest = os.path.join(bucket, "versions", f"{version:020}.json")
        start = time.perf_counter()
        with subprocess.Popen([self.weightfs, "publish", bucket, folder, "--store", self.path(store),
                               "--json"], stdout=subprocess.PIPE) as command:
            measure.wait_for(lambda: os.path.exists(manifest) or command.poll() is not None, manifest,
                             pause=0.0005)
            committed = time.perf_counter() - start
            said = command.stdout.read()
        ended = time.perf_counter() - start
        if command.returncode or not os.path.exists(manifest):
            raise subprocess.CalledProcessError(command.returncode, command.args)
        return committed, ended, json.loads(said)

    def mount_store(self, store):
        said = self.run("mount", self.bucket, self.mount, "--store", self.path(store), "--poll", "0.02",
                        "--json")
        self.run("wait", self.mount, "--ready")
        return json.loads(said)["pid"]

    def umount(self):
        self.run("umount", self.mount, "--lazy")

    def wait_for_latest(self, version):
        """The version itself is there at once, and streams in; `latest` names it when it is whole."""
        link = os.path.join(self.mount, "latest")
        measure.wait_for(lambda: os.readlink(link) == f"versions/{version}", f"version {version}")

    def copy(self, folder):
        copy_with_fsync(folder, self.path("copy"))


def first_versions(bench, folder, rounds):
    """{what: seconds}: of a first version, each time into a new place."""
    new_bucket, new_stores = bench.path("new-bucket"), ("new-trainer", "new-reader")
    until_end = []

    def prepare(name):
        os.sync()
        measure.touch_memory(3 * folder_bytes(folder))
        if name == SNAPSHOT:
            bench.run("init", new_bucket)

    def clean(name):
        if name == "mount of an empty store":
            bench.umount()
        for path in (new_bucket, *map(bench.path, new_stores)):
            shutil.rmtree(path, ignore_errors=True)

    def mount():
        bench.mount_store(new_stores[1])

    def publish():
        committed, ended, _ = bench.publish(folder, new_bucket, new_stores[0])
        until_end.append(ended)
        return committed

    seconds = measure.alternate({"cp": lambda: bench.copy(folder), SNAPSHOT: publish,
                                 "mount of an empty store": mount}, rounds, prepare=prepare, clean=clean)
    return {"cp": seconds.pop("cp"), SNAPSHOT: seconds.pop(SNAPSHOT),
            SNAPSHOT_END: until_end[measure.WARM_UP:], **seconds}


def next_versions(bench, folders, rounds):
    """({what: seconds}, results of publish) of versions in a row; a mount follows them."""
    seconds = {"cp": [], DELTA: [], DELTA_END: [], "version N to N+1 on the host": []}
    results = []
    pid = bench.mount_store("reader")

    def publish(folder, version):
        os.kill(pid, signal.SIGSTOP)
        try:
            committed, ended, said = bench.publish(folder, version=version)
        finally:
            os.kill(pid, signal.SIGCONT)
        seconds[DELTA].append(committed), seconds[DELTA_END].append(ended), results.append(said)
        seconds["version N to N+1 on the host"].append(timed(bench.wait_for_latest, version))

    try:
        steps = measure.to_and_fro(folders, rounds + measure.WARM_UP)
        for number, (_, new) in enumerate(steps):
            sides = {"publish": lambda: publish(new, number + 2),
                     "cp": lambda: seconds["cp"].append(timed(bench.copy, new))}
            for side in measure.in_turn(sides, number):
                measure.wait_quiet(pid)
                os.sync()
                measure.touch_memory(4 * folder_bytes(new))
                sides[side]()
    finally:
        bench.umount()
    return {name: values[measure.WARM_UP:] for name, values in seconds.items()}, results[measure.WARM_UP:]


def bench_run(weightfs, label, run, size_label, rounds):
    """The rows of a run."""
    with measure.Workspace() as work:
        bench = Bench(weightfs, work)
        folders = [os.path.join(run, x) for x in sorted(os.listdir(run)) if x.startswith("step_")]
        memcpy = memcpy_seconds(folder_bytes(folders[0]))
        bench.publish(folders[0])
        both = first_versions(bench, folders[0], rounds), next_versions(bench, folders, rounds)
        (first, (later, results)) = both
        for seconds in (first, later):
            for name, values in seconds.items():
                if name == "cp" and seconds is later:
                    continue
                yield [f"{label}, {size_label}", name, *measure.ratios(values, seconds["cp"]),
                       f"{min(values) / memcpy:.1f}"]
        changed, uploaded, elements = (sum(result[key] for result in results) for key in
                                       ("changed_elements", "uploaded_bytes", "elements"))
        yield [f"{label}, {size_label}", f"delta: {100 * changed / elements:.2f} % changed, "
               f"{uploaded / len(results):,.0f} B a version, **{uploaded / changed:.3f} B per change** "
               "(TRL: 6)", "", "", ""]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    measure.add_options(parser)
    args = parser.parse_args()
    weightfs = os.environ["WEIGHTFS_BIN"]
    report = measure.Report("publish_speed", args.json)
    with measure.Workspace() as scratch:
        def rows():
            source = runs.find_source()
            if source:
                runs.make_run(os.path.join(scratch, "recorded"), source=source)
                yield from bench_run(weightfs, "rl-run-a", os.path.join(scratch, "recorded"), "21 MB",
                                     args.rounds)
            runs.make_run(os.path.join(scratch, "made"), versions=VERSIONS, params=args.mib << 19)
            yield from bench_run(weightfs, "made up", os.path.join(scratch, "made"), f"{args.mib} MiB",
                                 args.rounds)
        report.table("ways", ["run", "what", "time / cp: best", "median", "time / memcpy"], rows())
    return 0


if __name__ == "__main__":
    sys.exit(main())
