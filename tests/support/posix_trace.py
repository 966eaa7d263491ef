"""System calls that leave a trace: what the cases of posix_*_cases.py are written with.

A case is a function of a System. Every call through it adds one line to the trace, the call and
what came back: a value, or the name of the errno. Nothing in a trace depends on where or when the
case ran: descriptors are numbered in the order of opening, inode numbers are left out, blocks are
only "none", "holes" or "full", and times are only "same", "now" or "other" (changes()). So two
runs of a case in two directories leave equal traces if the directories behave alike.

A call that failed gives a Failed, and a call that is handed one is not run; no case checks for
errors. Paths are relative to the working directory, which is an empty directory of the case's
own.

Needs Python 3.11 and glibc only. A System belongs to one process and its children.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import signal
import stat
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p

NAMES = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP", errno.EAGAIN: "EAGAIN"}
OPEN_FLAGS = {getattr(os, name): name for name in (
    "O_WRONLY", "O_RDWR", "O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_DIRECTORY", "O_NOFOLLOW",
    "O_PATH", "O_DIRECT", "O_NOATIME", "O_NONBLOCK")}

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
MAP_FAILED = ctypes.c_void_p(-1).value
CLOCK_REALTIME_COARSE = 5
SYS_GETDENTS64 = 217 if os.uname().machine == "x86_64" else 61


class Failed:
    """What a call gives that did not succeed. False."""

    def __init__(self, name):
        self.name = name

    def __bool__(self):
        return False

    def __str__(self):
        return self.name


class Fd(int):
    """A descriptor, shown by its number in the trace."""

    def __new__(cls, value, number):
        fd = super().__new__(cls, value)
        fd.number = number
        return fd

    def __str__(self):
        return f"fd{self.number}"


class Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


def checked(function, *arguments):
    """Calls a function of libc; -1 is an OSError."""
    result = function(*arguments)
    if result in (-1, MAP_FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def offset(value):
    return ctypes.c_longlong(value)


def raw(path):
    return os.fsencode(path)


def show(value):
    """The words for an argument or a result."""
    if value is None:
        return "ok"
    if isinstance(value, (bytes, str)) and len(value) > 48:
        data = os.fsencode(value) if isinstance(value, str) else value
        return f"<{len(data)} bytes {hashlib.sha256(data).hexdigest()[:12]}>"
    if isinstance(value, (bytes, str)):
        return repr(value)
    if isinstance(value, dict):
        return " ".join(f"{key}={show(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(show, value))}]"
    return str(value)


def show_flags(flags):
    names = [name for bit, name in OPEN_FLAGS.items() if flags & bit == bit]
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        names = [name for name in names if name != "O_DIRECTORY"] + ["O_TMPFILE"]
    return "|".join(names) or "O_RDONLY"


def show_stat(seen):
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}.get(
        stat.S_IFMT(seen.st_mode), oct(stat.S_IFMT(seen.st_mode)))
    shown = {"type": kind, "mode": oct(stat.S_IMODE(seen.st_mode)), "nlink": seen.st_nlink,
             "uid": seen.st_uid, "gid": seen.st_gid}
    if kind != "directory":
        shown["size"] = seen.st_size
    if kind == "file":
        allocated = seen.st_blocks * 512
        shown["blocks"] = "none" if not allocated else (
            "holes" if allocated < seen.st_size else "full")
    return shown


def parse_entries(data):
    """[(name, position after it, type)] of what getdents64 wrote."""
    at, entries = 0, []
    while at < len(data):
        _, position, size, kind = struct.unpack_from("<QqHB", data, at)
        name = data[at + 19:at + size].split(b"\0", 1)[0]
        entries.append((name, position, kind))
        at += size
    return entries


class System:
    """The calls. `out` is a pipe's descriptor that gets one JSON line for each call."""

    PLAIN = {name: getattr(os, name) for name in """
        access chdir chmod chown close copy_file_range fchmod fchown fdatasync fsync
        ftruncate lchown link listxattr getxattr removexattr setxattr lseek mkdir mkfifo mknod
        posix_fadvise posix_fallocate pread pwrite pwritev read readlink readv rename rmdir sendfile
        splice symlink sync truncate umask unlink write writev""".split()}

    def __init__(self, out):
        self.out = out
        self.opened = 0

    # ---- the trace -------------------------------------------------------------------------------

    def note(self, text, value):
        """Adds a line; words are taken as they are."""
        shown = value if isinstance(value, str) else show(value)
        os.write(self.out, json.dumps([text, shown]).encode() + b"\n")

    def call(self, text, function, arguments=()):
        """Runs it; returns its result or a Failed, which it notes."""
        if any(isinstance(one, Failed) for one in arguments):
            result = Failed("not run")
        else:
            try:
                result = function()
            except OSError as error:
                result = Failed(NAMES[error.errno])
        self.note(text, show(result))
        return result

    def named(self, name, function, *arguments):
        shown = ", ".join(show(one) for one in arguments)
        return self.call(f"{name}({shown})", lambda: function(*arguments), arguments)

    def __getattr__(self, name):
        if name not in self.PLAIN:
            raise AttributeError(name)

        def plain(*arguments, **more):
            words = [show(one) for one in arguments]
            words += [f"{key}={show(value)}" for key, value in more.items()]
            return self.call(f"{name}({', '.join(words)})",
                             lambda: self.PLAIN[name](*arguments, **more),
                             (*arguments, *more.values()))
        return plain

    # ---- descriptors and whole files -------------------------------------------------------------

    def new_fd(self, value):
        self.opened += 1
        return Fd(value, self.opened)

    def open(self, path, flags=os.O_RDONLY, mode=0o666, dir_fd=None):
        where = "" if dir_fd is None else f", at {dir_fd}"
        return self.call(f"open({show(path)}, {show_flags(flags)}, {mode:#o}{where})",
                         lambda: self.new_fd(os.open(path, flags, mode, dir_fd=dir_fd)),
                         (path, dir_fd))

    def open_again(self, fd, flags):
        """Opens what a descriptor refers to, through /proc."""
        return self.call(f"open_again({show(fd)}, {show_flags(flags)})",
                         lambda: self.new_fd(os.open(f"/proc/self/fd/{int(fd)}", flags)), (fd,))

    def dup(self, fd):
        return self.named("dup", lambda old: self.new_fd(os.dup(old)), fd)

    def put(self, path, data=b"", mode=0o644):
        """Creates a file with these bytes."""
        def write():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            try:
                written = 0
                while written < len(data):
                    written += os.write(fd, data[written:])
            finally:
                os.close(fd)
        return self.call(f"put({show(path)}, {show(data)}, {mode:#o})", write)

    def get(self, path):
        """All bytes of a file, by reads."""
        def read():
            with open(path, "rb", buffering=0) as file:
                return file.readall()
        return self.call(f"get({show(path)})", read)

    def content(self, fd):
        """All bytes of an open file, by preads."""
        def read():
            pieces, at = [], 0
            while piece := os.pread(fd, 1 << 20, at):
                pieces.append(piece)
                at += len(piece)
            return b"".join(pieces)
        return self.call(f"content({fd})", read, (fd,))

    # ---- attributes ------------------------------------------------------------------------------

    def stat(self, path):
        return self.named("stat", lambda one: show_stat(os.stat(one)), path)

    def lstat(self, path):
        return self.named("lstat", lambda one: show_stat(os.lstat(one)), path)

    def size(self, path):
        return self.named("size", lambda one: os.stat(one).st_size, path)

    def same(self, first, second):
        """Whether two paths or descriptors are one inode."""
        return self.named("same", lambda a, b: os.path.samestat(os.lstat(a) if not isinstance(
            a, int) else os.fstat(a), os.lstat(b) if not isinstance(b, int) else os.fstat(b)),
            first, second)

    def times(self, path):
        """Access and modification time in nanoseconds: for times that the case itself has set."""
        def read(one):
            seen = os.stat(one, follow_symlinks=False) if isinstance(one, str) else os.fstat(one)
            return [seen.st_atime_ns, seen.st_mtime_ns]
        return self.named("times", read, path)

    def utimens(self, path, accessed, modified, flags=0):
        """utimensat(2) with (seconds, nanoseconds), as it is."""
        def set_times():
            pair = (Timespec * 2)(Timespec(*accessed), Timespec(*modified))
            if isinstance(path, int):
                checked(libc.futimens, int(path), pair)
            else:
                checked(libc.utimensat, AT_FDCWD, raw(path), pair, flags)
        return self.call(f"utimens({show(path)}, {accessed}, {modified}, {flags})", set_times,
                         (path,))

    @contextlib.contextmanager
    def changes(self, *paths):
        """Notes which times of these paths or descriptors change while the body runs."""
        def look(one):
            try:
                seen = os.fstat(one) if isinstance(one, int) else os.lstat(one)
                return {"mtime": seen.st_mtime_ns, "ctime": seen.st_ctime_ns}
            except OSError as error:
                return NAMES[error.errno]
        before = [look(path) for path in paths]
        start = self.next_tick()
        yield
        for path, old in zip(paths, before):
            new = look(path)
            if isinstance(new, dict):
                same = old if isinstance(old, dict) else {}
                new = {key: "same" if new[key] == same.get(key) else
                       "now" if start <= new[key] <= time.time_ns() else "other" for key in new}
            self.note(f"times of {show(path)}", new)

    @staticmethod
    def next_tick():
        """Waits until the clock that stamps files has moved on (some milliseconds); returns it."""
        first = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        while (now := time.clock_gettime_ns(CLOCK_REALTIME_COARSE)) == first:
            pass
        return now

    def statvfs(self, path):
        def read(one):
            seen = os.fstatvfs(one) if isinstance(one, int) else os.statvfs(one)
            return {"namemax": seen.f_namemax, "read_only": bool(seen.f_flag & os.ST_RDONLY),
                    "counts": 0 < seen.f_bavail <= seen.f_bfree <= seen.f_blocks and
                    seen.f_frsize > 0}
        return self.named("statvfs", read, path)

    # ---- directories -----------------------------------------------------------------------------

    def list(self, path):
        """The names in a directory, sorted, with the types that readdir tells."""
        def read(one):
            with os.scandir(one) as entries:
                return sorted(show(entry.name) + ("/" if entry.is_dir(follow_symlinks=False) else
                                                  "@" if entry.is_symlink() else "")
                              for entry in entries)
        return self.named("list", read, path)

    def getdents(self, fd, size=4096):
        """The entries that one getdents64 of `size` bytes gives. Not in the trace: the order and
        the number are the file system's own."""
        buffer = ctypes.create_string_buffer(size)
        count = checked(libc.syscall, SYS_GETDENTS64, int(fd), buffer, size)
        return parse_entries(buffer.raw[:count])

    def rename2(self, old, new, flags):
        words = {RENAME_NOREPLACE: "NOREPLACE", RENAME_EXCHANGE: "EXCHANGE"}.get(flags, flags)
        return self.call(f"renameat2({show(old)}, {show(new)}, {words})",
                         lambda: checked(libc.renameat2, AT_FDCWD, raw(old), AT_FDCWD, raw(new),
                                         flags))

    # ---- space and syncing -----------------------------------------------------------------------

    def fallocate(self, fd, mode, start, length):
        return self.named("fallocate", lambda *_: checked(libc.fallocate, int(fd), mode,
                                                          offset(start), offset(length)),
                          fd, mode, start, length)

    def sync_file_range(self, fd, start, length, flags):
        return self.named("sync_file_range", lambda *_: checked(
            libc.sync_file_range, int(fd), offset(start), offset(length), flags),
            fd, start, length, flags)

    def syncfs(self, fd):
        return self.named("syncfs", lambda one: checked(libc.syncfs, int(one)), fd)

    def clone(self, source, target):
        """ioctl(FICLONE)."""
        return self.named("clone", lambda a, b: fcntl.ioctl(b, 0x40049409, int(a)), source, target)

    # ---- locks -----------------------------------------------------------------------------------

    def flock(self, fd, how):
        return self.named("flock", fcntl.flock, fd, how)

    def lock(self, fd, kind, start=0, length=0, command=fcntl.F_SETLK):
        """fcntl(2) with a lock; F_GETLK gives the type of what is in the way."""
        def run(*_):
            done = fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, 0, start, length, 0))
            return struct.unpack_from("h", done)[0] if command == fcntl.F_GETLK else None
        return self.named("lock", run, fd, kind, start, length, command)

    # ---- memory ----------------------------------------------------------------------------------

    def mmap(self, fd, length, protection, flags, start=0):
        return self.named("mmap", lambda *_: Mapping(self, checked(
            libc.mmap, None, ctypes.c_size_t(length), protection, flags, int(fd), offset(start)),
            length), fd, length, protection, flags, start)

    # ---- processes -------------------------------------------------------------------------------

    def child(self, body):
        """Runs body() in a forked child and waits; notes its end if that was no ordinary one."""
        pid = os.fork()
        if pid == 0:
            run_and_exit(self, body)
        self.note("child", end_of(os.waitpid(pid, 0)[1]))

    @contextlib.contextmanager
    def user(self, uid, gid, groups=()):
        """The body runs as another user."""
        self.note("user", [uid, gid, *groups])
        kept = os.getgroups()
        os.setgroups(groups)
        os.setegid(gid)
        os.seteuid(uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(kept)
            self.note("user", "root")


class Mapping:
    """Mapped memory. Holds no descriptor (Python's own mmap keeps a copy of one)."""

    def __init__(self, system, address, length):
        self.system, self.address, self.length = system, address, length

    def __str__(self):
        return f"mapping of {self.length}"

    def load(self, start, size):
        return self.system.named("load", lambda *_: ctypes.string_at(self.address + start, size),
                                 self, start, size)

    def store(self, start, data):
        self.system.named("store", lambda *_: ctypes.memmove(self.address + start, data,
                                                             len(data)) and None,
                          self, start, data)

    def msync(self, start, length, flags=4):
        return self.system.named("msync", lambda *_: checked(
            libc.msync, ctypes.c_void_p(self.address + start), ctypes.c_size_t(length), flags),
            self, start, length, flags)

    def grow(self, length):
        """mremap(2)."""
        def run(*_):
            self.address = checked(libc.mremap, ctypes.c_void_p(self.address),
                                   ctypes.c_size_t(self.length), ctypes.c_size_t(length), 1)
            self.length = length
        return self.system.named("mremap", run, self, length)

    def unmap(self):
        return self.system.named("munmap", lambda *_: checked(
            libc.munmap, ctypes.c_void_p(self.address), ctypes.c_size_t(self.length)), self)


def run_and_exit(system, body):
    """The whole life of a forked child; what goes wrong in it stands in the trace."""
    try:
        body()
        os._exit(0)
    except BaseException as error:  # noqa: B902 - the child must not go on as its parent
        system.note("stopped by", f"{type(error).__name__}: {error}")
        os._exit(1)


def end_of(status):
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.WEXITSTATUS(status)}"
