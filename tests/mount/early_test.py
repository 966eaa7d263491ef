"""What is saved is coded, and uploaded, before it is handed over, however it was saved.

Each save is one of the ways in which trainers write files. After it the test waits until `status`
says that everything is in the bucket, and looks there too; then it hands over, and none of those
bytes is coded or uploaded again.
"""

import concurrent.futures
import mmap
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import savers  # noqa: E402
import writers  # noqa: E402

PARAMS = 3_000_000  # two shards of some MiB: smaller files are not coded early
LARGE_PARAMS = 12_000_000  # so large that some of it shows while it is written
RANK_PARAMS = 6_000_000  # of each of eight ranks
PYTHON = os.environ.get("WEIGHTFS_VENV_PYTHON", "")

# Loads every safetensors file of argv[1] and saves it as argv[2] does.
SAVE_FILES = """
import os, shutil, sys
import numpy as np
from safetensors import TensorSpec, deserialize, serialize_file
for name in sorted(os.listdir(sys.argv[1])):
    if not name.endswith(".safetensors"):
        shutil.copyfile(os.path.join(sys.argv[1], name), os.path.join(sys.argv[2], name))
        continue
    with open(os.path.join(sys.argv[1], name), "rb") as file:
        tensors = {tensor: (info["shape"], np.frombuffer(info["data"], np.uint8))
                   for tensor, info in deserialize(file.read())}
    serialize_file({tensor: TensorSpec(dtype="bfloat16", shape=shape, data_ptr=data.ctypes.data,
                                        data_len=data.nbytes)
                    for tensor, (shape, data) in tensors.items()},
                   os.path.join(sys.argv[2], name), metadata={"format": "pt"})
"""


# Saves tensors that argv[2] makes different.  Each is written in one piece, and nobody sees how far
# that is before its end.
SAVE_LARGE = """
import sys
import numpy as np
from safetensors.numpy import save_file
weights = np.random.default_rng(1).integers(0, 1 << 16, (32, 2 << 20), np.uint16)
weights[:, ::97] += np.uint16(sys.argv[2])
save_file({f"weights.{i}": tensor for i, tensor in enumerate(weights)}, sys.argv[1])
"""


def is_weights(name):
    return name.endswith(".safetensors")


# ---- ways to save a file -------------------------------------------------------------------------

def write_and_close(data, path):
    with open(path, "wb") as file:
        file.write(data)


def rename_after_close(data, path):
    temporary = os.path.join(os.path.dirname(path), ".tmp" + os.path.basename(path))
    write_and_close(data, temporary)
    os.rename(temporary, path)


def rename_before_close(data, path):
    temporary = os.path.join(os.path.dirname(path), ".tmp" + os.path.basename(path))
    with open(temporary, "wb") as file:
        file.truncate(len(data))
        file.write(data)
        os.rename(temporary, path)


def in_pieces(data, path):
    """As safetensors does since 0.8."""
    temporary = os.path.join(os.path.dirname(path), ".tmpQ4LQlO")
    with open(temporary, "xb", buffering=0) as file:
        file.truncate(len(data))
        for at in range(0, len(data), 1 << 20):
            file.write(data[at:at + (1 << 20)])
        os.rename(temporary, path)


def set_the_time_after_close(data, path):
    write_and_close(data, path)
    os.utime(path, (1_700_000_000, 1_700_000_000))


def store_through_a_mapping(data, path):
    with open(path, "w+b") as file:
        file.truncate(len(data))
        mapped = mmap.mmap(file.fileno(), len(data))
    mapped[:] = data  # its descriptor is gone
    mapped.close()


