#!/usr/bin/python3
"""Random histories over a directory tree, against a model that predicts every result and errno.

    tree_history.py DIR [--seed N] [--ops N] [--save FILE [--hold]] [--resume FILE] [--plant BUG]
    tree_history.py DIR --check FILE

Below DIR, which must be empty or be what --resume says, files, directories and symlinks of few
names come and go: created, opened, written, truncated, renamed over each other, exchanged,
removed while open, listed, their modes, owners and times changed, also through descriptors of
files and directories that are kept across all that. Every few hundred operations, and at the end,
the whole tree is compared.

--save writes what must be there to FILE, at the end or, if the daemon of a mount dies, at that
operation; then FILE has the tree before and after it, and what of its bytes may be either. --hold
keeps everything open afterwards, until standard input ends. --check compares a tree with such a
FILE and changes nothing; --resume does that and goes on from there. --plant breaks the model or
the tree.

Runs as root with umask 0. Exit code 0: all as it should be; 1: it prints what was wrong, the last
operations and the seed.
"""

import argparse
import base64
import collections
import ctypes
import errno
import json
import os
import random
import stat
import sys
import time
import zlib

libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE = 1, 2
DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
NAMES = ("a", "b", "c", "d", "e")
DEPTH = 3
MAX_SIZE = 40_000
MODES = (0o644, 0o600, 0o755, 0o700, 0o777, 0o400, 0o2775, 0o1777)
PLANTS = ("errno", "rename", "byte", "lost", "mode")


class Wrong(Exception):
    """The tree is not what the model says."""


class Dead(Exception):
    """The daemon of the mount has died."""


# ---- the model -----------------------------------------------------------------------------------

class Node:
    """A file, directory or symlink. `mtime_ns` is None if nobody knows it."""

    def __init__(self, kind, mode, parent=None, target=None):
        inherits = parent is not None and parent.mode & 0o2000
        self.kind = kind
        self.mode = mode | (0o2000 if inherits and kind == "directory" else 0)
        self.uid, self.gid = 0, parent.gid if inherits else 0
        self.parent, self.target = parent, target
        self.children, self.data = {}, bytearray()
        self.alive, self.mtime_ns = True, None

    def nlink(self):
        if self.kind != "directory":
            return int(self.alive)
        return 2 + sum(child.kind == "directory" for child in self.children.values()) \
            if self.alive else 0

    def size(self):
        return len(self.target) if self.kind == "symlink" else len(self.data)

    def describe(self):
        """What stat tells of it."""
        told = {"kind": self.kind, "mode": self.mode, "uid": self.uid, "gid": self.gid,
                "nlink": self.nlink()}
        return told if self.kind == "directory" else {**told, "size": self.size()}

    def holds(self, other):
        """Whether `other` is this node or lies below it, or did so last."""
        while other is not None and other is not self:
            other = other.parent
        return other is self


def fail(number):
    raise OSError(number, os.strerror(number))


