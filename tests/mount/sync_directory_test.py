"""weightfs sync: a directory of ordinary files, kept up to date by an unprivileged user."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
from synced import USER, Service, SyncTest, run  # noqa: E402

PARAMS = 20_000


class SyncDirectory(SyncTest):
    # ---- following ----

    def test_under_nohup_it_outlives_its_terminal(self):
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        service = Service(self, under=("nohup",))
        service.ready()
        service.process.send_signal(signal.SIGHUP)
        self.publish(steps[1])
        done = run("wait", self.path, "--version", 2, "--timeout", 60)
        self.assertEqual(done.returncode, 0, done.stderr)
        service.process.send_signal(signal.SIGTERM)
        self.assertEqual(service.process.wait(60), 0)

    def test_a_user_without_root_follows(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0], "--tag", "one")
        service = Service(self)
        said = service.ready()
        self.assertEqual((said["version"], said["directory"]), (1, self.path))
        self.assert_same_tree(self.join("latest/"), steps[0])
        for version, step in enumerate(steps[1:], 2):
            self.publish(step, "--tag", "best")
            done = run("wait", self.path, "--version", version, "--timeout", 60, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["path"], self.join("versions", version))
            self.assertEqual(self.latest(), version)  # not before it is shown
            self.assert_same_tree(self.join("latest/"), step)
        for parent, _, names in os.walk(self.join("latest/")):
            found = os.stat(parent)
            self.assertEqual((stat.S_IMODE(found.st_mode), found.st_uid), (0o755, USER))
            for name in names:
                found = os.stat(os.path.join(parent, name))
                self.assertEqual((stat.S_IMODE(found.st_mode), found.st_uid), (0o444, USER))
                self.assertGreater(found.st_nlink, 1)  # no second copy of it
        self.assertEqual(self.call("wait", self.path, "--tag", "best")["version"], 3)
        status = harness.wait_until(lambda: (lambda s: s["newest"] == 3 and s)(self.status()),
                                    "the status")
        self.assertEqual((status["version"], status["state"], status["serve"]["mode"]),
                         (3, "current", "directory"))
        self.assertEqual(status["pid"], service.process.pid)
        text = harness.run("status", self.path).stdout
        self.assertIn("ordinary files", text)

        self.assertEqual([one["version"] for one in self.call("log", self.path)], [3, 2, 1])
        self.assertEqual(self.call("verify", self.path)["problems"], [])
        self.assertEqual(service.stop(), 0)
        self.assertEqual(self.status()["state"], "ended")
        done = run("wait", self.path, "--newer-than", 3)
        self.assertEqual(done.returncode, 1)
        self.assertIn("weightfs sync", done.stderr)

    def test_an_empty_repository_is_waited_for(self):
        steps = self.make_run(1, PARAMS)
        self.init()
        service = Service(self)
        self.assertEqual(service.ready()["version"], 0)
        self.assertEqual(self.latest(), 0)
        self.publish(steps[0])
        self.wait_latest(1)
        self.assert_same_tree(self.join("latest/"), steps[0])

    def test_follows_a_tag_or_stays_at_a_version(self):
        steps = self.make_run(4, PARAMS)
        self.init()
        self.publish(steps[0], "--tag", "canary")
        self.publish(steps[1])
        self.once("--follow", "canary")
        self.assertEqual(os.listdir(self.join("versions")), ["1"])
        self.publish(steps[2], "--tag", "canary")
        self.publish(steps[3])
        self.once("--follow", "canary")
        self.assertEqual(self.latest(), 3)
        self.once("--follow", "2")
        self.assertEqual(self.latest(), 2)
        self.assert_same_tree(self.join("latest/"), steps[1])
        self.once()
        self.assertEqual(self.latest(), 4)
        self.assert_fails_once(1, "carries the tag canray; did you mean canary?; the tag is canary",
                               "--follow", "canray")
        self.assert_fails_once(1, "version 7 does not exist", "--follow", "7")
        self.assertEqual(self.latest(), 4)  # what is there stays
        self.assert_same_tree(self.join("latest/"), steps[3])

    def test_once_is_one_round(self):
        steps = self.make_run(2, PARAMS)
        self.init()
        self.assertEqual(self.once()["version"], 0)
        self.publish(steps[0])
        self.assertEqual(self.once()["version"], 1)
        self.assertEqual(self.once()["version"], 1)
        self.publish(steps[1])
        self.assertEqual(self.once()["version"], 2)
        self.assert_same_tree(self.join("latest/"), steps[1])
        os.rename(self.bucket, self.bucket + ".away")
        done = run("sync", self.url, self.path, "--once")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assert_same_tree(self.join("latest/"), steps[1])
        service = Service(self)  # goes on with what it has, and looks again
        self.assertTrue(service.ready()["offline"])
        self.assert_same_tree(self.join("latest/"), steps[1])

    def call(self, *arguments):
        done = run(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_fails_once(self, code, message, *options):
        done = run("sync", self.url, self.path, "--once", *options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(message, done.stderr)

    def test_once_in_an_empty_repository_is_a_success(self):
        self.init()
        for follow in ("latest", "canary", "7"):
            self.assertEqual(self.once("--follow", follow)["version"], 0)

    def test_once_fails_on_damage_the_first_time_too(self):
        steps = self.make_repository(5, PARAMS)
        good = harness.read_file(self.manifest(4))
        harness.write_file(self.manifest(4), good[:-9] + b"?" + good[-8:])
        for _ in range(2):
            self.assert_fails_once(4, "versions/00000000000000000004.json")
            self.assertEqual(self.latest(), 3)  # what comes before it is brought
            self.assert_same_tree(self.join("latest/"), steps[2])
        harness.write_file(self.manifest(4), good)
        self.assertEqual(self.once()["version"], 5)

    def test_once_fails_on_a_gap_and_names_the_manifest(self):
        steps = self.make_repository(5, PARAMS)
        manifests = {number: harness.read_file(self.manifest(number)) for number in range(1, 6)}
        # What the directory has at first, and what is missing then.
        for has, missing in ((0, 1), (0, 3), (1, 3), (2, 3)):
            shutil.rmtree(self.path, ignore_errors=True)
            for number in range(has + 1, 6):
                os.unlink(self.manifest(number))
            self.assertEqual(self.once()["version"], has)
            for number in manifests:
                if number not in (*range(1, has + 1), missing):
                    harness.write_file(self.manifest(number), manifests[number])
            for _ in range(2):
                self.assert_fails_once(4, f"versions/{missing:020d}.json is missing")
                self.assertEqual(self.latest(), missing - 1)  # what comes before it is brought
                if missing > 1:
                    self.assert_same_tree(self.join("latest/"), steps[missing - 2])
            harness.write_file(self.manifest(missing), manifests[missing])
            self.assertEqual(self.once()["version"], 5)
            self.assert_same_tree(self.join("latest/"), steps[4])

    def test_once_fails_on_a_damaged_manifest_that_may_carry_the_tag(self):
        steps = self.make_run(2, PARAMS)
        self.init()
        for number in range(1, 15):  # so many that a first run reads only what it needs
            tag = ("--tag", "canary") if number in (3, 8) else ()
            self.publish(steps[number % 2], *tag)
        good = harness.read_file(self.manifest(8))
        harness.write_file(self.manifest(8), good[:-20])
        for _ in range(2):
            self.assert_fails_once(4, "the tag of version 8 is not known", "--follow", "canary")
            self.assertEqual(self.latest(), 3)
            self.assert_same_tree(self.join("latest/"), steps[1])
        harness.write_file(self.manifest(8), good)
        self.assertEqual(self.once("--follow", "canary")["version"], 8)

    def test_a_gap_before_what_a_directory_has_is_none_of_its_business(self):
        steps = self.make_repository(3, PARAMS)
        self.assertEqual(self.once()["version"], 3)
        for missing in (1, 2):
            os.unlink(self.manifest(missing))
            self.assertEqual(self.once()["version"], 3)
        self.assert_same_tree(self.join("latest/"), steps[2])

    # ---- readers ----

    def test_every_read_of_latest_is_one_whole_version(self):
        steps = self.make_run(7, PARAMS)
        whole = {json.dumps(harness.hash_tree(step), sort_keys=True): version
                 for version, step in enumerate(steps, 1)}
        self.init()
        self.publish(steps[0])
        service = Service(self, "--store-size", "1GiB")
        service.ready()
        seen, problems, done = [], [], threading.Event()

        def hammer():
            while not done.is_set():
                try:
                    folder = os.path.realpath(self.join("latest"))
                    found = json.dumps(harness.hash_tree(folder), sort_keys=True)
                    seen.append(whole[found])
                except (OSError, KeyError) as error:
                    problems.append(repr(error))

        reader = threading.Thread(target=hammer)
        reader.start()
        try:
            for version, step in enumerate(steps[1:], 2):
                self.publish(step)
                self.wait_latest(version)
        finally:
            done.set()
            reader.join()
        self.assertEqual(problems, [])
        self.assertEqual(seen, sorted(seen))
        self.assertGreater(len(seen), len(steps))

    def test_what_is_open_stays_and_goes_when_it_is_closed(self):
        steps = self.make_run(4, PARAMS)
        self.init()
        self.publish(steps[0])
        service = Service(self, *self.room_for_two(steps[0]))
        service.ready()
        name = [name for name in os.listdir(steps[0]) if name.endswith(".safetensors")][0]
        with open(self.join("latest", name), "rb"):
            self.publish(steps[1])
            self.wait_latest(2)
            self.publish(steps[2])
            self.wait_latest(3)
            self.assert_same_tree(self.join("versions/1"), steps[0])
        self.publish(steps[3])
        self.wait_latest(4)
        harness.wait_until(lambda: not os.path.exists(self.join("versions/1")), "version 1 to go")

    # ---- whose files ----

    def test_only_a_directory_of_its_own_is_taken(self):
        self.make_repository(1, PARAMS)
        os.makedirs(self.path)
        os.chown(self.path, USER, USER)
        harness.write_file(self.join("notes.txt"), b"mine")
        done = run("sync", self.url, self.path, "--once")
        self.assertEqual(done.returncode, 2)
        self.assertIn("notes.txt", done.stderr)
        self.assertEqual(os.listdir(self.path), ["notes.txt"])
        os.unlink(self.join("notes.txt"))
        service = Service(self)
        service.ready()
        done = run("sync", self.url, self.path, "--once")
        self.assertEqual(done.returncode, 1)
        self.assertIn(str(service.process.pid), done.stderr)

    def test_a_version_of_somebody_else_holds_no_other_back(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        service = Service(self)
        service.ready()
        harness.write_file(self.join("versions/2/a"), b"mine")
        self.publish(steps[1])
        service.wait_status(lambda status: status["error"], "an error")
        self.publish(steps[2])
        done = run("wait", self.path, "--version", 3, "--timeout", 60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.latest(), 3)
        self.assert_same_tree(self.join("latest/"), steps[2])
        status = service.wait_status(lambda status: status["version"] == 3, "version 3")
        self.assertIn("versions/2", status["error"]["message"])
        self.assertEqual(harness.read_file(self.join("versions/2/a")), b"mine")

        service.stop()  # it starts with it, too
        service = Service(self)
        service.ready()
        service.wait_status(lambda status: status["error"], "an error")
        self.assertEqual(self.latest(), 3)

    # ---- behind ----

    def test_a_directory_that_cannot_move_is_later_than_max_lag(self):
        """What its store has is not what readers of the directory get."""
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        service = self.announced("--max-lag", 1)
        harness.write_file(self.join("versions/2/a"), b"mine")
        self.publish(steps[1])
        status = service.wait_status(lambda status: status["health"].startswith("failed"),
                                     "it to be behind")
        self.assertIn("version 1 is shown, and for", status["health"])
        self.assertEqual((status["version"], status["lag_versions"]), (1, 1))
        self.assertGreater(status["lag_seconds"], 1)
        harness.wait_until(lambda: self.reader()["lag_seconds"] > 1, "its record")
        shutil.rmtree(self.join("versions/2"))
        service.wait_status(lambda status: (status["version"], status["lag_seconds"],
                                            status["health"]) == (2, 0, "healthy"),
                            "version 2, healthy")

    def announced(self, *options):
        for folder in (self.object(".tmp"), self.object("readers")):  # the user may write there
            os.makedirs(folder, exist_ok=True)
            os.chown(folder, USER, -1)
        service = Service(self, "--announce", "--announce-every", 1, *options)
        service.ready()
        harness.wait_until(self.reader, "its record")
        return service

    def reader(self):
        """What the bucket has of it; None: nothing."""
        readers = harness.call("fleet", self.url)["readers"]
        return next((one for one in readers if one["place"] == self.path), None)

    def test_a_directory_whose_store_was_lost_has_all_of_its_version(self):
        steps = self.make_repository(2, PARAMS)
        self.assertEqual(self.once()["version"], 2)
        shutil.rmtree(self.join(".weightfs/store"))
        good = harness.read_file(self.manifest(2))  # the new store cannot have it
        harness.write_file(self.manifest(2), good[:-9] + b"?" + good[-8:])
        self.announced()
        self.assertEqual((self.reader()["version"], self.reader()["whole"]), (2, True))
        self.assert_same_tree(self.join("latest/"), steps[1])

    # ---- killed ----

    def test_killed_at_any_point_it_leaves_what_the_next_one_puts_right(self):
        steps = self.make_run(6, PARAMS)
        hashes = [harness.hash_tree(step) for step in steps]
        self.init()
        self.publish(steps[0])
        begin = time.monotonic()
        self.once()
        took = time.monotonic() - begin  # as long as a round takes here
        foreign = {"notes.txt": b"mine", "versions/mine/a": b"b", "versions/77/a": b"b"}
        for name, data in foreign.items():
            harness.write_file(self.join(name), data)
        published = 1
        for round_ in range(14):
            if round_ % 3 == 0 and published < len(steps):
                self.publish(steps[published])
                published += 1
            service = Service(self, *self.room_for_two(steps[0]))
            try:
                service.process.wait(harness.RANDOM.uniform(0.2, 1.2) * took)
            except subprocess.TimeoutExpired:
                pass
            service.kill()
            version = self.latest()
            self.assertEqual(harness.hash_tree(self.join("versions", version)),
                             hashes[version - 1], f"round {round_}")
        for name, data in foreign.items():
            self.assertEqual(harness.read_file(self.join(name)), data)
            os.unlink(self.join(name))
        os.rmdir(self.join("versions/mine"))
        os.rmdir(self.join("versions/77"))
        self.assertEqual(self.once()["version"], published)
        self.assert_same_tree(self.join("latest/"), steps[published - 1])
        self.assert_tidy()


if __name__ == "__main__":
    if not os.path.exists(harness.BINARY):
        sys.exit(f"{harness.BINARY} does not exist; WEIGHTFS_BIN names the binary")
    print(f"seed: WEIGHTFS_TEST_SEED={harness.SEED}", flush=True)
    unittest.main(verbosity=2)
