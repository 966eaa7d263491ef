#!/usr/bin/python3
"""Random operations on one file, against a model in memory.

    fsx.py PATH [--seed N] [--ops N] [--size BYTES] [--no-holes] [--plant BUG]

PATH is created, and removed at the end unless something was wrong. Up to four descriptors are
open at a time (one may be O_APPEND), and up to two shared mappings, which outlive them. Every
read, through a descriptor or a mapping, is compared with the model; at the end, and after each
reopening of everything, the whole file is. --plant breaks the model or the file, to see that it
is noticed.

Exit code 0: all as it should be; 1: it prints what was wrong, the last operations and the seed.
"""

import argparse
import collections
import ctypes
import mmap
import os
import random
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
PAGE = mmap.PAGESIZE
MAP_FAILED = ctypes.c_void_p(-1).value
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
PLANTS = ("byte", "size", "stale", "lost-hole")


class Wrong(Exception):
    """The file is not what the model says."""


class Mapping:
    """A shared mapping of the file's first `size` bytes. Python's own would keep a descriptor."""

    def __init__(self, fd, size):
        self.size = size
        self.address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE,
                                 mmap.MAP_SHARED, fd, ctypes.c_longlong(0))
        if self.address == MAP_FAILED:
            raise OSError(ctypes.get_errno(), f"mmap of {size} bytes")

    def read(self, at, size):
        return ctypes.string_at(self.address + at, size)

    def write(self, at, data):
        ctypes.memmove(self.address + at, data, len(data))

    def sync(self):
        if libc.msync(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), 4):
            raise OSError(ctypes.get_errno(), "msync")

    def close(self):
        libc.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size))


