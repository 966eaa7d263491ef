"""Cases about attributes: modes, owners, other users, times, syncing, locks, extended attributes.

Each function is a case for posix_compare.py: it makes calls through a System (posix_trace.py), in
an empty directory, and judges nothing.
"""

import fcntl
import os
import subprocess

from posix_trace import AT_SYMLINK_NOFOLLOW, UTIME_NOW, UTIME_OMIT

READ, WRITE, BOTH = os.O_RDONLY, os.O_WRONLY, os.O_RDWR
CREATE, TRUNC = os.O_CREAT, os.O_TRUNC
NOBODY = 65534


# ---- stat ----------------------------------------------------------------------------------------

def stat_of_each_kind(s):
    s.put("f", b"12345", 0o640)
    s.put("empty", b"", 0o000)
    s.mkdir("d", 0o750)
    s.symlink("target", "l")
    for name in ("f", "empty", "d", "l", ".", "absent", "f/x", "d/absent"):
        s.lstat(name)


def size_and_blocks_follow_every_change(s):
    fd = s.open("f", BOTH | CREATE)
    s.stat("f")
    s.write(fd, b"x" * 10000)
    s.stat("f")
    s.ftruncate(fd, 1 << 20)
    s.stat("f")
    s.pwrite(fd, b"y", 1 << 19)
    s.stat("f")
    s.ftruncate(fd, 0)
    s.stat("f")
    s.close(fd)
    s.stat("f")


def a_stat_by_another_process_is_up_to_date(s):
    fd = s.open("f", BOTH | CREATE)
    for i in range(5):
        s.write(fd, b"x" * 1000)
        s.note("size", int(subprocess.run(["stat", "-c%s", "f"], capture_output=True).stdout))
    s.ftruncate(fd, 3)
    s.note("size", int(subprocess.run(["stat", "-c%s", "f"], capture_output=True).stdout))


def inode_numbers_stay(s):
    s.put("f", b"x")
    s.mkdir("d")
    fd, directory = s.open("f"), s.open("d")
    s.rename("f", "d/g")
    s.rename("d", "e")
    s.same(fd, "e/g")
    s.same(directory, "e")
    s.put("f", b"x")
    s.same(fd, "f")


def statvfs_of_file_and_directory(s):
    s.put("f")
    s.statvfs(".")
    s.statvfs("f")
    s.statvfs(s.open("f"))
    s.statvfs("absent")


# ---- modes and owners ----------------------------------------------------------------------------

def chmod_of_each_kind(s):
    s.put("f")
    s.mkdir("d")
    s.symlink("f", "link")
    for mode in (0o000, 0o777, 0o1755, 0o2644, 0o4755, 0o7777, 0o644):
        for name in ("f", "d", "link"):
            s.chmod(name, mode)
            s.stat(name)
    s.chmod("absent", 0o644)
    s.chmod("f/x", 0o644)
    s.lstat("link")


def chmod_touches_the_ctime_only(s):
    s.put("f")
    s.mkdir("d")
    for name in ("f", "d"):
        with s.changes(name, "."):
            s.chmod(name, 0o700)


def fchmod_of_an_open_file(s):
    fd = s.open("f", READ | CREATE, 0o600)
    s.fchmod(fd, 0o4711)
    s.stat("f")
    directory = s.open(".")
    s.fchmod(directory, 0o711)
    s.stat(".")


def chown_by_root(s):
    s.put("f")
    s.mkdir("d")
    s.symlink("f", "link")
    for name in ("f", "d"):
        with s.changes(name, "."):
            s.chown(name, 1001, 1002)
        s.stat(name)
        s.chown(name, -1, 7)
        s.stat(name)
        s.chown(name, 8, -1)
        s.stat(name)
        s.chown(name, -1, -1)
        s.stat(name)
    s.chown("link", 5, 5)
    s.stat("f")
    s.lstat("link")
    s.fchown(s.open("f"), 4294967294, 100000)
    s.stat("f")
    s.chown("absent", 1, 1)


def chown_takes_setuid_away(s):
    s.put("f")
    s.mkdir("d")
    for mode in (0o6755, 0o2745, 0o6644):
        s.chmod("f", mode)
        s.chmod("d", mode)
        s.chown("f", 1, 1)
        s.chown("d", 1, 1)
        s.stat("f")
        s.stat("d")


