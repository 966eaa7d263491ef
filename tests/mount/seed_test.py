"""Hosts that have the base model: `--seed DIR`. The bucket is one whose reads the test counts, holds
and damages."""

import json
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import numpy as np  # noqa: E402

import harness  # noqa: E402
import runs  # noqa: E402
import slow_bucket  # noqa: E402
from slow_bucket import is_weights  # noqa: E402

MIB = 1 << 20
SHARDS = {"model-1.safetensors": 5 * MIB, "model-2.safetensors": 9 * MIB}
VERSIONS = 2

template = None  # a workspace with the repository, the checkpoints of its versions, and a download


def setUpModule():
    global template
    template = harness.Workspace()
    rng = np.random.default_rng(harness.SEED)
    weights = {name: rng.integers(0, 1 << 16, size // 2, dtype="<u2")
               for name, size in SHARDS.items()}
    url = "file://" + os.path.join(template.path, "bucket")
    harness.call("init", url)
    for version in range(1, VERSIONS + 1):
        folder = checkpoint(version)
        os.makedirs(folder)
        for name, data in weights.items():
            runs.write_safetensors(os.path.join(folder, name), tensors_of(name, data))
        harness.write_file(os.path.join(folder, "config.json"), b"{}")
        if version == 1:
            download(os.path.join(template.path, "hub"), weights)
        harness.call("publish", url, folder, "--store", os.path.join(template.path, "publisher"))
        for data in weights.values():
            data[rng.integers(0, data.size, 100)] ^= 1


def tearDownModule():
    template.close()


def checkpoint(version):
    return os.path.join(template.path, f"checkpoint-{version}")


def tensors_of(name, data):
    """Two tensors, the second one small."""
    return [(f"{name}.a", "BF16", [data.size - 100], data[:-100]),
            (f"{name}.b", "BF16", [10, 10], data[-100:])]


def download(folder, weights):
    """The same tensors in other files, as in a cache of the Hub: symlinks to blobs."""
    everything = [tensor for name, data in weights.items() for tensor in tensors_of(name, data)]
    os.makedirs(os.path.join(folder, "blobs"))
    os.makedirs(os.path.join(folder, "snapshots", "main"))
    for number, tensors in enumerate((everything[1:], everything[:1])):
        runs.write_safetensors(os.path.join(folder, "blobs", str(number)), tensors)
        os.symlink(f"../../blobs/{number}",
                   os.path.join(folder, "snapshots", "main", f"part-{number}.safetensors"))


def describe(folder):
    """Everything that a write would change."""
    return [(parent, name, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
            for parent, folders, names in os.walk(folder) for name in sorted(folders + names)
            for info in [os.lstat(os.path.join(parent, name))]]


class SeedTest(harness.MountTest):
    def make_url(self):
        super().make_url()
        subprocess.run(["cp", "-al", os.path.join(template.path, "bucket"), self.bucket], check=True)
        self.hub = os.path.join(self.dir, "hub")
        subprocess.run(["cp", "-a", os.path.join(template.path, "hub"), self.hub], check=True)
        self.seed = os.path.join(self.hub, "snapshots", "main")
        self.slow = slow_bucket.SlowBucket(self.bucket)
        self.addCleanup(self.slow.close)
        return slow_bucket.URL

    def only_first(self):
        os.unlink(self.manifest(2))

    def cold(self, *options, **names):
        return self.mount("--seed", self.seed, *options, variables=self.variables(), ready=False,
                          **names)

    def variables(self):
        return {**self.slow.variables(), "AWS_MAX_ATTEMPTS": "2"}

    def fetched(self):
        """Bytes of the snapshot's files."""
        return sum(read.end - read.begin for read in self.slow.seen(is_weights))

    def flip(self, offsets):
        """Other bits in the large file of the seed."""
        with open(os.path.join(self.hub, "blobs", "0"), "r+b") as file:
            for offset in offsets:
                file.seek(offset)
                byte = file.read(1)[0]
                file.seek(offset)
                file.write(bytes([byte ^ 1]))

    def wait_whole(self, mount, version):
        harness.call("wait", mount.path, "--ready", "--timeout", 60)
        self.assert_same_tree(mount.join("latest/"), checkpoint(version))
        return mount.wait_status(lambda status: status["partial"] == [] and
                                 status["timing"]["latest"], "the end of the filling")


class Mounts(SeedTest):
    def test_a_cold_host_fetches_no_byte_that_its_download_has(self):
        self.only_first()
        before = describe(self.hub), harness.hash_tree(os.path.join(self.hub, "blobs"))
        mount = self.cold()
        status = self.wait_whole(mount, 1)
        self.assertEqual(self.slow.seen(is_weights), [])
        total = sum(os.path.getsize(os.path.join(checkpoint(1), name)) for name in SHARDS)
        self.assertEqual(status["seed"], {"directory": self.seed, "files": 2, "tensors": 4,
                                          "taken_bytes": total})
        self.assertEqual(status["bytes"]["fetched"], 0)
        brought = status["timing"]["latest"]["brought"]
        self.assertEqual(brought["seeded_bytes"], total)
        self.assertLess(brought["fetched_bytes"], 1000)  # the small file
        text = harness.run("status", mount.path).stdout
        self.assertRegex(text, r"seed +14.0 MiB taken from .*/main \(2 files, 4 tensors\)")
        self.assertRegex(text, r"built from +snapshot 1: seed 14.0 MiB, fetch ")
        self.assertEqual((describe(self.hub), harness.hash_tree(os.path.join(self.hub, "blobs"))),
                         before)

    def test_without_one_all_is_fetched_and_status_says_so(self):
        self.only_first()
        mount = self.mount(variables=self.variables(), ready=False)
        status = self.wait_whole(mount, 1)
        self.assertGreater(self.fetched(), 14 * MIB)
        self.assertEqual((status["seed"], status["timing"]["latest"]["brought"]["seeded_bytes"]),
                         (None, 0))

    def test_bits_that_are_wrong_are_fetched(self):
        self.only_first()
        self.flip([6 * MIB, 8 * MIB])
        mount = self.cold()
        status = self.wait_whole(mount, 1)
        self.assertGreaterEqual(self.fetched(), 2 * MIB)
        self.assertLessEqual(self.fetched(), 4 * MIB)  # the bytes may be in two files of the snapshot
        self.assertEqual(status["bytes"]["fetched"], self.fetched())

    def test_killed_in_the_middle_it_begins_again(self):
        self.only_first()
        self.flip([6 * MIB])
        self.slow.hold(is_weights)
        mount = self.cold()
        mount.wait_status(lambda status: status["partial"] and
                          status["partial"][0]["here"] > 4 * MIB, "most of it")
        self.assertEqual(mount.status()["versions"], [])
        mount.process.kill(signal.SIGKILL)
        subprocess.run(["umount", "-l", mount.path], check=True)
        # What is left of it is gone, and so is a part of the seed.
        os.truncate(os.path.join(self.hub, "blobs", "1"), 2 * MIB)
        self.slow.release()
        mount.start()
        status = self.wait_whole(mount, 1)
        self.assertGreater(status["seed"]["taken_bytes"], 4 * MIB)

    def test_a_download_that_goes_while_it_is_copied(self):
        self.only_first()
        self.flip([6 * MIB])
        self.slow.hold(is_weights)
        mount = self.cold()
        harness.wait_until(lambda: self.slow.seen(is_weights), "a fetch")
        shutil.rmtree(self.hub)
        self.slow.release()
        self.wait_whole(mount, 1)
        mount.umount()
        # Whoever mounts again with that name is told.
        done = harness.run(*mount.arguments(), variables=self.variables())
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"there is no seed directory {self.seed}", done.stderr)

    def test_it_stands_in_for_the_snapshot_below_deltas(self):
        mount = self.cold()
        status = self.wait_whole(mount, 2)
        brought = status["timing"]["latest"]["brought"]
        self.assertEqual((brought["snapshot"], brought["deltas"]), (1, 1))
        self.assertEqual(self.slow.seen(is_weights), [])
        self.assertLess(status["bytes"]["fetched"], MIB)  # the delta
        self.assertGreater(status["seed"]["taken_bytes"], 14 * MIB - 1)

    def test_files_that_are_not_kept_are_made_from_it(self):
        self.only_first()
        mount = self.cold("--only", "model-1*")
        self.wait_whole(mount, 1)
        self.assertEqual(self.slow.seen(is_weights), [])

    def test_what_is_none_is_refused(self):
        empty = os.path.join(self.dir, "empty")
        os.makedirs(empty)
        harness.write_file(os.path.join(empty, "config.json"), b"{}")
        inside = os.path.join(self.dir, "mnt", "base")
        shutil.copytree(self.seed, inside)
        for seed, why in ((os.path.join(self.dir, "none"), "there is no seed directory"),
                          (empty, "has no safetensors file"),
                          (inside, "lies inside")):
            done = harness.run("mount", self.url, os.path.join(self.dir, "mnt"), "--nonempty",
                               "--store", os.path.join(self.dir, "store"), "--seed", seed,
                               variables=self.variables())
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(why, done.stderr)
            self.assertIn(seed, done.stderr)


class Syncs(SeedTest):
    def sync(self, *options):
        return ("sync", self.url, os.path.join(self.dir, "out"), "--seed", self.seed,
                "--poll", harness.POLL, *options)

    def test_ordinary_files_are_made_from_it(self):
        self.flip([6 * MIB])
        harness.call(*self.sync("--once"), variables=self.variables())
        self.assert_same_tree(os.path.join(self.dir, "out/latest/"), checkpoint(2))
        self.assertGreaterEqual(self.fetched(), MIB)
        self.assertLessEqual(self.fetched(), 4 * MIB)

    def test_status_says_what_was_taken(self):
        self.only_first()
        self.flip([6 * MIB])
        process = harness.start(*self.sync(), variables=self.variables())
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        path = os.path.join(self.dir, "out", ".weightfs", "status")

        def find_status():
            if not os.path.exists(path):
                return None
            status = json.loads(harness.read_file(path))
            return status if status["version"] == 1 else None

        status = harness.wait_until(find_status, "version 1")
        self.assertGreater(status["seed"]["taken_bytes"], 12 * MIB)
        self.assertEqual(status["bytes"]["fetched"], self.fetched())
        self.assertGreaterEqual(self.fetched(), MIB)
        self.assertLessEqual(self.fetched(), 4 * MIB)


if __name__ == "__main__":
    harness.main()
