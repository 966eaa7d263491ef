#!/usr/bin/python3
"""Reads through a weightfs mount, as ratios to the same reads of the image underneath.

    read_speed.py [--mib N] [--rounds R] [--json FILE]
                                            makes a run of N MiB, mounts it in each --serve mode
    read_speed.py --brief MOUNTPOINT STORE      one line about a mount that is there

Native and mounted reads take turns, each as often first. Warm: the image
is in the page cache. Cold: the pages of the image, and of the file in the mount, were dropped before
each read (fadvise DONTNEED).
"""

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import measure  # noqa: E402
import runs  # noqa: E402

PIECE = 4 << 20


def passes_over(size):
    return max(1, (256 << 20) // max(1, size))


def read_4mib(path):
    """Small files several times over, so that it is reading that is timed, not open(2)."""
    buffer = bytearray(PIECE)
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(passes_over(os.fstat(fd).st_size)):
            os.lseek(fd, 0, os.SEEK_SET)
            while os.readv(fd, [buffer]):
                pass
    finally:
        os.close(fd)


def map_of(path):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)


def map_scan(path):
    with map_of(path) as mapping:
        words = np.frombuffer(mapping, "<u8", len(mapping) // 8)
        total = words.sum()
        del words
    return total


def map_touch(path):
    """One byte of each page, in random order, through a fresh mapping."""
    with map_of(path) as mapping:
        pages = np.random.default_rng(1).permutation(len(mapping) // 4096) * 4096
        view = np.frombuffer(mapping, np.uint8)
        total = view[pages].sum()
        del view
    return total


OPERATIONS = (("read() 4 MiB", read_4mib), ("mmap scan", map_scan),
              ("mmap, touch random pages", map_touch))


def drop(*paths):
    """Of a file that the daemon serves there are two caches: FUSE's, and that of the image."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def ratio(operation, mounted, image, cold, rounds):
    """(native / mounted: best, median; native GB/s)"""
    def prepare(path):
        if cold:
            drop(mounted, image)

    seconds = measure.alternate({path: lambda path=path: operation(path) and None for path in (image, mounted)},
                                rounds, warm_up=1, prepare=prepare,
                                memory=2 * os.path.getsize(image) if cold else 0)
    size = os.path.getsize(image)
    passes = passes_over(size) if operation is read_4mib else 1
    return (*measure.ratios(seconds[image], seconds[mounted]), size * passes / min(seconds[image]) / 1e9)


def largest_file(mount, store):
    version = os.readlink(os.path.join(mount, "latest")).split("/")[-1]
    folder = os.path.join(mount, "versions", version)
    name = max((n for n in os.listdir(folder) if n.endswith(".safetensors")),
               key=lambda n: os.path.getsize(os.path.join(folder, n)))
    return os.path.join(folder, name), os.path.join(store, "images", version, name)


def status(mount):
    with open(os.path.join(mount, ".weightfs", "status")) as file:
        return json.load(file)


def brief(mount, store):
    mounted, image = largest_file(mount, store)
    value, _, native = ratio(read_4mib, mounted, image, False, measure.ROUNDS)
    serve = status(mount)["serve"]
    print(f"{os.path.getsize(image) / 2**20:.0f} MiB by read(): {value} of the local file's speed "
          f"({native:.1f} GB/s), served by {serve['mode']}"
          + (f" ({serve['why']})" if serve["why"] else ""))


def rows_of(mount, store, rounds):
    mounted, image = largest_file(mount, store)
    warm = [ratio(operation, mounted, image, False, rounds) for _, operation in OPERATIONS]
    reads = status(mount)["serve"]["daemon_reads"]
    cold = [ratio(operation, mounted, image, True, rounds) for _, operation in OPERATIONS]
    for (name, _), (*values, native), (*cold_values, _) in zip(OPERATIONS, warm, cold):
        yield [status(mount)["serve"]["mode"], name, " / ".join(values), " / ".join(cold_values),
               f"{native:.1f}", reads]


def rows(weightfs, mib, rounds):
    work = tempfile.mkdtemp(prefix="weightfs-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    mount, bucket = (os.path.join(work, x) for x in ("mnt", "bucket"))
    os.mkdir(mount)
    try:
        runs.make_run(os.path.join(work, "run"), versions=1, params=mib << 19)
        subprocess.run([weightfs, "init", bucket, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([weightfs, "publish", bucket, os.path.join(work, "run", "step_000000"),
                        "--store", os.path.join(work, "trainer")], check=True,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(os.path.join(work, "run"))
        for serve in ("auto", "bind", "daemon"):
            # A store of its own: how an image came into the page cache decides how fast it is read.
            store = os.path.join(work, f"store-{serve}")
            subprocess.run([weightfs, "mount", bucket, mount, "--store", store, "--serve", serve],
                           check=True, stdout=subprocess.DEVNULL)
            try:
                subprocess.run([weightfs, "wait", mount, "--ready"], check=True,
                               stdout=subprocess.DEVNULL)
                yield from rows_of(mount, store, rounds)
            finally:
                subprocess.run([weightfs, "umount", mount, "--lazy"], check=True,
                               stdout=subprocess.DEVNULL)
            shutil.rmtree(store)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    measure.add_options(parser)
    parser.add_argument("--brief", nargs=2, metavar=("MOUNTPOINT", "STORE"))
    args = parser.parse_args()
    if args.brief:
        brief(*args.brief)
    else:
        report = measure.Report("read_speed", args.json)
        # Two shards: twice the size gives one file of --mib.
        report.table("reads", ["served by", "operation", "speed / native, warm: best / median", "cold",
                               "native GB/s, warm", "READs at the daemon, all warm rounds"],
                     rows(os.environ["WEIGHTFS_BIN"], 2 * args.mib, args.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
