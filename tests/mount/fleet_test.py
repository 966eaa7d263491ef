"""Readers that announce themselves, `weightfs fleet`, and a trainer's gate: `wait --replicas`."""

import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import slow_bucket  # noqa: E402
from harness import call, run, wait_until  # noqa: E402
from hooked import QUICK, HookTest  # noqa: E402

ANNOUNCE = ("--announce", "--announce-every", "1")
TIMED_OUT = 5


class Fleet(HookTest, harness.MountTest):
    def reader(self, name, *options):
        return self.mount(*ANNOUNCE, *options, name=name, store=f"store-{name}")

    def fleet(self):
        """{place: reader}"""
        return {one["place"]: one for one in call("fleet", self.url)["readers"]}

    def wait_reader(self, place, condition, what):
        def seen():
            one = self.fleet().get(place)
            return one if one and condition(one) else None
        return wait_until(seen, what)

    def gate(self, replicas, version, *options, timeout=60):
        return run("wait", self.url, "--replicas", replicas, "--version", version,
                   "--timeout", timeout, *options)

    def test_a_trainer_waits_at_a_mount_that_has_no_version_yet(self):
        steps = self.make_run(1)
        self.init()
        one = self.reader("one")
        waiting = harness.start("wait", one.path, "--replicas", "1", "--version", "latest",
                                "--timeout", "60", "--json")
        self.addCleanup(waiting.kill)
        self.publish(steps[0])
        out, err = waiting.communicate(timeout=90)
        self.assertEqual(waiting.returncode, 0, err)
        self.assertEqual(json.loads(out)["version"], 1)

    def test_a_trainer_waits_for_its_readers(self):
        steps = self.make_run(4)
        self.init()
        self.publish(steps[0])
        engine = self.engine("vllm")
        one, two = self.reader("one"), self.reader("two", "--hook", "exec=/bin/true")
        three = self.reader("three", "--hook", f"vllm={engine.url}{QUICK}")
        done = self.gate(3, 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 of 3 readers have version 1 or later", done.stdout)
        readers = self.fleet()
        self.assertEqual(set(readers), {one.path, two.path, three.path})
        self.assertEqual(len({reader["id"] for reader in readers.values()}), 3)
        self.assertEqual({reader["presence"] for reader in readers.values()}, {"live"})
        self.assertEqual(readers[three.path]["engines"],
                         [{"name": f"vllm {engine.url}", "state": "current", "version": 1}])
        table = run("fleet", self.url).stdout
        self.assertEqual(table.split()[:7],
                         ["HOST", "PLACE", "VERSION", "LAG", "HEALTH", "AGE", "ENGINES"])
        self.assertIn(two.path, table)

        # Eight trainers at once, for a version that does not exist yet.
        waits = [harness.start("wait", self.url, "--replicas", "3", "--version", "2", "--json")
                 for _ in range(8)]
        self.publish(steps[1])
        for process in waits:
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            self.assertEqual(json.loads(out)["ready"], 3)
        self.assertEqual(one.latest(), 2)

        # An engine that does not have the version holds the gate, and is named.
        engine.stop()
        self.wait_reader(three.path, lambda reader: reader["engines"][0]["state"] == "unreachable",
                         "the engine to be missed")
        done = self.gate(3, 2, timeout=1)
        self.assertEqual(done.returncode, TIMED_OUT)
        self.assertIn("2 of 3 readers have version 2", done.stderr)
        self.assertIn(f"its engine vllm {engine.url} is unreachable", done.stderr)
        self.assertEqual(self.gate(2, 2, timeout=20).returncode, 0)

        # A tag that does not exist yet; a mount in place of the URL; a lag that is allowed.
        waiting = harness.start("wait", one.path, "--replicas", "2", "--version", "step-3",
                                "--timeout", "60")
        self.publish(steps[2], "--tag", "step-3")
        out, err = waiting.communicate(timeout=90)
        self.assertEqual(waiting.returncode, 0, err)
        self.assertIn("have version 3", out)
        self.assertEqual(self.gate(2, 4, timeout=1).returncode, TIMED_OUT)
        self.assertEqual(self.gate(2, 4, "--max-lag", "1").returncode, 0)

        # One is killed, one ends, one comes back.
        first = self.fleet()
        two.process.kill(signal.SIGKILL)
        self.wait_reader(two.path, lambda reader: reader["presence"] == "gone", "it to be gone")
        one.umount()
        self.assertEqual(self.fleet()[one.path]["presence"], "left")
        done = self.gate(2, 3, timeout=1)
        self.assertEqual(done.returncode, TIMED_OUT)
        self.assertIn("1 gone; 1 left", done.stderr)
        one.start()
        again = self.wait_reader(one.path, lambda reader: reader["presence"] == "live", "it")
        self.assertEqual(again["id"], first[one.path]["id"])

        # Nothing else minds what is in readers/, and gc removes what is old.
        self.assert_clean()
        verified = call("verify", self.url)
        self.assertNotIn("readers/", json.dumps(verified))
        self.assertEqual(call("du", self.url)["kinds"]["readers"]["objects"], 3)
        record = self.object(f"readers/{first[two.path]['id']}.json")
        old = time.time() - 8 * 24 * 3600
        os.utime(record, (old, old))
        self.assertEqual(call("gc", self.url)["readers"]["objects"], 1)
        self.assertTrue(os.path.exists(record))
        call("gc", self.url, "--delete")
        self.assertFalse(os.path.exists(record))
        self.assertEqual(len(self.fleet()), 2)

    def test_a_bucket_that_refuses_disturbs_nothing(self):
        steps = self.make_run(2)
        self.init()
        self.publish(steps[0])
        with open(self.object("readers"), "w"):  # so nothing can be written below it
            pass
        mount = self.reader("one")
        status = mount.wait_status(lambda status: status["announce"]["error"], "its refusal")
        self.assertTrue(status["health"].startswith("degraded: this reader is not announced"))
        self.publish(steps[1])
        mount.wait_version(2)
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() > begun + 2.5, "two more refusals")
        with open(os.path.join(mount.store, "weightfs.log")) as log:
            self.assertEqual(log.read().count("announcing this reader fails"), 1)
        self.assertEqual(run("fleet", self.url).returncode, 0)
        self.assertEqual(self.gate(1, 2, timeout=1).returncode, TIMED_OUT)
        os.unlink(self.object("readers"))
        self.assertEqual(self.gate(1, 2).returncode, 0)
        mount.wait_status(lambda status: status["health"] == "healthy", "its health")

    def test_nobody_waits_for_the_mount_while_a_bucket_hangs_at_the_end(self):
        self.make_repository(1)
        slow = slow_bucket.SlowBucket(self.bucket)
        self.addCleanup(slow.close)
        slow.takes = "readers/"
        mount = harness.Mount(self, slow_bucket.URL, "--announce", variables=slow.variables())
        mount.start()
        mount.wait_status(lambda status: status["announce"]["records"], "its record")
        farewell = []

        def is_farewell(read):
            if read.key.startswith("readers/"):
                farewell.append(time.monotonic())
            return read.key.startswith("readers/")
        slow.hold(is_farewell)
        os.kill(mount.process.pid, signal.SIGTERM)

        def is_mounted():
            with open("/proc/self/mountinfo") as file:
                return f" {mount.path} " in file.read()
        wait_until(lambda: not is_mounted(), "the end of the mount")
        gone = time.monotonic()
        wait_until(lambda: farewell, "the farewell")
        self.assertLess(gone, farewell[0] + 1)
        self.assertTrue(mount.process.has_ended(10))

    def test_a_sync_announces_itself_too(self):
        self.make_repository(1)
        folder = os.path.join(self.dir, "folder")
        sync = harness.start("sync", self.url, folder, "--poll", "0.05", *ANNOUNCE,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.workspace.processes.append(harness.Process(sync.pid))
        self.assertEqual(self.gate(1, 1).returncode, 0)
        self.assertEqual(self.fleet()[folder]["pid"], sync.pid)
        sync.terminate()
        sync.wait(timeout=30)
        self.assertEqual(self.fleet()[folder]["presence"], "left")

    def test_a_sync_that_has_no_version_yet_says_that_it_is_announced(self):
        self.make_repository(1)
        slow = slow_bucket.SlowBucket(self.bucket)
        self.addCleanup(slow.close)
        slow.hold()
        folder = os.path.join(self.dir, "folder")
        sync = harness.start("sync", slow_bucket.URL, folder, "--poll", "0.05", *ANNOUNCE,
                             "--metrics", "127.0.0.1:0", variables=slow.variables(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.workspace.processes.append(harness.Process(sync.pid))
        path = os.path.join(folder, ".weightfs/status")

        def fetching():
            with contextlib.suppress(FileNotFoundError):
                status = json.loads(harness.read_file(path))
                return status["newest"] == 1 and status
        status = wait_until(fetching, "it to fetch its first version")
        self.assertEqual((status["version"], status["announce"]["records"]), (0, 0))
        with urllib.request.urlopen(f"http://{status['metrics']}/metrics", timeout=30) as answer:
            self.assertIn(b'weightfs_problems{problem="announce"} 0', answer.read())
        sync.terminate()
        sync.wait(timeout=30)

    def test_hostile_records_are_not_printed_raw(self):
        self.make_repository(1)
        os.makedirs(self.object("readers"))
        mount = self.reader("one")
        self.assertEqual(self.gate(1, 1).returncode, 0)
        record = glob.glob(self.object("readers/*.json"))[0]
        with open(record) as file:
            said = json.load(file)
        for i, change in enumerate(({"host": "\x1b[2J"}, {"host": "x" * 2000}, {"every": 10**9},
                                    {"engines": [{}] * 5000}, {"id": "e" * 32})):
            name = format(i, "032x")
            with open(self.object(f"readers/{name}.json"), "w") as file:
                json.dump({**said, "id": name, **change}, file)
        done = run("fleet", self.url)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.count("not counted: "), 5, done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        self.assertEqual(self.gate(2, 1, timeout=1).returncode, TIMED_OUT)
        self.assertEqual(mount.latest(), 1)


if __name__ == "__main__":
    harness.main()