def a_write_by_another_user_takes_setuid_away(s):
    s.put("f", b"bytes")
    for change in (lambda: s.pwrite(s.open("f", BOTH), b"x", 0), lambda: s.truncate("f", 3),
                   lambda: s.open("f", WRITE | TRUNC)):
        s.chmod("f", 0o6777)
        with s.user(NOBODY, NOBODY):
            change()
        s.stat("f")


def a_write_by_root_leaves_setuid(s):
    s.put("f", b"bytes")
    s.chmod("f", 0o6777)
    s.pwrite(s.open("f", BOTH), b"x", 0)
    s.stat("f")


# ---- other users ---------------------------------------------------------------------------------

def another_user_creates_what_is_his(s):
    s.chmod(".", 0o1777)
    with s.user(1001, 1002, [1003]):
        s.put("f", b"his", 0o600)
        s.mkdir("d", 0o700)
        s.symlink("x", "l")
        s.put("d/g", b"deep")
        s.get("f")
    for name in ("f", "d", "l", "d/g"):
        s.lstat(name)
    s.get("f")


def the_sticky_bit_protects_what_is_anothers(s):
    s.chmod(".", 0o1777)
    s.put("f", b"root's", 0o666)
    s.mkdir("d", 0o777)
    with s.user(1001, 1001):
        s.put("mine", b"x")
        s.unlink("f")
        s.rmdir("d")
        s.rename("f", "g")
        s.rename("d", "e")
        s.rename("mine", "f")
        s.rename("f", "mine")
        s.put("d/inside", b"x")
    with s.user(1002, 1002):
        s.unlink("mine")
        s.unlink("d/inside")
        s.rename("mine", "yours")
    with s.user(1001, 1001):
        s.rename("mine", "still mine")
        s.unlink("still mine")
    s.list(".")


def permissions_hold_for_another_user(s):
    s.put("private", b"x", 0o600)
    s.put("readable", b"x", 0o644)
    s.put("writable", b"x", 0o602)
    s.mkdir("closed", 0o700)
    s.put("closed/f", b"x")
    s.mkdir("listed", 0o744)
    s.put("listed/f", b"x")
    s.mkdir("passed", 0o711)
    s.put("passed/f", b"x")
    with s.user(NOBODY, NOBODY):
        for name in ("private", "readable", "writable", "closed/f", "listed/f", "passed/f"):
            s.open(name)
            s.open(name, WRITE)
            s.stat(name)
        for name in ("closed", "listed", "passed"):
            s.open(name)
            s.put(f"{name}/new")
            s.unlink(f"{name}/f")
            s.mkdir(f"{name}/sub")
        s.truncate("readable", 0)
        s.truncate("private", 0)
        s.put("new")
        s.mkdir("new")
        s.symlink("x", "new")
        s.rename("readable", "new")


def access_asks_for_the_real_user(s):
    s.put("f", b"x", 0o640)
    s.put("script", b"x", 0o755)
    s.mkdir("d", 0o700)
    for name in ("f", "script", "d", "absent"):
        for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK):
            s.access(name, mode)
    with s.user(NOBODY, NOBODY):
        for name in ("f", "script", "d"):
            for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK):
                s.access(name, mode, effective_ids=True)


def permissions_by_group(s):
    s.put("f", b"x", 0o640)
    s.chown("f", 0, 4321)
    s.mkdir("d", 0o770)
    s.chown("d", 0, 4321)
    with s.user(1001, 1001):
        s.open("f")
        s.put("d/f")
    with s.user(1001, 1001, [4321]):
        s.get("f")
        s.open("f", WRITE)
        s.put("d/f", b"x")
    with s.user(1001, 4321):
        s.get("d/f")
        s.put("d/g", b"x")
    s.stat("d/f")
    s.stat("d/g")


def changing_what_is_anothers(s):
    s.put("f", b"x", 0o666)
    s.mkdir("d", 0o777)
    with s.user(NOBODY, NOBODY):
        for name in ("f", "d"):
            s.chmod(name, 0o600)
            s.chown(name, NOBODY, NOBODY)
            s.utimens(name, (1, 0), (2, 0))
            s.utimens(name, (0, UTIME_NOW), (0, UTIME_NOW))
        s.fchmod(s.open("f"), 0o600)
    s.stat("f")
    s.stat("d")


