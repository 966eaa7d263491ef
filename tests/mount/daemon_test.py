"""What a daemon holds on its host, and what is left to know when it is gone."""

import errno
import glob
import hashlib
import json
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import fake_mount  # noqa: E402
import harness  # noqa: E402
import runs  # noqa: E402
import users  # noqa: E402


def record_of(mount_point):
    digits = hashlib.sha256(mount_point.encode()).hexdigest()[:16]
    return f"/run/weightfs/{digits}.mount"


class Command(users.UserMounts, harness.MountTest):
    """The command that makes a mount again."""

    def run_again(self, message):
        """Runs the line that a message ends with, from another directory."""
        words = shlex.split(message.split(": weightfs ")[-1])
        return harness.call(*words, cwd="/")

    def test_a_dead_mount_tells_the_whole_command_that_made_it(self):
        self.make_repository(1)
        mount = harness.Mount(self, self.url, name="a b", store="it's")
        mount.adopt(harness.call("mount", "./bucket", "a b/", "--store", "it's", "--uid=1000",
                                 cwd=self.dir, variables={"WEIGHTFS_SERVE": "daemon"}))
        self.assertEqual(os.stat(record_of(mount.path)).st_mode & 0o777, 0o600)
        mount.process.kill()
        done = harness.run("status", mount.path)
        self.assertEqual(done.returncode, 1)
        said = mount.adopt(self.run_again(done.stderr))
        self.assertEqual(said["mountpoint"], mount.path)
        self.assertEqual(said["store"], mount.store)
        self.assertEqual(said["serve"]["mode"], "daemon")
        self.assertEqual(os.stat(mount.join("latest/")).st_uid, 1000)
        mount.umount()
        self.assertFalse(os.path.exists(record_of(mount.path)))

    def test_a_sync_that_has_ended_does_too(self):
        self.make_repository(2)
        directory = os.path.join(self.dir, "ordinary files")
        sync = harness.start("sync", self.url, directory, "--follow", "1", "--poll", "0.05")
        self.addCleanup(sync.communicate)
        self.addCleanup(sync.kill)
        harness.wait_until(lambda: os.path.islink(directory + "/latest"), "the first version")
        harness.wait_until(lambda: harness.run("wait", directory, "--version", "1",
                                               "--timeout", "5").returncode == 0, "the socket")
        sync.kill()
        sync.wait()
        done = harness.run("wait", directory, "--version", "1")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(shlex.split(done.stderr.split(": weightfs ")[-1])[:3],
                         ["sync", self.url, directory])
        self.assertIn("--follow=1", done.stderr)

    def test_umount_of_a_dead_mount_takes_its_socket_and_record_along(self):
        self.make_repository(1)
        mount = self.mount()
        mount.process.kill()
        for path in (mount.control_socket(), record_of(mount.path)):
            self.assertTrue(os.path.exists(path), path)
        harness.umount(mount.path)
        for path in (mount.control_socket(), record_of(mount.path)):
            self.assertFalse(os.path.exists(path), path)

    def test_the_next_mount_elsewhere_clears_away_what_a_killed_daemon_left(self):
        self.make_repository(1)
        mount = self.mount()
        for path in (mount.control_socket(), record_of(mount.path)):
            self.assertTrue(os.path.exists(path), path)
        mount.process.kill()
        subprocess.run(["umount", mount.path], check=True)
        # From here on the mounts of other tests clear it away as well.
        self.mount(name="other", store="other-store")
        for path in (mount.control_socket(), record_of(mount.path)):
            self.assertFalse(os.path.exists(path), path)

    def test_root_s_umount_waits_for_the_daemon_of_a_user(self):
        self.make_repository(1)
        done, said, ended = self.as_user(self.make_for_user(), (), root_unmounts=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((ended["pid"], ended["ended"]), (said["pid"], True))

    def test_umount_names_a_stopped_daemon(self):
        self.make_repository(1)
        mount = self.mount()
        os.kill(mount.process.pid, signal.SIGSTOP)
        said = harness.umount(mount.path, timeout=60)
        self.assertEqual((said["pid"], said["ended"]), (mount.process.pid, False))
        os.kill(mount.process.pid, signal.SIGCONT)
        self.assertTrue(mount.process.has_ended(15))


class StrangeMounts(harness.MountTest):
    """Behind the mount of a user may be a program of that user, which says anything to root; so may
    what is in a user's directory."""

    def fake(self, status, name="theirs", **more):
        path = os.path.join(self.dir, name)
        os.makedirs(path)
        text = status if isinstance(status, str) else json.dumps(status)
        fake = fake_mount.FakeMount(path, users.UID, text.encode(), **more)
        self.addCleanup(fake.close)
        return path

    def good(self, path, **more):
        return {"mountpoint": path, "url": "file:///nowhere", "state": "current",
                "health": "healthy", "problems": [], "version": 1, "newest": 1, "pid": 1, **more}

    def listed(self):
        return {one["mountpoint"]: one for one in harness.call("status")}

    def test_what_one_says_spoils_no_list(self):
        self.make_repository(1)
        mount = self.mount()
        strange = ["{}", "[]", "7", '"text"', "null", "not JSON", '{"mountpoint": 1}',
                   *(self.good("/x", **more) for more in (
                       {"state": None}, {"url": []}, {"version": -1}, {"version": "1"},
                       {"health": {}}, {"serve": 3}, {"problems": [1]}, {"problems": "text"})),
                   self.good([])]
        paths = [self.fake(status, f"theirs-{i}") for i, status in enumerate(strange)]
        self.assertIn(mount.path, harness.run("status").stdout)
        self.assertEqual(harness.run("status", "--check").returncode, 2)
        all_of_them = self.listed()
        self.assertEqual(all_of_them[mount.path]["health"], "healthy")
        for path, status in zip(paths, strange):
            self.assertEqual(all_of_them[path]["state"], "unknown", status)
            self.assertTrue(all_of_them[path]["health"].startswith("failed: "), status)
            self.assertIn(harness.run("status", path).returncode, (1, 4), status)
        done = harness.run("top", "--once")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(mount.path, done.stdout)

    def test_a_status_of_another_user_is_shown_to_root(self):
        self.fake(self.good("/theirs"))
        self.assertEqual(self.listed()["/theirs"]["health"], "healthy")

    def luring(self, url):
        """A status that sends keys to `url`."""
        return self.good("/theirs", url="s3://bucket/run", repository="x", bucket={
            "endpoint_url": url, "region": "us-east-1", "profile": "", "path_style": True,
            "sign": True}, control="/nowhere", store="/nowhere", writer=None)

    def assert_does_nothing(self, make, what):
        """`make`: makes what another user's mount or directory shows, of a URL that nobody asks."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            path = make(url)
            keys = {"AWS_ACCESS_KEY_ID": "AKIAROOT", "AWS_SECRET_ACCESS_KEY": "secret",
                    "AWS_ENDPOINT_URL": url}
            for command in (("log",), ("verify",), ("show",), ("doctor",), ("pin",),
                            ("wait", "--version", "1"), ("log", "--timing"), ("diff", "1", "2"),
                            ("doctor", "--bundle", os.path.join(self.dir, "bundle"))):
                done = harness.run(command[0], path, *command[1:], variables=keys, timeout=60)
                self.assertEqual(done.returncode, 1, (command, done.stdout, done.stderr))
                self.assertIn(f"{path} is a {what} of uid {users.UID}", done.stderr, command)
                self.assertIn("run this as that user", done.stderr, command)
            with self.assertRaises(BlockingIOError):
                server.accept()
        return path

    def test_no_command_of_root_does_what_one_says(self):
        self.assert_does_nothing(
            lambda url: self.fake(self.luring(url), source="s3://bucket/run"), "mount")

    def directory(self, url, name="files"):
        """As `weightfs sync` of a user makes it."""
        path = os.path.join(self.dir, name)
        own = os.path.join(path, ".weightfs")
        said = {"sync": {"format": 1, "repository": "x", "url": "s3://bucket/run"},
                "status": self.luring(url)}
        for file, text in said.items():
            harness.write_file(os.path.join(own, file), json.dumps(text).encode())
            os.chown(os.path.join(own, file), users.UID, users.UID)
        for folder in (own, path):
            os.chown(folder, users.UID, users.UID)
        return path

    def test_no_command_of_root_does_what_a_directory_says(self):
        path = self.assert_does_nothing(self.directory, "directory")
        self.assertEqual(harness.call("status", path)["state"], "ended")  # which is shown
        own = os.path.join(path, ".weightfs")

        def status_of_root(url):
            os.chown(os.path.join(self.directory(url), ".weightfs/status"), 0, 0)
            return path

        def directory_of_root(url):
            os.chown(os.path.join(self.directory(url), ".weightfs"), 0, 0)
            return path

        def link_to_what_is_root_s(url):
            theirs = os.path.join(self.directory(url, "of-root"), ".weightfs")
            for file in ("", "sync", "status"):
                os.chown(os.path.join(theirs, file), 0, 0)
            os.rename(own, own + ".away")
            os.symlink(theirs, own)
            os.chown(own, users.UID, users.UID, follow_symlinks=False)
            return path

        for make in (status_of_root, directory_of_root, link_to_what_is_root_s):
            self.assert_does_nothing(make, "directory")

    def test_umount_waits_for_no_process_that_is_not_theirs(self):
        said = ({"pid": os.getpid()}, {"pid": 2 ** 40}, {"pid": "1"}, {"pid": 0},
                {"queued": [1, {}]}, {"queued": ["x"], "writer": 7}, {"queued": ["x"]})
        for i, more in enumerate(said):
            path = self.fake(self.good("/theirs", **more), f"theirs-{i}")
            ended = harness.umount(path, timeout=9)  # it waits 10 s for a daemon
            self.assertEqual((ended["pid"], ended["ended"]), (0, True), more)
            self.assertFalse(os.path.ismount(path))


CLOCK_NANOSLEEP = "230"  # of x86-64


class PasserBy(harness.MountTest):
    """Who uses a mount and cannot be found: what is sent and not yet received has no descriptor."""

    def setUp(self):
        self.make_repository(1)
        self.used = self.mount()
        self.near, self.far = socket.socketpair()
        self.addCleanup(self.near.close)
        self.addCleanup(self.far.close)
        fd = os.open(self.used.path, os.O_PATH)
        socket.send_fds(self.near, [b"x"], [fd])
        os.close(fd)

    def let_go(self):
        for fd in socket.recv_fds(self.far, 1, 1)[1]:
            os.close(fd)

    def test_umount_waits_until_it_has_passed(self):
        umount = harness.start("umount", self.used.path)
        self.addCleanup(umount.communicate)
        with open(f"/proc/{umount.pid}/syscall") as file:
            harness.wait_until(lambda: file.seek(0) == 0 and file.read().split()[0] ==
                               CLOCK_NANOSLEEP, "umount tries again")
        self.let_go()
        self.assertEqual(umount.wait(30), 0)
        self.assertFalse(os.path.ismount(self.used.path))

    def test_umount_of_what_stays_in_use_is_refused(self):
        done = harness.run("umount", self.used.path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is used by a process that is not visible here", done.stderr)
        self.assertTrue(os.path.ismount(self.used.path))
        self.let_go()
        self.used.umount()


class Stores(harness.MountTest):
    """Several mounts of one repository, none with --store."""

    def setUp(self):
        self.steps = self.make_run(1)
        self.base = "/var/lib/weightfs/" + self.init()
        self.addCleanup(lambda: [shutil.rmtree(path) for path in glob.glob(self.base + "*")])
        self.publish(self.steps[0])
        self.one = harness.Mount(self, self.url, name="one")
        self.two = harness.Mount(self, self.url, name="two")

    def start(self, mount, *options):
        said = mount.adopt(harness.call("mount", self.url, mount.path, *options))
        self.addCleanup(self.remove_socket, said["store"])
        return said

    @staticmethod
    def remove_socket(store):
        digits = hashlib.sha256(store.encode()).hexdigest()[:16]
        if os.path.exists(f"/run/weightfs/{digits}.sock"):
            os.unlink(f"/run/weightfs/{digits}.sock")

    def test_the_second_mount_has_a_store_of_its_own_and_says_so(self):
        self.assertEqual(self.start(self.one)["store"], self.base)
        said = self.start(self.two)
        self.assertEqual(said["store"], self.base + ".2")
        self.assertIn(f"process {self.one.process.pid}, for {self.one.path}", said["notes"][0])
        self.assertIn(self.base + ".2", said["notes"][0])
        for mount in (self.one, self.two):
            self.assert_same_tree(mount.join("latest/"), self.steps[0])
            mount.process.kill()
        os.rename(self.bucket, self.bucket + ".away")
        # Each takes its own again, whoever comes first, also without the bucket.
        self.assertEqual(self.start(self.two)["store"], self.base + ".2")
        self.assertEqual(self.start(self.one)["store"], self.base)
        self.assert_same_tree(self.two.join("latest/"), self.steps[0])

    def test_a_store_that_was_named_and_is_held_is_an_error_that_names_the_mount(self):
        self.start(self.one)
        done = harness.run("mount", self.url, self.two.path, "--store", self.base)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"process {self.one.process.pid}, for {self.one.path}", done.stderr)

    def test_the_store_of_an_earlier_repository_at_the_url_is_named(self):
        self.assertEqual(self.start(self.one)["notes"], [])
        self.one.umount()
        os.mkdir(os.path.join(self.base, "staging.lost-1"))  # its database had been damaged once
        harness.write_file(os.path.join(self.base, "staging.lost-1", "5"), b"saved")
        shutil.rmtree(self.bucket)
        shutil.rmtree(os.path.join(self.dir, "publisher"))
        new = "/var/lib/weightfs/" + self.init()
        self.addCleanup(lambda: [shutil.rmtree(path) for path in glob.glob(new + "*")])
        self.publish(self.steps[0])
        said = self.start(self.two)
        self.assertEqual(said["store"], new)
        self.assertEqual(len(said["notes"]), 1, said["notes"])
        self.assertIn(f"the store {self.base} of an earlier repository at this URL takes ",
                      said["notes"][0])
        self.assertIn(", also for files that were staged;", said["notes"][0])
        self.assertIn(said["notes"][0], harness.read_file(said["log"]).decode())
        self.assertTrue(os.path.exists(os.path.join(self.base, "images", "1")))

    def test_what_was_staged_waits_for_its_own_mount_point(self):
        self.start(self.one, "--writer")
        harness.write_file(self.one.staging("step", "config.json"), b"{}")
        self.one.umount()
        said = self.start(self.two, "--writer")
        self.assertEqual(said["store"], self.base + ".2")
        self.assertIn(f"--store {self.base};", said["notes"][0])
        self.assertEqual(self.start(self.one, "--writer")["store"], self.base)
        self.assertEqual(harness.read_file(self.one.staging("step", "config.json")), b"{}")
        self.one.umount()
        self.two.umount()
        self.start(self.two, "--writer", "--store", self.base)
        self.assertTrue(os.path.exists(self.two.staging("step", "config.json")))


class Descriptors(harness.MountTest):
    FILES = 300
    LIMIT = 256

    def test_open_files_beyond_the_limit_are_refused_and_the_bucket_is_still_read(self):
        checkpoint = os.path.join(self.dir, "checkpoint")
        runs.make_run(os.path.join(self.dir, "run"), 1, 20_000)
        shutil.copytree(os.path.join(self.dir, "run", "step_000000"), checkpoint)
        names = [f"part-{i:03d}.json" for i in range(self.FILES)]
        for name in names:
            harness.write_file(os.path.join(checkpoint, name), json.dumps({"name": name}).encode())
        self.init()
        self.publish(checkpoint)
        mount = harness.Mount(self, self.url, "--serve", "daemon")
        mount.adopt(harness.call(*mount.arguments(), preexec_fn=self.limit_files))
        self.assertEqual(self.soft_limit(mount.process.pid), self.LIMIT)
        latest = os.path.realpath(mount.join("latest"))

        opened = []
        self.addCleanup(lambda: [file.close() for file in opened])
        with self.assertRaises(OSError) as raised:
            for name in names:
                opened.append(open(os.path.join(latest, name), "rb"))
        self.assertEqual(raised.exception.errno, errno.ENFILE)
        self.assertGreaterEqual(len(opened), self.LIMIT // 4)
        self.publish(checkpoint, "--meta", "again=1")
        mount.wait_version(2)
        self.assertEqual(json.load(opened[0]), {"name": names[0]})
        while opened:
            opened.pop().close()
        for name in names:  # one at a time they are all to be had
            self.assertEqual(json.loads(harness.read_file(os.path.join(latest, name))),
                             {"name": name})

    def limit_files(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.LIMIT // 4, self.LIMIT))

    @staticmethod
    def soft_limit(pid):
        with open(f"/proc/{pid}/limits") as file:
            return next(int(line.split()[3]) for line in file if line.startswith("Max open files"))


class WithoutFuse(harness.MountTest):
    # Only what a program needs at least: /dev is another file system there.
    BARE = ("unshare", "--mount", "sh", "-c",
            'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@"', "sh")
    USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

    def test_a_mount_without_fuse_says_at_once_what_there_is_instead(self):
        self.make_repository(1)
        binary = os.path.join(self.dir, "weightfs")
        shutil.copy(harness.BINARY, binary)  # where other users reach it
        mount = harness.Mount(self, self.url)
        for user in ((), self.USER):
            done = subprocess.run([*self.BARE, *user, binary, "mount", self.url, mount.path,
                                   "--store", os.path.join(self.dir, "absent/store")],
                                  text=True, capture_output=True, timeout=60,
                                  env=harness.environment())
            self.assertEqual(done.returncode, 1, done.stderr)
            for word in ("/dev/fuse", "weightfs doctor", f"weightfs sync {self.url}"):
                self.assertIn(word, done.stderr)


if __name__ == "__main__":
    harness.main()
