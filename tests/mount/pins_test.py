"""Pins: a loader that opens shards through `latest` gets one version, whatever is published.

passes_test.py has what takes its time."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
from loaders import SHARDS, Loader, LoaderTest, write_checkpoint  # noqa: E402

LONG = "60"  # seconds of grace that no test sees the end of


class PinTest(LoaderTest):
    def begin(self, *options, grace=LONG, **names):
        self.init()
        self.publish_next()
        return self.mount("--pin-grace", grace, *options, **names)

    def pins(self, mount):
        return mount.status()["pins"]


class Loading(PinTest):
    def one_version(self, serve):
        mount = self.begin("--serve", serve)
        loader, other = Loader(self, mount), Loader(self, mount)
        self.assertEqual(loader.open(0), 1)
        self.publish_next(2, mount)
        self.assertEqual([loader.open(0), loader.open(1), loader.open(1, "read")], [1, 1, 1])
        self.publish_next(1, mount)
        self.assertEqual(loader.open(2), 1)
        self.assertEqual((loader.latest(), loader.config()), (1, 1))
        self.assertEqual((other.latest(), other.load()), (4, [4, 4, 4]))
        self.assertEqual(mount.latest(), 4)

        pins = {pin["session"]: pin for pin in self.pins(mount)}
        pin = pins[f"session {loader.process.pid}"]
        self.assertEqual((pin["version"], pin["loading"]), (1, False))
        self.assertTrue(pin["command"].startswith("python"), pin)
        self.assertGreaterEqual(pin["age"], 0)
        self.assertEqual(pins[f"session {other.process.pid}"]["version"], 4)
        self.assertIn(f"session {loader.process.pid} (", harness.run("status", mount.path).stdout)

    def test_passthrough(self):
        self.one_version("passthrough")

    def test_daemon(self):
        self.one_version("daemon")

    def test_readlink_alone_pins_nothing_and_is_never_cached(self):
        mount = self.begin()
        loader = Loader(self, mount)
        for version in (1, 2, 3):
            self.assertEqual(loader.latest(), version)
            self.publish_next(1, mount)
        self.assertEqual(self.pins(mount), [])

    def test_a_version_that_is_opened_by_name_changes_nothing(self):
        mount = self.begin()
        self.publish_next(1, mount)
        loader = Loader(self, mount)
        self.assertEqual(loader.open(0, through="versions/1"), 1)
        self.assertEqual(self.pins(mount), [])
        self.assertEqual(loader.load(), [2] * SHARDS)

    def test_processes_of_one_session_get_one_version(self):
        mount = self.begin()
        first, second = (Loader(self, mount, session=False) for _ in range(2))
        self.assertEqual(first.open(0), 1)
        self.publish_next(2, mount)
        self.assertEqual(second.load(), [1] * SHARDS)
        self.assertEqual([first.open(1), first.open(2)], [1, 1])
        [pin] = self.pins(mount)
        self.assertEqual(pin["session"], f"session {os.getsid(0)}")
        self.assertEqual({member["pid"] for member in pin["members"]},
                         {first.process.pid, second.process.pid})

    def test_a_load_that_takes_longer_than_the_grace_is_one(self):
        mount = self.begin(grace="0.3")
        mapped, closed = Loader(self, mount), Loader(self, mount)
        for loader, how in ((mapped, "map"), (closed, "read")):
            self.assertEqual(loader.open(0, how), 1)
        self.publish_next(3, mount)  # takes longer than that
        wait_seconds(1.5)
        for loader, how in ((mapped, "map"), (closed, "read")):
            self.assertEqual([loader.open(1, how), loader.open(2, how)], [1, 1])
        for loader in (mapped, closed):  # what stays mapped does not hold a complete load
            harness.wait_until(lambda: loader.latest() == 4, "the end of the grace")

    def test_the_pin_of_a_load_that_was_broken_off_ends_when_nothing_is_open(self):
        mount = self.begin(grace="0.3")
        loader = Loader(self, mount)
        self.assertEqual(loader.open(0, "hold"), 1)
        self.publish_next(1, mount)
        loader.close()
        harness.wait_until(lambda: self.pins(mount) == [], "the end of the pin")

    def test_who_polls_the_config_moves_on_within_the_grace(self):
        mount = self.begin(grace="0.5")
        poller = Loader(self, mount)
        self.assertEqual(poller.config(), 1)
        self.publish_next(1, mount)
        shown = time.monotonic()
        harness.wait_until(lambda: poller.config() == 2, "the poller", timeout=30)
        self.assertLess(time.monotonic() - shown, 10)

    def test_a_process_that_loads_again_gets_the_newest_version(self):
        mount = self.begin(grace="1")
        engine = Loader(self, mount)
        self.assertEqual(engine.load("read"), [1] * SHARDS)
        for version in (2, 3):
            before = time.monotonic()
            self.publish_next(1, mount)
            wait_seconds(1.2 - (time.monotonic() - before))
            self.assertEqual(engine.load("read"), [version] * SHARDS)

    def test_a_program_that_is_started_after_a_load_gets_the_newest_version(self):
        mount = self.begin()
        self.assertEqual(Loader(self, mount, session=False).load(), [1] * SHARDS)
        self.publish_next(1, mount)
        self.assertEqual(Loader(self, mount, session=False).load(), [2] * SHARDS)
        [first, second] = [(pin["version"], len(pin["members"])) for pin in self.pins(mount)]
        self.assertEqual((first, second), ((1, 1), (2, 1)))

    def test_a_tag_is_a_symlink_of_its_own(self):
        mount = self.begin()
        self.publish_next(1, mount)
        tag = self.publish_tagged("best", mount)
        loader = Loader(self, mount)
        self.assertEqual(loader.open(0, through="tags/best"), tag)
        newer = self.publish_tagged("best", mount)
        self.assertEqual([loader.open(shard, through="tags/best") for shard in (1, 2)], [tag] * 2)
        self.assertEqual(loader.open(0), newer)
        self.assertEqual([(pin["link"], pin["version"]) for pin in self.pins(mount)],
                         [("tags/best", tag), ("latest", newer)])
        other = Loader(self, mount)
        self.assertEqual([other.open(shard, through="tags/best") for shard in range(SHARDS)],
                         [newer] * SHARDS)

    def publish_tagged(self, tag, mount):
        """Returns: the version."""
        self.published += 1
        folder = os.path.join(self.dir, f"checkpoint-{self.published}")
        write_checkpoint(folder, self.published)
        self.publish(folder, "--tag", tag)
        mount.wait_version(self.published)
        return self.published

    def test_pinned_versions_keep_their_images(self):
        mount = self.begin("--store-size", "30K")  # of checkpoints of 13 KiB
        loader = Loader(self, mount)
        self.assertEqual(loader.open(0, "read"), 1)  # nothing of it is open or mapped
        self.publish_next(6, mount)
        listed = [int(name) for name in os.listdir(mount.join("versions"))]
        self.assertIn(1, listed)
        self.assertEqual([loader.open(1), loader.open(2)], [1, 1])
        harness.call("unpin", mount.path)
        loader.close()
        harness.wait_until(lambda: self.gone_after_publish(mount, 1), "version 1 to go")

    def gone_after_publish(self, mount, version):
        self.publish_next(1, mount)
        return str(version) not in os.listdir(mount.join("versions"))


class Sessions(PinTest):
    def test_another_pid_namespace(self):
        mount = self.begin()
        loader = Loader(self, mount, before=("unshare", "--pid", "--fork", "--kill-child"))
        self.assertEqual(loader.open(0), 1)
        self.publish_next(2, mount)
        self.assertEqual(loader.load(), [1] * SHARDS)
        self.assertEqual(Loader(self, mount).load(), [3] * SHARDS)

    def test_callers_that_the_daemon_cannot_see_share_one_session(self):
        self.init()
        self.publish_next()
        mount = harness.Mount(self, self.url, "--pin-grace", LONG)
        daemon = harness.subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", harness.BINARY, *mount.arguments(),
             "--foreground"], env=harness.environment(), stdout=harness.subprocess.DEVNULL,
            stderr=harness.subprocess.DEVNULL)
        self.addCleanup(daemon.wait)
        self.addCleanup(harness.libc.umount2, mount.path.encode(), harness.MNT_DETACH)
        status = mount.join(".weightfs", "status")
        harness.wait_until(lambda: os.path.exists(status), "the mount")
        loaders = [Loader(self, mount) for _ in range(2)]
        self.assertEqual(loaders[0].open(0), 1)
        self.publish_next(2, mount)
        self.assertEqual([loader.load() for loader in loaders], [[1] * SHARDS] * 2)
        self.assertEqual([pin["session"] for pin in self.pins(mount)], ["invisible, uid 0"])

    def cgroup(self):
        """A new cgroup below this process's own."""
        for line in harness.read_file("/proc/self/cgroup").decode().splitlines():
            number, controllers, path = line.split(":", 2)
            roots = (["/sys/fs/cgroup/unified", "/sys/fs/cgroup"] if number == "0"
                     else [f"/sys/fs/cgroup/{controllers.replace('name=', '')}"])
            for root in roots:
                folder = os.path.join(root, path.lstrip("/"), f"weightfs-test-{os.getpid()}")
                if not os.path.exists(os.path.join(os.path.dirname(folder), "cgroup.procs")):
                    continue
                try:
                    os.mkdir(folder)
                except OSError:
                    continue
                self.addCleanup(os.rmdir, folder)
                return folder
        self.skipTest("no cgroup can be made here")

    def test_another_cgroup(self):
        folder = self.cgroup()
        mount = self.begin()
        inside = [Loader(self, mount) for _ in range(2)]  # of two process sessions
        for loader in inside:
            loader.ask("join", os.path.join(folder, "cgroup.procs"))
        outside = Loader(self, mount)
        self.assertEqual(inside[0].open(0), 1)
        self.publish_next(1, mount)
        self.assertEqual([loader.load() for loader in inside], [[1] * SHARDS] * 2)
        self.assertEqual(outside.load(), [2] * SHARDS)
        sessions = [pin["session"] for pin in self.pins(mount)]
        self.assertEqual(len(sessions), 2)
        self.assertRegex(sessions[0], f"^cgroup .*{os.path.basename(folder)}$")
        for loader in inside:
            loader.close()