class Tree:
    """What Linux does with names: the errnos, and which comes first."""

    def __init__(self):
        self.root = Node("directory", 0o755)

    def walk(self, start, path, follow):
        """(directory, last name, node or None) of a path; `follow` also goes through its last."""
        links, directory, names = 0, start, path.split("/")
        while True:
            name = names.pop(0)
            node = directory.children.get(name)
            if node is not None and node.kind == "symlink" and (names or follow):
                links += 1
                if links > 40:
                    fail(errno.ELOOP)
                names = node.target.split("/") + names
                continue
            if not names:
                return directory, name, node
            if node is None:
                fail(errno.ENOENT)
            if node.kind != "directory":
                fail(errno.ENOTDIR)
            directory = node

    def find(self, start, path, follow=True):
        node = self.walk(start, path, follow)[2]
        return node if node is not None else fail(errno.ENOENT)

    def add(self, directory, name, node):
        if not directory.alive:
            fail(errno.ENOENT)
        directory.children[name] = node
        directory.mtime_ns = None
        return node

    @staticmethod
    def drop(directory, name):
        node = directory.children.pop(name)
        node.alive, directory.mtime_ns = False, None

    def open(self, start, path, flags, mode):
        creates, exclusive = flags & os.O_CREAT, flags & os.O_EXCL
        directory, name, node = self.walk(
            start, path, not (flags & os.O_NOFOLLOW or creates and exclusive))
        if node is None:
            if not creates:
                fail(errno.ENOENT)
            return self.add(directory, name, Node("file", mode, directory))
        if creates and exclusive:
            fail(errno.EEXIST)
        if node.kind == "symlink" and creates and self.is_anothers(node, directory):
            fail(errno.EACCES)  # fs/namei.c, may_create_in_sticky(), whatever fs.protected_* say
        if node.kind == "symlink":
            fail(errno.ENOTDIR if flags & os.O_DIRECTORY else errno.ELOOP)
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)
        if node.kind == "directory" and (creates or writes):
            fail(errno.EISDIR)
        if node.kind != "directory" and flags & os.O_DIRECTORY:
            fail(errno.ENOTDIR)
        if flags & os.O_TRUNC:
            self.resize(node, 0)
        return node

    @staticmethod
    def is_anothers(node, directory):
        """In a directory like /tmp, and neither its owner's nor root's, who we are."""
        return directory.mode & 0o1002 == 0o1002 and node.uid not in (directory.uid, 0)

    def mkdir(self, start, path, mode):
        directory, name, node = self.walk(start, path, False)
        if node is not None:
            fail(errno.EEXIST)
        self.add(directory, name, Node("directory", mode, directory))

    def symlink(self, target, start, path):
        directory, name, node = self.walk(start, path, False)
        if node is not None:
            fail(errno.EEXIST)
        self.add(directory, name, Node("symlink", 0o777, directory, target))

    def readlink(self, start, path):
        node = self.find(start, path, False)
        return node.target if node.kind == "symlink" else fail(errno.EINVAL)

    def unlink(self, start, path):
        directory, name, node = self.walk(start, path, False)
        if node is None or node.kind == "directory":
            fail(errno.ENOENT if node is None else errno.EISDIR)
        self.drop(directory, name)

    def rmdir(self, start, path):
        directory, name, node = self.walk(start, path, False)
        if node is None or node.kind != "directory":
            fail(errno.ENOENT if node is None else errno.ENOTDIR)
        if node.children:
            fail(errno.ENOTEMPTY)
        self.drop(directory, name)

    def rename(self, old_start, old_path, new_start, new_path, flags):
        old_directory, old_name, old = self.walk(old_start, old_path, False)
        new_directory, new_name, new = self.walk(new_start, new_path, False)
        if old is None:
            fail(errno.ENOENT)
        if new is not None and flags == NOREPLACE:
            fail(errno.EEXIST)
        if new is None and flags == EXCHANGE:
            fail(errno.ENOENT)
        if old.kind == "directory" and old.holds(new_directory):
            fail(errno.EINVAL)
        if new is not None and new.kind == "directory" and new.holds(old_directory):
            fail(errno.EINVAL if flags == EXCHANGE else errno.ENOTEMPTY)
        if old is new:
            return
        if not new_directory.alive:
            fail(errno.ENOENT)
        if flags == EXCHANGE:
            old_directory.children[old_name] = new
            new.parent = old_directory
        else:
            self.make_way(old, new, new_directory, new_name)
            del old_directory.children[old_name]
        new_directory.children[new_name] = old
        old.parent = new_directory
        old_directory.mtime_ns = new_directory.mtime_ns = None

    def make_way(self, old, new, directory, name):
        """For a rename over `new`."""
        if new is None:
            return
        if old.kind == "directory" and new.kind != "directory":
            fail(errno.ENOTDIR)
        if old.kind != "directory" and new.kind == "directory":
            fail(errno.EISDIR)
        if new.children:
            fail(errno.ENOTEMPTY)
        self.drop(directory, name)

    # ---- of a node ---------------------------------------------------------------------------

    @staticmethod
    def write(node, at, data):
        if at > len(node.data):
            node.data.extend(bytes(at - len(node.data)))
        node.data[at:at + len(data)] = data
        node.mtime_ns = None
        return len(data)

    @staticmethod
    def resize(node, size):
        del node.data[size:]
        node.data.extend(bytes(size - len(node.data)))
        node.mtime_ns = None

    def truncate(self, node, size):
        if node.kind == "directory":
            fail(errno.EISDIR)
        self.resize(node, size)

    @staticmethod
    def list(node):
        if node.kind != "directory":
            fail(errno.ENOTDIR)
        return sorted(node.children)

    @staticmethod
    def chmod(node, mode):
        node.mode = mode

    @staticmethod
    def chown(node, uid, gid):
        node.uid, node.gid = uid, gid
        if node.kind == "file":
            node.mode &= ~0o4000 & (~0o2000 if node.mode & 0o010 else ~0)

    @staticmethod
    def utime(node, mtime_ns):
        node.mtime_ns = mtime_ns


