"""Cases about files: opening, reading, writing, sizes, space, mappings, copying.

Each function is a case for posix_compare.py: it makes calls through a System (posix_trace.py), in
an empty directory, and judges nothing.
"""

import mmap
import os

READ, WRITE, BOTH = os.O_RDONLY, os.O_WRONLY, os.O_RDWR
CREATE, EXCL, TRUNC, APPEND = os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND
PROT_BOTH = mmap.PROT_READ | mmap.PROT_WRITE
SHARED, PRIVATE = mmap.MAP_SHARED, mmap.MAP_PRIVATE
PAGE = 4096
KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO_RANGE, INSERT = 1, 2, 8, 16, 32
PUNCH = PUNCH_HOLE | KEEP_SIZE


def pattern(size, start=0):
    """Bytes that tell where they belong."""
    return bytes((at * 7 + (at >> 8) * 13) % 251 for at in range(start, start + size))


# ---- open and create -----------------------------------------------------------------------------

def open_of_what_is_absent(s):
    s.open("absent")
    s.open("absent", WRITE | TRUNC)
    s.open("absent/below", WRITE | CREATE)
    s.open("")


def create_exclusively(s):
    fd = s.open("f", BOTH | CREATE | EXCL, 0o600)
    s.write(fd, b"first")
    s.open("f", BOTH | CREATE | EXCL)
    s.get("f")
    s.stat("f")


def create_exclusively_on_a_directory_and_on_symlinks(s):
    s.mkdir("d")
    s.symlink("absent", "dangling")
    s.symlink("d", "link")
    for name in ("d", "dangling", "link"):
        s.open(name, WRITE | CREATE | EXCL)
    s.list(".")


def create_without_exclusive_opens_what_is_there(s):
    s.put("f", b"kept", 0o640)
    fd = s.open("f", BOTH | CREATE, 0o777)
    s.content(fd)
    s.stat("f")


def create_through_a_dangling_symlink(s):
    s.symlink("target", "link")
    fd = s.open("link", WRITE | CREATE, 0o644)
    s.write(fd, b"through")
    s.list(".")
    s.get("target")


def create_below_a_file(s):
    s.put("f")
    s.open("f/below", WRITE | CREATE)
    s.open("f/", READ)
    s.open("f/", WRITE | CREATE)
    s.open("new/", WRITE | CREATE)
    s.list(".")


def truncate_at_open(s):
    for flags in (WRITE | TRUNC, BOTH | TRUNC, READ | TRUNC, WRITE | CREATE | TRUNC):
        s.put("f", b"some bytes")
        with s.changes("f", "."):
            s.open("f", flags)
        s.stat("f")
        s.unlink("f")


def truncate_at_open_seen_by_an_older_descriptor(s):
    s.put("f", b"some bytes")
    old = s.open("f", BOTH)
    s.lseek(old, 4, os.SEEK_SET)
    s.open("f", WRITE | TRUNC)
    s.read(old, 10)
    s.write(old, b"later")
    s.get("f")


def append_goes_to_the_end(s):
    s.put("f", b"12345")
    fd = s.open("f", BOTH | APPEND)
    s.lseek(fd, 0, os.SEEK_CUR)
    s.write(fd, b"67")
    s.lseek(fd, 0, os.SEEK_CUR)
    s.lseek(fd, 1, os.SEEK_SET)
    s.write(fd, b"89")
    s.pwrite(fd, b"ab", 0)
    s.lseek(fd, 0, os.SEEK_CUR)
    s.get("f")


def append_by_two_descriptors(s):
    first, second = s.open("f", WRITE | CREATE | APPEND), s.open("f", WRITE | APPEND)
    for i in range(4):
        s.write(first, b"first %d\n" % i)
        s.write(second, b"second %d\n" % i)
    s.ftruncate(first, 3)
    s.write(second, b"end")
    s.get("f")


def append_by_several_processes_loses_nothing(s):
    s.put("log")
    pids = []
    for writer in range(4):
        pid = os.fork()
        if pid == 0:
            fd = os.open("log", WRITE | APPEND)
            for i in range(50):
                os.write(fd, b"%d:%03d\n" % (writer, i))
            os._exit(0)
        pids.append(pid)
    s.note("ends", [os.waitpid(pid, 0)[1] for pid in pids])
    with open("log", "rb") as file:
        lines = file.read().split(b"\n")
    s.note("lines", len(lines))
    s.note("sorted lines", b"\n".join(sorted(lines)))


