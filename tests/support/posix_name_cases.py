"""Cases about names: renaming, removing, directories, symlinks, listing, odd names.

Each function is a case for posix_compare.py: it makes calls through a System (posix_trace.py), in
an empty directory, and judges nothing.
"""

import os
import socket
import stat

from posix_trace import RENAME_EXCHANGE, RENAME_NOREPLACE

READ, WRITE, BOTH = os.O_RDONLY, os.O_WRONLY, os.O_RDWR
CREATE, EXCL = os.O_CREAT, os.O_EXCL


def tree(s):
    """Notes everything below the working directory."""
    for parent, folders, _ in os.walk("."):
        folders.sort()
        s.list(parent)


# ---- rename --------------------------------------------------------------------------------------

def rename_a_file(s):
    s.put("a", b"bytes", 0o640)
    with s.changes("."):
        s.rename("a", "b")
    s.stat("b")
    s.get("b")
    s.get("a")
    tree(s)


def rename_over_a_file(s):
    s.put("a", b"new", 0o640)
    s.put("b", b"old and longer", 0o600)
    s.rename("a", "b")
    s.stat("b")
    s.get("b")
    tree(s)


def rename_over_an_open_file(s):
    s.put("a", b"new")
    old = s.open("b", BOTH | CREATE)
    s.write(old, b"old")
    with s.changes(old):
        s.rename("a", "b")
    s.stat(old)
    s.content(old)
    s.pwrite(old, b"still written", 0)
    s.content(old)
    s.get("b")


def rename_of_an_open_file(s):
    fd = s.open("a", BOTH | CREATE)
    s.write(fd, b"before ")
    s.rename("a", "b")
    s.write(fd, b"after")
    s.get("b")
    s.same(fd, "b")
    s.mkdir("d")
    s.rename("b", "d/c")
    s.write(fd, b" all")
    s.fsync(fd)
    s.close(fd)
    s.get("d/c")


def save_as_safetensors_does(s):
    """Temporary file, ftruncate, writes, rename before close, over a file that is mapped."""
    s.put("model", b"o" * 5000)
    reader = s.open("model")
    old = s.mmap(reader, 5000, 1, 2)
    s.close(reader)
    fd = s.open(".tmpAbCd", BOTH | CREATE | EXCL, 0o600)
    s.ftruncate(fd, 9000)
    s.write(fd, b"h" * 100)
    s.write(fd, b"n" * 8900)
    s.rename(".tmpAbCd", "model")
    s.close(fd)
    old.load(4990, 10)
    s.stat("model")
    s.get("model")
    tree(s)


def rename_onto_itself(s):
    s.put("a", b"bytes")
    s.mkdir("d")
    with s.changes("a", "."):
        s.rename("a", "a")
    s.rename("d", "d")
    s.rename("absent", "absent")
    tree(s)


def rename_of_what_is_absent(s):
    s.put("f")
    s.rename("absent", "b")
    s.rename("absent/a", "b")
    s.rename("f", "absent/b")
    s.rename("f/a", "b")
    s.rename("f", "f/b")
    s.rename("", "b")
    s.rename("f", "")
    tree(s)


def rename_a_directory(s):
    s.mkdir("a")
    s.put("a/f", b"inside")
    s.mkdir("a/sub")
    s.rename("a", "b")
    s.get("b/f")
    s.get("a/f")
    tree(s)


def rename_a_directory_over_an_empty_one(s):
    s.mkdir("a")
    s.put("a/f", b"inside")
    s.mkdir("b")
    held = s.open("b")
    s.rename("a", "b")
    s.stat(held)
    s.get("b/f")
    s.stat("b")
    s.stat(".")
    tree(s)


def rename_a_directory_over_a_full_one(s):
    s.mkdir("a")
    s.mkdir("b")
    s.put("b/f")
    s.rename("a", "b")
    tree(s)


def rename_a_directory_over_a_file_and_the_reverse(s):
    s.mkdir("d")
    s.put("f")
    s.symlink("d", "link")
    s.rename("d", "f")
    s.rename("f", "d")
    s.rename("d", "link")
    s.rename("link", "d")
    tree(s)