# ---- states: a tree as JSON ----------------------------------------------------------------------

def pack(data):
    return base64.b64encode(zlib.compress(bytes(data), 1)).decode()


def unpack(text):
    return zlib.decompress(base64.b64decode(text))


def state_of_model(node, path="."):
    """{path: attributes and content}."""
    told = {**node.describe(), "mtime_ns": node.mtime_ns}
    if node.kind == "file":
        told["data"] = pack(node.data)
    elif node.kind == "symlink":
        told["target"] = node.target
    state = {path: told}
    for name, child in node.children.items():
        state.update(state_of_model(child, f"{path}/{name}"))
    return state


def state_of_disk(root, path="."):
    real = os.path.join(root, path)
    seen = os.lstat(real)
    told = {**describe(seen), "mtime_ns": seen.st_mtime_ns}
    state = {path: told}
    if told["kind"] == "file":
        with open(real, "rb") as file:
            told["data"] = pack(file.read())
    elif told["kind"] == "symlink":
        told["target"] = os.readlink(real)
    else:
        for name in sorted(os.listdir(real)):
            state.update(state_of_disk(root, f"{path}/{name}"))
    return state


def describe(seen):
    """Node.describe() of a stat."""
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}[
        stat.S_IFMT(seen.st_mode)]
    told = {"kind": kind, "mode": stat.S_IMODE(seen.st_mode), "uid": seen.st_uid,
            "gid": seen.st_gid, "nlink": seen.st_nlink}
    return told if kind == "directory" else {**told, "size": seen.st_size}


def model_of_state(state):
    tree = Tree()
    nodes = {}
    for path, told in state.items():
        node = Node(told["kind"], told["mode"], target=told.get("target"))
        node.uid, node.gid, node.mtime_ns = told["uid"], told["gid"], told["mtime_ns"]
        node.data = bytearray(unpack(told["data"])) if "data" in told else bytearray()
        nodes[path] = node
        if path != ".":
            parent, name = path.rsplit("/", 1)
            node.parent = nodes[parent]
            nodes[parent].children[name] = node
    tree.root = nodes["."]
    return tree


def differences(want, have):
    """In words, what differs between two states. The root's own attributes do not count."""
    words = [f"{path} is missing" for path in want if path not in have]
    words += [f"{path} should not be there" for path in have if path not in want]
    for path in want:
        if path in have and path != ".":
            words += [f"{path}: {difference(key, value, have[path].get(key))}"
                      for key, value in want[path].items()
                      if have[path].get(key) != value and (key, value) != ("mtime_ns", None)]
    return words


def difference(key, want, have):
    if key != "data" or have is None:
        shown = oct if key == "mode" else repr
        return f"{key} is {shown(have)}, should be {shown(want)}"
    want, have = unpack(want), unpack(have)
    wrong = [at for at, (one, other) in enumerate(zip(want, have)) if one != other]
    return f"{len(wrong)} bytes differ, from {wrong[0]} to {wrong[-1]}" if wrong else "too short"