def directory_flag(s):
    s.put("f")
    s.mkdir("d")
    s.symlink("d", "link")
    s.open("f", READ | os.O_DIRECTORY)
    s.open("d", READ | os.O_DIRECTORY)
    s.open("link", READ | os.O_DIRECTORY)
    s.open("link", READ | os.O_DIRECTORY | os.O_NOFOLLOW)
    s.open("absent", READ | os.O_DIRECTORY)


def a_directory_is_not_written(s):
    s.mkdir("d")
    for flags in (WRITE, BOTH, READ | TRUNC, READ | CREATE):
        s.open("d", flags)
    fd = s.open("d")
    s.read(fd, 10)
    s.write(fd, b"x")
    s.pread(fd, 10, 0)
    s.ftruncate(fd, 0)


def no_follow(s):
    s.put("f", b"x")
    s.symlink("f", "link")
    s.symlink("absent", "dangling")
    for name in ("f", "link", "dangling"):
        s.open(name, READ | os.O_NOFOLLOW)
        s.open(name, WRITE | CREATE | os.O_NOFOLLOW)
    fd = s.open("link", os.O_PATH | os.O_NOFOLLOW)
    s.lstat("link")
    s.stat(fd)
    s.read(fd, 1)


def modes_and_umask(s):
    for mask in (0o000, 0o022, 0o027, 0o077, 0o777):
        s.umask(mask)
        for mode in (0o666, 0o777, 0o600, 0o000):
            s.open("f", WRITE | CREATE | EXCL, mode)
            s.stat("f")
            s.unlink("f")


def special_mode_bits_at_creation(s):
    s.umask(0)
    for mode in (0o1644, 0o2755, 0o4755, 0o7777):
        s.open("f", WRITE | CREATE | EXCL, mode)
        s.stat("f")
        s.unlink("f")


def a_new_file_without_write_permission_is_written_by_its_creator(s):
    with s.user(65534, 65534):
        fd = s.open("f", BOTH | CREATE | EXCL, 0o400)
    s.write(fd, b"written")
    s.chmod(".", 0o777)
    with s.user(65534, 65534):
        fd = s.open("f", BOTH | CREATE | EXCL, 0o400)
        s.write(fd, b"written")
        s.content(fd)
        s.open("f", WRITE)
        s.open("f", READ)


def access_mode_of_the_descriptor_holds(s):
    s.put("f", b"bytes")
    reader, writer = s.open("f", READ), s.open("f", WRITE)
    s.write(reader, b"x")
    s.pwrite(reader, b"x", 0)
    s.ftruncate(reader, 0)
    s.read(writer, 5)
    s.pread(writer, 5, 0)
    s.fallocate(reader, 0, 0, 10)
    s.get("f")


def closed_descriptor(s):
    fd = s.open("f", BOTH | CREATE)
    s.close(fd)
    s.close(fd)
    s.read(fd, 1)
    s.write(fd, b"x")
    s.fsync(fd)


def creation_touches_file_and_parent(s):
    with s.changes("f", "."):
        s.open("f", WRITE | CREATE | EXCL)
    with s.changes("f", "."):
        s.open("f", WRITE | CREATE)
    with s.changes("f", "."):
        s.open("f", BOTH)


def only_one_process_creates(s):
    """Eight processes try each of twenty names; every winner appends a byte."""
    pids = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            for i in range(20):
                try:
                    os.write(os.open(f"f{i}", WRITE | CREATE | EXCL | APPEND), b"x")
                except FileExistsError:
                    pass
            os._exit(0)
        pids.append(pid)
    s.note("ends", [os.waitpid(pid, 0)[1] for pid in pids])
    s.note("sizes", [os.stat(f"f{i}").st_size for i in range(20)])
    s.list(".")


def path_descriptor(s):
    s.put("f", b"bytes")
    fd = s.open("f", os.O_PATH)
    s.stat(fd)
    s.read(fd, 1)
    s.fchmod(fd, 0o600)
    again = s.open_again(fd, READ)
    s.content(again)