def rename_a_directory_below_itself(s):
    s.mkdir("d")
    s.mkdir("d/sub")
    s.rename("d", "d/new")
    s.rename("d", "d/sub")
    s.rename("d", "d/sub/new")
    s.rename("d/sub", "d")
    tree(s)


def rename_of_dots(s):
    s.mkdir("d")
    for old, new in ((".", "x"), ("..", "x"), ("d/.", "x"), ("d/..", "x"), ("d", "."), ("d", ".."),
                     ("d", "d/.")):
        s.rename(old, new)
    tree(s)


def rename_with_trailing_slashes(s):
    s.mkdir("d")
    s.put("f")
    s.rename("f", "g/")
    s.rename("f/", "g")
    s.rename("d/", "e")
    s.rename("e", "g/")
    tree(s)


def rename_across_directories(s):
    s.mkdir("from")
    s.mkdir("to")
    s.put("from/f", b"bytes")
    s.mkdir("from/d")
    s.put("from/d/g", b"deep")
    with s.changes("from", "to", "."):
        s.rename("from/f", "to/f")
    with s.changes("from", "to", "from/d"):
        s.rename("from/d", "to/e")
    s.stat("from")
    s.stat("to")
    s.get("to/e/g")
    s.list("to/e/..")
    tree(s)


def rename_over_what_is_in_another_directory(s):
    for name in ("a", "b"):
        s.mkdir(name)
        s.put(f"{name}/f", name.encode())
        s.mkdir(f"{name}/d")
    s.rename("a/f", "b/f")
    s.rename("a/d", "b/d")
    s.rename("b/d", "a")
    s.get("b/f")
    s.stat("a")
    s.stat("b")
    tree(s)


def rename_an_open_directory(s):
    s.mkdir("d")
    held = s.open("d")
    s.rename("d", "e")
    s.open("f", WRITE | CREATE, 0o644, dir_fd=held)
    s.mkdir("to")
    s.rename("e", "to/e")
    s.open("g", WRITE | CREATE, 0o644, dir_fd=held)
    s.fsync(held)
    s.same(held, "to/e")
    tree(s)


def rename_the_working_directory(s):
    s.mkdir("d")
    s.chdir("d")
    s.rename("../d", "../e")
    s.put("f", b"x")
    s.chdir("..")
    tree(s)


def rename_symlinks(s):
    s.put("f", b"bytes")
    s.symlink("f", "link")
    s.symlink("absent", "dangling")
    s.rename("link", "other")
    s.readlink("other")
    s.rename("dangling", "other")
    s.readlink("other")
    s.rename("f", "other")
    s.lstat("other")
    tree(s)


def rename_without_replacing(s):
    s.put("a", b"a")
    s.put("b", b"b")
    s.mkdir("d")
    s.rename2("a", "b", RENAME_NOREPLACE)
    s.rename2("a", "d", RENAME_NOREPLACE)
    s.rename2("d", "a", RENAME_NOREPLACE)
    s.rename2("a", "a", RENAME_NOREPLACE)
    s.rename2("absent", "c", RENAME_NOREPLACE)
    s.rename2("a", "c", RENAME_NOREPLACE)
    s.rename2("d", "e", RENAME_NOREPLACE)
    tree(s)


def rename_exchanges_files(s):
    s.put("a", b"a", 0o600)
    s.put("b", b"longer", 0o644)
    fd = s.open("a", BOTH)
    s.rename2("a", "b", RENAME_EXCHANGE)
    s.get("a")
    s.get("b")
    s.same(fd, "b")
    s.rename2("a", "absent", RENAME_EXCHANGE)
    s.rename2("absent", "a", RENAME_EXCHANGE)
    s.rename2("a", "a", RENAME_EXCHANGE)
    tree(s)


def rename_exchanges_a_file_and_a_directory(s):
    s.put("f", b"file")
    s.mkdir("d")
    s.mkdir("d/sub")
    s.put("d/sub/g", b"deep")
    s.rename2("f", "d", RENAME_EXCHANGE)
    s.get("d")
    tree(s)
    s.rename2("f", "f/sub", RENAME_EXCHANGE)
    s.rename2("f/sub", "f", RENAME_EXCHANGE)
    s.rename2("d", "f/sub", RENAME_EXCHANGE)
    s.stat(".")
    s.stat("f")
    tree(s)


