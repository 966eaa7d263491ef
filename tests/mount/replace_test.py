"""A mount whose daemon died is replaced in place: the bare directory below it never shows."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

KILLS = 20

# A trainer that makes the directory of its next save, whatever becomes of the daemon.
MAKE_DIRECTORIES = """
import collections, errno, json, os, select, sys
seen = collections.Counter()
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        os.makedirs(sys.argv[1], exist_ok=True)
        os.rmdir(sys.argv[1])
        seen["made"] += 1
    except OSError as error:
        seen[errno.errorcode[error.errno]] += 1
    if sum(seen.values()) % 100 == 1:
        print(json.dumps(seen), flush=True)
"""


class Maker:
    """The process, and what has come of its calls."""

    def __init__(self, test, path, *inside):
        command = [*inside, sys.executable, "-c", MAKE_DIRECTORIES, path]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        test.addCleanup(self.process.wait)
        test.addCleanup(self.process.kill)
        self.process.stdout.readline()  # it is at work

    def end(self):
        out, _ = self.process.communicate("end\n", timeout=60)
        return json.loads(out.splitlines()[-1])


class Replace(harness.MountTest):
    def mounts_at(self, path):
        with open("/proc/self/mountinfo") as file:
            return sum(line.split()[4] == path for line in file)

    def kill_again_and_again(self, mount, maker, kills):
        for _ in range(kills):
            mount.process.kill()
            mount.start()
            self.assertEqual(self.mounts_at(mount.path), 1)
        seen = maker.end()
        print(seen, file=sys.stderr)
        self.assertGreater(seen["made"], 0)
        self.assertGreater(seen.get("ENOTCONN", 0), 0)
        mount.umount()
        self.assertEqual(os.listdir(mount.path), [])

    def test_nothing_is_made_below_a_mount_whose_daemon_is_killed(self):
        mount = self.writer()
        self.kill_again_and_again(mount, Maker(self, mount.staging("T")), KILLS)

    def test_nor_by_a_container_that_was_given_the_parent_with_propagation(self):
        outer = os.path.join(self.dir, "outer")
        os.makedirs(outer)
        subprocess.run(["mount", "--bind", outer, outer], check=True)
        self.workspace.mount_points.append(outer)
        subprocess.run(["mount", "--make-shared", outer], check=True)
        mount = self.writer(name="outer/mnt")
        container = ("unshare", "--mount", "--propagation", "slave")
        self.kill_again_and_again(mount, Maker(self, mount.staging("T"), *container), KILLS // 4)

    def test_nor_in_bind_mode_where_versions_are_mounted_inside(self):
        self.make_repository(2, params=20_000)
        mount = self.writer("--serve", "bind")
        mount.wait_status(lambda status: status["serve"]["bound"], "a version to be bound")
        self.kill_again_and_again(mount, Maker(self, mount.staging("T")), KILLS // 4)

    def test_a_failed_mount_leaves_the_dead_one_in_its_place(self):
        mount = self.writer()
        mount.process.kill()
        os.rename(self.bucket, self.bucket + ".away")
        done = harness.run("mount", self.url, mount.path, "--writer",
                           "--store", os.path.join(self.dir, "empty"))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.mounts_at(mount.path), 1)
        os.rename(self.bucket + ".away", self.bucket)
        mount.start()
        mount.umount()


class NonEmpty(harness.MountTest):
    def test_what_lies_in_the_mount_point_is_named_and_hidden_on_request(self):
        steps = self.make_repository(1)
        mount = harness.Mount(self, self.url, "--nonempty")
        lost = os.path.join(mount.path, "staging/step-7")
        os.makedirs(lost)
        done = harness.run("mount", self.url, mount.path, "--store", mount.store)
        self.assertEqual(done.returncode, 2)
        self.assertIn("staging", done.stderr)
        self.assertIn("--nonempty", done.stderr)
        self.assertFalse(os.path.ismount(mount.path))

        self.assertIn("staging", mount.start()["notes"][0])
        self.assert_same_tree(mount.join("latest/"), steps[0])
        mount.process.kill()  # and also where a dead mount covers it
        done = harness.run("mount", self.url, mount.path, "--store", mount.store)
        self.assertEqual(done.returncode, 2)
        self.assertIn("staging", done.stderr)
        mount.start()
        mount.umount()
        self.assertTrue(os.path.isdir(lost))


if __name__ == "__main__":
    harness.main()
