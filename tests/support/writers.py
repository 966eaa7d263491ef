"""What the tests of writers' mounts share: saving, handing over, waiting, and looking at the queue."""

import ctypes
import errno
import os
import shutil
import subprocess

import harness

AT_FDCWD = -100
RENAME_NOREPLACE = 1
FILE = "model-00001-of-00002.safetensors"


# ---- ways to hand over ---------------------------------------------------------------------------

def rename(source, target):
    os.rename(source, target)


def rename_noreplace(source, target):
    done = harness.libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target),
                                  RENAME_NOREPLACE)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), source, None, target)


def mv(source, target):
    """Raises an OSError with the errno that mv's message tells."""
    done = subprocess.run(["mv", "-T", source, target], capture_output=True, text=True,
                          env={**os.environ, "LC_ALL": "C"})
    if done.returncode == 0:
        return
    for number in errno.errorcode:
        if done.stderr.strip().endswith(": " + os.strerror(number)):
            raise OSError(number, done.stderr.strip())
    raise AssertionError(f"mv: {done.stderr}")


def move(source, target):
    shutil.move(source, target)


# ---- the queue -----------------------------------------------------------------------------------

class WriterTest(harness.MountTest):
    """Mounts for writing; a run of checkpoints to save through them."""

    def writer(self, *options, **names):
        return self.mount("--writer", *options, **names)

    def save(self, mount, step, name):
        """Saves a checkpoint as staging/NAME; returns its path."""
        path = mount.join("staging", name)
        shutil.copytree(step, path)
        return path

    def hand_over(self, mount, name, tag=None, how=rename):
        how(mount.join("staging", name), mount.join("publish", tag or name))

    def save_and_hand_over(self, mount, step, name):
        self.save(mount, step, name)
        self.hand_over(mount, name)

    def wait(self, mount, *condition):
        """Must succeed; returns the version."""
        return harness.call("wait", mount.path, *condition, "--timeout", 60)["version"]

    def wait_ends(self, mount, *condition):
        """The exit code of `wait`, and its error."""
        done = harness.run("wait", mount.path, *condition, "--timeout", 60, "--json")
        return done.returncode, harness.json.loads(done.stdout).get("error")

    def publish_through(self, mount, step, tag):
        """Saves, hands over and waits."""
        self.save_and_hand_over(mount, step, tag)
        return self.wait(mount, "--tag", tag)

    def queue(self, mount):
        """{name: entry of status}."""
        return {entry["name"]: entry for entry in mount.status()["writer"]["queue"]}

    def wait_queue(self, mount, name, state):
        """Waits until the hand-over is in this state; returns its entry."""
        return harness.wait_until(
            lambda: (entry := self.queue(mount).get(name)) and entry["state"] == state and entry,
            f"{name} to be {state}; the queue: {self.queue(mount)}")

    def last_error(self, mount):
        return harness.read_file(mount.join(".weightfs/last_error")).decode()

    def take_bucket_away(self):
        os.rename(self.bucket, self.bucket + ".away")

    def bring_bucket_back(self):
        os.rename(self.bucket + ".away", self.bucket)

    def refused(self, mount, name, number, *words, tag=None, how=rename):
        """The hand-over must fail with this errno, say these words, and leave X as it is."""
        path = mount.join("staging", name)
        before = self.look(path)
        with self.assertRaises(OSError) as raised:
            self.hand_over(mount, name, tag, how)
        self.assertEqual(errno.errorcode[raised.exception.errno], errno.errorcode[number])
        for word in words:
            self.assertIn(word, self.last_error(mount))
        self.assertEqual(self.look(path), before)
        self.assertEqual(os.listdir(mount.join("publish")), [])

    def look(self, path):
        """Everything below `path`: what it is, whose, when changed, and its bytes."""
        seen = {}
        for parent, folders, files in os.walk(path):
            for name in [".", *folders, *files]:
                entry = os.path.normpath(os.path.join(parent, name))
                found = os.lstat(entry)
                data = (os.readlink(entry) if os.path.islink(entry) else
                        harness.read_file(entry) if os.path.isfile(entry) else None)
                seen[os.path.relpath(entry, path)] = (found.st_mode, found.st_uid, found.st_ino,
                                                      found.st_size, found.st_mtime_ns, data)
        self.assertTrue(seen or os.path.exists(path), path)
        return seen