def rename_with_unknown_flags(s):
    s.put("a")
    s.put("b")
    s.rename2("a", "b", RENAME_EXCHANGE | RENAME_NOREPLACE)
    s.rename2("a", "c", 1 << 10)
    tree(s)


def rename_touches_the_file(s):
    s.put("a")
    s.mkdir("d")
    with s.changes("."):
        s.rename("a", "b")
    s.rename("b", "a")
    fd = s.open("a")
    with s.changes(fd):
        s.rename("a", "c")


def rename_many_times(s):
    s.put("f0", b"x")
    for i in range(50):
        s.rename(f"f{i}", f"f{i + 1}")
    tree(s)


# ---- unlink and rmdir ----------------------------------------------------------------------------

def unlink_a_file(s):
    s.put("f", b"x")
    with s.changes("."):
        s.unlink("f")
    s.unlink("f")
    s.lstat("f")
    tree(s)


def unlink_an_open_file(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"bytes")
    with s.changes(fd, "."):
        s.unlink("f")
    s.stat(fd)
    s.pwrite(fd, b"more" * 2000, 3)
    s.ftruncate(fd, 5000)
    s.fchmod(fd, 0o600)
    s.fchown(fd, 1, 2)
    s.utimens(fd, (1, 2), (3, 4))
    s.times(fd)
    s.fsync(fd)
    s.fallocate(fd, 0, 0, 10000)
    s.stat(fd)
    s.content(fd)
    s.put("f", b"another")
    s.content(fd)
    s.close(fd)
    s.get("f")


def unlink_a_file_with_two_descriptors(s):
    first = s.open("f", BOTH | CREATE)
    second = s.open("f", BOTH)
    s.unlink("f")
    s.write(first, b"by the first")
    s.close(first)
    s.content(second)
    s.pwrite(second, b"by the second", 5)
    s.content(second)


def an_unlinked_file_is_opened_through_proc(s):
    fd = s.open("f", BOTH | CREATE)
    s.write(fd, b"nameless")
    s.unlink("f")
    again = s.open_again(fd, BOTH)
    s.pwrite(again, b"by the second", 4)
    s.close(fd)
    s.content(again)


def unlink_refused(s):
    s.mkdir("d")
    s.put("f")
    s.unlink("d")
    s.unlink("d/")
    s.unlink("f/")
    s.unlink("f/x")
    s.unlink(".")
    s.unlink("..")
    s.unlink("absent")
    s.unlink("")
    tree(s)


def unlink_a_symlink_leaves_its_target(s):
    s.put("f", b"kept")
    s.symlink("f", "link")
    s.unlink("link")
    s.get("f")
    tree(s)


def rmdir_an_empty_directory(s):
    s.mkdir("d")
    with s.changes("."):
        s.rmdir("d")
    s.rmdir("d")
    s.stat(".")
    s.mkdir("d")
    s.rmdir("d/")
    tree(s)


def rmdir_refused(s):
    s.mkdir("d")
    s.put("d/f")
    s.put("f")
    s.symlink("d", "link")
    for name in ("d", "f", "link", "link/", ".", "d/.", "d/..", "..", "f/x", "absent", ""):
        s.rmdir(name)
    tree(s)


def an_open_directory_is_removed(s):
    s.mkdir("d")
    fd = s.open("d")
    s.rmdir("d")
    s.stat(fd)
    s.fsync(fd)
    s.list(fd)
    s.call("getdents", lambda: s.getdents(fd))  # of which libc tells nothing
    s.open("f", WRITE | CREATE, 0o644, dir_fd=fd)
    s.mkdir("sub", dir_fd=fd)
    s.open(".", READ, dir_fd=fd)
    s.fchmod(fd, 0o700)
    s.mkdir("d")
    s.same(fd, "d")
    s.stat("d")


def the_working_directory_is_removed(s):
    s.mkdir("d")
    s.chdir("d")
    s.rmdir("../d")
    s.put("f")
    s.mkdir("sub")
    s.symlink("x", "y")
    s.list(".")
    s.stat(".")
    s.stat("..")
    s.rename("f", "g")


def remove_a_deep_tree(s):
    path = "d"
    for i in range(40):
        s.mkdir(path)
        s.put(f"{path}/f{i}", b"x" * i)
        path += "/d"
    s.size(path[:-2] + "/f39")
    import shutil
    shutil.rmtree("d")
    tree(s)


