"""Every way to read gives the bytes that were published, served by the kernel or by the daemon."""

import ctypes
import errno
import mmap
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

PAGE = mmap.PAGESIZE
FILE = "model-00001-of-00002.safetensors"


class Reading:
    """The tests; a sub-class says how files are served."""

    serve = ""

    def setUp(self):
        self.step = self.make_run(1, params=6_000_000)[0]
        self.init()
        self.publish(self.step)
        self.mounted = self.mount("--serve", self.serve)
        self.path = self.mounted.join("latest", FILE)
        self.data = harness.read_file(os.path.join(self.step, FILE))
        self.fd = os.open(self.path, os.O_RDONLY)
        self.addCleanup(os.close, self.fd)

    def check_who_read(self):
        """Passthrough means that the daemon was asked nothing."""
        serve = self.mounted.status()["serve"]
        self.assertEqual(serve["mode"], self.serve)
        if self.serve == "passthrough":
            self.assertEqual(serve["daemon_reads"], 0)
            self.assertEqual(serve["why"], "")
        else:
            self.assertGreater(serve["daemon_reads"], 0)

    def ranges(self, count=50, step=1):
        """Random (offset, size), some of them over the end of the file."""
        for _ in range(count):
            offset = harness.RANDOM.randrange(len(self.data) + PAGE) // step * step
            yield offset, (1 + harness.RANDOM.randrange(1 << 20)) // step * step

    def test_read(self):
        for size in (4096, 100_003, 4 << 20):
            os.lseek(self.fd, 0, os.SEEK_SET)
            pieces = []
            while piece := os.read(self.fd, size):
                pieces.append(piece)
            self.assertEqual(b"".join(pieces), self.data, f"pieces of {size}")
        self.check_who_read()

    def test_pread(self):
        for offset, size in self.ranges():
            self.assertEqual(os.pread(self.fd, size, offset), self.data[offset:offset + size])
        self.assertEqual(os.pread(self.fd, 10, len(self.data)), b"")
        self.check_who_read()

    def test_direct(self):
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        self.addCleanup(os.close, fd)
        for offset, size in self.ranges(step=PAGE):
            with mmap.mmap(-1, size + PAGE) as buffer:  # aligned to a page
                view = memoryview(buffer)[:size + PAGE]
                got = os.preadv(fd, [view], offset)
                self.assertEqual(bytes(view[:got]), self.data[offset:offset + size + PAGE])
                view.release()
        self.check_who_read()

    def test_mmap(self):
        for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
            with mmap.mmap(self.fd, 0, flags=flags, prot=mmap.PROT_READ) as mapping:
                self.assertEqual(mapping[:], self.data)
                for offset, _ in self.ranges(step=PAGE):
                    self.assertEqual(mapping[offset:offset + 100], self.data[offset:offset + 100])
        self.check_who_read()

    def test_mmap_of_a_file_that_is_closed_again(self):
        fd = os.open(self.path, os.O_RDONLY)
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
            os.close(fd)
            self.assertEqual(mapping[:], self.data)

    def test_populated_mapping(self):
        with mmap.mmap(self.fd, 0, prot=mmap.PROT_READ) as mapping:
            mapping.madvise(mmap.MADV_WILLNEED)
            try:
                mapping.madvise(22)  # MADV_POPULATE_READ
            except OSError as error:
                self.assertEqual(error.errno, errno.EINVAL)  # kernel < 5.14
            self.assertEqual(mapping[:], self.data)

    def test_sendfile(self):
        out = os.open(os.path.join(self.dir, "out"), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, out)
        offset = 0
        while sent := os.sendfile(out, self.fd, offset, 1 << 20):
            offset += sent
        self.assertEqual(harness.read_file(os.path.join(self.dir, "out")), self.data)
        self.check_who_read()

    def test_copy_file_range(self):
        out = os.open(os.path.join(self.dir, "out"), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, out)
        try:
            while os.copy_file_range(self.fd, out, 1 << 20):
                pass
        except OSError as error:
            # From Linux 5.19 on, between file systems of any kind: programs then copy by read().
            self.assertEqual(error.errno, errno.EXDEV)
            return
        self.assertEqual(harness.read_file(os.path.join(self.dir, "out")), self.data)

    def test_cp_and_cat(self):
        out = os.path.join(self.dir, "out")
        subprocess.run(["cp", self.path, out], check=True)
        self.assertEqual(harness.read_file(out), self.data)
        self.assertEqual(subprocess.run(["cat", self.path], check=True, capture_output=True).stdout,
                         self.data)

    def test_readahead(self):
        harness.libc.readahead(self.fd, ctypes.c_long(0), ctypes.c_size_t(8 << 20))
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_WILLNEED)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self.assertEqual(os.pread(self.fd, len(self.data), 0), self.data)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.assertEqual(os.pread(self.fd, len(self.data), 0), self.data)

    def test_many_readers_at_once(self):
        digest = harness.sha256(self.data)
        readers = [subprocess.Popen(["sha256sum", self.path], stdout=subprocess.PIPE, text=True)
                   for _ in range(16)]
        for reader in readers:
            self.assertEqual(reader.communicate(timeout=60)[0].split()[0], digest)
        self.check_who_read()

    def test_status_counts_open_files(self):
        serve = self.mounted.status()["serve"]
        self.assertEqual(serve["open_" + self.serve], 1)
        with open(self.path, "rb"):
            self.assertEqual(self.mounted.status()["serve"]["open_" + self.serve], 2)
        harness.wait_until(
            lambda: self.mounted.status()["serve"]["open_" + self.serve] == 1, "the RELEASE")

    def test_the_whole_tree(self):
        self.assert_same_tree(self.mounted.join("latest/"), self.step)


class Passthrough(Reading, harness.MountTest):
    serve = "passthrough"


class Daemon(Reading, harness.MountTest):
    serve = "daemon"

    def test_status_says_that_it_was_chosen(self):
        self.assertEqual(self.mounted.status()["serve"]["why"], "--serve daemon")


class Automatic(harness.MountTest):
    def test_takes_passthrough_where_it_is_to_be_had(self):
        self.make_repository(1)
        self.assertEqual(self.mount().status()["serve"]["mode"], "passthrough")


if __name__ == "__main__":
    harness.main()