class History:
    """One run. `model` is what the file's bytes should be."""

    def __init__(self, path, seed, limit, holes=True, plant=None):
        self.path, self.limit, self.plant = path, limit, plant
        self.random = random.Random(seed)
        self.model = bytearray()
        self.descriptors, self.mappings = [], []
        self.tail = collections.deque(maxlen=25)
        self.operations = [(weight, function) for weight, function in (
            (12, self.write), (12, self.read), (4, self.append), (6, self.truncate),
            (3, self.truncate_by_path), (4, self.allocate), (4 if holes else 0, self.punch),
            (3 if holes else 0, self.zero), (9, self.map_write), (9, self.map_read),
            (3, self.map_again), (4, self.open_or_close), (2, self.sync), (3, self.copy_range),
            (3, self.look), (1, self.reopen_everything)) if weight]
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self.open()

    # ---- the run ---------------------------------------------------------------------------------

    def run(self, count):
        weights = [weight for weight, _ in self.operations]
        for number in range(count):
            operation = self.random.choices(self.operations, weights)[0][1]
            if self.plant == "byte" and number % 100 == 99 and self.model:
                os.pwrite(self.fd(), bytes([self.model[-1] ^ 1]), len(self.model) - 1)
            operation()
        self.reopen_everything()

    def did(self, words):
        self.tail.append(words)

    def fd(self):
        return self.random.choice(self.descriptors)

    def spot(self, beyond=0):
        """(offset, size): often small, odd, or at an edge of a page."""
        end = min(len(self.model) + beyond, self.limit)
        at = self.random.choice((self.random.randint(0, end), self.random.randint(0, end),
                                 end, self.random.randint(0, end) // PAGE * PAGE,
                                 max(0, self.random.randint(0, end) // PAGE * PAGE - 1)))
        size = self.random.choice((1, 7, PAGE, self.random.randint(1, 3 * PAGE),
                                   self.random.randint(1, max(1, self.limit // 3))))
        return at, min(size, self.limit - at)

    def data(self, size):
        return self.random.randbytes(size)

    def expect(self, got, at, what):
        want = bytes(self.model[at:at + len(got)])
        if got != want or not isinstance(got, bytes):
            first = next(i for i in range(len(got) + 1) if got[i:i + 1] != want[i:i + 1])
            raise Wrong(f"{what}: byte {at + first} is {got[first:first + 8].hex()}..., should be "
                        f"{want[first:first + 8].hex()}... ({sum(map(int.__ne__, got, want))} of "
                        f"{len(got)} bytes differ; the file has {len(self.model)})")

    def put(self, at, data):
        """The model's write; one of no bytes changes nothing."""
        if data and at > len(self.model):
            self.model.extend(bytes(at - len(self.model)))
        self.model[at:at + len(data)] = data

    def resize(self, size):
        """The model's truncate."""
        if size > len(self.model) and self.plant == "stale":
            self.model.extend(b"\x5a" * (size - len(self.model)))
        del self.model[size:]
        self.model.extend(bytes(size - len(self.model)))

    # ---- operations ------------------------------------------------------------------------------

    def write(self):
        fd, (at, size) = self.fd(), self.spot(beyond=2 * PAGE)
        data = self.data(size)
        self.did(f"pwrite {at} {size}")
        if self.random.random() < 0.5:
            done = os.pwrite(fd, data, at)
        else:
            os.lseek(fd, at, os.SEEK_SET)
            done = os.write(fd, data)
        if done != size:
            raise Wrong(f"write of {size} bytes at {at} gave {done}")
        self.put(at, data)

    def append(self):
        data = self.data(self.random.randint(1, 2 * PAGE))
        if len(self.model) + len(data) > self.limit:
            return
        self.did(f"append {len(data)}")
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        self.put(len(self.model), data)

    def read(self):
        fd, (at, size) = self.fd(), self.spot(beyond=PAGE)
        self.did(f"pread {at} {size}")
        got = os.pread(fd, size, at)
        want = max(0, min(size, len(self.model) - at))
        if len(got) != want:
            raise Wrong(f"read of {size} bytes at {at} gave {len(got)}, should give {want}")
        self.expect(got, at, f"read at {at}")

    def new_size(self):
        return self.random.choice((0, self.random.randint(0, self.limit),
                                   self.random.randint(0, self.limit),
                                   self.random.randint(0, len(self.model)),
                                   self.random.randint(0, self.limit) // PAGE * PAGE))

    def truncate(self):
        size = self.new_size()
        self.did(f"ftruncate {size}")
        os.ftruncate(self.fd(), size)
        self.resize(size)

    def truncate_by_path(self):
        size = self.new_size()
        self.did(f"truncate {size}")
        os.truncate(self.path, size)
        self.resize(size)

    def fallocate(self, mode, at, size):
        if libc.fallocate(self.fd(), mode, ctypes.c_longlong(at), ctypes.c_longlong(size)):
            raise OSError(ctypes.get_errno(), f"fallocate {mode} {at} {size}")

    def allocate(self):
        at, size = self.spot(beyond=2 * PAGE)
        keep = self.random.random() < 0.5
        if not size:
            return
        self.did(f"fallocate {at} {size} keep size {keep}")
        self.fallocate(KEEP_SIZE if keep else 0, at, size)
        if not keep and at + size > len(self.model):
            self.model.extend(bytes(at + size - len(self.model)))

    def punch(self):
        at, size = self.spot()
        if not size:
            return
        self.did(f"punch hole {at} {size}")
        self.fallocate(PUNCH_HOLE | KEEP_SIZE, at, size)
        end = min(at + size, len(self.model))
        if at < end and self.plant != "lost-hole":
            self.model[at:end] = bytes(end - at)

    def zero(self):
        at, size = self.spot(beyond=PAGE)
        keep = self.random.random() < 0.5
        if not size:
            return
        self.did(f"zero range {at} {size} keep size {keep}")
        self.fallocate(ZERO_RANGE | (KEEP_SIZE if keep else 0), at, size)
        end = min(at + size, len(self.model)) if keep else at + size
        if at < end:
            self.put(at, bytes(end - at))

    def mapped(self):
        """(a mapping, offset, size) inside both the file and the mapping, or None."""
        if not self.mappings or (len(self.mappings) < 2 and self.random.random() < 0.2):
            self.map()
        if not self.mappings:
            return None
        mapping = self.random.choice(self.mappings)
        end = min(mapping.size, len(self.model))
        at, size = self.spot()
        size = min(size, end - at)
        return (mapping, at, size) if size > 0 else None

    def map(self):
        size = max(PAGE, self.random.choice((len(self.model), self.limit)))
        self.did(f"mmap {size}")
        self.mappings.append(Mapping(self.fd(), size))

    def map_write(self):
        place = self.mapped()
        if not place:
            return
        mapping, at, size = place
        data = self.data(size)
        self.did(f"store {at} {size}")
        mapping.write(at, data)
        self.put(at, data)

    def map_read(self):
        place = self.mapped()
        if place:
            mapping, at, size = place
            self.did(f"load {at} {size}")
            self.expect(mapping.read(at, size), at, f"load at {at}")

    def map_again(self):
        """Syncs a mapping, and often ends it."""
        if self.mappings:
            mapping = self.random.choice(self.mappings)
            self.did("msync")
            mapping.sync()
            if self.random.random() < 0.6:
                self.did("munmap")
                mapping.close()
                self.mappings.remove(mapping)

    def open(self):
        self.did("open")
        self.descriptors.append(os.open(self.path, os.O_RDWR))

    def open_or_close(self):
        if len(self.descriptors) < 4 and (len(self.descriptors) == 1 or self.random.random() < 0.5):
            self.open()
        else:
            self.did("close")
            os.close(self.descriptors.pop(self.random.randrange(len(self.descriptors))))

    def sync(self):
        self.did("fsync")
        self.random.choice((os.fsync, os.fdatasync))(self.fd())

    def copy_range(self):
        at, size = self.spot()
        to = self.random.randint(0, len(self.model))
        size = min(size, len(self.model) - at, self.limit - to)
        if size <= 0 or abs(at - to) < size:
            return
        self.did(f"copy_file_range {at} {size} to {to}")
        fd, other, done = self.fd(), self.fd(), 0
        while done < size:
            step = os.copy_file_range(fd, other, size - done, at + done, to + done)
            if step == 0:
                raise Wrong(f"copy_file_range ends after {done} of {size} bytes")
            done += step
        self.put(to, bytes(self.model[at:at + size]))

    def look(self):
        """Sizes by descriptor and by path, and where SEEK_DATA says that there is nothing."""
        self.did("stat")
        want = len(self.model) + (self.plant == "size" and len(self.model) > PAGE)
        for seen in (os.fstat(self.fd()).st_size, os.stat(self.path).st_size,
                     os.lseek(self.fd(), 0, os.SEEK_END)):
            if seen != want:
                raise Wrong(f"size {seen}, should be {want}")
        at, _ = self.spot()
        if at < len(self.model):
            try:
                data = os.lseek(self.fd(), at, os.SEEK_DATA)
            except OSError:
                data = len(self.model)
            if any(self.model[at:data]):
                raise Wrong(f"SEEK_DATA from {at} says {data}, but there are bytes before it")

    def reopen_everything(self):
        """No descriptor and no mapping stays; then the whole file is read."""
        self.did("reopen everything")
        for mapping in self.mappings:
            mapping.close()
        for fd in self.descriptors:
            os.close(fd)
        self.mappings, self.descriptors = [], []
        with open(self.path, "rb", buffering=0) as file:
            got = file.readall()
        if len(got) != len(self.model):
            raise Wrong(f"the file has {len(got)} bytes, should have {len(self.model)}")
        self.expect(got, 0, "the whole file")
        self.open()


def check(path, seed, count, limit=1 << 18, holes=True, plant=None):
    """Runs a history; returns None, or in words what was wrong."""
    history = History(path, seed, limit, holes, plant)
    try:
        history.run(count)
    except (Wrong, OSError) as error:
        return "\n".join((f"fsx: {type(error).__name__}: {error}", "the last operations:",
                          *(f"  {line}" for line in history.tail), f"seed {seed}, file {path}"))
    for fd in history.descriptors:
        os.close(fd)
    os.unlink(path)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("path")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--ops", type=int, default=5000)
    parser.add_argument("--size", type=int, default=1 << 18)
    parser.add_argument("--no-holes", action="store_true", help="no punching and zeroing")
    parser.add_argument("--plant", choices=PLANTS)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    start = time.monotonic()
    problem = check(given.path, given.seed, given.ops, given.size, not given.no_holes, given.plant)
    if problem:
        sys.exit(problem)
    print(f"{given.ops} operations, {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
