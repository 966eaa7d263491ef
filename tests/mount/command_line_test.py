"""What the commands say of real mounts: versions by tag and `latest`, what is wrong, what is waited for."""

import json
import os
import select
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

PARAMS = 20_000


class CommandLine(harness.MountTest):
    def make_tagged(self):
        """Versions 1, 2 (canary), 3."""
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        self.publish(steps[1], "--tag", "canary")
        self.publish(steps[2])
        return steps

    def listed(self, mount):
        """The state of a mount in the list, and what the list says of it below the table."""
        shown = {one["mountpoint"]: one for one in harness.call("status")}
        text = harness.run("status").stdout
        return shown[mount.path]["state"], [line for line in text.splitlines()
                                            if line.startswith(mount.path + ": ")]

    # ---- versions ----

    def test_a_tag_and_latest_are_versions(self):
        steps = self.make_tagged()
        frozen = self.mount("--follow", "1", name="frozen", store="frozen-store")
        mount = self.mount()
        self.assertEqual(harness.call("show", mount.path, "canary")["version"], 2)
        self.assertEqual(harness.call("show", mount.path, "latest")["version"], 3)
        self.assertEqual(harness.call("show", frozen.path, "latest")["version"], 1)
        self.assertEqual(harness.call("show", frozen.path)["version"], 3)
        difference = harness.call("diff", frozen.path, "latest", "canary")
        self.assertEqual((difference["from"], difference["to"]), (1, 2))
        harness.call("export", mount.path, os.path.join(self.dir, "out"), "--version", "canary")
        self.assert_same_tree(os.path.join(self.dir, "out"), steps[1])
        self.assertEqual(harness.call("verify", mount.path, "--version", "latest")["versions"], 1)
        self.assertEqual(harness.call("verify", mount.path, "--version", "canary")["problems"], [])
        self.assertEqual(harness.call("wait", mount.path, "--version", "canary")["version"], 2)
        self.assertEqual(harness.call("wait", mount.path, "--version", "latest")["version"], 3)
        self.assertEqual(harness.call("wait", mount.path, "--newer-than", "canary")["version"], 3)
        done = harness.run("wait", mount.path, "--newer-than", "latest", "--timeout", "0.1")
        self.assertEqual(done.returncode, 5, done.stderr)
        done = harness.run("wait", mount.path, "--newer-than", "canray")
        self.assertEqual(done.returncode, 1)
        self.assertIn("did you mean canary?", done.stderr)

    def test_a_bucket_that_has_another_repository_now_is_not_read_for_a_mount(self):
        steps = self.make_tagged()
        mount = self.mount()
        shown = mount.status()["repository"]
        shutil.rmtree(self.bucket)
        there = self.init()
        for step in reversed(steps):
            harness.call("publish", self.url, step, "--store", os.path.join(self.dir, "another"))
        out = os.path.join(self.dir, "out")
        for command in (("log",), ("show", "latest"), ("export", out, "--version", "2"),
                        ("export", out, "--from", "1", "--to", "2"), ("verify",), ("fleet",)):
            done = harness.run(command[0], mount.path, *command[1:])
            self.assertEqual(done.returncode, 4, (command, done.stdout, done.stderr))
            for named in (self.url, mount.path, shown, there):
                self.assertIn(named, done.stderr)
            self.assertFalse(os.path.exists(out), command)
        self.assert_same_tree(mount.join("versions/3"), steps[2])

    def test_a_path_in_a_mount_is_no_bucket(self):
        self.make_tagged()
        mount = self.mount()
        done = harness.run("log", mount.join("latest") + "/")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(f"lies in {mount.path}", done.stderr)
        self.assertNotIn("weightfs init", done.stderr)

    def test_a_version_that_is_not_here_is_brought_by_pin(self):
        steps = self.make_tagged()
        mount = self.mount()
        self.assertEqual(os.listdir(mount.join("versions")), ["3"])
        self.assertEqual(harness.call("pin", mount.path, "--version", "canary")["version"], 2)
        self.assertEqual(harness.call("pin", mount.path, "--version", "latest")["version"], 3)
        self.assertEqual(harness.call("pin", mount.path, "--version", "1")["version"], 1)
        self.assertEqual(sorted(os.listdir(mount.join("versions"))), ["1", "2", "3"])
        for version, step in enumerate(steps, 1):
            self.assert_same_tree(mount.join("versions", str(version)), step)
        self.assertEqual(harness.call("unpin", mount.path, "--version", "canary")["ended"], 1)
        pinned = [pin["version"] for pin in mount.status()["pins"] if pin["session"] is None]
        self.assertEqual(sorted(pinned), [1, 3])
        done = harness.run("pin", mount.path, "--version", "1000")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "version 1000 is not known here, where the bucket was last "
                         r"asked \d+ s ago; the newest seen is 3")
        done = harness.run("pin", mount.path, "--version", "7")
        self.assertEqual(done.returncode, 1)
        self.assertIn("version 7 does not exist", done.stderr)

    # ---- what is wrong ----

    def test_a_conflict_is_the_state(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.writer()
        self.publish(steps[1])
        shutil.copytree(steps[2], mount.staging("mine"))
        os.rename(mount.staging("mine"), mount.join("publish/mine"))
        status = mount.wait_status(lambda s: s["state"] == "conflict", "the conflict")
        self.assertEqual([(one["state"], one["what"]) for one in status["problems"]],
                         [("conflict", "mine")])
        state, lines = self.listed(mount)
        self.assertEqual((state, len(lines)), ("conflict", 1))
        self.assertIn("mine", lines[0])
        self.assertIn("conflict: mine", harness.run("status", mount.path).stdout)
        shutil.rmtree(mount.join("publish/mine"))
        mount.wait_status(lambda s: s["state"] == "current", "the end of it")
        self.assertEqual(self.listed(mount), ("current", []))

    def test_a_tag_that_does_not_come_is_the_state(self):
        steps = self.make_run(2, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--follow", "canary")
        mount.wait_status(lambda s: s["state"] == "missing", "the state")
        state, lines = self.listed(mount)
        self.assertEqual(state, "missing")
        self.assertIn("the tag canary does not exist yet", lines[0])
        self.publish(steps[1], "--tag", "canary")
        mount.wait_status(lambda s: s["state"] == "current" and s["version"] == 2, "the tag")

    def test_a_hook_that_fails_is_the_state(self):
        self.make_repository(1, PARAMS)
        mount = self.mount("--hook", "exec=/bin/false")
        status = mount.wait_status(lambda s: s["state"] == "hook-failed", "the state")
        self.assertEqual(status["problems"][0]["what"], "exec /bin/false")
        state, lines = self.listed(mount)
        self.assertEqual(state, "hook-failed")
        self.assertIn("/bin/false", lines[0])

    # ---- descriptors that are closed ----

    def run_without(self, closed, *arguments):
        """Runs the binary with these of 0, 1 and 2 closed. Returns its exit code."""
        process = harness.start(*arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL,
                                preexec_fn=lambda: [os.close(fd) for fd in closed])
        self.addCleanup(process.kill)
        return process.wait(60)

    def test_a_mount_is_made_whatever_is_closed(self):
        self.make_repository(1, PARAMS)
        for closed in ((0,), (2,), (0, 2), (0, 1, 2)):
            name = "mnt" + "".join(map(str, closed))
            mount = harness.Mount(self, self.url, name=name, store=f"{name}-store")
            # Where nothing can be said, that is the failure; it is mounted all the same.
            self.assertEqual(self.run_without(closed, *mount.arguments()), int(1 in closed), closed)
            self.assertTrue(os.path.ismount(mount.path), closed)
            harness.umount(mount.path)

    def test_what_cannot_be_said_where_stdout_is_closed_is_a_failure(self):
        self.make_repository(1, PARAMS)
        self.assertEqual(self.run_without((1,), "log", self.url), 1)
        self.assertEqual(self.run_without((0, 2), "log", self.url), 0)

    def test_no_message_is_written_into_a_file_that_got_the_number_of_stderr(self):
        self.make_repository(1, PARAMS)
        folder = os.path.join(self.dir, "synced")
        self.assertEqual(self.run_without((2,), "sync", self.url, folder, "--once"), 0)
        for path, _, names in os.walk(os.path.join(folder, ".weightfs")):
            for name in names:
                if not name.endswith(".log"):
                    self.assertNotIn(b" info ", harness.read_file(os.path.join(path, name))[:4096],
                                     os.path.join(path, name))

    # ---- what is waited for ----

    def test_wait_says_what_it_waits_for(self):
        steps = self.make_run(1, PARAMS)
        self.init()
        mount = self.mount(ready=False)
        quiet = harness.start("wait", mount.path, "--ready", "--quiet", "--json")
        process = harness.start("wait", mount.path, "--ready", "--json")
        ready, _, _ = select.select([process.stderr], [], [], 60)
        self.assertTrue(ready, "nothing was said")
        self.assertEqual(process.stderr.readline(),
                         f"weightfs: waiting for all of latest at {mount.path}: no version of "
                         f"{self.url} was published yet\n")
        self.publish(steps[0])
        for waiting in (process, quiet):
            out, err = waiting.communicate(timeout=60)
            self.assertEqual((waiting.returncode, err), (0, ""))
            self.assertEqual(json.loads(out)["version"], 1)


if __name__ == "__main__":
    harness.main()
