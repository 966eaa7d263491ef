"""A storm: many loaders go through `latest` while versions come all the time; none mixes two.

WEIGHTFS_STORM_SWITCHES and WEIGHTFS_STORM_READERS scale it.  Every load is a process of its own, or
two of one session at the same time; slow ones see ten switches or more between two shards.
"""

import hashlib
import mmap
import os
import select
import socket
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import loaders  # noqa: E402

SWITCHES = int(os.environ.get("WEIGHTFS_STORM_SWITCHES", 1000))
READERS = int(os.environ.get("WEIGHTFS_STORM_READERS", 64))
SLOW_READERS = max(READERS // 16, 1)
SLOW_SWITCHES = 10  # between two shards
LIMIT = 60  # seconds for some switches; each usually takes 40 ms

NO_MORE = 1 << 40  # switches: nobody is to wait any more


class Storm(harness.MountTest):
    def publisher(self, mount, tokens):
        """Publishes a version for each token, in a process of its own."""
        version = 1
        while os.read(tokens, 1):
            version += 1
            folder = mount.staging(f"step-{version}")
            loaders.write_checkpoint(folder, version)
            os.rename(folder, mount.join("publish", f"step-{version}"))

    def test_nobody_gets_two_versions(self):
        self.tmpfs("tmp", "2G")
        self.bucket = os.path.join(self.dir, "tmp", "bucket")
        self.url = "file://" + self.bucket
        writer = self.writer("--store-size", "100K", name="writer", store="tmp/writer-store")
        loaders.write_checkpoint(writer.staging("step-1"), 1)
        os.rename(writer.staging("step-1"), writer.join("publish", "step-1"))
        reader = self.mount("--poll", "0.01", "--store-size", "100K", "--pin-grace", "0.6",
                            name="reader", store="tmp/reader-store")
        reader.wait_version(1)
        self.storm(writer, reader)

    def mount(self, *options, **names):
        mount = harness.Mount(self, self.url, **names)
        mount.arguments = lambda: ("mount", self.url, mount.path, "--store", mount.store,
                                   *(() if "--poll" in options else ("--poll", harness.POLL)),
                                   *options)
        mount.start()
        return mount

    def storm(self, writer, reader):
        self.count = mmap.mmap(-1, 8)  # switches so far, for the slow readers
        publish, go, results = os.pipe(), os.pipe(), os.pipe()
        self.children = []
        self.addCleanup(self.kill_children)
        self.fork(lambda: self.publisher(writer, publish[0]), close=(publish[1], go[1]))
        for number in range(READERS):
            slow = number < SLOW_READERS
            self.fork(lambda: self.read_on(reader, go[0], results[1], slow),
                      close=(publish[1], go[1]))
        os.close(publish[0])
        os.close(results[1])
        said = []
        collector = threading.Thread(target=lambda: said.extend(read_lines(results[0])),
                                     daemon=True)
        collector.start()
        begin = time.monotonic()
        versions = self.switch(reader, publish[1], go[1])
        os.close(publish[1])
        os.close(go[1])
        for child in self.children:
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.children = []
        collector.join()
        self.check(said, versions)
        print(f"{SWITCHES} switches, {len(said)} loads in {time.monotonic() - begin:.1f} s",
              flush=True)

    def fork(self, body, close):
        pid = os.fork()
        if pid:
            self.children.append(pid)
            return
        code = 1
        try:
            for fd in close:
                os.close(fd)
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def kill_children(self):
        self.count[:] = NO_MORE.to_bytes(8, "little")
        for child in self.children:
            os.kill(child, harness.signal.SIGKILL)
            os.waitpid(child, 0)

    def switch(self, reader, publish, go):
        """Follows the reader's status until it has seen all switches; each lets the publisher
        publish and some readers load. Returns: the last version."""
        os.write(publish, b"...")
        switches, last = 0, 1
        while switches < SWITCHES:
            version = self.next_version(reader, last)
            self.assertGreater(version, last)
            os.write(publish, b"." * (version - last))
            switches, last = switches + 1, version
            self.count[:] = switches.to_bytes(8, "little")
            if len(select.select([], [go], [], 0)[1]):
                os.write(go, b"..")
        self.count[:] = NO_MORE.to_bytes(8, "little")
        return last + 3

    def next_version(self, reader, last):
        """Waits for it, and leaves the processors to the readers."""
        end = time.monotonic() + LIMIT
        while (version := reader.status()["version"]) == last:
            self.assertLess(time.monotonic(), end, f"nothing follows version {last}")
            time.sleep(0.002)
        return version

    def read_on(self, reader, go, results, slow):
        """A load for each token; of a slow reader one after another until the end."""
        while True:
            if slow:
                if int.from_bytes(self.count[:], "little") >= SWITCHES:
                    return
            elif not os.read(go, 1):
                return
            pid = os.fork()
            if pid == 0:
                os.setsid()
                session = f"{os.getpid()}-{time.monotonic_ns()}"  # numbers come again
                twin, second = (None, 0) if slow or os.getpid() % 2 else fork_twin()
                line = f"{session} {'slow' if slow else 'fast'} {self.load(reader, slow, twin)}\n"
                os.write(results, line.encode())
                if second:
                    os.waitpid(second, 0)
                os._exit(0)
            os.waitpid(pid, 0)

    def load(self, reader, slow, twin):
        """Hashes of all shards, or what went wrong.  A twin is waited for while the first shard is
        mapped: on a busy machine it may begin so late that it is rightly taken for another load."""
        hashes = []
        try:
            for shard in range(loaders.SHARDS):
                path = reader.join("latest", loaders.shard_name(shard))
                for _ in range(2):  # as safetensors does
                    fd = os.open(path, os.O_RDONLY)
                    data = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
                    os.close(fd)
                    hashes.append(hashlib.sha256(data).hexdigest())
                    if twin and len(hashes) == 1:
                        twin.send(b".")
                        twin.recv(1)
                    data.close()
                if slow and shard + 1 < loaders.SHARDS:
                    self.wait_switches()
            return " ".join(hashes)
        except OSError as error:
            return f"error {error}"

    def wait_switches(self):
        until = min(int.from_bytes(self.count[:], "little") + SLOW_SWITCHES, NO_MORE)
        harness.wait_until(lambda: int.from_bytes(self.count[:], "little") >= until, "switches",
                           LIMIT)

    def check(self, said, versions):
        known = loaders.hashes_of(range(1, versions + 1))
        fast, slow, sessions = 0, 0, {}
        for line in said:
            session, kind, *hashes = line.split()
            self.assertNotIn("error", hashes, line)
            found = [known.get(digest) for digest in hashes]
            self.assertNotIn(None, found, "bytes that belong to no version")
            self.assertEqual([shard for _, shard in found], [0, 0, 1, 1, 2, 2])
            mixed = {version for version, _ in found}
            self.assertEqual(len(mixed), 1, f"a load of {kind} mixes {found}")
            fast, slow = fast + (kind == "fast"), slow + (kind == "slow")
            sessions.setdefault(session, []).append(mixed.pop())
        self.assertGreater(fast, SWITCHES // 2)
        self.assertGreater(slow, 0)
        self.assertTrue(any(len(versions) > 1 for versions in sessions.values()))
        for session, versions in sessions.items():
            self.assertEqual(len(set(versions)), 1, f"session {session} got {versions}")


def fork_twin():
    """Both of one session.  Returns: a socket to the other, and its pid in the first."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    twin, other = (ours, theirs) if pid else (theirs, ours)
    other.close()
    return twin, pid


def read_lines(fd):
    with os.fdopen(fd) as file:
        return file.read().splitlines()


if __name__ == "__main__":
    harness.main()
