"""Where a mount may go, and how it ends."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

FILE = "model-00001-of-00002.safetensors"


class MountPoint(harness.MountTest):
    def setUp(self):
        self.step = self.make_repository(1)[0]

    def refused(self, mount, exit_code, code, *words):
        """`mount` must fail with this code, and say these words."""
        done = harness.run(*mount.arguments(), "--json")
        self.assertEqual(done.returncode, exit_code, done.stderr)
        error = harness.json.loads(done.stdout)["error"]
        self.assertEqual(error["code"], code)
        for word in words:
            self.assertIn(word, error["message"])

    def test_a_stale_mount_point_is_cleaned(self):
        mount = self.mount()
        mount.process.kill()
        with self.assertRaises(OSError) as raised:
            os.listdir(mount.path)
        self.assertEqual(raised.exception.errno, errno.ENOTCONN)
        mount.start()
        self.assert_same_tree(mount.join("latest/"), self.step)
        with open("/proc/self/mountinfo") as file:
            self.assertEqual(sum(line.split()[4] == mount.path for line in file), 1)

    def test_a_mount_point_in_use_is_refused(self):
        mount = self.mount()
        again = harness.Mount(self, self.url, store="other")
        self.refused(again, 1, "exists", mount.path, self.url)
        self.assert_same_tree(mount.join("latest/"), self.step)

    def test_a_foreign_mount_is_refused(self):
        self.tmpfs("foreign", "1M")
        mount = harness.Mount(self, self.url, name="foreign")
        self.refused(mount, 1, "busy", mount.path, "tmpfs")
        self.assertTrue(os.path.ismount(mount.path))

    def test_a_held_store_is_refused_with_the_pid(self):
        mount = self.mount()
        other = harness.Mount(self, self.url, name="other")
        self.refused(other, 1, "busy", mount.store, str(mount.process.pid))
        self.assertFalse(os.path.ismount(other.path))
        mount.umount()
        other.start()
        self.assert_same_tree(other.join("latest/"), self.step)

    def test_the_mount_point_may_be_given_through_a_symlink(self):
        mount = harness.Mount(self, self.url)
        link = os.path.join(self.dir, "link")
        os.symlink(mount.path, link)
        said = harness.call("mount", self.url, link, "--store", mount.store)
        mount.adopt(said)
        self.assertEqual(said["mountpoint"], mount.path)
        self.assertEqual(harness.call("status", link)["mountpoint"], mount.path)
        harness.umount(link)
        self.assertFalse(os.path.ismount(mount.path))

    def test_umount_ends_the_daemon(self):
        mount = self.mount()
        mount.umount()
        self.assertFalse(os.path.ismount(mount.path))
        done = harness.run("umount", mount.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("not a weightfs mount", done.stderr)

    def test_a_mount_in_use_is_not_unmounted_and_its_users_are_named(self):
        mount = self.mount()
        reader = subprocess.Popen(["sleep", "600"], cwd=mount.join("latest/"))
        self.addCleanup(reader.wait)
        self.addCleanup(reader.kill)
        done = harness.run("umount", mount.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn(str(reader.pid), done.stderr)
        self.assertIn("sleep", done.stderr)
        self.assert_same_tree(mount.join("latest/"), self.step)

    def test_an_umount_says_where_copies_of_the_mount_are(self):
        mount = self.mount()
        bound = os.path.join(self.dir, "copy")
        os.makedirs(bound)
        # Without the mounts and disks of other tests, which would not end while it has them.
        script = ("awk -v own=$0 -v all=$1 '$2 != own && index($2, all) == 1 {print $2}' /proc/self/mounts"
                  " | xargs --no-run-if-empty umount --lazy; exec sleep 600")
        other = subprocess.Popen(["unshare", "--mount", "--propagation", "private",
                                  "sh", "-c", script, mount.path, tempfile.gettempdir() + "/"])
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        harness.wait_until(lambda: harness.read_file(f"/proc/{other.pid}/comm") == b"sleep\n",
                           "the mount namespace")
        subprocess.run(["mount", "--bind", mount.path, bound], check=True)
        done = harness.run("umount", mount.path)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn(f"run: umount --recursive {bound}", done.stderr)
        self.assertIn(f"pid {other.pid} (sleep)", done.stderr)
        self.assertIn(f"nsenter -t {other.pid} -m umount --recursive {mount.path}", done.stderr)
        subprocess.run(["umount", bound], check=True)
        other.kill()
        self.assertTrue(mount.process.has_ended(10))

    def test_a_lazy_umount_leaves_what_is_open(self):
        mount = self.mount("--serve", "daemon")
        data = harness.read_file(os.path.join(self.step, FILE))
        fd = os.open(mount.join("latest", FILE), os.O_RDONLY)
        said = harness.umount(mount.path, "--lazy")
        self.assertFalse(os.path.ismount(mount.path))
        self.assertFalse(said["ended"])
        self.assertEqual(os.pread(fd, len(data), 0), data)
        os.close(fd)
        self.assertTrue(mount.process.has_ended(10))

    def test_a_lazy_umount_of_a_mount_that_nobody_uses_ends_the_daemon(self):
        mount = self.mount()
        mount.umount("--lazy")

    def test_a_plain_umount_ends_the_daemon_too(self):
        mount = self.mount()
        subprocess.run(["umount", mount.path], check=True)
        self.assertTrue(mount.process.has_ended(10))

    def test_a_dead_mount_can_be_unmounted(self):
        mount = self.mount()
        mount.process.kill()
        harness.umount(mount.path)
        self.assertFalse(os.path.ismount(mount.path))

    def test_status_tells_of_dead_and_stuck_daemons(self):
        mount = self.mount()
        listed = {entry["mountpoint"]: entry for entry in harness.call("status")}
        self.assertEqual(listed[mount.path]["version"], 1)

        os.kill(mount.process.pid, signal.SIGSTOP)
        listed = {entry["mountpoint"]: entry for entry in harness.call("status")}
        self.assertEqual(listed[mount.path]["state"], "stuck")
        self.assertEqual(listed[mount.path]["url"], self.url)
        done = harness.run("status", mount.path)
        self.assertEqual(done.returncode, 5)
        self.assertIn("does not answer", done.stderr)
        os.kill(mount.process.pid, signal.SIGCONT)

        mount.process.kill()
        listed = {entry["mountpoint"]: entry for entry in harness.call("status")}
        self.assertEqual(listed[mount.path]["state"], "dead")
        done = harness.run("status", mount.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"weightfs mount --again {mount.path}", done.stderr)

    def test_a_mount_whose_daemon_is_stopped_holds_up_nobody(self):
        mount = self.mount()
        again = harness.Mount(self, self.url, store="other")
        os.kill(mount.process.pid, signal.SIGSTOP)
        self.refused(again, 5, "timed_out", mount.path, "does not answer")
        for command in ("doctor", "wait"):
            options = ("--newer-than", "0") if command == "wait" else ()
            done = harness.run(command, mount.path + "/.", *options, timeout=60)
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertIn("does not answer", done.stderr)
        done = harness.run("umount", mount.path, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(os.path.ismount(mount.path))
        os.kill(mount.process.pid, signal.SIGCONT)
        self.assertTrue(mount.process.has_ended(15))

    def test_a_command_that_is_told_a_dead_mount_says_so(self):
        mount = self.mount()
        mount.process.kill()
        done = harness.run("log", mount.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is gone", done.stderr)

    def test_what_shows_a_repository_can_be_none(self):
        mount = self.mount()
        synced = os.path.join(self.dir, "synced")
        harness.call("sync", self.url, synced, "--once")
        for place, around, words in ((mount.path, mount.path, "where weightfs shows"),
                                     ("file://" + mount.join("versions/new"), mount.path, ""),
                                     (synced, synced, "weightfs sync keeps"),
                                     (os.path.join(synced, "new"), synced, "")):
            done = harness.run("init", place)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn(f" lies in {around}, ", done.stderr)
            self.assertIn(words, done.stderr)
            self.assertIn(f"weightfs publish {self.url} DIR", done.stderr)
        self.assertEqual(os.listdir(synced).count("new"), 0)

    def other_user(self):
        """What runs the binary as nobody."""
        user = {"user": 65534, "group": 65534, "extra_groups": []}
        try:
            harness.run("--version", **user)
        except PermissionError:
            self.skipTest("other users cannot run the binary where it lies")
        return user

    def test_who_may_not_unmount_is_told_who_may(self):
        mount = self.mount()
        for lazy in ((), ("--lazy",)):
            done = harness.run("umount", mount.path, *lazy, **self.other_user())
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn(f"uid 65534 may not unmount {mount.path}", done.stderr)
            self.assertIn(f"sudo weightfs umount {mount.path}", done.stderr)
        self.assertTrue(os.path.ismount(mount.path))

    def test_a_users_own_mount_is_private_to_him(self):
        user = self.other_user()
        if shutil.which("fusermount3") is None or not os.stat("/dev/fuse").st_mode & 0o002:
            self.skipTest("no fusermount3, or users may not open /dev/fuse")
        mount = harness.Mount(self, self.url)
        os.makedirs(mount.store)
        for path in (mount.path, mount.store):
            os.chown(path, 65534, 65534)
        serve = mount.adopt(harness.call(*mount.arguments(), **user))["serve"]
        self.assertEqual(serve["mode"], "daemon")  # passthrough needs CAP_SYS_ADMIN
        self.assertNotEqual(serve["why"], "")
        done = subprocess.run(["sha256sum", mount.join("latest", FILE)], capture_output=True,
                              text=True, **user)
        self.assertEqual(done.stdout.split()[0], harness.hash_tree(self.step)[FILE])
        with self.assertRaises(PermissionError):
            os.listdir(mount.path)
        harness.umount(mount.path, **user)
        self.assertTrue(mount.process.has_ended(10))

    def test_ctrl_c_at_any_moment_leaves_no_dead_mount(self):
        """The daemon closes its pipe when it is ready: its parent took that for its end, and killed it."""
        mount = harness.Mount(self, self.url)
        stopped = 0
        for _ in range(30):
            caller = harness.start(*mount.arguments(), "--json")
            try:
                caller.communicate(timeout=harness.RANDOM.uniform(0, 0.3))
            except subprocess.TimeoutExpired:
                caller.send_signal(signal.SIGINT)
                caller.communicate()
            stopped += caller.returncode != 0
            os.listdir(mount.path)  # not ENOTCONN
            if os.path.ismount(mount.path):
                harness.umount(mount.path)
        self.assertGreater(stopped, 0)

    def test_a_signal_while_mounting_leaves_nothing(self):
        os.rename(self.manifest(1), self.manifest(1) + ".away")
        os.mkfifo(self.manifest(1))  # whoever reads it waits for ever
        mount = harness.Mount(self, self.url)
        caller = harness.start(*mount.arguments(), "--json")
        self.addCleanup(caller.kill)
        harness.wait_until(lambda: os.path.exists(os.path.join(mount.store, "lock")), "the store")
        caller.send_signal(signal.SIGINT)
        out, _ = caller.communicate(timeout=30)
        self.assertEqual(caller.returncode, 1)
        self.assertEqual(harness.json.loads(out)["error"]["code"], "cancelled")
        self.assertFalse(os.path.ismount(mount.path))
        os.unlink(self.manifest(1))
        os.rename(self.manifest(1) + ".away", self.manifest(1))
        self.assertEqual(mount.start()["version"], 1)  # the store is free again


if __name__ == "__main__":
    harness.main()
