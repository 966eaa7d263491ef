"""The page cache: what `latest` shows is in it, if it fits; status, doctor and .weightfs/advice say so."""

import ctypes
import json
import mmap
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "support"))

import harness  # noqa: E402
from harness import MountTest, call, libc, read_file, run, wait_until, write_file  # noqa: E402

MIB = 1 << 20
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                      ctypes.c_int64]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


# ---- what the kernel says ------------------------------------------------------------------------

def resident_pages(path):
    """(pages in the page cache, all pages) of a file, by mincore(2)."""
    size = os.path.getsize(path)
    if size == 0:
        return 0, 0
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    fd = os.open(path, os.O_RDONLY)
    try:
        memory = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    assert memory != ctypes.c_void_p(-1).value, path
    assert libc.mincore(memory, size, found) == 0, path
    libc.munmap(memory, size)
    return sum(one & 1 for one in found), pages


def files_of(mount, version):
    folder = os.path.join(mount.store, "images", str(version))
    return [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]


def share(mount, version):
    """Of a version's images that is in the page cache: 0 to 1."""
    counts = [resident_pages(path) for path in files_of(mount, version)]
    return sum(there for there, _ in counts) / sum(pages for _, pages in counts)


def evict(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


# ---- a cgroup with a limit -----------------------------------------------------------------------

class Cgroup:
    """A cgroup of its own; OSError where this host lets nobody make one."""

    def __init__(self, limit):
        top, file = self.find()
        self.path = os.path.join(top, f"weightfs-test-{os.getpid()}")
        os.mkdir(self.path)
        try:
            with open(os.path.join(self.path, file), "w") as limit_file:
                limit_file.write(str(limit))
        except OSError:
            os.rmdir(self.path)
            raise

    @staticmethod
    def find():
        """A directory to make one in, and the name of its limit."""
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split(" - ") for line in file]
        with open("/proc/self/cgroup") as file:
            own = dict(line.strip().split(":", 2)[1:] for line in file)
        for before, after in mounts:
            mount_point, (kind, _, options) = before.split()[4], after.split()[:3]
            if kind == "cgroup" and "memory" in options.split(","):
                path = mount_point + next(own[key] for key in own if "memory" in key.split(","))
                return (path if os.path.isdir(path) else mount_point), "memory.limit_in_bytes"
        for before, after in mounts:
            mount_point = before.split()[4]
            if after.split()[0] == "cgroup2":
                if "memory" not in read_file(mount_point + "/cgroup.subtree_control").decode():
                    write_file(mount_point + "/cgroup.subtree_control", b"+memory")
                return mount_point, "memory.max"
        raise FileNotFoundError("no cgroup file system")

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as file:
            file.write("0")

    def remove(self):
        def removed():
            try:
                os.rmdir(self.path)
                return True
            except OSError:
                return False  # its last process is still ending
        wait_until(removed, f"{self.path} can be removed")


