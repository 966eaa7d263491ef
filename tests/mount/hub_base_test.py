"""A first version whose files lie on the Hub (`publish --base`): the bucket has its hashes alone.
The Hub is one whose reads the test counts, holds, refuses and damages."""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import numpy as np  # noqa: E402

import fake_hub  # noqa: E402
import harness  # noqa: E402
import runs  # noqa: E402

MIB = 1 << 20
SHARDS = {"model-1.safetensors": 5 * MIB, "model-2.safetensors": 9 * MIB}
EIO = 5


class HubBaseTest(harness.MountTest):
    def setUp(self):
        self.hub = fake_hub.FakeHub(os.path.join(self.dir, "hub"))
        self.addCleanup(self.hub.close)
        rng = np.random.default_rng(harness.SEED)
        self.weights = {name: rng.integers(0, 1 << 16, size // 2, dtype="<u2")
                        for name, size in SHARDS.items()}
        self.steps = []
        self.init()
        first = self.step()
        os.makedirs(self.hub.path(""))
        shutil.copytree(first, self.hub.path(""), dirs_exist_ok=True)
        self.published = self.publish_step(first, "--base", fake_hub.BASE)

    def step(self):
        """The next checkpoint of the run; 100 elements of each shard differ from the one before."""
        rng = np.random.default_rng(len(self.steps))
        folder = os.path.join(self.dir, f"checkpoint-{len(self.steps) + 1}")
        os.makedirs(folder)
        for name, data in self.weights.items():
            if self.steps:
                data[rng.integers(0, data.size, 100)] ^= 1
            runs.write_safetensors(os.path.join(folder, name),
                                   [(f"{name}.a", "BF16", [data.size - 100], data[:-100]),
                                    (f"{name}.b", "BF16", [10, 10], data[-100:])])
        harness.write_file(os.path.join(folder, "config.json"), b"{}")
        self.steps.append(folder)
        return folder

    def publish_step(self, folder, *options, store="publisher"):
        return self.call("publish", self.url, folder, "--store", os.path.join(self.dir, store),
                         *options)

    def follow(self, *options, **names):
        return self.mount(*options, variables=self.hub.variables(), **names)

    def keys(self):
        return sorted(os.path.relpath(os.path.join(folder, name), self.bucket)
                      for folder, _, names in os.walk(self.bucket) for name in names)

    def wait_whole(self, mount, version):
        harness.call("wait", mount.path, "--ready", "--version", version, "--timeout", 60)
        self.assert_same_tree(mount.join(f"versions/{version}"), self.steps[version - 1])

    def wait_mended(self, mount):
        """What was missing or damaged is asked for again after 30 s."""
        mount.wait_status(lambda status: (status["versions"], status["partial"]) == ([1], []),
                          "all of version 1", timeout=90)
        self.assert_same_tree(mount.join("versions/1"), self.steps[0])

    def call(self, *arguments):
        return harness.call(*arguments, variables=self.hub.variables())

    def run_it(self, *arguments):
        return harness.run(*arguments, variables=self.hub.variables())


class Publishing(HubBaseTest):
    def test_the_bucket_has_no_byte_of_the_snapshot(self):
        kinds = sorted(key.split("/")[0] for key in self.keys())
        self.assertEqual(kinds, ["blobs", "layouts", "snapshots", "versions", "weightfs.json"])
        [hashes] = [key for key in self.keys() if key.startswith("snapshots/")]
        self.assertEqual(os.path.basename(hashes), ".hashes")
        self.assertLess(sum(os.path.getsize(self.object(key)) for key in self.keys()), 20_000)
        self.assertEqual((self.published["base"], self.published["snapshot"]),
                         (fake_hub.BASE, True))
        self.assertLess(self.published["uploaded_bytes"], 20_000)
        # Only the last MiB of each file was fetched, to see that it can be.
        self.assertEqual(sorted(self.hub.reads),
                         [(name, SHARDS[name], os.path.getsize(self.hub.path(name)))
                          for name in SHARDS])

    def test_log_and_show_say_where_it_is(self):
        [version] = harness.call("log", self.url)
        self.assertEqual(version["snapshot_base"], fake_hub.BASE)
        self.assertIn("on the Hub", harness.run("log", self.url).stdout)
        self.assertIn(f"{fake_hub.BASE}, 14.0 MiB", harness.run("show", self.url, "1").stdout)

    def test_what_is_another_model_is_refused(self):
        with open(os.path.join(self.steps[0], "model-2.safetensors"), "r+b") as file:
            file.seek(7 * MIB)
            file.write(b"other")
        other = shutil.copytree(self.bucket, os.path.join(self.dir, "other"))
        for key in self.keys():
            if key.split("/")[0] in ("versions", "snapshots"):
                os.unlink(os.path.join(other, key))
        done = self.run_it("publish", f"file://{other}", self.steps[0], "--base", fake_hub.BASE,
                           "--store", os.path.join(self.dir, "other-store"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"model-2.safetensors is not the file of {fake_hub.BASE}: it has the SHA-256",
                      done.stderr)
        self.assertEqual(os.listdir(os.path.join(other, "versions")), [])

    def test_the_command_line_says_what_a_base_is(self):
        done = self.run_it("publish", self.url, self.steps[0], "--base", "hub:org/model@main")
        self.assertEqual(done.returncode, 2)
        self.assertIn("hub:ORG/MODEL@COMMIT", done.stderr)
        self.assertIn("40 lower-case hex digits", done.stderr)

    def test_a_mount_publishes_without(self):
        writer = self.follow("--writer")
        done = self.run_it("publish", writer.path, self.steps[0], "--base", fake_hub.BASE)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"weightfs publish {self.url} DIR --base {fake_hub.BASE}", done.stderr)


class Reading(HubBaseTest):
    def test_a_host_that_joins_fetches_it_from_the_hub(self):
        self.hub.reads.clear()
        mount = self.follow(store="reader")
        self.wait_whole(mount, 1)
        size = sum(os.path.getsize(self.hub.path(name)) for name in SHARDS)
        status = mount.wait_status(lambda status: status["partial"] == [], "the end of the filling")
        self.assertEqual(sum(end - begin for _, begin, end in self.hub.reads), size)
        self.assertEqual(status["bytes"]["hub"], size)
        self.assertEqual(status["bytes"]["fetched"], size)
        self.assertIn("hub          14.0 MiB of snapshots fetched from the Hub",
                      harness.run("status", mount.path).stdout)
        self.assertEqual(self.hub.leaks, [])

    def test_the_token_is_for_the_hub_alone(self):
        self.hub.token = "hf_secret"
        mount = self.follow(store="reader")
        self.wait_whole(mount, 1)
        self.assertEqual(self.hub.leaks, [])
        self.assertNotIn("hf_secret", harness.read_file(mount.status()["log"]).decode())

    def test_without_the_token_status_says_what_is_missing(self):
        variables = self.hub.variables()
        self.hub.token = "hf_secret"
        mount = self.mount(store="reader", variables=variables, ready=False)
        status = mount.wait_status(lambda status: status["error"], "the error")
        self.assertEqual(status["error"]["code"], "permission")
        self.assertIn("no token was sent", status["error"]["message"])
        self.assertIn("HF_TOKEN", status["error"]["message"])

    def test_deltas_follow_and_joins_work_later(self):
        mount = self.follow(store="reader")
        for version in (2, 3):
            self.publish_step(self.step())
            mount.wait_version(version)
        self.assert_same_tree(mount.join("latest"), self.steps[2])
        late = self.follow(name="late", store="late-store")
        self.wait_whole(late, 3)
        brought = late.status()["timing"]["latest"]["brought"]
        self.assertEqual((brought["snapshot"], brought["deltas"]), (1, 2))
        self.wait_whole(late, 1)
        # A publisher without images makes the parent of them.
        self.publish_step(self.step(), store="other")
        mount.wait_version(4)
        self.assert_same_tree(mount.join("latest"), self.steps[3])

    def test_export_sync_and_verify_read_it(self):
        self.publish_step(self.step())
        for version in (1, 2):
            out = os.path.join(self.dir, f"out-{version}")
            self.call("export", self.url, out, "--version", version)
            self.assert_same_tree(out, self.steps[version - 1])
        self.call("sync", self.url, os.path.join(self.dir, "synced"), "--once")
        self.assert_same_tree(os.path.join(self.dir, "synced", "latest"), self.steps[1])
        report = self.call("verify", self.url)
        self.assertEqual((report["problems"], report["orphans"]), ([], []))
        os.unlink(self.hub.path("model-1.safetensors"))
        done = self.run_it("verify", self.url)
        self.assertEqual(done.returncode, 4)
        self.assertIn("model-1.safetensors", done.stdout)
        self.assertIn("that commit has no such file", done.stdout)

    def test_files_that_are_not_kept_come_from_it(self):
        mount = self.follow("--only", "model-1*", store="reader")
        self.wait_whole(mount, 1)

    def test_a_seed_spares_it(self):
        self.hub.reads.clear()
        mount = self.follow("--seed", self.hub.path(""), store="reader")
        self.wait_whole(mount, 1)
        self.assertEqual(self.hub.reads, [])

    def test_gc_and_skips_leave_what_is_needed(self):
        for _ in range(2, 10):
            self.publish_step(self.step())
        self.call("skip", self.url)
        held = self.call("du", self.url, "--keep", "2", "--keep-tagged=")
        self.assertEqual(held["orphans"]["objects"], 0)
        self.call("gc", self.url, "--keep", "2", "--keep-tagged=", "--delete", "--grace", "0s")
        self.call("gc", self.url, "--keep", "2", "--keep-tagged=", "--delete", "--grace", "0s")
        self.assertEqual(self.call("verify", self.url)["problems"], [])
        late = self.follow(name="late", store="late-store")
        self.wait_whole(late, 9)
        # A snapshot in the bucket ends the need of the Hub; then its hashes go too.
        self.publish_step(self.step(), "--snapshot")
        for _ in range(2):
            self.call("gc", self.url, "--keep", "1", "--keep-tagged=", "--delete", "--grace", "0s")
        self.assertEqual([key for key in self.keys() if key.startswith("snapshots/1/")], [])
        self.assertEqual(self.call("verify", self.url)["problems"], [])
        shutil.rmtree(self.hub.path(""))
        self.wait_whole(self.follow(name="last", store="last-store"), 10)


class Trouble(HubBaseTest):
    def read(self, mount, name, offset=0, size=4096):
        """Bytes, or the number of an error."""
        try:
            with open(mount.join("versions/1", name), "rb", buffering=0) as file:
                return os.pread(file.fileno(), size, offset)
        except OSError as error:
            return error.errno

    def test_damaged_bytes_are_an_error_and_the_other_file_can_be_read(self):
        self.hub.damage("model-2.safetensors", 6 * MIB)
        mount = self.follow(store="reader", ready=False)
        harness.wait_until(lambda: os.path.isdir(mount.join("versions/1")), "version 1")
        self.assertEqual(self.read(mount, "model-2.safetensors", 6 * MIB - 100, 200), EIO)
        with open(os.path.join(self.steps[0], "model-1.safetensors"), "rb") as file:
            expected = file.read()
        self.assertEqual(self.read(mount, "model-1.safetensors", 0, len(expected)), expected)
        [partial] = mount.wait_status(
            lambda status: [one for one in status["partial"] if one["error"]], "the error")["partial"]
        self.assertEqual(partial["error"]["code"], "corrupt")
        self.assertIn(f"org/model/resolve/{fake_hub.COMMIT}/model-2.safetensors",
                      partial["error"]["message"])
        self.assertIn("publish a version with --snapshot", partial["error"]["message"])
        self.hub.release()
        self.wait_mended(mount)

    def test_a_hub_that_fails_is_asked_again(self):
        for status in (503, 429):
            with self.subTest(status=status):
                self.hub.fail(status)
                mount = self.follow(name=f"mnt-{status}", store=f"reader-{status}", ready=False)
                error = mount.wait_status(lambda status: status["error"], "the error")["error"]
                self.assertEqual(error["code"], "unavailable")
                self.assertIn(f"the Hub answers {status}", error["message"])
                self.hub.release()
                self.wait_whole(mount, 1)

    def test_bodies_that_end_too_soon_are_never_taken(self):
        self.hub.cut = True
        mount = self.follow(store="reader", ready=False)
        mount.wait_status(lambda status: status["error"], "the error")
        self.hub.release()
        self.wait_whole(mount, 1)

    def test_a_file_that_was_removed_is_named(self):
        os.unlink(self.hub.path("model-1.safetensors"))
        mount = self.follow(store="reader", ready=False)
        harness.wait_until(lambda: os.path.isdir(mount.join("versions/1")), "version 1")
        self.assertEqual(self.read(mount, "model-1.safetensors"), EIO)
        error = mount.wait_status(
            lambda status: [one for one in status["partial"] if one["error"]],
            "the error")["partial"][0]["error"]
        self.assertEqual(error["code"], "not_found")
        self.assertIn("that commit has no such file", error["message"])
        shutil.copy(os.path.join(self.steps[0], "model-1.safetensors"),
                    self.hub.path("model-1.safetensors"))
        self.wait_mended(mount)

    def test_a_daemon_killed_in_the_middle_begins_again(self):
        self.hub.hold("model-2.safetensors")
        mount = self.follow(store="reader", ready=False)
        harness.wait_until(lambda: any(name == "model-2.safetensors" and begin == 0
                                       for name, begin, _ in self.hub.reads), "the fetch")
        mount.process.kill()
        subprocess.run(["umount", "-l", mount.path], check=True)
        self.hub.release()
        mount.start()
        self.wait_whole(mount, 1)


if __name__ == "__main__":
    harness.main()
