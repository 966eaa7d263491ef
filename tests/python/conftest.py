"""What the tests of the Python package share: a workspace with real mounts, and tensors.

Run by scripts/test.sh in an environment of its own; `pytest tests/python` runs them anywhere where
numpy is. The binary is WEIGHTFS_BIN, else build/weightfs. Mounts need root and /dev/fuse.
"""

import os
import random
import sys
import tempfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "support"), os.path.join(ROOT, "scripts", "python")]

import harness  # noqa: E402
import numpy  # noqa: E402

import weightfs  # noqa: E402

os.environ["WEIGHTFS_BIN"] = harness.BINARY


class Place:
    """A directory of one test, a repository in it, and its mounts."""

    def __init__(self, workspace):
        self.workspace, self.dir = workspace, workspace.path
        self.url = "file://" + os.path.join(self.dir, "bucket")
        harness.call("init", self.url)
        self.options = ("--store", os.path.join(self.dir, "publisher"))

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def mount(self, *options, name="mnt", store="store"):
        mount = harness.Mount(self, self.url, *options, name=name, store=store)
        mount.start()
        return mount

    def writer(self, *options):
        return self.mount("--writer", *options)

    def publish(self, tensors, **more):
        """Without a mount."""
        return weightfs.publish(self.url, tensors, options=self.options, **more)

    def tensors(self, seed=1, count=3):
        """{name: array}; with another seed a few elements differ."""
        first, other = numpy.random.default_rng(1), numpy.random.default_rng(seed)
        made = {}
        for at in range(count):
            array = first.standard_normal((16, 33), dtype=numpy.float32)
            if seed != 1:
                array.reshape(-1)[other.integers(0, array.size, 5)] += numpy.float32(1)
            made[f"layers.{at}.weight"] = array
        return made


@pytest.fixture
def place(tmp_path_factory):
    tmp_path_factory.getbasetemp()  # pytest's own stays where it is
    workspace = harness.Workspace()
    print(f"seed: WEIGHTFS_TEST_SEED={harness.SEED}")
    tempfile.tempdir = workspace.path  # open() mounts there
    try:
        yield Place(workspace)
    finally:
        tempfile.tempdir = None
        workspace.close()


@pytest.fixture
def rng():
    print(f"seed: WEIGHTFS_TEST_SEED={harness.SEED}")
    return random.Random(harness.SEED)