def open_relative_to_a_directory(s):
    s.mkdir("d")
    directory = s.open("d", READ | os.O_DIRECTORY)
    fd = s.open("f", BOTH | CREATE | EXCL, 0o644, dir_fd=directory)
    s.write(fd, b"x")
    s.mkdir("sub", dir_fd=directory)
    s.rename("d", "moved")
    s.open("g", WRITE | CREATE, 0o644, dir_fd=directory)
    s.unlink("f", dir_fd=directory)
    s.open("../f", WRITE | CREATE, 0o644, dir_fd=directory)
    s.list("moved")
    s.list(".")


def direct_io(s):
    fd = s.open("f", BOTH | CREATE | os.O_DIRECT)
    page = mmap.mmap(-1, 2 * PAGE)
    page[:] = pattern(2 * PAGE)
    s.call("pwritev", lambda: os.pwritev(fd, [page], 0))
    into = mmap.mmap(-1, PAGE)
    s.call("preadv", lambda: os.preadv(fd, [into], PAGE))
    s.note("read", into[:])
    s.get("f")
    with_cache = s.open("f", BOTH)
    s.pwrite(with_cache, b"cached", 10)
    s.call("preadv", lambda: os.preadv(fd, [into], 0))
    s.note("read", into[:])


def synchronous_writes(s):
    for flag in (os.O_SYNC, os.O_DSYNC):
        fd = s.open("f", BOTH | CREATE | TRUNC | flag)
        s.write(fd, pattern(5000))
        s.pwrite(fd, b"x", 9000)
        s.get("f")


# ---- read and write ------------------------------------------------------------------------------

def reads_and_writes_at_odd_offsets(s):
    fd = s.open("f", BOTH | CREATE)
    for at, size in ((1, 3), (4095, 2), (8191, 4099), (511, 513), (3, 1), (12289, 1), (100, 8000)):
        s.pwrite(fd, pattern(size, at), at)
        s.pread(fd, size + 7, max(at - 3, 0))
    s.get("f")
    s.stat(fd)


def the_offset_moves_with_read_and_write(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"0123456789")
    s.lseek(fd, 0, os.SEEK_CUR)
    s.lseek(fd, 3, os.SEEK_SET)
    s.read(fd, 4)
    s.write(fd, b"xy")
    s.lseek(fd, 0, os.SEEK_CUR)
    s.pwrite(fd, b"z", 0)
    s.pread(fd, 3, 0)
    s.lseek(fd, 0, os.SEEK_CUR)
    s.get("f")


def seeking(s):
    s.put("f", b"0123456789")
    fd = s.open("f", BOTH)
    s.lseek(fd, -3, os.SEEK_END)
    s.read(fd, 9)
    s.lseek(fd, 5, os.SEEK_END)
    s.read(fd, 1)
    s.lseek(fd, -1, os.SEEK_SET)
    s.lseek(fd, -100, os.SEEK_CUR)
    s.lseek(fd, 0, 99)
    s.write(fd, b"x")
    s.get("f")


def reads_beyond_the_end(s):
    s.put("f", b"12345")
    fd = s.open("f")
    s.pread(fd, 10, 3)
    s.pread(fd, 10, 5)
    s.pread(fd, 10, 500000)
    s.pread(fd, 0, 2)
    s.pread(fd, 1, -1)


def writes_beyond_the_end_leave_a_hole_of_zeros(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"begin")
    s.pwrite(fd, b"end", 300001)
    s.stat(fd)
    s.content(fd)
    s.pwrite(fd, b"middle", 150003)
    s.get("f")
    s.stat("f")


def a_hole_of_a_gibibyte(s):
    fd = s.open("f", BOTH | CREATE)
    s.pwrite(fd, b"x", 1 << 30)
    s.stat(fd)
    s.pread(fd, 20, (1 << 30) - 10)
    s.pread(fd, 20, (1 << 29) + 1)
    s.ftruncate(fd, 0)
    s.stat(fd)


def writes_of_nothing(s):
    fd = s.open("f", BOTH | CREATE)
    with s.changes(fd):
        s.write(fd, b"")
        s.pwrite(fd, b"", 100)
    s.stat(fd)


def writes_at_impossible_offsets(s):
    fd = s.open("f", BOTH | CREATE)
    s.pwrite(fd, b"x", -1)
    s.pwrite(fd, b"x", (1 << 63) - 1)
    s.stat(fd)


