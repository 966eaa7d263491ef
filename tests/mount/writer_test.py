"""A writer's mount: staging is an ordinary directory tree, and mv hands it over."""

import ctypes
import errno
import mmap
import os
import re
import signal
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

MIB = 1 << 20


class CacheStat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64)
                for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")]


def unsynced_pages(path):
    """Pages of a file that are not on its disk yet, or on their way (cachestat(2), Linux 6.5)."""
    whole, found = (ctypes.c_uint64 * 2)(0, 0), CacheStat()
    with open(path, "rb") as file:
        if harness.libc.syscall(451, file.fileno(), whole, ctypes.byref(found), 0) != 0:
            return None
    return found.dirty + found.writeback


class Holder:
    """A process that has mapped a file and closed its descriptor."""

    def __init__(self, path, flags, kind):
        ours, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            fd = os.open(path, flags)
            libc = harness.libc
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                  ctypes.c_int, ctypes.c_long]
            libc.mmap(None, 4096, mmap.PROT_READ, kind, fd, 0)  # mmap.mmap would keep a descriptor
            os.close(fd)
            os.write(theirs, b"y")
            while True:
                signal.pause()
        os.read(ours, 1)
        os.close(ours)
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class WriterTest(harness.MountTest):
    """Each test runs with passthrough and without; `self.serve` says which."""

    serve = "passthrough"

    def writer(self, *options, **names):
        return self.mount("--writer", "--serve", self.serve, *options, **names)

    def staging(self, *options):
        """A writer's mount of an empty repository; returns a directory in its staging."""
        self.init()
        self.writer_mount = self.writer(*options)
        folder = self.writer_mount.join("staging/run")
        os.mkdir(folder)
        return folder

    def backing(self, path):
        """The file in the store that holds the bytes of a staged one."""
        number = os.stat(path).st_ino & ((1 << 60) - 1)
        return os.path.join(self.writer_mount.store, "staging", str(number))

    def assert_errno(self, number, body, *arguments):
        with self.assertRaises(OSError) as caught:
            body(*arguments)
        self.assertEqual(errno.errorcode[caught.exception.errno], errno.errorcode[number])