def is_torn(path, saved, have):
    """Whether a file holds bytes of before and after, as a write that was cut off leaves them."""
    before, after = (unpack(saved[key][path]["data"]) for key in ("before", "after"))
    data = unpack(have[path]["data"])
    longest = max(len(before), len(after))
    return min(len(before), len(after)) <= len(data) <= longest and all(
        byte in (old, new) for byte, old, new in zip(
            data, before.ljust(longest, b"\0"), after.ljust(longest, b"\0")))


def check(root, saved):
    """Compares what is below `root` with what --save wrote; returns the state found."""
    have = state_of_disk(root)
    against = [differences(saved[key], have) for key in ("before", "after") if saved[key]]
    if [] in against:
        return saved["before" if not against[0] else "after"]
    path = saved["written"]
    if path and path in have and is_torn(path, saved, have):
        mended = {**saved["after"], path: {**saved["after"][path], "data": have[path]["data"],
                                           "size": have[path]["size"], "mtime_ns": None}}
        if not differences(mended, have):
            return mended
    raise Wrong("\n  ".join(("the tree is not what it should be:", *min(against, key=len)[:20])))


# ---- the history ---------------------------------------------------------------------------------

class History:
    """One run below `root`; `state` is what is there already."""

    def __init__(self, root, seed, state=None, plant=None):
        self.root, self.plant = root, plant
        self.random = random.Random(seed)
        self.tree = model_of_state(state) if state else Tree()
        self.root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self.opened = []  # [descriptor, node, flags]
        self.tail = collections.deque(maxlen=25)
        self.done = 0
        self.kinds = [(weight, kind) for weight, kind in (
            (16, self.open), (9, self.mkdir), (12, self.rename), (6, self.unlink), (6, self.rmdir),
            (4, self.symlink), (2, self.readlink), (5, self.stat), (4, self.chmod), (2, self.chown),
            (3, self.utime), (4, self.truncate), (3, self.list))]
        self.fd_kinds = [(8, self.fd_write), (4, self.fd_read), (3, self.fd_truncate),
                         (3, self.fd_stat), (2, self.fd_chmod), (2, self.fd_list),
                         (1, self.fd_sync), (4, self.fd_close)]

    def run(self, count):
        for _ in range(count):
            self.step()
            if self.done % 300 == 0:
                self.compare()
        self.compare()

    def compare(self):
        have = self.guarded("compare", lambda: state_of_disk(self.root))
        words = differences(state_of_model(self.tree.root), have)
        if words:
            raise Wrong("\n  ".join(("after operation "
                                     f"{self.done} the tree is not what it should be:",
                                     *words[:20])))

    def guarded(self, words, function):
        """Runs what changes nothing; notices a dead daemon."""
        try:
            return function()
        except OSError as error:
            if error.errno in DEAD:
                state = state_of_model(self.tree.root)
                raise Dead(words, state, state, None) from error
            raise

    # ---- one step --------------------------------------------------------------------------------

    def step(self):
        kinds = self.fd_kinds if self.opened and self.random.random() < 0.4 else self.kinds
        kind = self.random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        made = kind()
        if made is None:
            return
        words, real, model = made[:3]
        self.done += 1
        self.tail.append(words)
        got = outcome(real)
        if got[0] in DEAD:
            self.died(words, model, made[3] if len(made) > 3 else None)
        want = outcome(model)
        if got[0] != want[0] or not kind == self.open and got[1] != want[1]:
            raise Wrong(f"{words}: {in_words(got)}, should be {in_words(want)}")
        if kind == self.open and got[0] == 0:
            self.opened.append([got[1], want[1], made[4]])
        if self.plant and self.done % 50 == 49:
            self.spoil()

    def died(self, words, model, node):
        """The operation in flight may have been done, or not, or a write in part."""
        before = state_of_model(self.tree.root)
        written = path_of(self.tree.root, node) if node else None
        outcome(model)
        raise Dead(words, before, state_of_model(self.tree.root), written)

    def spoil(self):
        """Plants a bug: changes the tree and not the model."""
        files = [path for path, told in state_of_model(self.tree.root).items()
                 if told["kind"] == "file" and told["size"]]
        if files and self.plant in ("byte", "lost", "mode"):
            path = os.path.join(self.root, self.random.choice(files))
            if self.plant == "byte":
                with open(path, "r+b") as file:
                    byte = file.read(1)
                    file.seek(0)
                    file.write(bytes([byte[0] ^ 1]))
            elif self.plant == "lost":
                os.unlink(path)
            else:
                os.chmod(path, 0o4321)

    # ---- places ----------------------------------------------------------------------------------

    def place(self):
        """(descriptor, node, path): a directory and a path from there, often of what exists."""
        directories = [one for one in self.opened if one[1].kind == "directory"]
        fd, node = self.root_fd, self.tree.root
        if directories and self.random.random() < 0.25:
            fd, node, _ = self.random.choice(directories)
        here, names = node, []
        while len(names) < DEPTH:
            existing = list(here.children) if here is not None else []
            names.append(self.random.choice(existing) if existing and self.random.random() < 0.7
                         else self.random.choice(NAMES))
            here = here.children.get(names[-1]) if here is not None else None
            if self.random.random() < 0.4:
                break
        return fd, node, "/".join(names)

    @staticmethod
    def at(fd, path):
        """The path in words."""
        return f"fd {fd}: {path}"

    def spot(self):
        return self.random.choice((0, self.random.randint(0, MAX_SIZE // 2),
                                   self.random.randint(0, 8) * 4096))

    def bytes(self):
        return self.random.randbytes(self.random.choice((1, 100, 4096,
                                                         self.random.randint(1, MAX_SIZE // 2))))

    # ---- operations: (words, real, model, the node whose bytes it changes) -----------------------

    def open(self):
        if len(self.opened) >= 10:
            return None
        fd, node, path = self.place()
        mode = self.random.choice(MODES)
        flags = self.random.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR))
        flags |= self.random.choice((0, 0, os.O_CREAT, os.O_CREAT, os.O_CREAT | os.O_EXCL,
                                     os.O_DIRECTORY, os.O_CREAT | os.O_TRUNC))
        flags |= self.random.choice((0, 0, 0, os.O_NOFOLLOW, os.O_TRUNC))
        if flags & os.O_DIRECTORY:
            flags = os.O_RDONLY | os.O_DIRECTORY | flags & os.O_NOFOLLOW
        return (f"open {self.at(fd, path)} flags {flags:#o} mode {mode:#o}",
                lambda: os.open(path, flags, mode, dir_fd=fd),
                lambda: self.tree.open(node, path, flags, mode), None, flags)

    def mkdir(self):
        fd, node, path = self.place()
        mode = self.random.choice((0o755, 0o700, 0o777))
        return (f"mkdir {self.at(fd, path)} {mode:#o}", lambda: os.mkdir(path, mode, dir_fd=fd),
                lambda: self.tree.mkdir(node, path, mode))

    def rename(self):
        old_fd, old_node, old_path = self.place()
        new_fd, new_node, new_path = self.place()
        flags = self.random.choice((0, 0, 0, 0, NOREPLACE, EXCHANGE))

        def real():
            if libc.renameat2(old_fd, old_path.encode(), new_fd, new_path.encode(), flags):
                fail(ctypes.get_errno())

        def model():
            source = self.tree.walk(old_node, old_path, False)
            self.tree.rename(old_node, old_path, new_node, new_path, flags)
            if self.plant == "rename":
                source[0].children[source[1]] = source[2]
        return (f"rename {self.at(old_fd, old_path)} to {self.at(new_fd, new_path)} flags {flags}",
                real, model)

    def unlink(self):
        fd, node, path = self.place()
        return (f"unlink {self.at(fd, path)}", lambda: os.unlink(path, dir_fd=fd),
                lambda: self.tree.unlink(node, path))

    def rmdir(self):
        fd, node, path = self.place()

        def model():
            try:
                self.tree.rmdir(node, path)
            except OSError as error:
                fail(errno.EEXIST if self.plant == "errno" and error.errno == errno.ENOTEMPTY
                     else error.errno)
        return f"rmdir {self.at(fd, path)}", lambda: os.rmdir(path, dir_fd=fd), model

    def symlink(self):
        fd, node, path = self.place()
        target = "/".join(self.random.choices(NAMES, k=self.random.randint(1, 2)))
        return (f"symlink {target} {self.at(fd, path)}",
                lambda: os.symlink(target, path, dir_fd=fd),
                lambda: self.tree.symlink(target, node, path))

    def readlink(self):
        fd, node, path = self.place()
        return (f"readlink {self.at(fd, path)}", lambda: os.readlink(path, dir_fd=fd),
                lambda: self.tree.readlink(node, path))

    def stat(self):
        fd, node, path = self.place()
        follow = self.random.random() < 0.5
        return (f"stat {self.at(fd, path)} follow {follow}",
                lambda: describe(os.stat(path, dir_fd=fd, follow_symlinks=follow)),
                lambda: self.tree.find(node, path, follow).describe())

    def chmod(self):
        fd, node, path = self.place()
        mode = self.random.choice(MODES)
        return (f"chmod {self.at(fd, path)} {mode:#o}", lambda: os.chmod(path, mode, dir_fd=fd),
                lambda: self.tree.chmod(self.tree.find(node, path), mode))

    def chown(self):
        fd, node, path = self.place()
        uid, gid, follow = self.random.randrange(3), self.random.randrange(3), bool(
            self.random.randrange(2))
        return (f"chown {self.at(fd, path)} {uid} {gid} follow {follow}",
                lambda: os.chown(path, uid, gid, dir_fd=fd, follow_symlinks=follow),
                lambda: self.tree.chown(self.tree.find(node, path, follow), uid, gid))

    def utime(self):
        fd, node, path = self.place()
        times = (self.random.randrange(1 << 60), self.random.randrange(1 << 60))
        return (f"utime {self.at(fd, path)} {times}",
                lambda: os.utime(path, ns=times, dir_fd=fd),
                lambda: self.tree.utime(self.tree.find(node, path), times[1]))

    def truncate(self):
        _, _, path = self.place()
        size = self.random.choice((0, self.random.randint(0, MAX_SIZE)))
        real = os.path.join(self.root, path)
        node = self.node_at(path)
        return (f"truncate {path} {size}", lambda: os.truncate(real, size),
                lambda: self.tree.truncate(self.tree.find(self.tree.root, path), size), node)

    def node_at(self, path):
        try:
            return self.tree.find(self.tree.root, path)
        except OSError:
            return None

    def list(self):
        fd, node, path = self.place()

        def real():
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            try:
                return sorted(os.listdir(directory))
            finally:
                os.close(directory)
        return (f"list {self.at(fd, path)}", real,
                lambda: self.tree.list(self.tree.find(node, path)))

    # ---- operations on what is open --------------------------------------------------------------

    def fd_write(self):
        fd, node, flags = self.random.choice(self.opened)
        at, data = self.spot(), self.bytes()
        writable = flags & (os.O_WRONLY | os.O_RDWR)

        def real():
            done = os.pwrite(fd, data, at)
            if done < len(data):  # it ended within the write: then there is nobody for the rest
                os.pwrite(fd, data[done:], at + done)
            return done
        return (f"pwrite {fd} {at} {len(data)}", real,
                lambda: self.tree.write(node, at, data) if writable else fail(errno.EBADF), node)

    def fd_read(self):
        fd, node, flags = self.random.choice(self.opened)
        at, size = self.spot(), len(self.bytes())

        def model():
            if flags & os.O_WRONLY:
                fail(errno.EBADF)
            if node.kind == "directory":
                fail(errno.EISDIR)
            return bytes(node.data[at:at + size])
        return f"pread {fd} {at} {size}", lambda: os.pread(fd, size, at), model

    def fd_truncate(self):
        fd, node, flags = self.random.choice(self.opened)
        size = self.random.choice((0, self.random.randint(0, MAX_SIZE)))
        writable = flags & (os.O_WRONLY | os.O_RDWR)
        return (f"ftruncate {fd} {size}", lambda: os.ftruncate(fd, size),
                lambda: self.tree.resize(node, size) if writable else fail(errno.EINVAL), node)

    def fd_stat(self):
        fd, node, _ = self.random.choice(self.opened)
        return f"fstat {fd}", lambda: describe(os.fstat(fd)), node.describe

    def fd_chmod(self):
        fd, node, _ = self.random.choice(self.opened)
        mode = self.random.choice(MODES)
        return (f"fchmod {fd} {mode:#o}", lambda: os.fchmod(fd, mode),
                lambda: self.tree.chmod(node, mode))

    def fd_list(self):
        fd, node, _ = self.random.choice(self.opened)
        return f"list {fd}", lambda: sorted(os.listdir(fd)), lambda: self.tree.list(node)

    def fd_sync(self):
        fd, _, _ = self.random.choice(self.opened)
        return f"fsync {fd}", lambda: os.fsync(fd), lambda: None

    def fd_close(self):
        one = self.random.choice(self.opened)
        self.opened.remove(one)
        return f"close {one[0]}", lambda: os.close(one[0]), lambda: None


def outcome(function):
    """(errno or 0, result)."""
    try:
        return 0, function()
    except OSError as error:
        return error.errno, None


def in_words(result):
    return errno.errorcode[result[0]] if result[0] else f"success, {str(result[1])[:200]}"


def path_of(root, node):
    """Where a node is in the tree, or None."""
    names = []
    while node is not root:
        parent = node.parent
        if parent is None or node not in parent.children.values():
            return None
        names.append(next(name for name, child in parent.children.items() if child is node))
        node = parent
    return "/".join((".", *reversed(names)))


# ---- the command line ----------------------------------------------------------------------------

def save(path, before, after=None, written=None):
    with open(path, "w") as file:
        json.dump({"before": before, "after": after, "written": written}, file)


def load(path):
    with open(path) as file:
        return json.load(file)


def play(given):
    """Returns in words how it went."""
    state = None
    if given.resume:
        state = check(given.folder, load(given.resume))
        print("checked", flush=True)
    history = History(given.folder, given.seed, state, given.plant)
    try:
        history.run(given.ops)
    except Dead as dead:
        words, before, after, written = dead.args
        if not given.save:
            raise Wrong(f"the daemon has died at: {words}") from dead
        save(given.save, before, after, written)
        return f"died after {history.done} operations, at: {words}"
    except (Wrong, OSError) as error:
        raise Wrong("\n".join((f"{type(error).__name__}: {error}", "the last operations:",
                               *(f"  {line}" for line in history.tail)))) from error
    if given.save:
        save(given.save, state_of_model(history.tree.root))
    if given.hold:
        print("saved", flush=True)
        sys.stdin.read()
    return f"{history.done} operations"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--ops", type=int, default=3000)
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--resume", metavar="FILE")
    parser.add_argument("--check", metavar="FILE")
    parser.add_argument("--plant", choices=PLANTS)
    given = parser.parse_args()
    os.umask(0)
    start = time.monotonic()
    try:
        if given.check:
            check(given.folder, load(given.check))
            words = "as it should be"
        else:
            print(f"seed {given.seed}", flush=True)
            words = play(given)
    except Wrong as wrong:
        sys.exit(f"tree_history: {wrong}\nseed {given.seed}, directory {given.folder}")
    print(f"{words}, {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
