"""A writer's mount for benchmarks, and its daemon."""

import json
import os
import subprocess

import measure


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

    def wait_quiet(self):
        """Until the daemon does nothing any more for itself: early work is done."""
        measure.wait_quiet(self.pid)
