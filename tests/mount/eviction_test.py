"""What leaves a store that is full, and what never does: `latest` stays, whatever is opened by name;
what streams in for time travel yields to it; a reader that finds no room gets EIO."""

import ctypes
import errno
import mmap
import os
import pty
import random
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import slow_bucket  # noqa: E402
from slow_bucket import is_weights  # noqa: E402

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p

FILE = "model-00001-of-00002.safetensors"
PARAMS = 500_000  # 1 MiB a version


def room_for(step, versions):
    """--store-size for so many versions of this size."""
    size = sum(os.path.getsize(os.path.join(step, name)) for name in os.listdir(step))
    return f"{int(size * versions) // 1024}K"


class Loop:
    """Does something again and again, in a thread, until it is left; then `error` must be none."""

    def __init__(self, test, body):
        self.test, self.body, self.error, self.count = test, body, None, 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            while not self.stop.is_set():
                self.body()
                self.count += 1
        except Exception as error:  # told by the test, in its own thread
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(60)
        self.test.assertIsNone(self.error)
        self.test.assertGreater(self.count, 0)


class Mapped:
    """A file that is mapped and closed, as safetensors has it. Python's own mmap keeps it open."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.size = os.path.getsize(path)
            self.address = libc.mmap(None, ctypes.c_size_t(self.size), mmap.PROT_READ, mmap.MAP_SHARED,
                                     file.fileno(), ctypes.c_longlong(0))
        if self.address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), path)

    def read(self):
        return ctypes.string_at(self.address, self.size)

    def end(self):
        libc.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size))


class Full(harness.MountTest):
    def test_latest_stays_while_old_versions_are_opened_and_new_ones_come(self):
        steps = self.make_run(14, PARAMS)
        self.init()
        for step in steps[:4]:
            self.publish(step)
        mount = self.mount("--store-size", room_for(steps[0], 4.5))
        mount.wait_version(4)
        data = [harness.read_file(os.path.join(step, FILE)) for step in steps]
        seen = [4]

        def look():
            seen.append(mount.latest())
            assert seen[-1] >= seen[-2], f"latest went from {seen[-2]} to {seen[-1]}"

        def travel():
            version = random.randint(1, seen[-1])
            path = mount.join("versions", str(version), FILE)
            assert harness.read_file(path) == data[version - 1], f"version {version} is wrong"

        with Loop(self, look), Loop(self, travel), Loop(self, travel):
            for version in range(5, len(steps) + 1):
                self.publish(steps[version - 1])
                mount.wait_version(version)
        self.assertEqual(seen[-1], len(steps))
        self.assert_same_tree(mount.join("latest/"), steps[-1])


    def test_what_is_mapped_is_listed_and_found_all_the_time(self):
        """A mapping outlives close(2), so that only leases tell of it; those are looked at before
        the version is hidden."""
        steps = self.make_run(12, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--store-size", room_for(steps[0], 3.2))
        mount.wait_version(1)
        versions, first = mount.join("versions"), mount.join("versions/1")
        mapped = Mapped(os.path.join(first, FILE))

        def look():
            assert "1" in os.listdir(versions), "version 1 is not listed"
            assert FILE in os.listdir(first)

        with Loop(self, look), Loop(self, look):
            for version in range(2, len(steps) + 1):
                self.publish(steps[version - 1])
                mount.wait_version(version)
        harness.wait_until(lambda: len(os.listdir(versions)) < 5,  # it was asked for often
                           "old versions to be removed")
        self.assertEqual(mapped.read(), harness.read_file(os.path.join(steps[0], FILE)))
        mapped.end()


class OldVersions(harness.MountTest):
    """The bytes of snapshots are held, so that no old version can become complete."""

    def make_url(self):
        self.plain = super().make_url()
        self.slow = slow_bucket.SlowBucket(self.bucket)
        self.addCleanup(self.slow.close)
        return slow_bucket.URL

    def publish(self, folder):
        return harness.call("publish", self.plain, folder, "--store",
                            os.path.join(self.dir, "publisher"))

    def begin(self, versions, room):
        """A mount that has the last of so many versions; returns it, and the next checkpoint."""
        steps = self.make_run(versions + 1, PARAMS)
        harness.call("init", self.plain)
        for step in steps[:versions]:
            self.publish(step)
        mount = self.mount("--store-size", room_for(steps[0], room),
                           variables=self.slow.variables())
        harness.call("wait", mount.path, "--ready", "--timeout", 60)
        self.slow.hold(is_weights)
        return mount, steps

    def look_into(self, mount, version):
        os.close(os.open(mount.join("versions", str(version), FILE), os.O_RDONLY))

    def test_old_versions_that_cannot_come_do_not_hold_up_latest(self):
        mount, steps = self.begin(3, 3.5)
        opened = os.open(mount.join("versions/1", FILE), os.O_RDONLY)
        self.addCleanup(os.close, opened)
        self.look_into(mount, 2)
        self.publish(steps[3])
        mount.wait_version(4)
        self.assert_same_tree(mount.join("latest/"), steps[3])
        self.assertIsNone(mount.status()["error"])
        self.slow.release()
        self.assertEqual(os.pread(opened, 1 << 20, 0),
                         harness.read_file(os.path.join(steps[0], FILE))[:1 << 20])

    def test_many_old_versions_are_looked_into_one_after_another(self):
        mount, steps = self.begin(8, 2.5)
        for _ in range(2):
            for version in range(1, 8):
                self.look_into(mount, version)
                self.assertEqual([one["version"] for one in mount.status()["partial"]], [version])
        self.slow.release()
        self.assert_same_tree(mount.join("versions/3"), steps[2])
        self.assertEqual(mount.latest(), 8)

    def test_what_is_waited_for_stays_while_it_comes(self):
        """It was evicted, was not asked for again, and was waited for until the timeout."""
        mount, steps = self.begin(4, 2.5)
        waiting = harness.start("wait", mount.path, "--ready", "--version", 1, "--timeout", 60)
        is_partial = lambda version: lambda status: version in [  # noqa: E731
            one["version"] for one in status["partial"]]
        mount.wait_status(is_partial(1), "version 1 to stream in")
        for version in (2, 3):
            self.look_into(mount, version)
        self.assertTrue(is_partial(1)(mount.status()), mount.status()["partial"])
        self.slow.release()
        said, error = waiting.communicate(timeout=90)
        self.assertEqual((waiting.returncode, said),
                         (0, f"version 1 is at {mount.join('versions/1')}\n"), error)
        self.assert_same_tree(mount.join("versions/1"), steps[0])

    def test_who_has_waited_in_vain_is_told_so_and_keeps_nothing(self):
        mount, _ = self.begin(4, 2.5)
        late = harness.run("wait", mount.path, "--ready", "--version", 1, "--timeout", "0.5")
        self.assertEqual(late.returncode, 5, late.stderr)
        self.look_into(mount, 2)
        self.assertEqual([one["version"] for one in mount.status()["partial"]], [2])

    def test_where_there_is_no_room_a_wait_ends_and_says_why(self):
        mount, _ = self.begin(2, 1.5)
        for _ in range(2):
            done = harness.run("wait", mount.path, "--ready", "--version", 1, "--timeout", 60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("--store-size", done.stderr)
        # On a terminal, where it asks again and again to tell how far it is.
        terminal, end = pty.openpty()
        with open(end, "wb") as stderr:
            waiting = harness.start("wait", mount.path, "--ready", "--version", 1, "--timeout", 60,
                                    stderr=stderr)
        self.addCleanup(os.close, terminal)
        self.addCleanup(waiting.kill)
        waiting.communicate(timeout=90)
        self.assertEqual(waiting.returncode, 1)

    def test_where_there_is_no_room_a_reader_gets_eio_and_status_says_why(self):
        mount, _ = self.begin(2, 1.5)
        with self.assertRaises(OSError) as raised:
            self.look_into(mount, 1)
        self.assertEqual(raised.exception.errno, errno.EIO)
        [partial] = mount.status()["partial"]
        self.assertEqual((partial["version"], partial["error"]["code"]), (1, "no_space"))
        self.assertIn("--store-size", partial["error"]["message"])
        self.assertEqual(mount.latest(), 2)


if __name__ == "__main__":
    harness.main()
