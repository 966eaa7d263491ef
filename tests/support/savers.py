"""Savers: whatever writes a checkpoint into staging, and the test that it becomes that version.

A saver is a function of a path. SaverTest runs it into an ordinary directory and into the staging of
a writer's mount, compares the two, hands the staged one over by a plain rename, waits with
`weightfs wait`, and compares the version, on the mount and out of the bucket.
"""

import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import harness  # noqa: E402

NOBODY = 65534


def run_python(python, code, *arguments, variables=None, **more):
    """Runs code in another interpreter, without the WEIGHTFS_* of this one; returns its output."""
    done = subprocess.run([python, "-c", code, *map(str, arguments)], text=True, timeout=300,
                          env=harness.environment(variables), capture_output=True, **more)
    if done.returncode != 0:
        raise AssertionError(f"{python}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def attributes(folder):
    """{relative path: what a copying tool preserves} of everything below `folder`."""
    found = {}
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(parent, name)
            seen = os.lstat(path)
            found[os.path.relpath(path, folder)] = (seen.st_mode, seen.st_uid, seen.st_gid,
                                                    seen.st_size, seen.st_mtime_ns)
    return found


class SaverTest(harness.MountTest):
    """A writer's mount of an empty repository: `self.writer`."""

    def setUp(self):
        self.init()
        self.writer = self.mount("--writer")

    def paths(self, name):
        """An ordinary directory and one in staging, neither of which exists."""
        os.makedirs(os.path.join(self.dir, "plain"), exist_ok=True)
        return os.path.join(self.dir, "plain", name), self.writer.join("staging", name)

    def save_twice(self, save, name):
        """Runs the saver into both places; they must be the same then."""
        plain, staged = self.paths(name)
        save(plain)
        save(staged)
        self.assert_same_tree(staged, plain)
        return plain, staged

    def hand_over(self, staged, tag):
        """Renames as a trainer does; returns the number of the version."""
        os.rename(staged, self.writer.join("publish", tag))
        return self.wait_tag(tag)

    def wait_tag(self, tag):
        harness.call("wait", self.writer.path, "--tag", tag, "--timeout", 120)
        return int(os.readlink(self.writer.join("tags", tag)).split("/")[-1])

    def assert_version(self, version, plain, left=()):
        """The version is `plain` without the files `left`, here and in the bucket."""
        wanted = {path: digest for path, digest in harness.hash_tree(plain).items()
                  if path not in left}
        self.assertEqual(harness.hash_tree(self.writer.join("versions", version)), wanted)
        exported = os.path.join(self.dir, "exported")
        shutil.rmtree(exported, ignore_errors=True)
        harness.call("export", self.url, exported, "--version", version)
        self.assertEqual(harness.hash_tree(exported), wanted)

    def assert_left(self, staged, plain, left):
        """Of what was handed over just the files `left` are back in staging, unchanged."""
        self.assertEqual(os.listdir(self.writer.join("publish")), [])
        if not left:
            self.assertFalse(os.path.lexists(staged), staged)
            return
        self.assertEqual(harness.hash_tree(staged), {
            path: digest for path, digest in harness.hash_tree(plain).items() if path in left})

    def assert_publishes(self, save, name="checkpoint", left=()):
        """The whole way of one checkpoint; returns its version and the ordinary directory."""
        plain, staged = self.save_twice(save, name)
        version = self.hand_over(staged, name)
        self.assert_version(version, plain, left)
        self.assert_left(staged, plain, left)
        return version, plain
