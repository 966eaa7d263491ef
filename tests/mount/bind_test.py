"""Bind mode: complete versions are bind-mounted, so reads and maps never reach the daemon."""

import errno
import mmap
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import users  # noqa: E402
from loaders import (SHARDS, Loader, LoaderTest, shard_data, shard_name,  # noqa: E402
                     write_checkpoint)

SHARD = shard_name(0)
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


class BindTest(LoaderTest):
    def mount(self, *options, **names):
        """What streamed in first is bound a moment after it is ready."""
        mount = super().mount(*options, **names)
        mount.wait_status(lambda status: status["serve"]["mode"] != "bind" or
                          not status["version"] or status["version"] in status["serve"]["bound"],
                          "the version to be bound")
        return mount

    def begin(self, *options, **names):
        self.init()
        self.publish_next()
        return self.mount("--serve", "bind", *options, **names)

    def mounts_below(self, mount):
        """{mount point: type} of what is mounted at or below the mount point."""
        with open("/proc/self/mountinfo") as file:
            lines = [line.split() for line in file]
        return {line[4]: line[line.index("-") + 1] for line in lines
                if line[4] == mount.path or line[4].startswith(mount.path + "/")}

    def is_bound(self, mount, version):
        return mount.join("versions", version) in self.mounts_below(mount)

    def refused(self, arguments, code, *words, **more):
        """The command must fail with this error, and say these words."""
        done = harness.run(*arguments, "--json", **more)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        error = harness.json.loads(done.stdout)["error"]
        self.assertEqual(error["code"], code, error)
        for word in words:
            self.assertIn(word, error["message"])

    def in_use(self, *command, **more):
        """A process that runs until the test ends."""
        process = subprocess.Popen(command, **more)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process


def tasks_of(pid):
    return [f"/proc/{pid}/task/{task}/stat" for task in os.listdir(f"/proc/{pid}/task")]


def is_stopped(stat_path):
    return harness.read_file(stat_path).rsplit(b")", 1)[1].split()[0] == b"T"


