"""A host with an empty store: `latest` is there at once and streams in while it is read; any version
opens by name. The bucket is one whose reads the test holds, damages and counts."""

import contextlib
import errno
import json
import mmap
import os
import pty
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import numpy as np  # noqa: E402

import harness  # noqa: E402
import runs  # noqa: E402
import slow_bucket  # noqa: E402
from slow_bucket import is_weights, of_file  # noqa: E402

MIB = 1 << 20
BACKGROUND = 12  # of 16 requests at a time those that nobody has asked for
SHARDS = {"model-1.safetensors": 5 * MIB, "model-2.safetensors": 9 * MIB,
          "model-3.safetensors": 13 * MIB}
TEXTS = [f"a{i:02}.txt" for i in range(24)]  # more than BACKGROUND, and before config.json
VERSIONS = 3  # the first and the last one have snapshots


def is_late(read):
    """What the last 3 MiB of the largest file need, and its first 8 do not."""
    return of_file("model-3.safetensors")(read) and read.begin >= 10 * MIB


template = None  # a workspace with the repository, and the checkpoints of its versions


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
        # A host that is at the last version has not heard of the layout of the first one.
        metadata = {"format": "pt"} if version == 1 else None
        for name, data in weights.items():
            data[rng.integers(0, data.size, 100)] ^= 1
            runs.write_safetensors(os.path.join(folder, name),
                                   [(name, "BF16", [data.size], data)], metadata)
        for name in (*TEXTS, "config.json"):
            harness.write_file(os.path.join(folder, name), f'{{"{name}": {version}}}'.encode())
        snapshot = ["--snapshot"] if version == VERSIONS else []
        harness.call("publish", url, folder, "--tag", f"step-{version}", *snapshot,
                     "--store", os.path.join(template.path, "publisher"))


def tearDownModule():
    template.close()


def checkpoint(version):
    return os.path.join(template.path, f"checkpoint-{version}")


# What a Reader runs: reads so many bytes at an offset, with as many threads as there are offsets.
# It says "begins" when it is about to read, then for each the number of bytes and their hash, or the
# errno.
READER = r"""
import hashlib, os, sys, threading
size, offsets = int(sys.argv[2]), [int(x) for x in sys.argv[3:]]
files, said = [os.open(sys.argv[1], os.O_RDONLY) for _ in offsets], [None] * len(offsets)
def read(i):
    try:
        data = os.pread(files[i], size, offsets[i])
        said[i] = f"{len(data)} {hashlib.sha256(data).hexdigest()}"
    except OSError as error:
        said[i] = f"errno {error.errno}"
threads = [threading.Thread(target=read, args=(i,)) for i in range(len(offsets))]
print("begins", flush=True)
for thread in threads: thread.start()
for thread in threads: thread.join()
print("\n".join(said), flush=True)
"""


