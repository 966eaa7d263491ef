"""What writes checkpoints without torch, each for real: copying tools, Python, safetensors old and new.

Needs an interpreter with safetensors and numpy (WEIGHTFS_VENV_PYTHON), and beside it the older
safetensors that truncate in place (folders safetensors-VERSION).
"""

import errno
import glob
import mmap
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import numpy as np  # noqa: E402
import savers  # noqa: E402

PYTHON = os.environ.get("WEIGHTFS_VENV_PYTHON", "")
OLD = sorted(glob.glob(os.path.join(os.path.dirname(os.path.dirname(PYTHON)), "safetensors-*")))

# Names in an order that is not the file's; one tensor above safetensors' buffer of 1 MiB.
SAVE_FILE = """
import os, sys
import numpy as np
from safetensors.numpy import save_file

seed, *folders = sys.argv[1:]
rng = np.random.default_rng(1)
tensors = {"z": rng.random((700, 512), np.float32), "a": rng.random(3).astype(np.float16),
           "empty": np.zeros((0, 4), np.int64), "m": rng.integers(0, 99, (5, 7))}
tensors["z"][::100, int(seed)] += 1
for folder in folders:
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
"""

# Maps the file as it was, saves over it, and hands over while both are mapped.
SAVE_OVER_MAPPED = """
import os, sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

plain, staged, published = sys.argv[1:]
held = []
for folder in (plain, staged):
    os.makedirs(folder)
    path = os.path.join(folder, "model.safetensors")
    old = np.arange(1 << 20, dtype=np.float32)
    save_file({"w": old}, path)
    before = safe_open(path, framework="numpy")
    save_file({"w": before.get_tensor("w") + 1}, path)
    after = safe_open(path, framework="numpy")
    assert np.array_equal(before.get_tensor("w"), old)
    assert np.array_equal(after.get_tensor("w"), old + 1)
    held += [before, after]
os.rename(staged, published)
assert np.array_equal(held[-1].get_tensor("w"), old + 1)
"""


