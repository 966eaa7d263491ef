#!/usr/bin/python3
"""Everything at once: a trainer, two readers' mounts, and processes that do with them what they like.

    everything_at_once.py [--seconds S] [--readers N] [--seed N] [--kills]

A trainer saves and hands over a version about every half second. One mount serves by passthrough,
one by the daemon, both with room for few versions. Readers are processes; each does one thing
after another: loads through `latest` or by `readlink` and `versions/N`, reads a range or a header
of any version, holds a file or a mapping for a while, copies with cp, walks, polls, reads status.
With --kills daemons are killed and mounted again meanwhile.

What must hold, whatever happens:
  - Nobody reads a byte that was not published, and no load mixes two versions.
  - `latest` is there at every look, and never goes back for a process that only looks.
  - The bucket is well, so a read of a version that was there does not fail. (With --kills: ENOTCONN
    and EIO may come while a daemon is away, and nothing else.)
  - In the end both mounts show the newest version, their daemons live, and the bucket verifies.

Prints what was done, how often, and what went wrong. Needs root and /dev/fuse.
"""

import argparse
import collections
import errno
import json
import mmap
import multiprocessing
import os
import queue
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

import harness  # noqa: E402
import runs  # noqa: E402

SHARDS = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
          "model-00003-of-00003.safetensors"]
ELEMENTS = 400_000  # of a shard: bf16, 0.8 MB
LOAD_MAX_S = 60


# ---- the trainer ---------------------------------------------------------------------------------

