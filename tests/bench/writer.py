"""What the benchmarks of a writer's mount share: a workspace with a bucket, a mount, and its daemon."""

import json
import os
import shutil
import subprocess
import tempfile
import time

from publish_speed import timed


class Writer:
    """A writer's mount of an empty repository below `work`; `with` ends it."""

    def __init__(self, work, bucket=None):
        self.weightfs, self.work = os.environ["WEIGHTFS_BIN"], work
        self.bucket = "file://" + (bucket or os.path.join(work, "bucket"))
        self.path, self.store = os.path.join(work, "writer"), os.path.join(work, "writer-store")

    def __enter__(self):
        os.mkdir(self.path)
        self.run("init", self.bucket)
        self.pid = json.loads(self.run("mount", "--writer", self.bucket, self.path, "--store",
                                       self.store, "--store-size", "100G", "--json"))["pid"]
        return self

    def __exit__(self, *_):
        self.run("umount", self.path, "--lazy")

    def run(self, *arguments):
        return subprocess.run([self.weightfs, *arguments], check=True, stdout=subprocess.PIPE).stdout

    def staging(self, *names):
        return os.path.join(self.path, "staging", *names)

    def published(self, *names):
        return os.path.join(self.path, "publish", *names)

    def hand_over(self, name):
        os.rename(self.staging(name), self.published(name))

    def wait(self, tag):
        self.run("wait", self.path, "--tag", tag, "--timeout", "600")

    def cpu_ticks(self):
        with open(f"/proc/{self.pid}/stat") as file:
            columns = file.read().rsplit(")", 1)[1].split()
        return int(columns[11]) + int(columns[12])

    def wait_quiet(self):
        """Until the daemon does nothing any more for itself: early work is done."""
        still, before = 0, self.cpu_ticks()
        while still < 5:
            time.sleep(0.1)
            now = self.cpu_ticks()
            still, before = (still + 1, now) if now - before <= 1 else (0, now)


class Workspace:
    """A directory in $TMPDIR or /var/tmp: the benchmark's disk."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="weightfs-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def median(values):
    return sorted(values)[len(values) // 2]


__all__ = ["Workspace", "Writer", "median", "timed"]