def a_big_write_and_small_reads(s):
    data = pattern(70000) * 50
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, data)
    for at in (0, 1 << 20, 3000001, len(data) - 10):
        s.pread(fd, 4097, at)
    s.get("f")


def vectors(s):
    fd = s.open("f", BOTH | CREATE)
    s.writev(fd, [b"one", b"", b"three" * 2000])
    s.pwritev(fd, [b"X", b"YY"], 1)
    into = [bytearray(5), bytearray(7)]
    s.call("preadv", lambda: os.preadv(fd, into, 2))
    s.note("read", into)
    s.get("f")


def two_descriptors_see_each_other(s):
    first, second = s.open("f", BOTH | CREATE), s.open("f", BOTH)
    s.write(first, pattern(5000))
    s.stat(second)
    s.content(second)
    s.pwrite(second, b"by the second", 4990)
    s.content(first)
    s.size("f")
    s.ftruncate(first, 7)
    s.content(second)
    s.stat(second)
    s.size("f")


def two_processes_see_each_other(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"by the parent")

    def body():
        s.get("f")
        other = s.open("f", BOTH)
        s.pwrite(other, b"child", 7)
        s.write(fd, b", appended by the child")
    s.child(body)
    s.content(fd)
    s.lseek(fd, 0, os.SEEK_CUR)


def dup_shares_the_offset(s):
    first = s.open("f", BOTH | CREATE)
    second = s.dup(first)
    s.write(first, b"one")
    s.write(second, b"two")
    s.close(first)
    s.write(second, b"three")
    s.lseek(second, 1, os.SEEK_SET)
    s.read(second, 100)


def write_touches_the_file_only(s):
    fd = s.open("f", BOTH | CREATE)
    with s.changes(fd, "f", "."):
        s.write(fd, b"x")
    with s.changes(fd, "f", "."):
        s.pwrite(fd, b"y", 0)
    with s.changes("f", "."):
        s.close(fd)
    with s.changes("f", "."):
        s.get("f")


def file_size_limit(s):
    import resource
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, resource.RLIM_INFINITY))
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"x" * 9000)
    s.write(fd, b"y" * 2000)
    s.write(fd, b"z")
    s.ftruncate(fd, 10001)
    s.stat(fd)


# ---- sizes ---------------------------------------------------------------------------------------

def ftruncate_both_ways(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(10000))
    for size in (4097, 4096, 1, 8193, 0, 5, 5):
        with s.changes(fd):
            s.ftruncate(fd, size)
        s.stat(fd)
        s.content(fd)


def truncate_by_path_both_ways(s):
    s.put("f", pattern(9000))
    for size in (100, 20000, 0, 0):
        with s.changes("f", "."):
            s.truncate("f", size)
        s.stat("f")
        s.get("f")


def what_was_cut_off_does_not_come_back(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"secret" * 1000)
    s.ftruncate(fd, 10)
    s.ftruncate(fd, 6000)
    s.content(fd)
    s.ftruncate(fd, 10)
    s.pwrite(fd, b"x", 5000)
    s.content(fd)


def truncate_refused(s):
    s.mkdir("d")
    s.put("f")
    s.symlink("absent", "dangling")
    s.truncate("d", 0)
    s.truncate("absent", 0)
    s.truncate("dangling", 0)
    s.truncate("f/x", 0)
    s.truncate("f", -1)
    fd = s.open("f", BOTH)
    s.ftruncate(fd, -1)
    s.ftruncate(fd, 1 << 62)
    s.stat("f")


def truncate_through_a_symlink(s):
    s.put("f", b"12345")
    s.symlink("f", "link")
    s.truncate("link", 2)
    s.get("f")
    s.lstat("link")


def the_offset_stays_when_the_file_shrinks(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"0123456789")
    s.ftruncate(fd, 2)
    s.read(fd, 5)
    s.write(fd, b"x")
    s.content(fd)


# ---- space ---------------------------------------------------------------------------------------

def fallocate_grows(s):
    fd = s.open("f", BOTH | CREATE)
    with s.changes(fd):
        s.fallocate(fd, 0, 0, 10000)
    s.stat(fd)
    s.content(fd)
    s.pwrite(fd, b"x", 5000)
    s.fallocate(fd, 0, 20000, 1)
    s.stat(fd)
    s.content(fd)


