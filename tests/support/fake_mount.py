"""A mount that looks like a user's weightfs and is a program that says anything.

It speaks FUSE to the kernel itself: a directory `.weightfs` with the file `status`, and no more.
"""

import ctypes
import errno
import os
import stat
import struct
import threading

ROOT, DIRECTORY, STATUS = 1, 2, 3
LOOKUP, GETATTR, OPEN, READ, RELEASE = 1, 3, 14, 15, 18
FLUSH, INIT, OPENDIR, ACCESS = 25, 26, 27, 34
UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
FOUND = {(ROOT, b".weightfs"): DIRECTORY, (DIRECTORY, b"status"): STATUS}
DIRECT_IO = 1
MNT_DETACH = 2

libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


class FakeMount:
    """Of the user `uid` alone, at `path`, until close()."""

    def __init__(self, path, uid, status, source="file:///nowhere"):
        self.path, self.uid, self.status = path, uid, status
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id={uid},group_id={uid}"
        check(libc.mount(source.encode(), path.encode(), b"fuse.weightfs", 0, options.encode()),
              f"mount {path}")
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def close(self):
        libc.umount2(self.path.encode(), MNT_DETACH)  # or it is gone already
        self.thread.join()

    def serve(self):
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                break  # ENODEV: it is unmounted
            _, code, unique, node = struct.unpack_from("<IIQQ", request)
            if code not in UNANSWERED:
                self.answer(unique, self.reply_to(code, node, request[40:]))
        os.close(self.device)

    def answer(self, unique, reply):
        error, data = (-reply, b"") if isinstance(reply, int) else (0, reply)
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
        except OSError:
            pass  # the caller has gone

    def reply_to(self, code, node, data):
        """Returns: bytes, or an errno."""
        if code == INIT:
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 1, 1, 4096, 1, 0, 0, 0, *[0] * 7)
        if code == LOOKUP:
            found = FOUND.get((node, data.rstrip(b"\0")))
            if found is None:
                return errno.ENOENT
            return struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + self.attributes(found)
        if code == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if code in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, DIRECT_IO, 0)
        if code == READ:
            _, offset, size = struct.unpack_from("<QQI", data)
            return self.status[offset:offset + size]
        return b"" if code in (RELEASE, FLUSH, ACCESS) else errno.ENOSYS

    def attributes(self, node):
        kind = stat.S_IFREG | 0o444 if node == STATUS else stat.S_IFDIR | 0o555
        return struct.pack("<6Q10I", node, len(self.status) if node == STATUS else 0, 0, 0, 0, 0,
                           0, 0, 0, kind, 1, self.uid, self.uid, 0, 4096, 0)