def append(data, path, wait):
    with open(path, "wb", buffering=0) as file:
        file.write(data[:len(data) // 2])
        wait()
        file.write(data[len(data) // 2:])


def write_again(data, path, wait):
    half, again = len(data) // 2, len(data) // 4
    first = bytearray(data[:half])
    first[again] ^= 1
    with open(path, "wb", buffering=0) as file:
        file.write(first)
        wait()
        file.write(data[half:])
        os.pwrite(file.fileno(), data[again:again + 1], again)


def set_the_size_first(data, path, wait):
    """As safetensors does since 0.8."""
    temporary = os.path.join(os.path.dirname(path), ".tmpQ4LQlO")
    part = len(data) * 3 // 4
    with open(temporary, "xb", buffering=0) as file:
        file.truncate(len(data))
        file.write(data[:part])
        wait()
        file.write(data[part:])
        os.rename(temporary, path)


def name_it_last(data, path, wait):
    append(data, path + ".incomplete", wait)
    os.rename(path + ".incomplete", path)


SLOW_WAYS = (append, write_again, set_the_size_first, name_it_last)

WAYS = (write_and_close, rename_after_close, rename_before_close, set_the_time_after_close,
        store_through_a_mapping)


def copy_files(source, folder, write):
    os.makedirs(folder, exist_ok=True)
    for name in sorted(os.listdir(source)):
        write(harness.read_file(os.path.join(source, name)), os.path.join(folder, name))


class Early(writers.WriterTest):
    serve = "passthrough"

    def setUp(self):
        self.init()
        self.mounted = self.writer("--serve", self.serve)

    def start_run(self, steps, params=PARAMS):
        self.steps = self.make_run(steps, params)
        self.publish_through(self.mounted, self.steps[0], "step-0")

    def weights_bytes(self, step):
        return sum(os.path.getsize(os.path.join(step, name))
                   for name in os.listdir(step) if is_weights(name))

    def uploaded(self, version):
        """What lies in the bucket for a version, committed or not."""
        folder = self.object(f"packs/{version}") if version > 1 else self.object("snapshots/1")
        return {os.path.relpath(os.path.join(parent, name), folder)
                for parent, _, names in os.walk(folder) for name in names
                if is_weights(name) and not name.startswith(".")}

    def named_packs(self, version):
        with open(self.manifest(version)) as file:
            manifest = harness.json.load(file)
        return {pack["name"] + ".safetensors" for pack in manifest["delta"]["packs"]}

    def wait_early(self, version, size):
        """Waits until so many bytes are coded and uploaded; returns what lies in the bucket."""
        def is_done(status):
            early = status["writer"].get("early", {})
            return early.get("uploaded_bytes") == size and early["waiting_files"] == 0

        self.mounted.wait_status(is_done, f"{size} bytes to be coded early", timeout=30)
        self.assertEqual(self.mounted.status()["writer"]["early"]["coded_bytes"], size)
        found = self.uploaded(version)
        self.assertTrue(found)
        return found

    def finish(self, step, name, version):
        """What was saved is early, and stays it; `step` is what was saved as staging/NAME."""
        size = self.weights_bytes(step)
        before = self.wait_early(version, size)
        tag = f"step-{version}"
        self.hand_over(self.mounted, name, tag)
        self.assertEqual(self.wait(self.mounted, "--tag", tag), version)
        self.assertEqual(self.uploaded(version), before)
        if version > 1:
            self.assertLessEqual(self.named_packs(version), before)
        self.assert_same_tree(self.mounted.join("versions", version), step)
        done = self.mounted.status()["writer"]["published"]
        self.assertEqual(done["last"][-1]["version"], version)
        self.assertEqual(done["last"][-1]["early_bytes"], size)
        self.assertGreater(done["last"][-1]["bytes"], size)
        self.assertGreaterEqual(done["early_bytes"], size)
        self.assertIn(f"version {version}: ", harness.run("status", self.mounted.path).stdout)
        entry = harness.call("log", self.url)[0]
        self.assertEqual((entry["version"], entry["early_bytes"]), (version, size))

    def test_every_way_to_save_a_file(self):
        self.start_run(1 + len(WAYS))
        for version, write in enumerate(WAYS, 2):
            with self.subTest(way=write.__name__):
                step = self.steps[version - 1]
                copy_files(step, self.mounted.staging("checkpoint"), write)
                self.finish(step, "checkpoint", version)

    def test_programs_that_copy(self):
        self.start_run(4)
        commands = (["cp", "-r"], ["cp", "-a"], ["rsync", "-a"])
        for version, command in enumerate(commands, 2):
            with self.subTest(command=command):
                step = self.steps[version - 1]
                source = step + "/" if command[0] == "rsync" else step
                subprocess.run([*command, source, self.mounted.staging("copy")], check=True)
                self.finish(step, "copy", version)

    def test_the_safetensors_package(self):
        if not PYTHON:
            self.skipTest("WEIGHTFS_VENV_PYTHON names no interpreter with safetensors")
        self.start_run(2)
        step = os.path.join(self.dir, "saved")
        for folder in (step, self.mounted.staging("saved")):
            os.makedirs(folder)
            savers.run_python(PYTHON, SAVE_FILES, self.steps[1], folder)
        self.finish(step, "saved", 2)

    def test_the_safetensors_package_while_it_writes(self):
        if not PYTHON:
            self.skipTest("WEIGHTFS_VENV_PYTHON names no interpreter with safetensors")
        grown = 0
        for version in range(1, 12):  # a saver may be faster than we look
            folder = self.mounted.staging("large")
            os.makedirs(folder)
            savers.run_python(PYTHON, SAVE_LARGE, os.path.join(folder, "model.safetensors"), str(version))
            size = self.weights_bytes(folder)
            self.wait_early(version, size)
            grown = self.mounted.status()["writer"]["early"]["grown_bytes"]
            self.hand_over(self.mounted, "large", f"step-{version}")
            self.assertEqual(self.wait(self.mounted, "--tag", f"step-{version}"), version)
            if grown > 0:
                break
        self.assertEqual(grown, size)
        saved = os.path.join(self.dir, "saved")
        os.makedirs(saved)
        savers.run_python(PYTHON, SAVE_LARGE, os.path.join(saved, "model.safetensors"), str(version))
        self.assert_same_tree(self.mounted.join("versions", version), saved)

    def test_a_first_version(self):
        step, = self.make_run(1, PARAMS)
        copy_files(step, self.mounted.staging("first"), rename_after_close)
        self.finish(step, "first", 1)

    def test_a_directory_that_is_renamed_before_it_is_handed_over(self):
        self.start_run(2)
        copy_files(self.steps[1], self.mounted.staging("tmp-checkpoint"), write_and_close)
        os.rename(self.mounted.staging("tmp-checkpoint"), self.mounted.staging("checkpoint"))
        self.finish(self.steps[1], "checkpoint", 2)

    def test_directories_deep_in_staging(self):
        self.start_run(3)
        for version in (2, 3):
            step = self.steps[version - 1]
            copy_files(step, self.mounted.staging("run/out/checkpoint"), rename_after_close)
            self.finish(step, "run/out/checkpoint", version)

    def test_a_directory_that_comes_from_deeper_in_staging(self):
        self.start_run(2)
        copy_files(self.steps[1], self.mounted.staging("run/.tmp/checkpoint"), write_and_close)
        os.rename(self.mounted.staging("run/.tmp/checkpoint"), self.mounted.staging("checkpoint"))
        self.finish(self.steps[1], "checkpoint", 2)

    def test_what_a_killed_daemon_leaves_is_coded_by_the_next(self):
        self.start_run(2)
        copy_files(self.steps[1], self.mounted.staging("checkpoint"), write_and_close)
        self.mounted.process.kill()
        self.mounted.start()
        self.finish(self.steps[1], "checkpoint", 2)

    def test_nothing_is_uploaded_to_the_mount_point_of_a_bucket_that_is_not_mounted(self):
        self.start_run(2)
        bucket = os.path.dirname(self.object("weightfs.json"))
        os.rename(bucket, bucket + ".away")
        os.mkdir(bucket)
        copy_files(self.steps[1], self.mounted.staging("checkpoint"), write_and_close)
        size = self.weights_bytes(self.steps[1])
        self.mounted.wait_status(lambda status: status["writer"]["early"]["coded_bytes"] == size and
                                 status["offline_since"], "it to be coded, and not uploaded")
        self.assertEqual(os.listdir(bucket), [])
        os.rmdir(bucket)
        os.rename(bucket + ".away", bucket)
        self.hand_over(self.mounted, "checkpoint", "step-2")
        self.assertEqual(self.wait(self.mounted, "--tag", "step-2"), 2)
        harness.call("verify", self.url)
        self.assert_same_tree(self.mounted.join("versions", 2), self.steps[1])

    def test_a_file_is_coded_while_it_is_written(self):
        self.start_run(1 + len(SLOW_WAYS), LARGE_PARAMS)
        for version, write in enumerate(SLOW_WAYS, 2):
            with self.subTest(way=write.__name__):
                grown = self.write_slowly(self.steps[version - 1], "run/slow", write)
                if write != write_again:  # that depends on who was first
                    early = self.mounted.status()["writer"]["early"]
                    self.assertEqual(early["grown_bytes"], grown)
                self.finish(self.steps[version - 1], "run/slow", version)

    def write_slowly(self, step, folder, write):
        """Each file in two parts: between them its coding begins.  Returns: their size."""
        grown = 0
        os.makedirs(self.mounted.staging(folder))
        for name in sorted(os.listdir(step)):
            data, path = harness.read_file(os.path.join(step, name)), self.mounted.staging(folder, name)
            if not is_weights(name):
                write_and_close(data, path)
                continue
            write(data, path, lambda: self.mounted.wait_status(
                lambda status: status["writer"]["early"]["growing_files"] == 1,
                f"{name} to be coded while it is written"))
            grown += len(data)
            self.mounted.wait_status(
                lambda status: status["writer"]["early"]["uploaded_bytes"] == grown,
                f"{name} to be uploaded")
        return grown

    def test_eight_ranks_save_at_once(self):
        """Each into its folder files that have the tensors of all others' files."""
        steps = self.make_run(10, RANK_PARAMS)
        for version in (1, 2, 3):
            folder, name = self.mounted.staging("ranks"), f"step-{version}"
            os.makedirs(folder)

            def rank(number):
                copy_files(steps[version - 1 + number], os.path.join(folder, f"rank{number}"), in_pieces)

            with concurrent.futures.ThreadPoolExecutor(8) as ranks:
                list(ranks.map(rank, range(8)))
            self.hand_over(self.mounted, "ranks", name)  # at once
            self.assertEqual(self.wait(self.mounted, "--tag", name), version)
            for number in range(8):
                self.assert_same_tree(self.mounted.join("versions", version, f"rank{number}"),
                                      steps[version - 1 + number])

    def test_a_daemon_that_is_killed_while_a_file_grows(self):
        self.start_run(2, LARGE_PARAMS)
        folder = self.mounted.staging("killed")
        os.makedirs(folder)
        name = next(name for name in sorted(os.listdir(self.steps[1])) if is_weights(name))
        data = harness.read_file(os.path.join(self.steps[1], name))
        with open(os.path.join(folder, ".tmpQ4LQlO"), "xb", buffering=0) as file:
            file.truncate(len(data))
            file.write(data[:len(data) * 3 // 4])
            self.mounted.wait_status(
                lambda status: status["writer"]["early"]["growing_files"] == 1, "it to be begun")
            self.mounted.process.kill()
        self.mounted.start()
        self.assertEqual(os.listdir(folder), [".tmpQ4LQlO"])
        copy_files(self.steps[1], folder, rename_before_close)
        self.finish(self.steps[1], "killed", 2)

    def test_a_saver_that_stops_halfway_holds_nobody_up(self):
        """Its file stays open, and is never renamed."""
        self.start_run(2, LARGE_PARAMS)
        name = next(name for name in sorted(os.listdir(self.steps[1])) if is_weights(name))
        data = harness.read_file(os.path.join(self.steps[1], name))
        os.makedirs(self.mounted.staging("dead"))
        with open(self.mounted.staging("dead/.tmpQ4LQlO"), "xb", buffering=0) as dead:
            dead.truncate(len(data))
            dead.write(data[:len(data) * 3 // 4])
            self.mounted.wait_status(
                lambda status: status["writer"]["early"]["growing_files"] == 1, "it to be begun")
            copy_files(self.steps[1], self.mounted.staging("checkpoint"), rename_before_close)
            self.finish(self.steps[1], "checkpoint", 2)

    def test_a_file_that_somebody_has_mapped_comes_when_he_lets_go(self):
        self.start_run(2)
        names = [name for name in sorted(os.listdir(self.steps[1])) if is_weights(name)]
        shutil.copytree(self.steps[1], self.mounted.staging("mapped"),
                        ignore=shutil.ignore_patterns(names[0]))
        path = self.mounted.staging("mapped", names[0])
        data = harness.read_file(os.path.join(self.steps[1], names[0]))
        with open(path, "w+b") as file:
            file.truncate(len(data))
            mapped = mmap.mmap(file.fileno(), len(data))
        mapped[:-1] = data[:-1]
        self.wait_early(2, self.weights_bytes(self.steps[1]) - len(data))
        mapped[-1:] = data[-1:]
        mapped.close()
        self.finish(self.steps[1], "mapped", 2)


class EarlyByTheDaemon(Early):
    serve = "daemon"


if __name__ == "__main__":
    harness.main()