def fallocate_keeps_the_size(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"bytes")
    s.fallocate(fd, KEEP_SIZE, 0, 100000)
    s.stat(fd)
    s.content(fd)
    s.ftruncate(fd, 50000)
    s.content(fd)


def posix_fallocate_grows(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"bytes")
    s.posix_fallocate(fd, 3, 9000)
    s.stat(fd)
    s.content(fd)


def punched_holes_are_zeros(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(50000))
    for start, size in ((4096, 8192), (1, 5), (20000, 4099), (49990, 100), (60000, 10)):
        s.fallocate(fd, PUNCH, start, size)
        s.content(fd)
    s.stat(fd)


def punching_everything_frees_the_blocks(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(16 * PAGE))
    s.fsync(fd)
    s.fallocate(fd, PUNCH, 0, 16 * PAGE)
    s.stat(fd)


def zero_range(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(30000))
    s.fallocate(fd, ZERO_RANGE | KEEP_SIZE, 4095, 8194)
    s.content(fd)
    s.fallocate(fd, ZERO_RANGE, 29000, 5000)
    s.stat(fd)
    s.content(fd)


def collapse_range(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(16 * PAGE))
    s.fallocate(fd, COLLAPSE, PAGE, PAGE)


def insert_range(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(16 * PAGE))
    s.fallocate(fd, INSERT, PAGE, PAGE)


def fallocate_refused(s):
    fd = s.open("f", BOTH | CREATE)
    s.fallocate(fd, 0, 0, 0)
    s.fallocate(fd, 0, -1, 10)
    s.fallocate(fd, PUNCH_HOLE, 0, 10)
    s.fallocate(fd, 0, (1 << 63) - 10, 20)
    s.mkdir("d")
    s.fallocate(s.open("d"), 0, 0, 10)
    s.stat(fd)


def put_data_between_holes(s):
    """Page 64 of 128."""
    fd = s.open("f", BOTH | CREATE)
    s.pwrite(fd, b"x" * PAGE, 64 * PAGE)
    s.ftruncate(fd, 128 * PAGE)
    s.fsync(fd)
    return fd


def the_first_data_is_found_by_seeking(s):
    s.lseek(put_data_between_holes(s), 0, os.SEEK_DATA)


def the_next_hole_is_found_by_seeking(s):
    s.lseek(put_data_between_holes(s), 64 * PAGE, os.SEEK_HOLE)


def no_data_is_found_in_the_last_hole(s):
    s.lseek(put_data_between_holes(s), 100 * PAGE, os.SEEK_DATA)


def seeking_for_data_and_holes_beyond_the_end(s):
    fd = put_data_between_holes(s)
    s.lseek(fd, 128 * PAGE, os.SEEK_HOLE)
    s.lseek(fd, 200 * PAGE, os.SEEK_DATA)
    s.lseek(fd, 0, os.SEEK_END)


def seeking_finds_what_a_mapping_stored(s):
    """Programs that copy sparse files skip what SEEK_DATA skips."""
    fd = s.open("f", BOTH | CREATE)
    s.ftruncate(fd, 64 * PAGE)
    m = s.mmap(fd, 64 * PAGE, PROT_BOTH, SHARED)
    m.store(0, b"not synced")
    s.lseek(fd, 0, os.SEEK_DATA)


# ---- mappings ------------------------------------------------------------------------------------

def a_shared_mapping_and_pwrite_are_one(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(10000))
    m = s.mmap(fd, 10000, PROT_BOTH, SHARED)
    s.pwrite(fd, b"by pwrite", 4090)
    m.load(4085, 20)
    m.store(8190, b"by store")
    s.pread(fd, 20, 8185)
    other = s.open("f")
    s.pread(other, 20, 8185)
    m.store(0, b"first")
    s.get("f")


def a_mapping_grows_with_its_file(s):
    fd = s.open("f", BOTH | CREATE)
    s.ftruncate(fd, 100)
    m = s.mmap(fd, 4 * PAGE, PROT_BOTH, SHARED)
    m.store(50, b"in the first page")
    s.ftruncate(fd, 3 * PAGE)
    m.store(2 * PAGE + 5, b"in the third page")
    s.pwrite(fd, b"by pwrite", PAGE)
    m.load(PAGE, 12)
    s.get("f")