class CacheTest(MountTest):
    def checkpoint(self, name, size):
        """A checkpoint of one tensor."""
        header = json.dumps({"w": {"dtype": "U8", "shape": [size],
                                   "data_offsets": [0, size]}}).encode()
        header += b" " * (-len(header) % 8)
        piece = harness.RANDOM.randbytes(MIB)
        folder = os.path.join(self.dir, name)
        write_file(os.path.join(folder, "model.safetensors"),
                   struct.pack("<Q", len(header)) + header + piece * (size // MIB))
        write_file(os.path.join(folder, "config.json"), b"{}")
        return folder

    def make_cold(self, size):
        """A repository with a version that a store has, but the page cache has not."""
        self.init()
        self.publish(self.checkpoint("one", size))
        mount = self.mount()
        # What is not synced is read when the store is opened again.
        mount.wait_status(lambda status: status["unsynced"] == [], "version 1 on the disk")
        mount.umount()
        evict(files_of(mount, 1))
        if share(mount, 1) > 0:
            self.skipTest("$TMPDIR keeps what it has in memory")
        return mount

    def advice(self, mount):
        return read_file(mount.join(".weightfs", "advice")).decode()

    def test_a_version_is_there_when_latest_moves(self):
        self.init()
        self.publish(self.checkpoint("one", 8 * MIB))
        mount = self.mount()
        self.assertEqual(share(mount, 1), 1)
        self.publish(self.checkpoint("two", 8 * MIB))
        wait_until(lambda: mount.latest() == 2, "version 2")
        self.assertEqual(share(mount, 2), 1)
        cache = mount.status()["cache"]
        self.assertEqual((cache["version"], cache["percent"]), (2, 100))
        self.assertEqual(cache["bytes"], sum(map(os.path.getsize, files_of(mount, 2))))
        self.assertIn("100 % of version 2", self.advice(mount))
        self.assertRegex(run("status", mount.path).stdout, "page cache +100 % of version 2")
        found = call("doctor", mount.path)["mount"]["findings"]
        self.assertEqual(found["page cache"]["state"], "good")
        is_fast = mount.status()["serve"]["mode"] != "daemon"
        self.assertEqual(found["vLLM"]["state"], "good" if is_fast else "note")

    def test_what_a_new_daemon_finds_cold_is_read_in(self):
        mount = self.make_cold(40 * MIB)
        mount.start()
        mount.wait_status(lambda status: status["cache"]["percent"] == 100, "all is there")
        wait_until(lambda: share(mount, 1) == 1, "what was on its way from the disk")

    def test_links_to_cold_files_are_read_in(self):
        self.init()
        first = self.checkpoint("one", 40 * MIB)
        self.publish(first)
        mount = self.mount()
        evict(files_of(mount, 1))
        write_file(os.path.join(first, "config.json"), b'{"other": 1}')
        self.publish(first)
        mount.wait_version(2)
        self.assertTrue(any(os.stat(path).st_nlink > 1 for path in files_of(mount, 2)))
        mount.wait_status(lambda status: status["cache"]["percent"] == 100, "all is there")
        wait_until(lambda: share(mount, 2) == 1, "what was on its way from the disk")

    def test_off_reads_nothing(self):
        mount = self.make_cold(8 * MIB)
        mount.variables = {"WEIGHTFS_WARM": "off"}
        mount.start()
        self.assertEqual(mount.status()["cache"]["warming"], "off")
        self.assertIn("--warm off", self.advice(mount))
        self.assertIn("--safetensors-load-strategy prefetch", self.advice(mount))
        found = call("doctor", mount.path)["mount"]["findings"]
        self.assertEqual(found["vLLM"]["state"], "note")
        mount.umount()
        self.assertEqual(share(mount, 1), 0)

    def test_through_the_daemon_page_faults_are_slow(self):
        self.init()
        self.publish(self.checkpoint("one", MIB))
        mount = self.mount("--serve", "daemon")
        wait_until(lambda: "no complete version" not in self.advice(mount), "the version")
        self.assertIn("--safetensors-load-strategy prefetch", self.advice(mount))

    def test_what_does_not_fit_is_not_read_and_said(self):
        try:
            cgroup = Cgroup(96 * MIB)
        except OSError as error:
            self.skipTest(f"no cgroup can be made here: {error}")
        self.addCleanup(cgroup.remove)
        mount = self.make_cold(104 * MIB)
        mount.adopt(call(*mount.arguments(), preexec_fn=cgroup.enter))
        self.addCleanup(self.workspace.close)  # before the cgroup goes
        cache = mount.wait_status(lambda status: status["cache"]["warming"] == "no_room",
                                  "there is no room")["cache"]
        self.assertFalse(cache["fits"])
        self.assertEqual(cache["room"]["limit"], 96 * MIB)
        self.assertTrue(cache["room"]["cgroup"].endswith(os.path.basename(cgroup.path)), cache)
        self.assertEqual(share(mount, 1), 0)
        said = "does not fit into the page cache: the limit of cgroup"
        self.assertIn("WARNING: version 1", self.advice(mount))
        self.assertIn(said, self.advice(mount))
        self.assertIn("--safetensors-load-strategy eager", self.advice(mount))
        self.assertIn(said, run("status", mount.path).stdout)
        self.assertIn(said, read_file(os.path.join(mount.store, "weightfs.log")).decode())
        memory = call("doctor", mount.path)["mount"]["findings"]["memory"]
        self.assertEqual(memory["state"], "warning")
        self.assertIn(said, memory["text"])

    def test_doctor_speaks_for_the_place_where_it_runs(self):
        try:
            cgroup = Cgroup(24 * MIB)
        except OSError as error:
            self.skipTest(f"no cgroup can be made here: {error}")
        self.addCleanup(cgroup.remove)
        self.init()
        self.publish(self.checkpoint("one", 40 * MIB))
        mount = self.mount()
        found = call("doctor", mount.path, preexec_fn=cgroup.enter)["mount"]["findings"]
        self.assertEqual(found["memory"]["state"], "good")
        self.assertEqual(found["memory here"]["state"], "warning")

    def test_the_directory_of_a_sync_has_it_too(self):
        self.init()
        self.publish(self.checkpoint("one", 8 * MIB))
        folder = os.path.join(self.dir, "synced")
        call("sync", self.url, folder, "--once")
        status = json.loads(read_file(os.path.join(folder, ".weightfs/status")))
        self.assertEqual(status["cache"]["percent"], 100)
        self.assertIn(b"100 % of version 1", read_file(os.path.join(folder, ".weightfs/advice")))
        found = call("doctor", folder)["mount"]["findings"]
        self.assertEqual(found["page cache"]["state"], "good")


if __name__ == "__main__":
    harness.main()