def changing_what_is_ones_own(s):
    s.put("f", b"x")
    s.chown("f", 1001, 1001)
    with s.user(1001, 1001, [1003]):
        s.chmod("f", 0o600)
        s.chmod("f", 0o2755)
        s.chown("f", 1002, -1)
        s.chown("f", -1, 1002)
        s.chown("f", -1, 1003)
        s.stat("f")
        s.chmod("f", 0o2755)
        s.utimens("f", (1, 0), (2, 0))
    s.stat("f")
    s.times("f")


def a_group_that_is_not_ones_own_loses_setgid(s):
    s.put("f", b"x")
    s.chown("f", 1001, 4321)
    with s.user(1001, 1001):
        s.chmod("f", 0o2755)
    s.stat("f")


def setgid_directory_of_another_group(s):
    s.mkdir("d")
    s.chown("d", 0, 4321)
    s.chmod("d", 0o2777)
    with s.user(1001, 1001):
        s.put("d/f", b"x", 0o664)
        s.mkdir("d/sub")
        s.open("d/exec", WRITE | CREATE, 0o2775)
    for name in ("d/f", "d/sub", "d/exec"):
        s.stat(name)


def a_directory_moves_only_if_it_may_be_written(s):
    """Its ".." changes."""
    for name in ("from", "to"):
        s.mkdir(name)
        s.chmod(name, 0o777)
    s.mkdir("from/d", 0o755)
    s.mkdir("from/e", 0o755)
    s.chown("from/e", 1001, 1001)
    with s.user(1001, 1001):
        s.rename("from/d", "from/c")
        s.rename("from/c", "to/c")
        s.rename("from/e", "to/e")


def programs_run(s):
    s.put("script", b"#!/bin/sh\nexit 3\n", 0o644)
    s.call("run", lambda: subprocess.run(["./script"]).returncode)
    s.chmod("script", 0o755)
    s.call("run", lambda: subprocess.run(["./script"]).returncode)


# ---- times ---------------------------------------------------------------------------------------

def times_are_set_to_the_nanosecond(s):
    s.put("f")
    s.mkdir("d")
    for name in ("f", "d"):
        for accessed, modified in (((1, 123456789), (1700000000, 999999999)), ((0, 0), (0, 1)),
                                   ((4000000000, 5), (5000000000, 6)), ((-1, 0), (-100, 999))):
            with s.changes(name, "."):
                s.utimens(name, accessed, modified)
            s.times(name)


def times_are_set_to_now_or_left(s):
    s.put("f")
    s.mkdir("d")
    for name in ("f", "d"):
        s.utimens(name, (10, 1), (20, 2))
        s.utimens(name, (0, UTIME_OMIT), (30, 3))
        s.times(name)
        s.utimens(name, (40, 4), (0, UTIME_OMIT))
        s.times(name)
        with s.changes(name):
            s.utimens(name, (0, UTIME_OMIT), (0, UTIME_OMIT))
        with s.changes(name):
            s.utimens(name, (0, UTIME_OMIT), (0, UTIME_NOW))
        s.note("accessed", os.stat(name).st_atime_ns)
        s.utimens(name, (50, 0), (60, 0))
        s.utimens(name, (0, UTIME_NOW), (0, UTIME_OMIT))
        s.note("modified", os.stat(name).st_mtime_ns)


def times_refused(s):
    s.put("f")
    s.utimens("f", (1, 1000000000), (1, 0))
    s.utimens("f", (1, -5), (1, 0))
    s.utimens("absent", (1, 0), (1, 0))
    s.utimens("f/x", (1, 0), (1, 0), AT_SYMLINK_NOFOLLOW)
    s.utimens("f", (1, 0), (1, 0), 0x7)


def set_times_stay_until_the_next_change(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"bytes")
    s.utimens(fd, (1, 0), (2, 0))
    s.times("f")
    s.fsync(fd)
    s.close(fd)
    s.times("f")
    s.chmod("f", 0o600)
    s.rename("f", "g")
    s.times("g")
    fd = s.open("g", BOTH)
    with s.changes("g"):
        s.write(fd, b"more")
    s.mkdir("d")
    s.utimens("d", (1, 0), (2, 0))
    s.chmod("d", 0o700)
    s.rename("d", "e")
    s.times("e")
    with s.changes("e"):
        s.put("e/f")