def mremap_grows_a_mapping(s):
    fd = s.open("f", BOTH | CREATE)
    s.ftruncate(fd, PAGE)
    m = s.mmap(fd, PAGE, PROT_BOTH, SHARED)
    m.store(0, b"one")
    s.ftruncate(fd, 40 * PAGE)
    m.grow(40 * PAGE)
    m.store(39 * PAGE, b"forty")
    m.load(0, 5)
    s.get("f")


def msync_in_all_its_kinds(s):
    fd = s.open("f", BOTH | CREATE)
    s.ftruncate(fd, 3 * PAGE)
    m = s.mmap(fd, 3 * PAGE, PROT_BOTH, SHARED)
    for i, flags in enumerate((1, 4, 6)):
        m.store(i * PAGE, b"stored")
        m.msync(i * PAGE, PAGE, flags)
    m.msync(1, PAGE)
    m.msync(0, PAGE, 5)
    m.unmap()
    m.msync(0, PAGE)
    s.get("f")


def a_mapping_outlives_its_descriptor(s):
    fd = s.open("f", BOTH | CREATE)
    s.ftruncate(fd, 2 * PAGE)
    m = s.mmap(fd, 2 * PAGE, PROT_BOTH, SHARED)
    s.close(fd)
    m.store(PAGE, b"after close")
    s.get("f")
    m.msync(0, 2 * PAGE)
    again = s.open("f", BOTH)
    s.pwrite(again, b"later", 0)
    m.load(0, 5)
    m.unmap()
    s.get("f")


def a_mapping_outlives_its_name(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(2 * PAGE))
    m = s.mmap(fd, 2 * PAGE, PROT_BOTH, SHARED)
    s.close(fd)
    s.unlink("f")
    m.store(PAGE - 3, b"nameless")
    m.load(PAGE - 5, 12)
    s.put("f", b"another file")
    m.load(0, 12)
    m.msync(0, 2 * PAGE)
    m.unmap()
    s.get("f")


def a_mapping_stays_with_its_file_through_renames(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"old" * 100)
    m = s.mmap(fd, 300, PROT_BOTH, SHARED)
    s.close(fd)
    s.put("new", b"new" * 100)
    s.rename("new", "f")
    m.load(0, 6)
    m.store(0, b"still the old one")
    s.get("f")
    m.load(0, 17)


def a_private_mapping_changes_nothing(s):
    s.put("f", pattern(PAGE))
    fd = s.open("f", READ)
    m = s.mmap(fd, PAGE, PROT_BOTH, PRIVATE)
    m.store(0, b"private")
    m.load(0, 10)
    s.get("f")
    writer = s.open("f", BOTH)
    m = s.mmap(writer, PAGE, PROT_BOTH, PRIVATE)
    m.store(0, b"private")
    m.unmap()
    s.get("f")


def mapping_refused(s):
    s.put("f", pattern(PAGE))
    s.mkdir("d")
    s.mmap(s.open("f", READ), PAGE, PROT_BOTH, SHARED)
    s.mmap(s.open("f", WRITE), PAGE, mmap.PROT_READ, SHARED)
    s.mmap(s.open("f", WRITE), PAGE, mmap.PROT_WRITE, SHARED)
    s.mmap(s.open("d", READ), PAGE, mmap.PROT_READ, SHARED)
    s.mmap(s.open("f", BOTH), 0, PROT_BOTH, SHARED)
    s.mmap(s.open("f", BOTH), PAGE, PROT_BOTH, SHARED, 100)


def a_mapping_beyond_the_end(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"short")
    m = s.mmap(fd, 2 * PAGE, PROT_BOTH, SHARED)
    m.load(0, 8)
    m.store(100, b"beyond the end of the file, in its last page")
    s.get("f")
    s.child(lambda: m.load(PAGE, 1))
    s.child(lambda: m.store(PAGE, b"x"))
    s.ftruncate(fd, 200)
    s.size("f")


def a_mapping_of_a_file_that_shrinks(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(3 * PAGE))
    m = s.mmap(fd, 3 * PAGE, PROT_BOTH, SHARED)
    m.load(2 * PAGE, 10)
    s.ftruncate(fd, 10)
    m.load(0, 20)
    s.child(lambda: m.load(2 * PAGE, 1))
    s.ftruncate(fd, 3 * PAGE)
    m.load(2 * PAGE, 10)
    m.load(0, 20)


