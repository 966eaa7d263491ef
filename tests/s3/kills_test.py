"""What is killed in the middle: publishers, readers, the server itself. Nothing lost, nothing torn."""

import concurrent.futures
import os
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402
import runs  # noqa: E402
import s3_faults  # noqa: E402

LARGE = 100_000_000  # bytes of a file that goes up in parts
SHORTEST_LIFE, LONGEST_LIFE = 0.3, 4  # seconds of a server that crashes again and again
ROUNDS_MIN, ROUNDS_MAX, KILLED_MIN = 8, 60, 3  # publishers that are killed, or were quicker
PATIENCE = 180  # seconds; who meets a dead server often looks for it every 24 s


class Kills(gateway.S3Test):
    def large_checkpoint(self):
        """One file, of random bytes: quickly made, and nothing of it is equal."""
        folder = os.path.join(self.dir, "large")
        os.makedirs(folder)
        weights = runs.np.random.default_rng(harness.SEED).integers(0, 0x3F80, LARGE // 2, "<u2")
        runs.write_safetensors(os.path.join(folder, "model.safetensors"),
                               [("weight", "BF16", (len(weights),), weights)])
        return folder

    def sent_parts(self, proxy):
        """[(upload, part number)] that the server has taken through this proxy."""
        return [(request.query["uploadId"], int(request.query["partNumber"]))
                for request in list(proxy.seen) if request.is_part() and request.outcome == "200"]

    def test_an_upload_in_parts_goes_on_where_the_killed_one_was(self):
        folder = self.large_checkpoint()
        self.init()
        later = s3_faults.Rule("silent", s3_faults.Request.is_part, skip=2)
        with s3_faults.Proxy(self.gateway, [later]) as proxy:
            self.use(proxy.url)
            publisher = self.start_publish(folder)
            self.addCleanup(publisher.kill)
            harness.wait_until(lambda: len(self.sent_parts(proxy)) == 2, "two parts")
            publisher.kill()
            publisher.communicate()
        self.use()
        (key, upload), = self.uploads()
        said = self.client.list_parts(Bucket=gateway.BUCKET, Key=key, UploadId=upload)
        there = {entry["PartNumber"] for entry in said["Parts"]}
        self.assertEqual(len(there), 2)
        self.assertEqual(self.version_count(), 0)

        with s3_faults.Proxy(self.gateway) as proxy:
            self.use(proxy.url)
            self.assertEqual(self.publish(folder)["version"], 1)
            sent = self.sent_parts(proxy)
        self.assertEqual({of for of, _ in sent}, {upload})
        self.assertEqual(sorted(number for _, number in sent),
                         sorted(set(range(1, LARGE // (16 << 20) + 2)) - there))
        self.assertEqual(self.uploads(), [])
        self.use()
        harness.call("export", self.url, os.path.join(self.dir, "out"))
        self.assert_same_tree(os.path.join(self.dir, "out"), folder)

    def test_faults_in_an_upload_in_parts(self):
        folder = self.large_checkpoint()
        self.init()
        is_part, is_complete = s3_faults.Request.is_part, s3_faults.Request.is_complete
        is_begin = lambda request: request.method == "POST" and "uploads" in request.query
        rules = [s3_faults.Rule(kind, on, limit=1, skip=skip) for kind, on, skip in (
            ("error-500", is_begin, 0), ("lost", is_begin, 0), ("lost", is_part, 1),
            ("reset", is_part, 2), ("slow-down", is_part, 3), ("late-error", is_complete, 0),
            ("error-500", is_complete, 0), ("lost", is_complete, 0))]
        with s3_faults.Proxy(self.gateway, rules) as proxy:
            self.use(proxy.url)
            self.assertEqual(self.publish(folder)["version"], 1)
            self.assertEqual(proxy.landed.total(), len(rules), proxy.landed)
        self.use()
        harness.call("export", self.url, os.path.join(self.dir, "out"))
        self.assert_same_tree(os.path.join(self.dir, "out"), folder)
        self.assert_clean()

    def test_an_upload_that_is_given_up_leaves_nothing(self):
        """The server refuses all parts but the first; the publisher ends, and aborts the upload."""
        folder = self.large_checkpoint()
        self.init()
        is_later_part = lambda request: (request.is_part() and
                                         request.query["partNumber"] != "1")
        rules = [s3_faults.Rule("error-500", is_later_part)]
        with s3_faults.Proxy(self.gateway, rules) as proxy:
            self.use(proxy.url)
            done = harness.run("publish", self.url, folder, "--store",
                               os.path.join(self.dir, "publisher"), "--json",
                               variables={"AWS_MAX_ATTEMPTS": "3"})
        self.use()
        self.assertEqual(done.returncode, 1, done.stdout)
        error = harness.json.loads(done.stdout)["error"]
        self.assertEqual(error["code"], "unavailable")
        self.assertIn("500", error["message"])
        self.assertEqual(self.uploads(), [])
        self.assertEqual(self.version_count(), 0)

    def timed_publish(self, folder):
        """What publish() says, and the seconds that it took here and now."""
        began = time.monotonic()
        said = self.publish(folder)
        return said, time.monotonic() - began

    def test_publishers_and_readers_killed_at_random_times(self):
        """Each is killed at some moment of the time that the last one took that was left alone."""
        steps = self.make_run(2, params=1_000_000)
        self.init()
        self.publish(steps[0])
        mount = self.mount()
        _, takes = self.timed_publish(steps[1])  # as those to come a delta, not a snapshot
        rounds, killed = 0, 0
        while rounds < ROUNDS_MAX and (rounds < ROUNDS_MIN or killed < KILLED_MIN):
            before = self.version_count()
            publisher = self.start_publish(steps[before % 2])
            try:
                publisher.wait(timeout=harness.RANDOM.random() * takes)
            except subprocess.TimeoutExpired:
                publisher.kill()
                killed += 1
            publisher.communicate()
            if rounds % 2:
                mount.process.kill()
            after = self.version_count()
            self.assertIn(after, (before, before + 1))
            said, takes = self.timed_publish(steps[after % 2])
            self.assertEqual(said["version"], after + 1)
            if rounds % 2:
                mount.start()
            mount.wait_version(after + 1)
            self.assert_same_tree(mount.join("latest/"), steps[after % 2])
            rounds += 1
        self.assert_clean()
        print(f"killed {killed} of {rounds}", file=sys.stderr)
        self.assertGreaterEqual(killed, KILLED_MIN)

    def test_the_server_crashes_again_and_again(self):
        """A trainer's mount and a host's go on. The server lives for 0.3 s, and after each crash for
        longer, until the version has arrived: on a slow machine nothing gets done in a short life. At
        least five versions, and as many more as come before it has crashed twice."""
        steps = self.make_run(2, params=1_000_000)
        writer = self.writer(name="trainer", store="trainer-store")
        host = self.mount()
        is_over, lives = threading.Event(), []  # of each server that was killed, in seconds
        life = SHORTEST_LIFE

        def crash():
            nonlocal life
            while not is_over.wait(life):
                lives.append(life)
                life = min(life * 1.5, LONGEST_LIFE)
                self.gateway.crash()
                is_over.wait(0.3)
                self.gateway.start()

        executor = concurrent.futures.ThreadPoolExecutor(1)
        crasher = executor.submit(crash)
        try:
            version = 0
            while version < 5 or len(lives) < 2:
                version += 1
                life = SHORTEST_LIFE
                name = f"step-{version}"
                shutil.copytree(steps[version % 2], writer.staging(name))
                os.rename(writer.staging(name), writer.join("publish", name))
                harness.call("wait", writer.path, "--tag", name, "--timeout", PATIENCE,
                             timeout=PATIENCE + 60)
                host.wait_version(version, PATIENCE)
                self.assert_same_tree(host.join("latest/"), steps[version % 2])
        finally:
            is_over.set()
            executor.shutdown()
            crasher.result()  # a server that could not be started again explains all the rest
        self.assertEqual([entry["tag"] for entry in harness.call("log", self.url)],
                         [f"step-{number}" for number in range(version, 0, -1)])
        self.assert_clean()
        print(f"{len(lives)} crashes, after {min(lives):.1f} to {max(lives):.1f} s", file=sys.stderr)


if __name__ == "__main__":
    harness.main()
