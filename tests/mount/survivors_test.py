"""Whoever could still write to a staged file is found when it is handed over; who reads is not."""

import concurrent.futures
import errno
import mmap
import os
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import writers  # noqa: E402
from writers import FILE  # noqa: E402

# Holds argv[2] in the way of argv[1], says its pid, and ends with its standard input.
# (mmap.mmap would keep a descriptor.)
HOLDER = """
import ctypes, mmap, os, sys
fd = os.open(sys.argv[2], os.O_RDWR)
kinds = {"shared": mmap.MAP_SHARED, "private": mmap.MAP_PRIVATE}
if sys.argv[1] in kinds:
    map = ctypes.CDLL(None).mmap
    map.restype = ctypes.c_void_p
    map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    where = map(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, kinds[sys.argv[1]], fd, 0)
    assert where != ctypes.c_void_p(-1).value
    os.close(fd)
if sys.argv[1] == "forked" and os.fork() != 0:
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


class Survivors(writers.WriterTest):
    def hold(self, way, path):
        """Returns the pid that holds it, and what lets go."""
        process = subprocess.Popen([sys.executable, "-c", HOLDER, way, path], text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        holder = harness.Process(int(process.stdout.readline()))
        self.addCleanup(holder.close)

        def let_go():
            process.stdin.close()
            self.assertTrue(holder.has_ended(30))

        return holder.pid, let_go

    def hold_in_flight(self, path):
        """A descriptor that was sent and not received: no process has it."""
        ends = socket.socketpair()
        fd = os.open(path, os.O_RDWR)
        socket.send_fds(ends[0], [b"x"], [fd])
        os.close(fd)

        def let_go():
            for end in ends:
                end.close()

        self.addCleanup(let_go)
        return None, let_go

    def why(self, mount, name):
        """The last refusal of publish/NAME, from the log."""
        lines = harness.read_file(os.path.join(mount.store, "weightfs.log")).decode().splitlines()
        return [line for line in lines if f"publish/{name}: " in line][-1]

    def survive(self, serve):
        steps = self.make_run(1)
        self.init()
        mount = self.writer("--serve", serve)
        ways = ["descriptor", "shared", "private", "forked", "flight"]
        held = {}
        for way in ways:
            path = os.path.join(self.save(mount, steps[0], way), FILE)
            held[way] = self.hold_in_flight(path) if way == "flight" else self.hold(way, path)

        def refused(way):
            with self.assertRaises(OSError) as raised:
                self.hand_over(mount, way)
            return raised.exception.errno

        with concurrent.futures.ThreadPoolExecutor(len(ways)) as threads:
            numbers = list(threads.map(refused, ways))  # each takes 2 s
        self.assertEqual([errno.errorcode[number] for number in numbers], ["EBUSY"] * len(ways))
        self.assertEqual(os.listdir(mount.join("publish")), [])
        for way, (pid, _) in held.items():
            who = "held by no visible process" if pid is None else f"pid {pid} "
            self.assertIn(who, self.why(mount, way))
            self.assertIn(f"{way}/{FILE}", self.why(mount, way))
            self.assert_same_tree(mount.join("staging", way), steps[0])

        for version, way in enumerate(ways, 1):
            held[way][1]()
            self.hand_over(mount, way)
            self.assertEqual(self.wait(mount, "--tag", way), version)
            self.assert_same_tree(mount.join("tags", way), steps[0])

    def test_by_passthrough(self):
        self.survive("passthrough")

    def test_by_the_daemon(self):
        self.survive("daemon")

    def read_on(self, serve):
        steps = self.make_run(1)
        self.init()
        mount = self.writer("--serve", serve)
        path = os.path.join(self.save(mount, steps[0], "step-1"), FILE)
        data = harness.read_file(os.path.join(steps[0], FILE))
        fd = os.open(path, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        mappings = [mmap.mmap(fd, 0, flags, mmap.PROT_READ)
                    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE)]
        self.hand_over(mount, "step-1")
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)
        self.assertEqual(os.pread(fd, len(data), 0), data)
        for mapping in mappings:
            self.assertEqual(mapping[:], data)
            mapping.close()

    def test_mere_readers_are_no_hindrance_by_passthrough(self):
        self.read_on("passthrough")

    def test_mere_readers_are_no_hindrance_by_the_daemon(self):
        self.read_on("daemon")


if __name__ == "__main__":
    harness.main()
