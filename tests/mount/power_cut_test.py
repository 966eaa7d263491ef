"""The power is cut at random points of syncing, recording, adopting and publishing: 230 times.

The store lies on a disk that forgets what was not flushed, the bucket on another one. After a cut, whatever
opens is right, byte by byte; what is not there is rebuilt; what was acknowledged is in the bucket.

The test has teeth if cuts leave files of the right size with other bytes, and recorded ones: half of the
cuts come after the records were written and the images were not, and it is counted how many versions were
found damaged when the store was opened."""

import errno
import os
import re
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import disks  # noqa: E402
import harness  # noqa: E402

CUTS = {"sync": 90, "history": 30, "adopt": 50, "publish": 60}
VERSIONS = 12
PARAMS = 1_500_000  # 3 MiB a version
GONE = "gone"
UNSYNCED = re.compile(r"version (\d+) was not synced to disk or was written to since(;|, and)")


def pause(longest):
    """A random point of what goes on: no wait for anything."""
    time.sleep(harness.RANDOM.uniform(0, longest))


def spin_until(condition, what):
    """As wait_until(), but sees it at once: what comes next must not be synced meanwhile."""
    limit = time.monotonic() + 30
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"waited 30 s for: {what}")


class PowerCuts(harness.MountTest):
    def setUp(self):
        # What is cut is what the loop device had been given: a disk below it would only be slow.
        below = self.tmpfs("below", "2G")
        self.bucket = os.path.join(below, "bucket")
        self.url = "file://" + self.bucket
        self.disk = disks.Disk(self, folder=below)
        self.good = self.damaged = self.cuts = 0
        self.log_bytes = 0

    def cut(self, mount):
        """Kills the daemon, cuts the power, and mounts the disk again."""
        mount.process.kill()
        harness.libc.umount2(mount.path.encode(), harness.MNT_DETACH)
        self.cut_disk(mount.store)

    def cut_disk(self, store):
        if harness.RANDOM.random() < 0.5:
            disks.write_records(store)
        self.disk.cut()
        self.cuts += 1

    def start(self, mount):
        """Mounts, and counts the unsynced versions that were found."""
        log = os.path.join(mount.store, "weightfs.log")
        before = os.path.getsize(log) if os.path.exists(log) else 0
        mount.start()
        with open(log) as file:
            file.seek(before)
            found = UNSYNCED.findall(file.read())
        self.good += sum(how == ";" for _, how in found)
        self.damaged += sum(how == ", and" for _, how in found)

    def tell(self):
        print(f"{self.cuts} cuts; unsynced versions found: {self.good} right, {self.damaged} damaged",
              flush=True)

    # ---- following ----

    def make_history(self):
        """Publishes all versions, then takes back the manifests but the first: they arrive one by one."""
        steps = self.make_repository(VERSIONS, PARAMS)
        self.trees = {i + 1: harness.hash_tree(step) for i, step in enumerate(steps)}
        self.hidden = os.path.join(self.dir, "hidden")
        os.makedirs(self.hidden)
        self.hide_all()

    def hide_all(self):
        for version in range(2, VERSIONS + 1):
            if os.path.exists(self.manifest(version)):
                shutil.move(self.manifest(version), self.hidden)
        self.newest = 1

    def arrive(self):
        self.newest += 1
        shutil.move(os.path.join(self.hidden, os.path.basename(self.manifest(self.newest))),
                    self.manifest(self.newest))

    def spin_until_latest(self, mount):
        version, latest = f"versions/{self.newest}", mount.join("latest")
        spin_until(lambda: os.readlink(latest) == version, version)

    def check_versions(self, mount):
        """What is listed, unless it goes meanwhile to make room."""
        for version in map(int, os.listdir(mount.join("versions"))):
            tree = harness.wait_until(lambda: self.find_tree(mount, version), f"version {version}, or its end")
            if tree != GONE:
                self.assertEqual(tree, self.trees[version], f"version {version}")

    @staticmethod
    def find_tree(mount, version):
        """None: it is being looked up whether it may go."""
        try:
            return harness.hash_tree(mount.join("versions", version))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
        return None if str(version) in os.listdir(mount.join("versions")) else GONE

    def restart_history(self, mount):
        shutil.rmtree(mount.store)
        self.hide_all()

    def test_following(self):
        self.make_history()
        mount = harness.Mount(self, self.url, store="disk/store")
        for _ in range(CUTS["sync"]):
            self.start(mount)
            self.check_versions(mount)
            mount.wait_version(self.newest)
            self.check_versions(mount)
            for _ in range(harness.RANDOM.randint(1, 3)):
                if self.newest < VERSIONS:
                    self.arrive()
                    pause(0.12)
            if self.newest < VERSIONS and harness.RANDOM.random() < 0.6:
                self.arrive()
                self.spin_until_latest(mount)
            self.cut(mount)
            if self.newest == VERSIONS:
                self.restart_history(mount)
        self.start(mount)
        mount.wait_version(self.newest)
        self.check_versions(mount)
        self.tell()
        self.assertGreater(self.good + self.damaged, 0)
        self.assertGreater(self.damaged, 0, "no cut took anything: the test shows nothing")

    def test_a_byte_that_changed_in_an_unsynced_version_is_found(self):
        """The control: without the check at the opening of the store this fails."""
        self.make_history()
        mount = harness.Mount(self, self.url, store="disk/store")
        for _ in range(30):
            self.start(mount)
            mount.wait_version(self.newest)
            self.arrive()
            version = self.newest
            self.spin_until_latest(mount)
            mount.process.kill()
            harness.libc.umount2(mount.path.encode(), harness.MNT_DETACH)
            os.sync()  # all is there, and right, but what the daemon had no time to record
            self.spoil(os.path.join(mount.store, "images", str(version), "model.safetensors"))
            found = self.damaged
            self.start(mount)
            if self.damaged > found:
                mount.wait_version(version)
                self.check_versions(mount)
                return
            self.cut(mount)  # it was synced: what changes then is no power cut's
            self.restart_history(mount)
        self.fail("every version was synced before the daemon was killed")

    def spoil(self, path):
        if not os.path.exists(path):
            path = next(os.path.join(os.path.dirname(path), name)
                        for name in sorted(os.listdir(os.path.dirname(path)))
                        if name.endswith(".safetensors"))
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))

    # ---- history ----

    def follow_some(self, mount):
        """Versions arrive, each when the one before is recorded; the cut comes while the patches of the
        last one are taken, or after. Returns what is recorded."""
        for _ in range(harness.RANDOM.randint(1, 4)):
            if self.newest == VERSIONS:
                break
            mount.wait_status(lambda status: status["history"]["recorded"] == self.newest, "recorded")
            self.arrive()
            self.spin_until_latest(mount)
        pause(0.05)
        return mount.status()["history"]["recorded"]

    def check_history(self, mount, recorded):
        """All versions up to the newest that was recorded are there, without the bucket."""
        away = self.bucket + ".away"
        os.rename(self.bucket, away)
        self.start(mount)
        newest = mount.latest()
        self.assertGreaterEqual(newest, recorded)
        for version in [*range(1, recorded + 1), newest]:
            self.assertEqual(harness.hash_tree(mount.join("versions", version)),
                             self.trees[version], f"version {version} of {newest}, offline")
        mount.umount()
        os.rename(away, self.bucket)

    def test_what_is_recorded_is_there(self):
        self.make_history()
        mount = harness.Mount(self, self.url, "--images", "memory", store="disk/store")
        checked = 0
        for _ in range(CUTS["history"]):
            self.start(mount)
            mount.wait_version(self.newest)
            mount.wait_status(lambda status: status["unsynced"] == [], "the base is on the disk")
            recorded = self.follow_some(mount)
            self.cut(mount)
            self.check_history(mount, recorded)
            checked += recorded > 1
            if self.newest == VERSIONS:
                self.restart_history(mount)
        self.tell()
        self.assertGreater(checked, CUTS["history"] // 2)

    # ---- a writer's mount ----

    def make_sources(self):
        self.steps = self.make_run(VERSIONS, PARAMS)
        self.step_trees = [harness.hash_tree(step) for step in self.steps]
        self.init()

    def tree_of(self, tag):
        """The checkpoint that was handed over, or published, with this tag."""
        return self.step_trees[int(tag.split("-")[-1]) % VERSIONS]

    def check_tagged(self, mount):
        for tag in os.listdir(mount.join("tags")):
            version = os.readlink(mount.join("tags", tag)).split("/")[-1]
            if version in os.listdir(mount.join("versions")):
                self.assertEqual(harness.hash_tree(mount.join("versions", version)),
                                 self.tree_of(tag), f"{tag}, version {version}")

    def check_bucket(self, acknowledged):
        """What was acknowledged is there, and all of it is whole."""
        tags = {entry["tag"] for entry in harness.call("log", self.url)}
        self.assertLessEqual(set(acknowledged), tags)
        self.assert_clean()
        for tag in harness.RANDOM.sample(sorted(acknowledged), min(6, len(acknowledged))):
            out = os.path.join(self.dir, "exported-" + tag)
            harness.call("export", self.url, out, "--version", tag)
            self.assertEqual(harness.hash_tree(out), self.tree_of(tag), tag)

    def clear(self, mount):
        """Takes away what a cut left half-way: it was not acknowledged."""
        for folder in ("publish", "staging"):
            for name in os.listdir(mount.join(folder)):
                shutil.rmtree(mount.join(folder, name), ignore_errors=True)

    def test_handing_over(self):
        self.make_sources()
        mount = harness.Mount(self, self.url, "--writer", store="disk/store")
        acknowledged = []
        for number in range(CUTS["adopt"]):
            self.start(mount)
            self.check_tagged(mount)
            self.clear(mount)
            tag = f"t-{number}"
            shutil.copytree(self.steps[number % VERSIONS], mount.staging(tag))
            os.rename(mount.staging(tag), mount.join("publish", tag))
            if harness.RANDOM.random() < 0.6:
                shown = mount.join("tags", tag)
                spin_until(lambda: os.path.lexists(shown), tag)
                acknowledged.append(tag)
                if harness.RANDOM.random() < 0.3:
                    pause(0.03)
            else:
                pause(0.2)
            self.cut(mount)
        self.start(mount)
        self.check_tagged(mount)
        self.tell()
        self.check_bucket(acknowledged)
        self.assertGreater(len(acknowledged), 0)

    # ---- the command ----

    def test_publishing(self):
        self.make_sources()
        store = os.path.join(self.disk.path, "store")
        acknowledged = []
        for number in range(CUTS["publish"]):
            command = harness.start("publish", self.url, self.steps[number % VERSIONS], "--store",
                                    store, "--tag", f"t-{number}", "--json")
            if harness.RANDOM.random() < 0.4:
                said, errors = command.communicate(timeout=60)
                self.assertEqual(command.returncode, 0, errors)
            else:
                pause(0.25)
                command.kill()
                command.communicate()
            if command.returncode == 0:
                acknowledged.append(f"t-{number}")
            self.cut_disk(store)
        self.tell()
        self.check_bucket(acknowledged)
        self.assertGreater(len(acknowledged), 0)


if __name__ == "__main__":
    disks.skip_without_loop_devices()
    harness.main()