# ---- mkdir ---------------------------------------------------------------------------------------

def mkdir_modes_and_umask(s):
    for mask in (0, 0o022, 0o077):
        s.umask(mask)
        for mode in (0o777, 0o755, 0o700, 0o1777, 0o2755, 0o000, 0o7777):
            s.mkdir("d", mode)
            s.stat("d")
            s.rmdir("d")


def mkdir_refused(s):
    s.put("f")
    s.mkdir("d")
    s.symlink("absent", "dangling")
    for name in ("d", "f", "dangling", "f/sub", "absent/sub", ".", "..", "/", "d/", ""):
        s.mkdir(name)
    tree(s)


def mkdir_touches_the_parent(s):
    with s.changes("."):
        s.mkdir("d")
    s.stat("d")
    s.stat(".")
    s.mkdir("d/e/")
    s.stat("d")
    tree(s)


def links_of_directories_are_counted(s):
    s.mkdir("d")
    for i in range(5):
        s.mkdir(f"d/{i}")
    s.put("d/f")
    s.stat("d")
    s.rename("d/0", "e")
    s.rmdir("d/1")
    s.stat("d")
    s.stat(".")
    s.rename("e", "d/2")
    s.stat("d")
    s.stat(".")


def setgid_directories_hand_down_their_group(s):
    s.mkdir("d")
    s.chown("d", 0, 4321)
    s.chmod("d", 0o2775)
    s.mkdir("d/sub")
    s.put("d/f")
    s.symlink("x", "d/link")
    s.open("d/exec", WRITE | CREATE, 0o2775)
    for name in ("d", "d/sub", "d/f", "d/link", "d/exec"):
        s.lstat(name)
    s.mkdir("d/sub/deeper")
    s.stat("d/sub/deeper")
    s.mkdir("plain")
    s.rename("plain", "d/plain")
    s.stat("d/plain")


def deep_directories(s):
    path = "."
    for i in range(60):
        path += f"/{i}"
        s.mkdir(path)
    s.put(f"{path}/f", b"deep down")
    s.get(f"{path}/f")
    s.rename("0/1/2", "moved")
    s.list("0/1")
    s.get("moved" + path[len("./0/1/2"):] + "/f")


# ---- symlinks ------------------------------------------------------------------------------------

def symlinks_are_followed(s):
    s.mkdir("d")
    s.put("d/f", b"bytes")
    s.symlink("d", "link")
    s.symlink("link/f", "file")
    s.readlink("link")
    s.readlink("file")
    s.get("link/f")
    s.get("file")
    s.list("link")
    s.stat("file")
    s.lstat("file")
    s.put("link/g", b"x")
    tree(s)


def dangling_symlinks(s):
    with s.changes("."):
        s.symlink("nowhere", "link")
    s.lstat("link")
    s.stat("link")
    s.get("link")
    s.readlink("link")
    s.chmod("link", 0o600)
    s.list("link")
    s.mkdir("link")


def symlinks_in_loops(s):
    s.symlink("b", "a")
    s.symlink("a", "b")
    s.symlink("self/x", "self")
    for name in ("a", "b", "self", "a/x"):
        s.stat(name)
        s.open(name)
        s.open(name, WRITE | CREATE)
    s.lstat("a")
    s.unlink("a")
    s.stat("b")


def symlinks_over_what_is_there(s):
    s.put("f")
    s.mkdir("d")
    s.symlink("x", "link")
    for name in ("f", "d", "link", "absent/link", "f/link", ""):
        s.symlink("y", name)
    s.symlink("", "empty")
    tree(s)


def symlinks_with_long_and_odd_targets(s):
    for i, target in enumerate(("/absolute/path", "x" * 1000, "y/" * 1000, "z" * 4095, "z" * 4096,
                                "new\nline", "\udcff\udcfe", "ü", " ", "..", "a//b/")):
        s.symlink(target, f"link{i}")
        s.readlink(f"link{i}")
        s.lstat(f"link{i}")


def readlink_of_what_is_none(s):
    s.put("f")
    s.mkdir("d")
    for name in ("f", "d", "absent", "f/x", "."):
        s.readlink(name)