class Trainer:
    """Saves versions, and keeps a copy of each by its number."""

    def __init__(self, mount, kept, seed):
        self.mount, self.kept = mount, kept
        self.rng = np.random.default_rng(seed)
        self.weights = [self.rng.integers(0x3C00, 0x3D00, ELEMENTS, np.uint16) for _ in SHARDS]
        self.count = 0
        os.makedirs(kept)

    def step(self):
        """One more version. The last shard never changes; headers and config do."""
        self.count += 1
        for weights in self.weights[:-1]:
            at = self.rng.integers(0, ELEMENTS, ELEMENTS // 100)
            weights[at] ^= 1
        folder = os.path.join(self.kept, str(self.count))
        os.makedirs(folder)
        for name, weights in zip(SHARDS, self.weights):
            changes = name != SHARDS[-1] and self.count % 7 == 0
            runs.write_safetensors(os.path.join(folder, name), [(name, "BF16", (ELEMENTS,), weights)],
                                   {"step": str(self.count)} if changes else {"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump({"step": self.count, "padding": "x" * (self.count % 100)}, file)
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            file.write("{}")
        self.hand_over(folder, f"step-{self.count}")

    def hand_over(self, folder, tag):
        staged = self.mount.join("staging", tag)
        os.makedirs(staged)
        for name in os.listdir(folder):
            temporary = os.path.join(staged, ".tmp" + name)
            shutil.copyfile(os.path.join(folder, name), temporary)
            os.rename(temporary, os.path.join(staged, name))
        os.rename(staged, self.mount.join("publish", tag))


# ---- readers -------------------------------------------------------------------------------------

class Wrong(Exception):
    pass


class Mixed(Wrong):
    pass


class Reader:
    """A process that uses a mount in every way there is, one after another."""

    def __init__(self, mount, kept, seed, said, kills):
        self.mount, self.kept, self.said, self.kills = mount, kept, said, kills
        self.kills_before = 0
        self.rng = random.Random(seed)
        self.done = collections.Counter()
        self.newest_seen = 0

    def path(self, *parts):
        return os.path.join(self.mount, *map(str, parts))

    def original(self, version, name):
        return harness.read_file(os.path.join(self.kept, str(version), name))

    def latest(self):
        version = int(os.readlink(self.path("latest")).split("/")[-1])
        if version < self.newest_seen:
            raise Wrong(f"latest went back from {self.newest_seen} to {version}")
        self.newest_seen = version
        return version

    def is_right(self, version, name, data, offset=0):
        if self.original(version, name)[offset:offset + len(data)] != data:
            raise Wrong(f"versions/{version}/{name} at {offset}: {len(data)} bytes are not what was "
                        "published")

    def in_child(self, work):
        """Runs `work` in a process of its own: loads belong to processes."""
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(receive)
            try:
                work()
            except BaseException as error:  # noqa: B036: a child must not come back
                if not self.is_excused(error):
                    os.write(send, self.words(error).encode())
            os._exit(0)
        os.close(send)
        with os.fdopen(receive, "rb") as pipe:
            if not select.select([pipe], [], [], LOAD_MAX_S)[0]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise Wrong(f"a load took more than {LOAD_MAX_S} s")
            said = pipe.read().decode()
        os.waitpid(pid, 0)
        if said:
            self.said.put(("wrong", said))

    def words(self, error):
        return f"{self.mount}: " + "".join(traceback.format_exception(error, limit=-3))

    def tell(self, error):
        self.said.put(("wrong", self.words(error)))

    def was_away(self):
        """Whether a daemon was killed since the present thing was begun."""
        return self.kills.value != self.kills_before or self.kills.value % 2 == 1

    def is_excused(self, error):
        """Passes end with the daemon, so a load that it does not outlive is excused as well."""
        numbers = (errno.ENOTCONN, errno.EIO, errno.ECONNABORTED, errno.ENOENT)
        return self.was_away() and (isinstance(error, Mixed) or
                                    isinstance(error, OSError) and error.errno in numbers)

    # One way of using a mount each.

    def load_through_latest(self):
        def load():
            step = json.loads(harness.read_file(self.path("latest", "config.json")))["step"]
            for name in self.rng.sample(SHARDS, len(SHARDS)):
                if self.rng.randrange(3) == 0:
                    time.sleep(self.rng.random() * 0.3)  # a slow loader: part of what is tried
                data = harness.read_file(self.path("latest", name))
                if data != self.original(step, name):
                    raise Mixed(f"a load that began with version {step} got another {name}")
        self.in_child(load)

    def load_by_readlink(self):
        version = self.latest()
        for name in [*SHARDS, "config.json"]:
            self.is_right(version, name, harness.read_file(self.path("versions", version, name)))

    def any_version(self):
        return self.rng.randrange(1, self.latest() + 1)

    def read_a_range(self):
        version, name = self.any_version(), self.rng.choice(SHARDS)
        with open(self.path("versions", version, name), "rb") as file:
            offset = self.rng.randrange(os.fstat(file.fileno()).st_size)
            data = os.pread(file.fileno(), 70_000, offset)
        self.is_right(version, name, data, offset)

    def read_headers(self):
        for version in self.rng.sample(range(1, self.latest() + 1), min(10, self.latest())):
            with open(self.path("versions", version, SHARDS[0]), "rb") as file:
                self.is_right(version, SHARDS[0], file.read(64))

    def hold_a_file(self):
        version, name = self.any_version(), self.rng.choice(SHARDS)
        with open(self.path("versions", version, name), "rb") as file:
            time.sleep(self.rng.random())
            self.is_right(version, name, file.read())

    def hold_a_mapping(self):
        version, name = self.latest(), self.rng.choice(SHARDS)
        with open(self.path("versions", version, name), "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        time.sleep(self.rng.random())
        self.is_right(version, name, mapped[:])
        mapped.close()

    def copy(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["cp", "-r", self.path("latest") + "/.", folder],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                if self.was_away():
                    return
                raise Wrong(f"cp -r: {done.stderr}")
            step = json.loads(harness.read_file(os.path.join(folder, "config.json")))["step"]
            for name in SHARDS:
                self.is_right(step, name, harness.read_file(os.path.join(folder, name)))

    def walk(self):
        for folder in ("", "versions", "tags", "deltas", ".weightfs"):
            for name in os.listdir(self.path(folder)):
                try:
                    os.stat(self.path(folder, name))
                except FileNotFoundError:
                    pass  # a version may go between the two
        json.loads(harness.read_file(self.path(".weightfs", "status")))

    def poll(self):
        for _ in range(100):
            self.latest()

    def read_a_tag(self):
        version = self.any_version()
        name = self.rng.choice(SHARDS)
        self.is_right(version, name, harness.read_file(self.path("tags", f"step-{version}", name)))

    def go(self, end):
        ways = [self.load_through_latest] * 4 + [
            self.load_by_readlink, self.read_a_range, self.read_headers, self.hold_a_file,
            self.hold_a_mapping, self.copy, self.walk, self.poll, self.read_a_tag]
        while time.monotonic() < end:
            way = self.rng.choice(ways)
            self.kills_before = self.kills.value
            try:
                way()
            except Exception as error:
                if self.is_excused(error):
                    self.done["excused"] += 1
                    continue
                self.tell(error)
            self.done[way.__name__] += 1
        self.said.put(("done", dict(self.done)))


def read_on(mount, kept, seed, said, kills, seconds):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    harness.Workspace.alive.clear()  # they are the parent's
    Reader(mount, kept, seed, said, kills).go(time.monotonic() + seconds)
    said.close()
    said.join_thread()
    os._exit(0)


# ---- all of it -----------------------------------------------------------------------------------

class Everything(harness.MountTest):
    """Set by main()."""

    args = None

    def setUp(self):
        self.writing = self.writer(name="trainer", store="store-trainer")
        self.kept = os.path.join(self.dir, "kept")
        self.trainer = Trainer(self.writing, self.kept, self.args.seed)
        self.trainer.step()
        harness.call("wait", self.writing.path, "--tag", "step-1", "--timeout", "60")
        room = f"{3 * 2 * ELEMENTS * len(SHARDS)}"
        self.reading = [
            self.mount("--store-size", room, "--pin-grace", "5", name="fast", store="store-fast"),
            self.mount("--store-size", room, "--pin-grace", "5", "--serve", "daemon", name="slow",
                       store="store-slow")]

    def test_nothing_goes_wrong(self):
        said = multiprocessing.Queue()
        kills = multiprocessing.Value("i", 0)  # odd: a daemon is away
        readers = []
        for i in range(self.args.readers):
            mount = self.reading[i % 2].path
            readers.append(multiprocessing.Process(
                target=read_on, args=(mount, self.kept, self.args.seed + i, said, kills,
                                      self.args.seconds)))
            readers[-1].start()
        killer = random.Random(self.args.seed)
        end = time.monotonic() + self.args.seconds
        ended, wrong, done = 0, [], collections.Counter()

        def listen(timeout):
            nonlocal ended
            try:
                kind, what = said.get(timeout=timeout)
            except queue.Empty:
                return
            if kind == "done":
                ended += 1
                done.update(what)
            else:
                wrong.append(what)
                print("WRONG " + what, flush=True)

        while time.monotonic() < end:
            self.trainer.step()
            if self.args.kills and killer.randrange(8) == 0:
                kills.value += 1
                self.kill_and_mount(killer.choice([*self.reading, self.writing]))
                kills.value += 1
            until = time.monotonic() + killer.random()
            while time.monotonic() < min(until, end):
                listen(0.1)
        limit = time.monotonic() + 120
        while ended < len(readers) and time.monotonic() < limit:
            listen(1)
        for reader in readers:
            reader.join(30)
            reader.kill()
        self.assertEqual(ended, len(readers), "a reader hangs")
        newest = self.trainer.count
        harness.call("wait", self.writing.path, "--tag", f"step-{newest}", "--timeout", "120")
        for mount in self.reading:
            mount.wait_version(newest, timeout=120)
            self.assertFalse(mount.process.has_ended())
        self.assert_clean()
        self.assertEqual(wrong, [])
        print(f"{newest} versions, {kills.value // 2} kills; " +
              ", ".join(f"{name} {count}" for name, count in sorted(done.items())))

    def kill_and_mount(self, mount):
        mount.process.kill()
        mount.ready = False
        mount.start()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=harness.SEED)
    parser.add_argument("--kills", action="store_true")
    Everything.args = parser.parse_args()
    harness.SEED = Everything.args.seed
    sys.argv[1:] = []
    harness.main()


if __name__ == "__main__":
    main()