def a_mapping_shared_by_two_processes(s):
    fd = s.open("f", BOTH | CREATE)
    s.ftruncate(fd, PAGE)
    m = s.mmap(fd, PAGE, PROT_BOTH, SHARED)

    def body():
        m.store(10, b"by the child")
        mine = s.mmap(s.open("f", BOTH), PAGE, PROT_BOTH, SHARED)
        mine.store(100, b"by a mapping of its own")
    s.child(body)
    m.load(0, 130)
    s.get("f")


def a_mapping_at_an_offset(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(10 * PAGE))
    m = s.mmap(fd, PAGE, PROT_BOTH, SHARED, 7 * PAGE)
    m.load(0, 40)
    m.store(1, b"here")
    s.pread(fd, 10, 7 * PAGE)


def a_mapping_with_holes_is_filled(s):
    fd = s.open("f", BOTH | CREATE)
    s.ftruncate(fd, 64 * PAGE)
    m = s.mmap(fd, 64 * PAGE, PROT_BOTH, SHARED)
    for page in (3, 60, 0, 31):
        m.store(page * PAGE + page, b"page %d" % page)
    m.msync(0, 64 * PAGE)
    s.get("f")
    s.fallocate(fd, PUNCH, 31 * PAGE, PAGE)
    m.load(31 * PAGE, 50)
    m.unmap()
    s.stat(fd)


def stores_touch_the_file(s):
    fd = s.open("f", BOTH | CREATE)
    s.ftruncate(fd, PAGE)
    m = s.mmap(fd, PAGE, PROT_BOTH, SHARED)
    with s.changes("f", "."):
        m.store(0, b"x")
        m.msync(0, PAGE)


# ---- copying -------------------------------------------------------------------------------------

def sendfile_within_the_directory(s):
    s.put("source", pattern(100000))
    source, target = s.open("source"), s.open("target", BOTH | CREATE)
    s.sendfile(target, source, 10, 60000)
    s.sendfile(target, source, 90000, 60000)
    s.sendfile(target, source, 100000, 10)
    s.get("target")


def copy_file_range_between_files(s):
    s.put("source", pattern(100000))
    source, target = s.open("source"), s.open("target", BOTH | CREATE)
    s.copy_file_range(source, target, 50000, 7, 3)
    s.copy_file_range(source, target, 50000, 99999, 60000)
    s.copy_file_range(source, target, 10, 100000, 0)
    s.lseek(source, 100, os.SEEK_SET)
    s.copy_file_range(source, target, 1000)
    s.lseek(source, 0, os.SEEK_CUR)
    s.lseek(target, 0, os.SEEK_CUR)
    s.get("target")


def copy_file_range_within_a_file(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, pattern(20000))
    s.copy_file_range(fd, fd, 5000, 0, 30000)
    s.copy_file_range(fd, fd, 5000, 100, 1000)
    s.content(fd)


def copy_file_range_refused(s):
    s.put("f", b"bytes")
    s.mkdir("d")
    reader, writer = s.open("f", READ), s.open("f", WRITE)
    s.copy_file_range(reader, reader, 3, 0, 10)
    s.copy_file_range(writer, writer, 3, 0, 10)
    s.copy_file_range(reader, s.open("d"), 3, 0, 0)
    s.copy_file_range(reader, s.open("f", WRITE | APPEND), 3, 0, 10)


def splice_through_a_pipe(s):
    s.put("source", pattern(30000))
    source, target = s.open("source"), s.open("target", BOTH | CREATE)
    out, into = os.pipe()
    moved = os.splice(source, into, 20000, offset_src=5)
    s.note("all that was taken from the source came out", moved == sum(
        iter(lambda: os.splice(out, target, 1 << 16) if os.fstat(target).st_size < moved else 0,
             0)))
    s.note("begins", os.pread(target, 4000, 0))


def clone_is_answered(s):
    s.put("source", pattern(5000))
    s.clone(s.open("source"), s.open("target", WRITE | CREATE))


def copy_into_and_out_of_another_file_system(s):
    other = os.memfd_create("other")
    os.write(other, pattern(50000))
    fd = s.open("f", BOTH | CREATE)
    s.call("send", lambda: os.sendfile(fd, other, 5, 40000))
    s.content(fd)
    s.call("send back", lambda: os.sendfile(other, fd, 0, 100))
    s.note("position", os.lseek(other, 0, os.SEEK_CUR))