def a_chain_of_symlinks(s):
    s.put("f0", b"at the end")
    for i in range(45):
        s.symlink(f"f{i}", f"f{i + 1}")
    s.get("f40")
    s.get("f41")


def owners_and_times_of_symlinks(s):
    s.put("f")
    s.symlink("f", "link")
    s.lchown("link", 11, 12)
    s.lstat("link")
    s.stat("link")
    s.utimens("link", (100, 1), (200, 2), 0x100)
    s.times("link")
    with s.changes("f"):
        s.utimens("link", (5, 0), (6, 0), 0x100)
    s.utimens("link", (7, 7), (8, 8))
    s.note("f", [os.stat("f").st_mtime_ns])


# ---- listing -------------------------------------------------------------------------------------

def list_what_is_there(s):
    s.list(".")
    for i in range(3):
        s.put(f"f{i}")
        s.mkdir(f"d{i}")
        s.symlink("x", f"l{i}")
    s.list(".")
    s.unlink("f1")
    s.rmdir("d1")
    s.list(".")
    s.list("absent")
    s.list("f0")


def list_many_entries(s):
    names = [f"entry-{i}-{'x' * (i % 50)}" for i in range(400)]
    for name in names:
        os.close(os.open(name, WRITE | CREATE | EXCL))
    for size in (300, 1000, 4096, 65536):
        fd = os.open(".", READ)
        seen = all_entries(s, fd, size)
        os.close(fd)
        s.note(f"by {size}", [sorted(seen) == sorted([*names, ".", ".."]), len(seen)])


def all_entries(s, fd, size):
    """Names by getdents to the end."""
    seen = []
    while entries := s.getdents(fd, size):
        seen += [os.fsdecode(name) for name, _, _ in entries]
    return seen


def dot_entries_and_types(s):
    s.put("f")
    s.mkdir("d")
    s.symlink("f", "l")
    fd = os.open(".", READ)
    s.note("entries", sorted((os.fsdecode(name), kind) for name, _, kind in s.getdents(fd)))
    numbers = {os.fsdecode(entry.name): entry.inode() for entry in os.scandir(".")}
    s.note("inode numbers", all(os.lstat(name).st_ino == number
                                for name, number in numbers.items()))


def a_listing_while_entries_come_and_go(s):
    """Each name that stays is there exactly once."""
    for i in range(300):
        os.close(os.open(f"stays-{i:03}", WRITE | CREATE))
        os.close(os.open(f"goes-{i:03}", WRITE | CREATE))
    fd = os.open(".", READ)
    seen, turn = [], 0
    while entries := s.getdents(fd, 1024):
        seen += [os.fsdecode(name) for name, _, _ in entries]
        for i in range(turn * 10, min(turn * 10 + 10, 300)):
            os.unlink(f"goes-{i:03}")
            os.close(os.open(f"comes-{i:03}", WRITE | CREATE))
            os.rename(f"comes-{i:03}", f"came-{i:03}")
        turn += 1
    stays = sorted(name for name in seen if name.startswith("stays"))
    s.note("stays", stays == [f"stays-{i:03}" for i in range(300)])
    s.note("twice", sorted(name for name in set(seen) if seen.count(name) > 1))
    s.note("turns", turn > 5)


def a_listing_while_everything_is_removed(s):
    """What rm -r does: remove what was read, read on."""
    for i in range(500):
        os.close(os.open(f"f{i}", WRITE | CREATE))
    fd = os.open(".", READ)
    while entries := s.getdents(fd, 2048):
        for name, _, _ in entries:
            if name not in (b".", b".."):
                os.unlink(name)
    s.list(".")


def a_listing_goes_on_at_a_position(s):
    for i in range(100):
        os.close(os.open(f"f{i:02}", WRITE | CREATE))
    fd = os.open(".", READ)
    first = s.getdents(fd, 600)
    rest = [name for name, _, _ in read_on(s, fd)]
    os.lseek(fd, first[3][1], os.SEEK_SET)
    again = [name for name, _, _ in read_on(s, fd)]
    s.note("goes on", again == [name for name, _, _ in first[4:]] + rest)
    os.lseek(fd, 0, os.SEEK_SET)
    os.close(os.open("late", WRITE | CREATE))
    seen = [name for name, _, _ in read_on(s, fd)]
    s.note("from the start", [len(seen), seen.count(b"late")])


