"""Disks that fail: a loop device that loses its power, and one whose room runs out below the file system.

A power cut is FS_IOC_SHUTDOWN with "no log flush": nothing more is written, not even the journal; then the
disk is mounted again. What writes to it is killed before: a dying file system may answer fsync with
success. Method and pitfalls: a loop device keeps all writes that reached it, in order, so this shows what
was not flushed, and no disk that lies."""

import fcntl
import glob
import os
import struct
import subprocess
import sys

import harness

FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


def skip_without_loop_devices():
    """Exits with 77, which ctest reads as "skipped", where no loop device can be had."""
    found = subprocess.run(["losetup", "--find"], capture_output=True)
    if found.returncode != 0:
        print("skipped: needs loop devices")
        sys.exit(harness.SKIPPED)


class Disk:
    """An ext4 file system in a file, mounted at `path` of the test's workspace."""

    def __init__(self, test, name="disk", size=256 << 20, folder=None, options=()):
        self.workspace = test.workspace
        self.copies = 0
        self.image = os.path.join(folder or test.dir, name + ".img")
        self.path = os.path.join(test.dir, name)
        with open(self.image, "wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-F", *options, self.image], check=True)
        os.makedirs(self.path)
        self.workspace.mount_points.append(self.path)
        self.mount()

    def mount(self):
        subprocess.run(["mount", "-o", "loop", self.image, self.path], check=True)

    def written_bytes(self):
        """What the device was given to write since it is there, all that waits for it included."""
        root = os.open(self.path, os.O_RDONLY)
        if harness.libc.syncfs(root) != 0:
            raise OSError(f"syncfs {self.path}")
        os.close(root)
        device = subprocess.run(["findmnt", "--noheadings", "--output", "SOURCE", self.path],
                                check=True, capture_output=True, text=True).stdout.strip()
        with open(f"/sys/block/{os.path.basename(device)}/stat") as file:
            return int(file.read().split()[6]) * 512  # sectors written

    def umount(self):
        subprocess.run(["umount", self.path], check=True)

    def cut(self):
        """Requires: nobody writes, and nobody has a file of it open."""
        root = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(root, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(root)
        self.umount()
        self.leave_dead_one()
        self.mount()

    def freeze(self):
        """Whoever writes waits until thaw(); reads go on. A guard thaws it if this process is gone."""
        self.guard = subprocess.Popen(["sh", "-c", 'read _; exec fsfreeze -u "$1"', "guard", self.path],
                                      stdin=subprocess.PIPE, start_new_session=True)
        subprocess.run(["fsfreeze", "-f", self.path], check=True)

    def thaw(self):
        self.guard.stdin.close()
        self.guard.wait()

    def leave_dead_one(self):
        """A mount namespace that was made meanwhile, by another test, keeps the dead file system; this
        image would be mounted as that again. A copy is a disk of its own."""
        if not subprocess.run(["losetup", "--noheadings", "--associated", self.image],
                              check=True, capture_output=True).stdout:
            return
        self.copies += 1
        copy = f"{self.image}.{self.copies}"
        subprocess.run(["cp", "--sparse=always", self.image, copy], check=True)
        os.remove(self.image)
        self.image = copy


def write_records(store):
    """What the kernel may have written by itself before a cut: the records of a store, and not its images."""
    for path in glob.glob(os.path.join(store, "db", "*.log")):
        log = os.open(path, os.O_RDONLY)
        os.fsync(log)
        os.close(log)