class Reader:
    def __init__(self, test, path, size, *offsets):
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", READER, path, str(size), *map(str, offsets)], text=True,
            stdout=subprocess.PIPE)
        test.addCleanup(self.close)
        self.begins = self.process.stdout.readline()

    def end(self):
        """What it read, when it has."""
        self.process.wait(60)
        # Not communicate(): with a limit it does not see what readline() has read ahead.
        return self.process.stdout.read().splitlines()

    def is_reading(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def close(self):
        if self.is_reading():
            self.kill()
        self.process.stdout.close()


def said_of(data):
    """What a Reader says of these bytes."""
    return f"{len(data)} {harness.sha256(data)}"


EIO = f"errno {errno.EIO}"


class PartialTest(harness.MountTest):
    """`self.slow` is a bucket with the first `versions` of the template."""

    versions = 1

    def make_url(self):
        super().make_url()
        subprocess.run(["cp", "-al", os.path.join(template.path, "bucket"), self.bucket], check=True)
        for version in range(self.versions + 1, VERSIONS + 1):
            os.unlink(self.manifest(version))
        self.slow = slow_bucket.SlowBucket(self.bucket)
        self.addCleanup(self.slow.close)
        return slow_bucket.URL

    def commit(self, version):
        """The version exists from now on."""
        name = os.path.relpath(self.manifest(version), self.bucket)
        shutil.copy(os.path.join(template.path, "bucket", name), self.manifest(version) + ".new")
        os.rename(self.manifest(version) + ".new", self.manifest(version))

    def cold(self, *options, ready=False, attempts=2, **names):
        variables = {**self.slow.variables(), "AWS_MAX_ATTEMPTS": str(attempts)}
        return self.mount(*options, variables=variables, ready=ready, **names)

    def wait_waiting(self, mount, count):
        mount.wait_status(lambda status: status["serve"]["waiting_reads"] >= count,
                          f"{count} reads that wait")

    def wait_complete(self, mount):
        harness.call("wait", mount.path, "--ready", "--timeout", 60)
        self.assertEqual(mount.status()["partial"], [])

    def data(self, name, version=1):
        return harness.read_file(os.path.join(checkpoint(version), name))

    def read(self, mount, name, size, offset, at="latest"):
        """What a reader gets, in words."""
        return Reader(self, mount.join(at, name), size, offset).end()[0]

    def assert_reads(self, mount, name, size, offset, at="latest", version=1):
        self.assertEqual(self.read(mount, name, size, offset, at),
                         said_of(self.data(name, version)[offset:offset + size]))


class Cold(PartialTest):
    def test_latest_is_there_at_once_and_what_is_asked_for_comes_first(self):
        self.slow.hold()
        mount = self.cold()
        self.assertEqual((mount.latest(), os.listdir(mount.join("versions"))), (1, ["1"]))
        self.assertEqual({name: os.path.getsize(mount.join("latest", name))
                          for name in os.listdir(mount.join("latest"))},
                         {name: len(self.data(name)) for name in os.listdir(checkpoint(1))})
        status = mount.status()
        self.assertEqual((status["version"], status["versions"], status["state"]),
                         (1, [], "fetching"))
        [partial] = status["partial"]
        self.assertEqual((partial["version"], partial["here"], partial["error"]), (1, 0, None))
        self.assertEqual(partial["bytes"],
                         sum(len(self.data(name)) for name in os.listdir(checkpoint(1))))

        # What works by itself waits, but not what is asked for, of what else there is.
        harness.wait_until(lambda: self.slow.waiting >= BACKGROUND, "the background")
        held = set(self.slow.seen())

        def is_among(reads, key, at):
            return any(read.key.endswith(key) and read.begin <= at < read.end for read in reads)

        with open(self.manifest(1)) as file:
            blobs = json.load(file)["blobs"]
        name, at = next((name, at) for name, size in SHARDS.items()
                        for at in range(2 * MIB, size, 4 * MIB) if not is_among(held, name, at))
        text = next(blob for blob in blobs if not is_among(held, blob["sha256"], 0))
        readers = [Reader(self, mount.join("latest", name), 4096, at),
                   Reader(self, mount.join("latest", text["path"]), 4096, 0)]
        self.wait_waiting(mount, 2)
        for key, offset in ((name, at), (text["sha256"], 0)):
            harness.wait_until(
                lambda key=key, offset=offset: is_among(set(self.slow.seen()) - held, key, offset),
                f"the request for {key}")
        self.assertTrue(all(reader.is_reading() for reader in readers))
        self.slow.release()
        self.assertEqual([reader.end() for reader in readers],
                         [[said_of(self.data(name)[at:at + 4096])],
                          [said_of(self.data(text["path"]))]])

        self.wait_complete(mount)
        self.assert_same_tree(mount.join("latest/"), checkpoint(1))
        status = mount.wait_status(lambda status: status["state"] == "current", "to be current")
        self.assertEqual(status["versions"], [1])
        if status["serve"]["mode"] == "passthrough":
            self.assertEqual(mount.status()["serve"]["daemon_reads"],
                             status["serve"]["daemon_reads"])
            self.assert_same_tree(mount.join("latest/"), checkpoint(1))
            self.assertEqual(mount.status()["serve"]["daemon_reads"],
                             status["serve"]["daemon_reads"])

    def test_an_open_file_goes_on_when_the_version_is_complete(self):
        self.slow.hold(is_late)
        mount = self.cold()
        name = "model-3.safetensors"
        with open(mount.join("latest", name), "rb") as file:
            self.assertEqual(file.read(MIB), self.data(name)[:MIB])
            self.slow.release()
            self.wait_complete(mount)
            file.seek(0)
            self.assertEqual(harness.sha256(file.read()), harness.sha256(self.data(name)))
        self.assert_same_tree(mount.join("latest/"), checkpoint(1))

    def test_random_reads_and_mappings_while_it_fills(self):
        mount = self.cold()
        for name in harness.RANDOM.sample(list(SHARDS), len(SHARDS)):
            data = self.data(name)
            offsets = [harness.RANDOM.randrange(len(data)) for _ in range(30)]
            size = harness.RANDOM.choice([1, 5000, 300_000, 5 * MIB])
            said = Reader(self, mount.join("latest", name), size, *offsets).end()
            self.assertEqual(said, [said_of(data[at:at + size]) for at in offsets])
            with open(mount.join("latest", name), "rb") as file, \
                    mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                for _ in range(30):
                    at = harness.RANDOM.randrange(len(data))
                    self.assertEqual(mapped[at:at + 5000], data[at:at + 5000])
        self.wait_complete(mount)
        self.assert_same_tree(mount.join("latest/"), checkpoint(1))

    def test_many_waiting_readers_hold_nothing_up(self):
        self.slow.hold(is_weights)
        mount = self.cold()
        data = self.data("model-3.safetensors")
        offsets = range(0, len(data) - 100_000, len(data) // 100)
        readers = Reader(self, mount.join("latest/model-3.safetensors"), 100_000, *offsets)
        self.wait_waiting(mount, 50)  # the kernel may join some
        self.slow.release(of_file("model-1.safetensors"))
        self.assert_reads(mount, "config.json", 4096, 0)
        self.assert_reads(mount, "model-1.safetensors", 4096, 3 * MIB)
        self.assertEqual(os.path.getsize(mount.join("latest/model-2.safetensors")),
                         len(self.data("model-2.safetensors")))
        self.assertEqual(len(os.listdir(mount.join("latest"))), len(os.listdir(checkpoint(1))))
        self.assertEqual(harness.run("status", mount.path).returncode, 0)
        self.assertTrue(readers.is_reading())
        self.slow.release()
        self.assertEqual(readers.end(), [said_of(data[at:at + 100_000]) for at in offsets])

    def test_a_waiting_reader_can_be_killed_and_the_mount_ended(self):
        self.slow.hold(is_weights)
        mount = self.cold()
        one = Reader(self, mount.join("latest/model-2.safetensors"), MIB, 0)
        self.wait_waiting(mount, 1)
        one.kill()
        mount.umount()  # says if the daemon has not ended within 10 s
        mount.start()
        other = Reader(self, mount.join("latest/model-2.safetensors"), MIB, 0)
        self.wait_waiting(mount, 1)
        mount.process.kill(signal.SIGTERM, timeout=10)
        self.assertTrue(other.end()[0].startswith("errno"))

    def test_a_new_version_waits_until_the_first_is_complete(self):
        self.slow.hold(is_weights)
        mount = self.cold()
        self.commit(2)
        status = mount.wait_status(lambda status: status["newest"] == 2, "the news")
        self.assertEqual((status["version"], mount.latest()), (1, 1))
        self.assert_reads(mount, "config.json", 4096, 0)
        self.assertEqual([one["version"] for one in mount.status()["partial"]], [1])
        self.slow.release()
        # The end of the filling is told last.
        mount.wait_status(lambda status: (status["versions"], status["partial"]) == ([1, 2], []),
                          "both versions")
        # This process has read a file of version 1 just now.
        harness.wait_until(lambda: mount.latest() == 2, "latest")
        self.assert_same_tree(mount.join("latest/"), checkpoint(2))

    def test_a_killed_daemon_begins_again(self):
        self.slow.hold(is_late)
        mount = self.cold()
        self.assert_reads(mount, "model-3.safetensors", MIB, 0)
        mount.process.kill(signal.SIGKILL)
        subprocess.run(["umount", "-l", mount.path], check=True)
        self.slow.release()
        mount.start()
        self.assert_reads(mount, "model-3.safetensors", MIB, 4 * MIB)
        self.wait_complete(mount)
        self.assert_same_tree(mount.join("latest/"), checkpoint(1))

    def test_hooks_are_told_when_it_is_complete(self):
        self.slow.hold(of_file("model-3.safetensors"))
        log, script = os.path.join(self.dir, "log"), os.path.join(self.dir, "script")
        harness.write_file(script, f"#!/bin/sh\necho $WEIGHTFS_VERSION >> {log}\n".encode())
        os.chmod(script, 0o755)
        mount = self.cold("--hook", f"exec={script}")
        self.assert_reads(mount, "model-1.safetensors", 4096, 0)
        [hook] = mount.status()["hooks"]
        self.assertEqual((hook["wanted"], os.path.exists(log)), (None, False))
        self.slow.release()
        harness.wait_until(lambda: os.path.exists(log) and harness.read_file(log), "the hook")
        self.assertEqual(mount.status()["versions"], [1])
        self.assertEqual(harness.read_file(log), b"1\n")

    def test_a_pin_by_hand_and_the_first_load(self):
        self.slow.hold(is_weights)
        mount = self.cold("--pin-grace", "60")
        self.assertEqual(harness.call("pin", mount.path)["version"], 1)
        self.assert_reads(mount, "config.json", 4096, 0)
        waiting = Reader(self, mount.join("latest/model-1.safetensors"), 4096, 0)
        self.wait_waiting(mount, 1)
        # 0 where the session's leader is outside of this PID namespace, as it may be in a container.
        self.assertIn((1, f"session {os.getsid(0)}"),
                      [(pin["version"], pin["session"]) for pin in mount.status()["pins"]])
        self.slow.release()
        self.assertEqual(waiting.end(), [said_of(self.data("model-1.safetensors")[:4096])])

    def test_no_byte_of_a_snapshot_is_fetched_twice(self):
        """Windows share chunks with their neighbours, but are made without them."""
        mount = self.cold()
        self.wait_complete(mount)
        seen = self.slow.seen(is_weights)
        for name in SHARDS:
            reads = sorted((read.begin, read.end) for read in seen
                           if os.path.basename(read.key) == name)
            self.assertEqual([begin for begin, _ in reads],
                             [0] + [end for _, end in reads[:-1]], name)
            self.assertEqual(reads[-1][1], len(self.data(name)))
        self.assert_same_tree(mount.join("latest/"), checkpoint(1))

    def test_wait_ready(self):
        self.slow.hold(of_file("model-3.safetensors"))
        mount = self.cold()
        late = harness.run("wait", mount.path, "--ready", "--timeout", "0.2")
        self.assertEqual(late.returncode, 5)
        self.assertRegex(late.stderr, "all of latest did not arrive at .* are here")
        self.assertGreaterEqual(self.told_on_a_terminal(mount, "1.3"), 1.3)
        self.assertEqual(harness.call("wait", mount.path, "--version", 1)["version"], 1)
        self.assertRegex(harness.run("status", mount.path).stdout,
                         "streaming +version 1: .* of .* here")
        waiting = harness.start("wait", mount.path, "--ready", "--tag", "step-1")
        self.slow.release()
        self.assertEqual(waiting.communicate(timeout=60)[0],
                         f"version 1 is at {mount.join('versions/1')}\n")
        self.assertEqual(mount.status()["versions"], [1])


    def told_on_a_terminal(self, mount, timeout):
        """Within how many seconds it did not arrive, as one reads who sees the progress."""
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        waiting = harness.start("wait", mount.path, "--ready", "--timeout", timeout, stderr=slave)
        os.close(slave)
        said = b""
        with contextlib.suppress(OSError):  # EIO: it has ended
            while piece := os.read(master, 65536):
                said += piece
        self.assertEqual(waiting.wait(60), 5)
        waiting.stdout.close()
        self.assertIn(b"fetching version 1", said)
        return float(re.search(rb"did not arrive at \S+ within ([\d.]+) s", said)[1])


class Trouble(PartialTest):
    def test_a_failure_of_the_network_is_tried_again(self):
        self.slow.hold(is_weights)
        mount = self.cold(attempts=1)
        reader = Reader(self, mount.join("latest/model-2.safetensors"), 3 * MIB, 5 * MIB)
        self.wait_waiting(mount, 1)
        self.slow.fail(is_weights)
        [partial] = mount.wait_status(
            lambda status: [one for one in status["partial"] if one["error"]],
            "the error")["partial"]
        self.assertEqual((partial["error"]["code"], partial["error"]["damaged"]),
                         ("unavailable", False))
        mount.wait_status(lambda status: status["error"], "it to be the mount's error")
        self.assertTrue(reader.is_reading())
        self.slow.release()
        self.assertEqual(reader.end(),
                         [said_of(self.data("model-2.safetensors")[5 * MIB:8 * MIB])])
        self.wait_complete(mount)
        mount.wait_status(lambda status: status["error"] is None, "no error")

    def test_a_signal_ends_a_diff_that_asks_the_bucket_for_a_tag(self):
        def is_opening(read):
            return read.key == "weightfs.json"
        mount = self.cold(ready=True)
        self.slow.hold(is_opening)
        count = len(self.slow.seen(is_opening))
        diff = harness.start("diff", mount.path, "1", "step-2", variables=self.slow.variables())
        self.addCleanup(diff.communicate)
        self.addCleanup(diff.kill)
        harness.wait_until(lambda: len(self.slow.seen(is_opening)) > count, "its question")
        diff.send_signal(signal.SIGINT)
        self.assertNotEqual(diff.wait(60), 0)

    def test_who_has_waited_long_enough_gets_an_error_and_never_fewer_bytes(self):
        self.slow.hold(is_late)
        mount = self.cold("--read-timeout", "3")
        name = "model-3.safetensors"
        self.assert_reads(mount, name, 2 * MIB, 0)
        self.assertEqual(self.read(mount, name, MIB, 12 * MIB), EIO)
        with open(mount.join("latest", name), "rb") as file, \
                mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            self.assertEqual(mapped[:MIB], self.data(name)[:MIB])
        self.slow.release()
        self.assert_reads(mount, name, MIB, 12 * MIB)

    def test_a_damaged_piece_is_an_error_of_what_is_in_it(self):
        name = "model-3.safetensors"
        first = of_file(name)
        self.slow.damage(lambda read: first(read) and read.key.startswith("snapshots/1/"),
                         10 * MIB + MIB // 2)
        mount = self.cold()
        self.assertEqual(self.read(mount, name, 4096, 11 * MIB), EIO)
        [partial] = mount.status()["partial"]
        self.assertEqual((partial["error"]["code"], partial["error"]["damaged"]),
                         ("corrupt", True))
        self.assertRegex(partial["error"]["message"], f"snapshots/1/.*/{name}")
        self.assert_reads(mount, name, 8 * MIB, 0)
        self.assert_reads(mount, "model-2.safetensors", MIB, 5 * MIB)
        waited = harness.run("wait", mount.path, "--ready")
        self.assertEqual(waited.returncode, 4)
        self.assertIn(name, waited.stderr)
        self.assertEqual(mount.latest(), 1)
        # A later version that does not need it is brought.
        self.commit(2)
        self.commit(3)
        mount.wait_status(lambda status: status["versions"] == [3], "version 3")
        self.assertEqual(mount.latest(), 3)
        self.assert_same_tree(mount.join("latest/"), checkpoint(3))


class TimeTravel(PartialTest):
    versions = 3

    def begin(self, *options, **names):
        mount = self.cold(*options, ready=True, **names)
        self.assertEqual(os.listdir(mount.join("versions")), ["3"])
        return mount

    def test_any_version_opens_by_name(self):
        mount = self.begin("--store-size", "200M")
        before = len(self.slow.seen())
        self.assertEqual(sorted(os.listdir(mount.join("versions/2"))), sorted(os.listdir(checkpoint(2))))
        self.assertEqual(os.path.getsize(mount.join("tags/step-1/model-1.safetensors")),
                         len(self.data("model-1.safetensors")))
        self.assertEqual(harness.call("wait", mount.path, "--version", 1)["version"], 1)
        self.assertEqual((len(self.slow.seen()), os.listdir(mount.join("versions"))),
                         (before, ["3"]))
        self.assert_reads(mount, "model-3.safetensors", MIB, 9 * MIB, "tags/step-1", 1)
        self.assertEqual(sorted(os.listdir(mount.join("versions"))), ["1", "3"])
        self.assertEqual(mount.latest(), 3)
        harness.call("wait", mount.path, "--version", 1, "--ready", "--timeout", 60)
        self.assertEqual(mount.status()["versions"], [1, 3])
        self.assert_same_tree(mount.join("versions/1"), checkpoint(1))
        harness.call("wait", mount.path, "--version", 2, "--ready", "--timeout", 60)
        self.assert_same_tree(mount.join("versions/2"), checkpoint(2))

    def test_what_does_not_exist_is_not_asked_for(self):
        mount = self.begin()
        for name in ("5", "0", "03", "x", "99999999999999999999"):
            self.assertFalse(os.path.exists(mount.join("versions", name)))
        self.assertEqual(self.slow.seen(lambda read: "0005.json" in read.key), [])
        self.assertEqual(mount.status()["error"], None)

    def test_a_name_that_cannot_be_looked_up_is_an_error(self):
        mount = self.begin("--read-timeout", "2", attempts=1)
        self.slow.fail(lambda read: True)
        with self.assertRaises(OSError) as caught:
            os.stat(mount.join("versions/1"))
        self.assertEqual(caught.exception.errno, errno.EIO)
        self.slow.release()
        self.assertTrue(os.path.exists(mount.join("versions/1/config.json")))

    def test_a_version_that_cannot_be_had_is_an_error(self):
        mount = self.begin()
        shutil.rmtree(self.object("packs/2"))
        with self.assertRaises(OSError) as caught:
            harness.read_file(mount.join("versions/2/config.json"))
        self.assertEqual(caught.exception.errno, errno.EIO)
        waited = harness.run("wait", mount.path, "--version", 2, "--ready")
        self.assertEqual(waited.returncode, 1)
        self.assertIn("packs/2/", waited.stderr)
        self.assertEqual(mount.status()["error"], None)


if __name__ == "__main__":
    harness.main()