def read_on(s, fd):
    entries = []
    while more := s.getdents(fd, 600):
        entries += more
    return entries


def a_rewound_listing_sees_what_changed(s):
    s.put("a")
    fd = s.open(".")
    s.list(fd)
    s.put("b")
    s.unlink("a")
    s.lseek(fd, 0, os.SEEK_SET)
    s.list(fd)


def two_listings_of_one_directory(s):
    for i in range(50):
        os.close(os.open(f"f{i}", WRITE | CREATE))
    first, second = os.open(".", READ), os.open(".", READ)
    a = s.getdents(first, 500)
    b = all_entries(s, second, 500)
    a = [os.fsdecode(name) for name, _, _ in a] + all_entries(s, first, 500)
    s.note("equal", [sorted(a) == sorted(b), len(a)])


# ---- odd names -----------------------------------------------------------------------------------

def names_of_255_and_256_bytes(s):
    for name in ("n" * 255, "n" * 256, "ü" * 127, "ü" * 128):
        s.put(name, b"x")
        s.size(name)
        s.unlink(name)
        s.mkdir(name)
        s.rmdir(name)
        s.symlink("x", name)
        s.unlink(name)
        s.put("f")
        s.rename("f", name)
        s.rename(name, "f")
        s.unlink("f")
        s.open(name)
    tree(s)


def paths_that_are_too_long(s):
    s.mkdir("d")
    s.stat("d/" * 2047)
    s.stat("d/../" * 819)
    s.stat("d/../" * 818)
    s.mkdir("x" * 5000)


def odd_names(s):
    for name in ("-leading", "new\nline", " ", "tab\t", "ünïcödé", "日本", "\udcff\udc80",
                 "...", "a\\b", "*", "'", "\x01", "\x7f", "%s", "~", "e\u0301", "\u00e9"):
        s.put(name, name.encode(errors="surrogateescape"))
        s.get(name)
        s.rename(name, name + "!")
        s.mkdir(name)
    tree(s)
    s.rename("-leading", "-leading/x")


def upper_and_lower_case_are_two_names(s):
    s.put("name", b"lower")
    s.put("NAME", b"upper")
    s.get("name")
    s.get("NAME")
    tree(s)


def names_of_no_ordinary_meaning_here(s):
    """Words that mean something elsewhere on the mount."""
    for name in ("latest", "versions", "tags", "staging", "publish", ".weightfs", ".tmp",
                 "lost+found", ".fuse_hidden0000000100000001"):
        s.mkdir(name)
        s.put(f"{name}/f", b"x")
    tree(s)
    for name in ("latest", ".weightfs"):
        s.unlink(f"{name}/f")
        s.rmdir(name)
    tree(s)


def absolute_and_winding_paths(s):
    s.mkdir("a")
    s.mkdir("a/b")
    s.put("a/b/f", b"x")
    s.get("a/./b/../b//f")
    s.get("a/b/f/.")
    s.get("a/b/../../a/b/f")
    s.note("absolute", os.path.samefile(os.path.abspath("a/b/f"), "a/b/f"))
    s.note("getcwd", os.path.samefile(os.getcwd(), "."))


# ---- what is no file, directory or symlink -------------------------------------------------------

def hard_link(s):
    s.put("f", b"x")
    s.link("f", "g")


def hard_link_of_a_directory(s):
    s.mkdir("d")
    s.link("d", "e")
    tree(s)


def fifo(s):
    s.mkfifo("fifo")


def character_device(s):
    s.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def unix_socket(s):
    with socket.socket(socket.AF_UNIX) as server:
        s.named("bind", server.bind, "socket")


def plain_file_by_mknod(s):
    s.umask(0o022)
    s.mknod("f", stat.S_IFREG | 0o666)
    s.mknod("f", stat.S_IFREG | 0o666)
    s.mknod("g", 0o640)
    s.stat("f")
    s.stat("g")
    fd = s.open("f", BOTH)
    s.write(fd, b"bytes")
    s.get("f")


def nameless_file(s):
    s.open(".", BOTH | os.O_TMPFILE, 0o600)