def map_file(path):
    """A mapping whose file is closed."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


class Serving(BindTest):
    def test_reads_and_maps_never_reach_the_daemon(self):
        steps = self.make_repository(2)
        mount = self.mount("--serve", "bind")
        serve = mount.status()["serve"]
        self.assertEqual((serve["mode"], serve["why"], serve["bound"]), ("bind", "--serve bind", [2]))
        self.assert_same_tree(mount.join("latest/"), steps[1])
        name = "model-00001-of-00002.safetensors"
        mapping = map_file(mount.join("latest", name))
        self.assertEqual(mapping[:], harness.read_file(os.path.join(steps[1], name)))
        self.assertEqual(mount.status()["serve"]["daemon_reads"], 0)
        mapping.close()

        self.assertEqual(os.listdir(mount.join("versions")), ["2"])
        self.assertEqual(os.readlink(mount.join("tags/step-2")), "../versions/2")
        listed = [one for one in harness.call("status") if self.dir in one["mountpoint"]]
        self.assertEqual([one["mountpoint"] for one in listed], [mount.path])
        self.assertEqual(harness.call("verify", mount.path)["problems"], [])
        self.assertIn("bind", harness.run("status", mount.path).stdout)

    def test_nothing_can_be_changed(self):
        mount = self.begin()
        path = mount.join("versions/1", SHARD)
        for change in (lambda: os.open(path, os.O_RDWR),
                       lambda: os.open(path + ".new", os.O_WRONLY | os.O_CREAT),
                       lambda: os.unlink(path), lambda: os.chmod(path, 0o644),
                       lambda: os.utime(path), lambda: os.mkdir(mount.join("versions/1/new")),
                       lambda: os.truncate(path, 0)):
            with self.assertRaises(OSError) as raised:
                change()
            self.assertEqual(raised.exception.errno, errno.EROFS)
        with open("/proc/self/mountinfo") as file:
            [options] = [line.split()[5] for line in file if line.split()[4] == mount.join("versions/1")]
        self.assertTrue(options.startswith("ro,nosuid,nodev"), options)

    def test_attributes_are_those_of_the_mount(self):
        mount = self.begin("--uid", "1001", "--gid", "1002", "--umask", "0227")
        published = int(os.stat(mount.join("versions")).st_mtime)  # the newest version's time
        for path, mode in ((mount.join("versions/1"), stat.S_IFDIR | 0o550),
                           (mount.join("versions/1", SHARD), stat.S_IFREG | 0o440)):
            found = os.stat(path)
            self.assertEqual((found.st_mode, found.st_uid, found.st_gid, found.st_mtime),
                             (mode, 1001, 1002, published))
        reader = subprocess.run(["cat", mount.join("versions/1", SHARD)], capture_output=True,
                                **NOBODY)
        self.assertIn(b"Permission denied", reader.stderr)
        mount.umount()
        mount.options = ("--serve", "bind")
        mount.start()
        found = os.stat(mount.join("versions/1", SHARD))
        self.assertEqual((stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid), (0o444, 0, 0))
        reader = subprocess.run(["cat", mount.join("latest", SHARD)], capture_output=True, **NOBODY)
        self.assertEqual(reader.stdout, shard_data(1, 0))

    def test_latest_never_leads_to_a_version_that_is_not_bound(self):
        mount = self.begin()
        device = os.stat(mount.store).st_dev
        publisher = threading.Thread(target=self.publish_next, args=(9,))
        publisher.start()
        self.addCleanup(publisher.join)
        version = 1
        while version < 10:
            version = mount.latest()
            self.assertEqual(os.stat(mount.join("versions", version)).st_dev, device, version)
        self.assertEqual(harness.read_file(mount.join("latest", SHARD)), shard_data(10, 0))
        self.assertEqual(mount.status()["serve"]["daemon_reads"], 0)

    def test_a_writers_mount(self):
        mount = self.writer("--serve", "bind")
        for version in (1, 2):
            write_checkpoint(mount.staging(f"step-{version}"), version)
            os.rename(mount.staging(f"step-{version}"), mount.join(f"publish/step-{version}"))
            harness.call("wait", mount.path, "--version", version)
            harness.wait_until(lambda: self.is_bound(mount, version), "the bind mount")
            self.assertEqual(harness.read_file(mount.join("versions", version, SHARD)),
                             shard_data(version, 0))
        found = os.stat(mount.join("versions/2", SHARD))
        self.assertEqual((stat.S_IMODE(found.st_mode), found.st_uid), (0o444, 0))
        self.assertEqual(mount.status()["serve"]["bound"], [1, 2])
        mount.umount()


class Choosing(users.UserMounts, BindTest):
    def test_auto_takes_it_where_there_is_no_passthrough(self):
        """The kernel takes no backing files of an overlayfs."""
        self.init()
        self.publish_next()
        base = self.tmpfs("base", "1G")
        store = os.path.join(self.dir, "stacked")
        for name in (os.path.join(base, "lower"), os.path.join(base, "upper"),
                     os.path.join(base, "work"), store):
            os.makedirs(name)
        options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
        done = subprocess.run(["mount", "-t", "overlay", "-o", options, "weightfs-test", store],
                              capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"no overlayfs here: {done.stderr}")
        self.workspace.mount_points.append(store)
        mount = self.mount(store="stacked")
        serve = mount.status()["serve"]
        self.assertEqual((serve["mode"], serve["bound"]), ("bind", [1]))
        self.assertIn("stacked file system", serve["why"])
        self.assertEqual(harness.read_file(mount.join("latest", SHARD)), shard_data(1, 0))
        self.publish_next(1, mount)
        # The daemon opens files of version 1 to make version 2; that may prolong the pass of the
        # first read by its grace.
        harness.wait_until(lambda: mount.latest() == 2, "the pass on version 1 to end")
        self.assertEqual(harness.read_file(mount.join("latest", SHARD)), shard_data(2, 0))
        self.assertEqual(mount.status()["serve"]["daemon_reads"], 0)
        mount.umount()

    def test_auto_prefers_passthrough(self):
        self.init()
        self.publish_next()
        said = harness.Mount(self, self.url).start()["serve"]
        if said["mode"] == "daemon":
            self.skipTest(said["why"])
        self.assertEqual(said["mode"], "bind" if said["why"] else "passthrough")

    def test_auto_takes_it_in_a_user_namespace(self):
        """Where root is somebody else outside, the kernel allows no passthrough."""
        unshare = ("unshare", "--user", "--map-root-user", "--mount")
        if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            self.skipTest("no user namespaces here")
        self.init()
        self.publish_next()
        mount = harness.Mount(self, self.url)
        bound = f"until mountpoint -q {mount.path}/versions/1; do sleep 0.05; done"
        script = (f'"$0" "$@" --json && timeout 60 sh -c {shlex.quote(bound)} && '
                  'cat "$MNT/latest/config.json" && echo && '
                  'cat "$MNT/.weightfs/status" && "$0" umount "$MNT" >&2')
        done = subprocess.run([*unshare, "sh", "-c", script, harness.BINARY, *mount.arguments()],
                              env=harness.environment({"MNT": mount.path}), capture_output=True,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said, rest = harness.json.JSONDecoder().raw_decode(done.stdout)
        config, status = done.stdout[rest:].strip().split("\n", 1)
        serve = harness.json.loads(status)["serve"]
        self.assertEqual((said["serve"]["mode"], serve["bound"], serve["daemon_reads"]),
                         ("bind", [1], 0))
        self.assertIn("passthrough needs CAP_SYS_ADMIN", serve["why"])
        self.assertEqual(harness.json.loads(config), {"step": 1})

    def test_without_the_privilege_it_is_refused(self):
        self.init()
        self.publish_next()
        mount = self.make_for_user()
        done, said, _ = self.as_user(mount, ("--serve", "bind"))
        self.assertEqual((done.returncode, said["error"]["code"]), (1, "unsupported"), done.stderr)
        for words in ("--serve bind", "CAP_SYS_ADMIN", "run as root", "leave out --serve"):
            self.assertIn(words, said["error"]["message"])
        done, said, _ = self.as_user(mount, ())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(said["serve"]["mode"], "daemon")
        self.assertIn("; bind mounts need CAP_SYS_ADMIN", said["serve"]["why"])


class Keeping(BindTest):
    def shown(self, mount):
        return sorted(map(int, os.listdir(mount.join("versions"))))

    def test_what_is_open_or_mapped_or_somebodys_place_stays(self):
        mount = self.begin("--store-size", "30K")  # of checkpoints of 13 KiB
        opened = os.open(mount.join("versions/1", SHARD), os.O_RDONLY)
        self.publish_next(1, mount)
        mapping = map_file(mount.join("versions/2", SHARD))
        self.publish_next(1, mount)
        user = self.in_use("sleep", "600", cwd=mount.join("versions/3"))
        for _ in range(5):
            self.publish_next(1, mount)
        shown = self.shown(mount)
        self.assertEqual(shown[:3], [1, 2, 3])
        self.assertNotIn(4, shown)
        self.assertEqual(mount.status()["serve"]["bound"], shown)
        self.assertEqual(os.pread(opened, 1 << 20, 0), shard_data(1, 0))
        self.assertEqual(mapping[:], shard_data(2, 0))
        self.assertEqual(harness.read_file(mount.join("versions/2", SHARD)), shard_data(2, 0))

        os.close(opened)
        mapping.close()
        user.kill()
        user.wait()
        self.publish_next(1, mount)
        harness.wait_until(lambda: set(self.shown(mount)).isdisjoint({1, 2, 3}), "them to go")
        self.assertFalse(os.path.exists(os.path.join(mount.store, "images", "1")))
        self.assertEqual(sorted(self.mounts_below(mount))[1:],
                         sorted(mount.join("versions", version) for version in self.shown(mount)))

    def begin_without(self, *capabilities):
        """A mount whose images belong to --uid, of a root that lacks these capabilities."""
        if shutil.which("setpriv") is None:
            self.skipTest("no setpriv")
        self.init()
        self.publish_next()
        mount = harness.Mount(self, self.url, "--serve", "bind", "--uid", "1000", "--gid", "1000",
                              "--store-size", "30K", "--history", "0")
        bounds = "--bounding-set=" + ",".join(f"-{name}" for name in capabilities)
        done = subprocess.run(["setpriv", bounds, harness.BINARY, *mount.arguments(), "--json"],
                              env=harness.environment(), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        mount.adopt(harness.json.loads(done.stdout))
        harness.wait_until(lambda: self.is_bound(mount, 1), "version 1 to be bound")
        self.assertEqual(os.stat(os.path.join(mount.store, "images/1", SHARD)).st_uid, 1000)
        return mount

    def test_old_versions_go_also_where_leases_of_other_users_are_refused(self):
        mount = self.begin_without("lease")
        self.publish_next(4, mount)
        harness.wait_until(lambda: set(self.shown(mount)).isdisjoint({1, 2, 3}), "them to go")
        self.assertEqual(mount.status()["problems"], [])

    def test_old_versions_that_cannot_go_are_a_problem_that_names_the_leases(self):
        mount = self.begin_without("lease", "setuid")
        self.publish_next(4, mount)
        status = mount.wait_status(lambda status: status["problems"], "a problem")
        self.assertEqual([problem["state"] for problem in status["problems"]], ["leases"])
        self.assertEqual(status["version"], 5)
        message = status["problems"][0]["message"]
        for words in ("old versions cannot be removed", mount.store, "CAP_LEASE"):
            self.assertIn(words, message)
        self.assertIn(message, status["health"])
        self.assertIn(1, self.shown(mount))

    def test_a_bind_mount_that_was_taken_away_comes_back_and_its_reader_keeps_the_image(self):
        mount = self.begin("--store-size", "30K")
        mapping = map_file(mount.join("versions/1", SHARD))

        def is_read_through_the_daemon():
            """If it was bound again before the read, it is taken away once more."""
            if self.is_bound(mount, 1):
                self.assertEqual(harness.libc.umount2(mount.join("versions/1").encode(),
                                                      harness.MNT_DETACH), 0)
            self.assertEqual(harness.read_file(mount.join("versions/1", SHARD)), shard_data(1, 0))
            return mount.status()["serve"]["daemon_reads"] > 0

        harness.wait_until(is_read_through_the_daemon, "a read without the bind mount")
        harness.wait_until(lambda: self.is_bound(mount, 1), "version 1 to be bound again")
        self.publish_next(4, mount)
        self.assertIn(1, self.shown(mount))
        self.assertEqual(mapping[:], shard_data(1, 0))
        mapping.close()


class Pinning(BindTest):
    def test_a_loader_gets_one_version(self):
        mount = self.begin("--pin-grace", "60")
        loader, other = Loader(self, mount), Loader(self, mount)
        self.assertEqual(loader.latest(), 1)  # READLINK alone pins here
        self.publish_next(2, mount)
        self.assertEqual(loader.load(), [1] * SHARDS)
        self.publish_next(1, mount)
        self.assertEqual([loader.open(0, "read"), loader.config()], [1, 1])
        self.assertEqual((other.latest(), other.load()), (4, [4] * SHARDS))
        pins = {pin["session"]: pin["version"] for pin in mount.status()["pins"]}
        self.assertEqual(pins[f"session {loader.process.pid}"], 1)
        self.assertEqual(mount.status()["serve"]["daemon_reads"], 0)
        harness.call("unpin", mount.path)
        self.assertEqual(loader.latest(), 4)

    def test_a_pinned_version_keeps_its_images(self):
        mount = self.begin("--pin-grace", "60", "--store-size", "30K")
        loader = Loader(self, mount)
        self.assertEqual(loader.open(0, "read"), 1)  # nothing of it is open or mapped
        self.publish_next(6, mount)
        self.assertEqual([loader.open(1), loader.open(2)], [1, 1])
        self.assertTrue(self.is_bound(mount, 1))

    def test_who_polls_the_config_moves_on_within_the_grace(self):
        mount = self.begin("--pin-grace", "0.5")
        poller = Loader(self, mount)
        self.assertEqual(poller.config(), 1)
        self.publish_next(1, mount)
        harness.wait_until(lambda: poller.config() == 2, "the poller", timeout=30)

    def test_who_opens_the_same_file_again_and_again_follows_after_fifteen_minutes(self):
        clock = harness.program("libweightfs_skewed_clock.so")
        if not os.path.exists(clock):
            self.skipTest(f"no {clock}; WEIGHTFS_TESTS names its directory")
        passed = os.path.join(self.dir, "passed")  # its size: seconds
        harness.write_file(passed, b"")
        mount = self.begin("--pin-grace", "300",
                           variables={"LD_PRELOAD": clock, "WEIGHTFS_TEST_AHEAD": passed})
        loader = Loader(self, mount)
        # It stays mapped.  That `latest` is read again has the daemon take note of what was opened.
        self.assertEqual((loader.open(0), loader.latest()), (1, 1))
        self.publish_next(1, mount)
        for minutes in range(1, 14):  # two are left for what this takes
            os.truncate(passed, 60 * minutes)
            self.assertEqual((loader.open(0, "read"), loader.latest()), (1, 1), f"{minutes} min")
        os.truncate(passed, 15 * 60)
        self.assertEqual((loader.latest(), loader.open(0, "read")), (2, 2))

    def test_a_load_that_takes_longer_than_the_grace_is_one(self):
        grace = 2
        mount = self.begin("--pin-grace", grace)
        mapped, closed = Loader(self, mount), Loader(self, mount)
        began = time.monotonic()
        for loader in (mapped, closed):
            self.assertEqual(loader.open(0, "map" if loader is mapped else "read"), 1)
        self.publish_next(1)
        # What is opened and closed at once counts; between two opens there is less than the grace.
        while time.monotonic() - began < 2.5 * grace:
            last = time.monotonic()
            version = closed.open(1, "read")
            if time.monotonic() - last < grace / 2:
                self.assertEqual(version, 1)
            wait_seconds(grace / 4)
        # What is mapped counts as long as it is.
        self.assertEqual([mapped.open(1), mapped.open(2)], [1, 1])
        mapped.ask("drop", "")
        for loader in (mapped, closed):
            harness.wait_until(lambda: loader.latest() == 2, "the end of the pin")


def wait_seconds(seconds):
    """What is waited for is time itself."""
    end = time.monotonic() + seconds
    harness.wait_until(lambda: time.monotonic() >= end, "time", timeout=seconds + 10)


class Ending(BindTest):
    def test_umount_takes_everything_with_it(self):
        mount = self.begin()
        self.publish_next(1, mount)
        self.assertEqual(len(self.mounts_below(mount)), 3)
        done = subprocess.run(["umount", mount.path], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)  # plain umount(8) wants --recursive
        mount.umount()
        self.assertEqual(self.mounts_below(mount), {})
        mount.start()
        subprocess.run(["umount", "--recursive", mount.path], check=True)
        self.assertTrue(mount.process.has_ended(10))
        self.assertEqual(self.mounts_below(mount), {})

    def test_a_reader_is_named_and_stays_served(self):
        mount = self.begin()
        self.publish_next(1, mount)
        reader = self.in_use("sleep", "600", cwd=mount.join("versions/1"))
        self.refused(("umount", mount.path), "busy", str(reader.pid), "sleep", "--lazy")
        self.assertEqual(harness.read_file(mount.join("latest", SHARD)), shard_data(2, 0))
        harness.wait_until(lambda: mount.status()["serve"]["bound"] == [1, 2], "both bound again")
        mapping = map_file(mount.join("versions/1", SHARD))
        mount.umount("--lazy")
        self.assertEqual(self.mounts_below(mount), {})
        self.assertEqual(mapping[:], shard_data(1, 0))
        mapping.close()

    def test_sigterm_leaves_nothing_but_what_is_mapped(self):
        mount = self.begin()
        mapping = map_file(mount.join("latest", SHARD))
        mount.process.kill(signal.SIGTERM)
        self.assertEqual(self.mounts_below(mount), {})
        self.assertEqual(mapping[:], shard_data(1, 0))
        mapping.close()

    def test_left_over_bind_mounts_are_cleaned_by_the_next_mount(self):
        mount = self.begin()
        self.publish_next(1, mount)
        mapping = map_file(mount.join("versions/1", SHARD))
        mount.process.kill()
        self.assertGreater(len(self.mounts_below(mount)), 1)
        mount.start()
        self.assertEqual(mount.status()["serve"]["bound"], [1, 2])
        with open("/proc/self/mountinfo") as file:
            places = [line.split()[4] for line in file if self.dir in line]
        self.assertEqual(len(places), len(set(places)), places)
        self.assertEqual(mapping[:], shard_data(1, 0))
        mapping.close()

    def test_left_over_bind_mounts_are_cleaned_by_umount(self):
        mount = self.begin()
        reader = self.in_use("sleep", "600", cwd=mount.join("versions/1"))
        mount.process.kill()
        self.refused(("umount", mount.path), "busy", str(reader.pid))
        reader.kill()
        reader.wait()
        harness.umount(mount.path)
        self.assertEqual(self.mounts_below(mount), {})

    def test_the_mount_of_a_stopped_daemon_can_be_unmounted(self):
        mount = self.begin()
        pid = mount.process.pid
        os.kill(pid, signal.SIGSTOP)
        harness.wait_until(lambda: all(map(is_stopped, tasks_of(pid))), "all of it to stop")
        harness.umount(mount.path)
        self.assertEqual(self.mounts_below(mount), {})
        os.kill(mount.process.pid, signal.SIGCONT)
        self.assertTrue(mount.process.has_ended(10))

    def test_foreign_mounts_inside_are_not_touched(self):
        mount = self.begin()
        self.publish_next(1, mount)
        foreign = [mount.join("tags"), mount.join("versions/1")]
        for place in foreign:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "mine", place], check=True)
        # By these they are taken away: the kernel may refuse to walk a path in a dead mount.
        inside = [os.open(place, os.O_PATH) for place in foreign]
        self.refused(("umount", mount.path), "busy", "mine", "tmpfs", mount.join("tags"))
        self.refused(("umount", "--lazy", mount.path), "busy", "mine")
        self.assertEqual([self.mounts_below(mount)[place] for place in foreign], ["tmpfs", "tmpfs"])
        mount.process.kill()
        self.refused(mount.arguments(), "busy", "mine", mount.join("tags"))
        self.refused(("umount", mount.path), "busy", "mine")
        self.assertEqual([self.mounts_below(mount)[place] for place in foreign], ["tmpfs", "tmpfs"])
        for descriptor in inside:
            path = f"/proc/self/fd/{descriptor}".encode()
            self.assertEqual(harness.libc.umount2(path, harness.MNT_DETACH), 0)
            os.close(descriptor)
        mount.start()
        self.assertEqual(mount.status()["serve"]["bound"], [1, 2])


if __name__ == "__main__":
    harness.main()