class Copying(savers.SaverTest):
    """Tools that bring a directory in, with its modes and times."""

    def assert_copies(self, copy):
        for step, source in enumerate(self.make_run(2)):
            os.makedirs(os.path.join(source, "tokenizer"))
            harness.write_file(os.path.join(source, "tokenizer", "vocab.txt"), b"a b c")
            os.chmod(os.path.join(source, "config.json"), 0o640)
            os.utime(os.path.join(source, "tokenizer"), (1e9, 1e9))
            name = f"step-{step + 1}"
            plain, staged = self.save_twice(lambda path: copy(source, path), name)
            if copy is not self.cp:
                self.assertEqual(savers.attributes(staged), savers.attributes(plain))
            version = self.hand_over(staged, name)
            self.assertEqual(version, step + 1)
            self.assert_version(version, plain)
            self.assert_left(staged, plain, ())

    @staticmethod
    def cp(source, path):
        subprocess.run(["cp", "-r", source, path], check=True)

    @staticmethod
    def cp_archive(source, path):
        subprocess.run(["cp", "-a", source, path], check=True)

    @staticmethod
    def rsync(source, path):
        subprocess.run(["rsync", "-a", source + "/", path], check=True)

    @staticmethod
    def tar(source, path):
        os.makedirs(path)
        archive = subprocess.Popen(["tar", "-C", source, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-C", path, "-x"], stdin=archive.stdout, check=True)
        archive.stdout.close()
        if archive.wait() != 0:
            raise AssertionError("tar -c failed")

    def test_cp_r(self):
        self.assert_copies(self.cp)

    def test_cp_a(self):
        self.assert_copies(self.cp_archive)

    def test_rsync(self):
        self.assert_copies(self.rsync)

    def test_tar(self):
        self.assert_copies(self.tar)

    def test_rsync_brings_a_directory_that_is_there_up_to_date(self):
        steps = self.make_run(2)

        def save(path):
            for step in steps:  # the second only writes what differs, in place
                subprocess.run(["rsync", "-aI", "--inplace", "--no-whole-file", step + "/", path],
                               check=True)

        _, plain = self.assert_publishes(save)
        self.assert_same_tree(plain, steps[1])

    def test_another_user_saves_and_hands_over(self):
        source, = self.make_run(1)
        self.writer.umount()
        self.writer.options = ("--writer", "--staging-mode", "1777")
        self.writer.start()
        staged, published = self.writer.join("staging", "X"), self.writer.join("publish", "X")
        subprocess.run(["cp", "-r", source, staged], check=True, user=savers.NOBODY)
        subprocess.run(["mv", staged, published], check=True, user=savers.NOBODY)
        self.assert_version(self.wait_tag("X"), source)


class Python(savers.SaverTest):
    """Plain system calls, in orders that a file system may not expect."""

    def assert_writes(self, write):
        """`write(path, data)` writes one file."""
        for step, source in enumerate(self.make_run(2)):
            def save(folder):
                os.makedirs(folder)
                for name in sorted(os.listdir(source)):
                    write(os.path.join(folder, name), harness.read_file(os.path.join(source, name)))

            version, plain = self.assert_publishes(save, f"step-{step + 1}")
            self.assertEqual(version, step + 1)
            self.assert_same_tree(plain, source)

    def test_pieces_in_any_order(self):
        def write(path, data):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            starts = list(range(0, len(data), 10_007))
            harness.RANDOM.shuffle(starts)
            for at in starts:
                os.pwrite(fd, data[at:at + 10_007], at)
            os.close(fd)

        self.assert_writes(write)

    def test_holes_that_are_filled_later(self):
        def write(path, data):
            with open(path, "wb") as file:
                for first in (1, 0):
                    for at in range(first * 4096, len(data), 8192):
                        file.seek(at)
                        file.write(data[at:at + 4096])

        self.assert_writes(write)

    def test_the_size_first_and_then_the_bytes(self):
        def write(path, data):
            with open(path, "wb") as file:
                file.truncate(len(data) + 5000)
                file.write(data)
                file.truncate(len(data))
                os.fsync(file.fileno())

        self.assert_writes(write)

    def test_a_shared_mapping(self):
        def write(path, data):
            with open(path, "w+b") as file:
                file.truncate(len(data))
                with mmap.mmap(file.fileno(), len(data)) as mapping:
                    half = len(data) // 2
                    mapping[half:] = data[half:]
                    mapping[:half] = data[:half]

        self.assert_writes(write)

    def test_a_memmap_of_numpy(self):
        def write(path, data):
            array = np.memmap(path, np.uint8, "w+", shape=(len(data),))
            array[::2] = np.frombuffer(data, np.uint8)[::2]
            array.flush()
            array[1::2] = np.frombuffer(data, np.uint8)[1::2]

        self.assert_writes(write)

    def test_a_memmap_that_is_still_there_is_refused_and_works_when_it_is_gone(self):
        source, = self.make_run(1)
        _, staged = self.paths("X")
        Copying.cp(source, staged)
        array = np.memmap(os.path.join(staged, "model-00001-of-00002.safetensors"), np.uint8, "r+")
        with self.assertRaises(OSError) as refused:
            os.rename(staged, self.writer.join("publish", "X"))
        self.assertEqual(refused.exception.errno, errno.EBUSY)
        self.assert_same_tree(staged, source)
        del array
        self.assert_version(self.hand_over(staged, "X"), source)


class Safetensors(savers.SaverTest):
    def setUp(self):
        if not PYTHON:
            self.skipTest("WEIGHTFS_VENV_PYTHON names no interpreter with safetensors")
        super().setUp()

    def assert_saves(self, variables=None):
        """Three versions, always saved under one name in staging."""
        for step in range(1, 4):
            tag = f"step-{step}"
            plain, staged = self.paths("checkpoint")
            savers.run_python(PYTHON, SAVE_FILE, step, plain, staged, variables=variables)
            self.assert_same_tree(staged, plain)
            self.assertEqual(self.hand_over(staged, tag), step)
            self.assert_version(step, plain)
            self.assert_left(staged, plain, ())

    def test_save_file(self):
        self.assert_saves()

    def test_save_file_of_versions_that_truncate_in_place(self):
        self.assertGreaterEqual(len(OLD), 2, f"no older safetensors beside {PYTHON}")
        for folder in OLD:
            with self.subTest(folder=os.path.basename(folder)):
                said = savers.run_python(PYTHON, "import safetensors; print(safetensors.__version__)",
                                         variables={"PYTHONPATH": folder})
                self.assertIn(said.strip(), folder)
                plain, staged = self.paths(os.path.basename(folder))
                for seed in (1, 2):  # the second time over the first, truncating
                    savers.run_python(PYTHON, SAVE_FILE, seed, plain, staged,
                                      variables={"PYTHONPATH": folder})
                self.assert_same_tree(staged, plain)
                version = self.hand_over(staged, os.path.basename(folder))
                self.assert_version(version, plain)

    def test_saving_over_a_file_that_the_process_has_mapped(self):
        plain, staged = self.paths("checkpoint")
        published = self.writer.join("publish", "checkpoint")
        savers.run_python(PYTHON, SAVE_OVER_MAPPED, plain, staged, published)
        self.assert_version(self.wait_tag("checkpoint"), plain)

    def test_a_second_save_into_a_directory_that_is_in_staging(self):
        def save(path):
            for seed in (1, 2):
                savers.run_python(PYTHON, SAVE_FILE, seed, path)

        self.assert_publishes(save)


if __name__ == "__main__":
    harness.main()