def set_times_of_a_new_file_survive_its_close(s):
    """As cp -p, tar and rsync do: write, set the times, close."""
    fd = s.open("f", BOTH | CREATE, 0o600)
    s.write(fd, b"x" * 100000)
    s.utimens(fd, (1000000000, 123), (1000000001, 456))
    s.fchmod(fd, 0o640)
    s.fchown(fd, 12, 34)
    s.close(fd)
    s.times("f")
    s.stat("f")


# ---- syncing -------------------------------------------------------------------------------------

def sync_of_files(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"x" * 10000)
    s.fsync(fd)
    s.fdatasync(fd)
    reader = s.open("f")
    s.fsync(reader)
    s.fdatasync(reader)
    for flags in (0, 1, 2, 4, 7):
        s.sync_file_range(fd, 0, 0, flags)
    s.sync_file_range(fd, 0, 4096, 8)
    s.sync_file_range(fd, -1, 10, 2)
    s.syncfs(fd)
    s.get("f")


def sync_of_directories(s):
    s.mkdir("d")
    fd = s.open("d")
    s.put("d/f")
    s.fsync(fd)
    s.fdatasync(fd)
    s.syncfs(fd)
    s.sync_file_range(fd, 0, 0, 2)
    s.rename("d/f", "d/g")
    s.fsync(fd)
    s.list("d")


def advice(s):
    s.put("f", b"x" * 100000)
    fd = s.open("f")
    for kind in range(6):
        s.posix_fadvise(fd, 0, 0, kind)
    s.posix_fadvise(fd, 0, 0, 17)
    s.content(fd)


# ---- locks ---------------------------------------------------------------------------------------

def flock_keeps_others_out(s):
    first = s.open("f", BOTH | CREATE)
    second = s.open("f", BOTH)
    s.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    s.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    s.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    s.child(lambda: s.flock(s.open("f"), fcntl.LOCK_SH | fcntl.LOCK_NB))
    s.flock(first, fcntl.LOCK_SH | fcntl.LOCK_NB)
    s.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    s.close(first)
    s.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    s.flock(second, fcntl.LOCK_UN)
    s.flock(s.open("."), fcntl.LOCK_EX | fcntl.LOCK_NB)


def flock_goes_with_a_dup(s):
    first = s.open("f", BOTH | CREATE)
    copy = s.dup(first)
    s.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    s.close(first)
    other = s.open("f", BOTH)
    s.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    s.close(copy)
    s.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def record_locks_keep_other_processes_out(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"x" * 100)
    s.lock(fd, fcntl.F_WRLCK, 10, 10)

    def body():
        other = s.open("f", BOTH)
        s.lock(other, fcntl.F_WRLCK, 0, 10)
        s.lock(other, fcntl.F_WRLCK, 15, 1)
        s.lock(other, fcntl.F_RDLCK, 15, 1)
        s.lock(other, fcntl.F_WRLCK, 15, 1, fcntl.F_GETLK)
        s.lock(other, fcntl.F_WRLCK, 20, 0)
    s.child(body)
    s.lock(fd, fcntl.F_RDLCK, 10, 10)
    s.child(lambda: s.lock(s.open("f"), fcntl.F_RDLCK, 10, 10))
    s.lock(s.open("f", READ), fcntl.F_WRLCK)
    s.close(s.open("f"))
    s.child(lambda: s.lock(s.open("f", BOTH), fcntl.F_WRLCK, 0, 0))


def locks_of_open_descriptions(s):
    F_OFD_SETLK = 37
    first, second = s.open("f", BOTH | CREATE), s.open("f", BOTH)
    s.lock(first, fcntl.F_WRLCK, 0, 10, F_OFD_SETLK)
    s.lock(second, fcntl.F_WRLCK, 0, 10, F_OFD_SETLK)
    s.lock(second, fcntl.F_WRLCK, 10, 10, F_OFD_SETLK)
    s.close(first)
    s.lock(second, fcntl.F_WRLCK, 0, 10, F_OFD_SETLK)


# ---- extended attributes -------------------------------------------------------------------------

def set_an_extended_attribute(s):
    s.put("f")
    s.setxattr("f", "user.name", b"value")


def get_an_extended_attribute(s):
    s.put("f")
    s.getxattr("f", "user.name")


def list_extended_attributes(s):
    s.put("f")
    s.listxattr("f")


def remove_an_extended_attribute(s):
    s.put("f")
    s.removexattr("f", "user.name")