class ByHand(PinTest):
    def test_a_version_that_is_pinned_by_hand_stays_until_it_is_unpinned(self):
        mount = self.begin("--store-size", "30K")
        self.assertEqual(harness.call("pin", mount.path)["version"], 1)
        self.publish_next(4, mount)
        self.assertEqual(mount.latest(), 5)
        mount.umount()
        mount.start()
        [pin] = self.pins(mount)
        self.assertEqual((pin["version"], pin["session"]), (1, None))
        self.publish_next(2, mount)
        self.assertEqual(Loader(self, mount).open(0, "read", "versions/1"), 1)
        self.assertEqual(harness.call("unpin", mount.path, "--version", 1)["ended"], 1)
        harness.wait_until(lambda: self.gone(mount, 1), "version 1 to go")

    def gone(self, mount, version):
        self.publish_next(1, mount)
        return str(version) not in os.listdir(mount.join("versions"))

    def test_what_is_not_here_cannot_be_pinned_or_unpinned(self):
        mount = self.begin()
        for command in (("pin", mount.path, "--version", 7), ("unpin", mount.path, "--version", 1),
                        ("unpin", mount.path, "--session", "session 1")):
            done = harness.run(*command)
            self.assertEqual(done.returncode, 1, command)
            self.assertTrue(done.stderr, command)
        self.assertEqual(self.pins(mount), [])
        self.assertEqual(harness.call("unpin", mount.path)["ended"], 0)

    def test_the_pin_of_a_session_is_taken_away(self):
        mount = self.begin()
        loaders = [Loader(self, mount) for _ in range(2)]
        for loader in loaders:
            self.assertEqual(loader.load(), [1] * SHARDS)
        self.publish_next(1, mount)
        session = f"session {loaders[0].process.pid}"
        harness.call("unpin", mount.path, "--session", session)
        self.assertEqual(loaders[0].load(), [2] * SHARDS)
        self.assertEqual(loaders[1].load(), [1] * SHARDS)
        self.assertEqual(harness.call("unpin", mount.path)["ended"], 2)
        self.assertEqual(loaders[1].load(), [2] * SHARDS)


def wait_seconds(seconds):
    """For rules that are about time itself."""
    end = time.monotonic() + seconds
    harness.wait_until(lambda: time.monotonic() >= end, "time")


if __name__ == "__main__":
    harness.main()