class Files(WriterTest):
    def test_what_is_written_is_read(self):
        path = os.path.join(self.staging(), "a")
        data = harness.RANDOM.randbytes(3 * MIB + 17)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        self.addCleanup(os.close, fd)
        for begin in range(0, len(data), 700_001):
            self.assertEqual(os.write(fd, data[begin:begin + 700_001]),
                             len(data[begin:begin + 700_001]))
        os.pwrite(fd, b"middle", MIB)
        data = data[:MIB] + b"middle" + data[MIB + 6:]
        self.assertEqual(os.pread(fd, len(data) + 1, 0), data)
        self.assertEqual(harness.read_file(path), data)
        found = os.stat(path)
        self.assertEqual((found.st_size, stat.S_IMODE(found.st_mode)), (len(data), 0o640))
        with open(path, "ab") as file:
            file.write(b"end")
        self.assertEqual(harness.read_file(path), data + b"end")
        self.assert_errno(errno.EEXIST, os.open, path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        serving = self.writer_mount.status()["serve"]
        self.assertEqual(serving["mode"], self.serve)
        if self.serve == "passthrough":
            self.assertEqual(serving["daemon_reads"], 0)

    def test_truncation(self):
        path = os.path.join(self.staging(), "a")
        harness.write_file(path, b"x" * 10_000)
        fd = os.open(path, os.O_RDWR)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, 5000)
        self.assertEqual(os.fstat(fd).st_size, 5000)
        os.ftruncate(fd, 8000)
        self.assertEqual(os.pread(fd, 10_000, 0), b"x" * 5000 + b"\0" * 3000)
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
        self.assertEqual((os.fstat(fd).st_size, os.pread(fd, 100, 0)), (0, b""))
        os.write(fd, b"again")
        self.assertEqual(harness.read_file(path), b"again")

    def test_a_save_like_that_of_safetensors(self):
        folder = self.staging()
        name, temporary = os.path.join(folder, "model"), os.path.join(folder, ".tmpX")
        for round_number in range(3):  # the later ones over a file that is mapped
            data = harness.RANDOM.randbytes(2 * MIB)
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(fd, len(data))
            os.write(fd, data[:MIB])
            os.write(fd, data[MIB:])
            os.rename(temporary, name)
            os.close(fd)
            self.assertEqual(harness.read_file(name), data)
            self.assertEqual(os.listdir(folder), ["model"])
            if round_number > 0:
                self.assertEqual(old[:], old_data)  # noqa: F821
                old.close()  # noqa: F821
            with open(name, "rb") as file:
                old = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
            old_data = data
        old.close()

    def test_shared_mappings(self):
        path = os.path.join(self.staging(), "a")
        size = 3 * mmap.PAGESIZE
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, size)
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED)
        os.close(fd)
        mapping[100:105] = b"first"
        mapping[size - 4:] = b"last"
        self.assertEqual(harness.read_file(path)[100:105], b"first")
        mapping.flush()
        mapping.close()
        self.assertEqual(harness.read_file(self.backing(path)),
                         b"\0" * 100 + b"first" + b"\0" * (size - 109) + b"last")

    def test_fsync_really_syncs(self):
        folder = self.staging()
        path = os.path.join(folder, "a")
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        if unsynced_pages(self.backing(path)) is None:
            self.skipTest("this kernel has no cachestat")
        os.write(fd, b"x" * MIB)
        self.assertGreater(unsynced_pages(self.backing(path)), 0)
        os.fsync(fd)
        self.assertEqual(unsynced_pages(self.backing(path)), 0)
        os.write(fd, b"x" * MIB)
        self.assertGreater(unsynced_pages(self.backing(path)), 0)
        os.fdatasync(fd)
        self.assertEqual(unsynced_pages(self.backing(path)), 0)

    def test_fsync_of_a_directory_syncs_its_names(self):
        folder = self.staging()

        def unsynced():
            records = os.path.join(self.writer_mount.store, "db")
            return sum(unsynced_pages(os.path.join(records, name))
                       for name in os.listdir(records) if name.endswith(".log"))

        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, fd)
        os.fsync(fd)
        if unsynced_pages(os.path.join(self.dir, "store/STORE")) is None:
            self.skipTest("this kernel has no cachestat")
        self.assertEqual(unsynced(), 0)
        os.mkdir(os.path.join(folder, "sub"))
        self.assertGreater(unsynced(), 0)
        os.fsync(fd)
        self.assertEqual(unsynced(), 0)

    def test_space_is_allocated_and_given_back(self):
        path = os.path.join(self.staging(), "a")
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        os.posix_fallocate(fd, 0, MIB)
        self.assertEqual(os.fstat(fd).st_size, MIB)
        self.assertGreaterEqual(os.fstat(fd).st_blocks * 512, MIB)
        os.ftruncate(fd, 0)
        os.ftruncate(fd, MIB)
        os.pwrite(fd, b"data", MIB // 2)
        if self.serve == "passthrough":
            self.assertEqual(os.lseek(fd, 0, os.SEEK_DATA), MIB // 2)
            self.assertEqual(os.lseek(fd, MIB // 2, os.SEEK_HOLE), MIB // 2 + 4096)
        self.assertLessEqual(os.lseek(fd, 0, os.SEEK_DATA), MIB // 2)  # holes need not be told
        self.assert_errno(errno.ENXIO, os.lseek, fd, MIB, os.SEEK_DATA)

    def test_an_unlinked_file_lives_until_it_is_closed(self):
        path = os.path.join(self.staging(), "a")
        harness.write_file(path, b"bytes")
        fd = os.open(path, os.O_RDWR)
        backing = self.backing(path)
        os.unlink(path)
        self.assertFalse(os.path.exists(path))
        os.pwrite(fd, b"other", 0)
        self.assertEqual(os.pread(fd, 100, 0), b"other")
        self.assertEqual(os.fstat(fd).st_nlink, 0)
        os.close(fd)
        harness.wait_until(lambda: not os.path.exists(backing), "the end of the bytes")

    def test_the_kernel_copies_between_files(self):
        folder = self.staging()
        source, target = os.path.join(folder, "a"), os.path.join(folder, "b")
        data = harness.RANDOM.randbytes(MIB)
        harness.write_file(source, data)
        with open(source, "rb") as reading, open(target, "wb") as writing:
            copied = 0
            while copied < len(data):
                copied += os.copy_file_range(reading.fileno(), writing.fileno(), len(data))
        self.assertEqual(harness.read_file(target), data)

    def test_names(self):
        folder = self.staging()
        sub = os.path.join(folder, "sub")
        os.mkdir(sub, 0o750)
        self.assertEqual(stat.S_IMODE(os.stat(sub).st_mode), 0o750)
        for i in range(300):
            os.close(os.open(os.path.join(sub, f"name-{i}"), os.O_CREAT | os.O_WRONLY))
        self.assertEqual(sorted(os.listdir(sub)), sorted(f"name-{i}" for i in range(300)))
        self.assert_errno(errno.ENOTEMPTY, os.rmdir, sub)
        os.rename(sub, os.path.join(folder, "moved"))
        self.assertEqual(len(os.listdir(os.path.join(folder, "moved"))), 300)
        self.assert_errno(errno.ENOENT, os.listdir, sub)
        for i in range(300):
            os.unlink(os.path.join(folder, "moved", f"name-{i}"))
        os.rmdir(os.path.join(folder, "moved"))
        os.symlink("somewhere", os.path.join(folder, "link"))
        self.assertEqual(os.readlink(os.path.join(folder, "link")), "somewhere")
        names = {entry.name: entry.inode() for entry in os.scandir(folder)}
        self.assertEqual(names, {"link": os.lstat(os.path.join(folder, "link")).st_ino})

    def test_attributes(self):
        path = os.path.join(self.staging(), "a")
        harness.write_file(path, b"x")
        os.chmod(path, 0o604)
        os.chown(path, 12, 34)
        os.utime(path, ns=(1_000_000_007, 2_000_000_011))
        found = os.stat(path)
        self.assertEqual((stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid), (0o604, 12, 34))
        self.assertEqual((found.st_atime_ns, found.st_mtime_ns), (1_000_000_007, 2_000_000_011))

    def test_what_is_not_supported(self):
        folder = self.staging()
        path = os.path.join(folder, "a")
        harness.write_file(path, b"x")
        self.assert_errno(errno.EPERM, os.link, path, path + "2")
        self.assert_errno(errno.EPERM, os.mkfifo, path + "2")
        self.assert_errno(errno.EOPNOTSUPP, os.setxattr, path, "user.x", b"1")
        self.assert_errno(errno.EOPNOTSUPP, os.getxattr, path, "user.x")
        self.assert_errno(errno.EOPNOTSUPP, os.open, folder, os.O_TMPFILE | os.O_RDWR)

    def test_another_user_saves_its_own(self):
        folder = self.staging("--staging-mode", "1777")
        path = self.writer_mount.join("staging/theirs")
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(1234)
            os.setuid(1234)
            os.umask(0o022)
            os.mkdir(path)
            os.close(os.open(os.path.join(path, "a"), os.O_CREAT | os.O_WRONLY, 0o666))
            try:
                os.mkdir(os.path.join(folder, "b"))
                os._exit(1)
            except PermissionError:
                os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        found = os.stat(os.path.join(path, "a"))
        self.assertEqual((found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)),
                         (1234, 1234, 0o644))

    def test_all_of_it_survives_the_daemon(self):
        folder = self.staging()
        data = harness.RANDOM.randbytes(MIB)
        harness.write_file(os.path.join(folder, "sub/a"), data)
        os.chmod(os.path.join(folder, "sub/a"), 0o600)
        mount = self.writer_mount
        mount.process.kill(signal.SIGKILL)
        mount.start()
        self.assertEqual(harness.read_file(os.path.join(folder, "sub/a")), data)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(folder, "sub/a")).st_mode), 0o600)


class FilesOfTheDaemon(Files):
    serve = "daemon"


class HandOver(WriterTest):
    def save(self, mount, step, name):
        """Saves a checkpoint into staging/`name`."""
        subprocess.run(["cp", "-r", step, mount.join("staging", name)], check=True)
        return mount.join("staging", name)

    def mv(self, mount, name, target=None):
        return subprocess.run(["mv", mount.join("staging", name),
                               mount.join("publish", target or name)],
                              capture_output=True, text=True)

    def wait_published(self, mount, version):
        mount.wait_version(version)
        harness.wait_until(lambda: os.listdir(mount.join("publish")) == [], "an empty publish/")

    def test_a_damaged_latest_does_not_hold_up_the_next_save(self):
        steps = self.make_run(3)
        self.init()
        mount = self.writer()
        for number, step in enumerate(steps[:2], 1):
            self.save(mount, step, f"step-{number}")
            self.assertEqual(self.mv(mount, f"step-{number}").returncode, 0)
            self.wait_published(mount, number)
        mount.wait_status(lambda status: status["unsynced"] == [], "version 2 on the disk")
        image = os.path.join(mount.store, "images", "2", "model-00001-of-00002.safetensors")
        data = harness.read_file(image)
        with open(image, "r+b") as file:
            file.seek(len(data) // 2)
            file.write(bytes([data[len(data) // 2] ^ 1]))
        self.save(mount, steps[2], "step-3")
        self.assertEqual(self.mv(mount, "step-3").returncode, 0)
        self.wait_published(mount, 3)
        reader = self.mount(name="reader", store="reader-store")
        for number, step in enumerate(steps[1:], 2):
            self.assert_same_tree(mount.join("versions", number), step)
            self.assert_same_tree(reader.join("versions", number), step)

    def test_mv_publishes(self):
        steps = self.make_run(3)
        self.init()
        mount = self.writer()
        for number, step in enumerate(steps, 1):
            self.save(mount, step, f"step-{number}")
            done = self.mv(mount, f"step-{number}")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.wait_published(mount, number)
            self.assert_same_tree(mount.join("latest/"), step)
            self.assertEqual(os.readlink(mount.join(f"tags/step-{number}")),
                             f"../versions/{number}")
            self.assertEqual(os.listdir(mount.join("staging")), [])
        self.assertEqual(mount.status()["bytes"]["fetched"], 0)
        self.assert_clean()

    def test_what_is_refused_stays_as_it_was(self):
        step = self.make_run(1)[0]
        self.init()
        mount = self.writer()
        last_error = mount.join(".weightfs/last_error")
        self.assertEqual(harness.read_file(last_error), b"")
        path = mount.join("staging/plain")
        harness.write_file(path, b"x")
        self.assert_errno(errno.EBADMSG, os.rename, path, mount.join("publish/plain"))
        self.assertIn(b"plain", harness.read_file(last_error))

        folder = self.save(mount, step, "x")
        before = harness.hash_tree(folder)
        self.assert_errno(errno.EROFS, os.mkdir, mount.join("publish/x"))
        self.assert_errno(errno.EROFS, os.open, mount.join("publish/x"),
                          os.O_CREAT | os.O_WRONLY)
        self.assert_errno(errno.EBADMSG, os.rename, folder, mount.join("publish/-x"))
        shard = os.path.join(folder, sorted(os.listdir(step))[-1])
        with open(shard, "r+b"):
            done = self.mv(mount, "x")
        self.assertIn("busy", done.stderr)
        self.assertIn(f"pid {os.getpid()}", harness.read_file(last_error).decode())
        self.assertEqual(harness.hash_tree(folder), before)
        done = self.mv(mount, "x")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.wait_published(mount, 1)

    def test_whoever_still_maps_a_file_for_writing_is_named(self):
        step = self.make_run(1)[0]
        self.init()
        mount = self.writer()
        folder = self.save(mount, step, "x")
        shard = os.path.join(folder, "model-00001-of-00002.safetensors")
        for flags, kind in ((os.O_RDWR, mmap.MAP_SHARED), (os.O_RDWR, mmap.MAP_PRIVATE),
                            (os.O_RDONLY, mmap.MAP_PRIVATE)):
            with Holder(shard, flags, kind) as holder:
                done = self.mv(mount, "x")
                if flags == os.O_RDONLY:
                    self.assertEqual(done.returncode, 0, done.stderr)
                    continue
                self.assertIn("busy", done.stderr)
                said = harness.read_file(mount.join(".weightfs/last_error")).decode()
                self.assertIn(f"pid {holder.pid}", said)
        self.wait_published(mount, 1)

    def test_a_signal_that_is_handled_does_not_interrupt(self):
        step = self.make_run(1)[0]
        self.init()
        mount = self.writer()
        folder = self.save(mount, step, "x")
        ticks = []
        before = signal.signal(signal.SIGALRM, lambda *ignored: ticks.append(1))
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with open(os.path.join(folder, "config.json"), "r+b"):
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            try:
                self.assert_errno(errno.EBUSY, os.rename, folder, mount.join("publish/x"))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertGreater(len(ticks), 0)

    def test_names_are_never_old(self):
        step = self.make_run(1)[0]
        self.init()
        mount = self.writer()
        os.rename(self.bucket, self.bucket + ".away")
        for _ in range(3):
            self.save(mount, step, "x")
            os.rename(mount.join("staging/x"), mount.join("publish/x"))
            self.assertFalse(os.path.exists(mount.join("staging/x")))
            self.assertTrue(os.path.exists(mount.join("publish/x")))
            self.assert_errno(errno.EROFS, os.mkdir, mount.join("publish/x/sub"))
            os.rename(mount.join("publish/x"), mount.join("staging/y"))
            self.assertFalse(os.path.exists(mount.join("publish/x")))
            self.assert_same_tree(mount.join("staging/y"), step)
            os.rename(mount.join("staging/y"), mount.join("publish/y"))
            subprocess.run(["rm", "-r", mount.join("publish/y")], check=True)
            self.assertEqual(os.listdir(mount.join("publish")), [])
            self.assertEqual(os.listdir(mount.join("staging")), [])
        os.rename(self.bucket + ".away", self.bucket)


class HandOverByTheDaemon(HandOver):
    serve = "daemon"


class Mounting(harness.MountTest):
    def test_a_readers_mount_is_as_it_was(self):
        self.make_repository(1)
        mount = self.mount()
        self.assertEqual(sorted(os.listdir(mount.path)),
                         [".weightfs", "deltas", "latest", "tags", "versions"])
        self.assertEqual(sorted(os.listdir(mount.join(".weightfs"))), ["advice", "health", "status"])
        for name in ("staging", "publish", ".weightfs/last_error"):
            self.assertFalse(os.path.lexists(mount.join(name)))
        with self.assertRaises(OSError) as caught:
            os.mkdir(mount.join("staging"))
        self.assertEqual(caught.exception.errno, errno.EROFS)

    def test_a_writers_mount_changes_nothing_but_staging(self):
        self.make_repository(1)
        mount = self.mount("--writer")
        self.assertEqual(sorted(os.listdir(mount.path)),
                         [".weightfs", "deltas", "latest", "publish", "staging", "tags", "versions"])
        self.assertEqual(sorted(os.listdir(mount.join(".weightfs"))), ["advice", "health", "last_error", "status"])
        for name in ("staging", "publish"):
            found = os.stat(mount.join(name))
            self.assertEqual((stat.S_IMODE(found.st_mode), found.st_uid), (0o755, 0))
        path = mount.join("latest/config.json")
        for body in (lambda: os.open(path, os.O_WRONLY), lambda: os.unlink(path),
                     lambda: os.truncate(path, 0), lambda: os.chmod(path, 0o777),
                     lambda: os.rename(path, mount.join("staging/a")),
                     lambda: os.mkdir(mount.join("versions/7")),
                     lambda: os.rename(mount.join("staging"), mount.join("tags/a")),
                     lambda: os.link(path, mount.join("staging/a"))):
            with self.assertRaises(OSError) as caught:
                body()
            self.assertIn(caught.exception.errno, (errno.EROFS, errno.EPERM))

    def test_what_mount_says(self):
        self.init()
        mount = harness.Mount(self, self.url, "--writer")
        done = harness.run(*mount.arguments())
        self.assertEqual(done.returncode, 0, done.stderr)
        mount.adopt({"pid": int(re.search(r"pid (\d+)", done.stdout).group(1))})
        self.assertIn(f"mv {mount.path}/staging/NAME {mount.path}/publish/NAME", done.stdout)
        for option in (["--rebase"], ["--include", "*.py"]):
            done = harness.run("mount", self.url, mount.path, *option)
            self.assertEqual(done.returncode, 2)
            self.assertIn("needs --writer", done.stderr)

    def test_a_bucket_out_of_reach(self):
        self.init()
        mount = self.mount("--writer")
        harness.write_file(mount.join("staging/a"), b"kept")
        mount.umount()
        os.rename(self.bucket, self.bucket + ".away")
        mount.start()
        self.assertEqual(harness.read_file(mount.join("staging/a")), b"kept")
        harness.write_file(mount.join("staging/b"), b"more")
        mount.umount()

    def test_umount_does_not_wait_for_a_bucket_that_hangs(self):
        step = self.make_run(1)[0]
        self.init()
        other = harness.Mount(self, self.url + "2", name="other", store="other-store")
        harness.call("init", other.url)
        other.options = ("--writer",)
        other.start()
        mount = self.mount("--writer")
        os.rename(self.bucket, self.bucket + ".away")
        os.symlink(other.join("staging"), self.bucket)
        os.kill(other.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, other.process.pid, signal.SIGCONT)
        subprocess.run(["cp", "-r", step, mount.join("staging/x")], check=True)
        os.rename(mount.join("staging/x"), mount.join("publish/x"))
        mount.umount()
        os.unlink(self.bucket)
        os.rename(self.bucket + ".away", self.bucket)
        mount.start()
        mount.wait_version(1)
        self.assert_same_tree(mount.join("tags/x/"), step)

    def test_umount_of_a_mount_in_use_names_who_uses_it(self):
        self.init()
        mount = self.mount("--writer")
        with open(mount.join("staging/a"), "wb"):
            done = harness.run("umount", mount.path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(str(os.getpid()), done.stderr)
        mount.umount()


if __name__ == "__main__":
    harness.main()
