"""A daemon may end at any time, in any way; a new one on the same store goes on."""

import json
import mmap
import os
import select
import shutil
import signal
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

FILE = "model-00001-of-00002.safetensors"


class Restart(harness.MountTest):
    def test_kill_at_random_points_while_versions_arrive(self):
        steps = self.make_run(10)
        hashes = [harness.hash_tree(step) for step in steps]
        self.init()
        self.publish(steps[0])
        mount = self.mount("--store-size", "1G")
        publisher = threading.Thread(
            target=lambda: [self.publish(step) for step in steps[1:]])
        publisher.start()
        self.addCleanup(publisher.join)
        version, kills = 1, 0
        while publisher.is_alive() or kills < 15:
            mount.process.has_ended(harness.RANDOM.random() * 0.3)
            version = max(version, mount.latest())
            mount.process.kill()
            kills += 1
            self.assertGreaterEqual(mount.start()["version"], version)  # at once
            version = mount.latest()
            self.assertEqual(harness.hash_tree(mount.join("versions", version)),
                             hashes[version - 1])
        mount.wait_version(len(steps))
        for number in os.listdir(mount.join("versions")):
            self.assertEqual(harness.hash_tree(mount.join("versions", number)),
                             hashes[int(number) - 1])
        print(f"killed {kills} times", file=sys.stderr)

    def test_kill_while_it_starts(self):
        steps = self.make_repository(4, params=2_000_000)
        mount = harness.Mount(self, self.url)
        for _ in range(15):
            daemon = harness.start(*mount.arguments(), "--foreground", "--json")
            try:
                daemon.wait(timeout=harness.RANDOM.random() * 0.4)
            except subprocess.TimeoutExpired:
                pass
            daemon.kill()
            daemon.communicate()
        self.assertEqual(mount.start()["version"], 4)
        self.assert_same_tree(mount.join("latest/"), steps[3])

    def test_serves_without_the_bucket_and_goes_on_when_it_is_back(self):
        steps = self.make_run(2)
        self.init()
        self.publish(steps[0])
        mount = self.mount()
        os.rename(self.bucket, self.bucket + ".away")
        mount.wait_status(lambda status: status["offline_since"], "the bucket to be missed")
        self.assert_same_tree(mount.join("latest/"), steps[0])
        mount.process.kill()
        said = mount.start()
        self.assertEqual(said["version"], 1)
        self.assertTrue(mount.wait_status(lambda status: status["offline_since"], "offline"))
        self.assert_same_tree(mount.join("latest/"), steps[0])
        self.assertIsNotNone(mount.status()["error"])

        os.rename(self.bucket + ".away", self.bucket)
        mount.wait_status(lambda status: status["offline_since"] is None, "the bucket to be found")
        self.publish(steps[1])
        mount.wait_version(2)
        self.assertIsNone(mount.status()["error"])
        self.assert_same_tree(mount.join("latest/"), steps[1])

    def test_a_bucket_that_was_begun_anew_is_not_taken_for_one_without_news(self):
        steps = self.make_repository(2)
        mount = self.mount()
        shutil.move(self.bucket, self.bucket + ".old")
        mount.wait_status(lambda status: status["offline_since"], "the bucket to be missed")
        self.init()
        said = mount.wait_status(
            lambda status: "another repository" in (status["error"] or {}).get("message", ""),
            "it to say what is there now")
        self.assertEqual((said["state"], said["version"]), ("waiting", 2))
        self.assertEqual(harness.run("status", mount.path, "--check").returncode, 1)
        self.assert_same_tree(mount.join("latest/"), steps[1])
        found = json.loads(harness.run("doctor", mount.path, "--json").stdout)["bucket"]
        self.assertEqual(found["findings"]["repository"]["state"], "bad", found)
        self.assertFalse(found["usable"])

        shutil.rmtree(self.bucket)
        shutil.move(self.bucket + ".old", self.bucket)
        mount.wait_status(lambda status: status["state"] == "current", "it to go on")

    def test_without_bucket_and_store_there_is_nothing_to_serve(self):
        mount = harness.Mount(self, self.url)
        done = harness.run(*mount.arguments())
        self.assertEqual(done.returncode, 1)
        self.assertIn(self.bucket, done.stderr)
        self.assertFalse(os.path.ismount(mount.path))

    def test_a_store_of_another_bucket_is_no_help(self):
        self.make_repository(1)
        mount = self.mount()
        mount.umount()
        mount.url = self.url + "-other"
        done = harness.run(*mount.arguments())
        self.assertEqual(done.returncode, 1)
        self.assertIn(mount.url, done.stderr)

    def test_sigterm_and_sigint_unmount_and_end(self):
        self.make_repository(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            mount = self.mount(name=f"mnt-{number}", store=f"store-{number}")
            mount.process.kill(number, timeout=10)
            self.assertFalse(os.path.ismount(mount.path))
            self.assertEqual(os.listdir(mount.path), [])

    def test_sigterm_ends_also_while_files_are_open(self):
        steps = self.make_repository(1)
        for serve in ("passthrough", "daemon"):
            mount = self.mount("--serve", serve, name=serve, store="store-" + serve)
            with open(mount.join("latest", FILE), "rb") as file:
                mount.process.kill(signal.SIGTERM, timeout=10)
                if serve == "passthrough":  # the kernel goes on
                    self.assertEqual(file.read(),
                                     harness.read_file(os.path.join(steps[0], FILE)))
            mount.start()
            self.assert_same_tree(mount.join("latest/"), steps[0])

    def test_passthrough_readers_survive_the_daemon(self):
        steps = self.make_repository(1)
        mount = self.mount("--serve", "passthrough")
        data = harness.read_file(os.path.join(steps[0], FILE))
        fd = os.open(mount.join("latest", FILE), os.O_RDONLY)
        mapping = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        mount.process.kill()
        self.assertEqual(os.pread(fd, len(data), 0), data)
        self.assertEqual(mapping[:], data)
        mount.start()
        self.assert_same_tree(mount.join("latest/"), steps[0])
        self.assertEqual(mapping[:], data)
        mapping.close()
        try:
            os.close(fd)
        except OSError:
            pass  # close(2) tells the daemon that opened it, which is gone

    def test_the_foreground_daemon_serves_and_ends(self):
        steps = self.make_repository(1)
        mount = harness.Mount(self, self.url)
        daemon = harness.start(*mount.arguments(), "--foreground")
        self.addCleanup(daemon.communicate)
        self.addCleanup(daemon.kill)
        self.assertIn("version 1", daemon.stdout.readline())
        self.assertEqual(mount.status()["pid"], daemon.pid)
        self.assertIsNone(mount.status()["log"])
        self.assert_same_tree(mount.join("latest/"), steps[0])
        daemon.send_signal(signal.SIGINT)
        self.assertEqual(daemon.wait(timeout=10), 0)
        self.assertFalse(os.path.ismount(mount.path))

    def test_the_daemon_keeps_its_command_line_and_nothing_of_the_caller(self):
        self.make_repository(1)
        mount = self.mount()
        proc = f"/proc/{mount.process.pid}"
        command_line = harness.read_file(f"{proc}/cmdline").split(b"\0")
        self.assertIn(b"mount", command_line)
        self.assertIn(mount.path.encode(), command_line)
        self.assertEqual(os.readlink(f"{proc}/cwd"), "/")
        for fd in range(3):
            self.assertEqual(os.readlink(f"{proc}/fd/{fd}"), "/dev/null")
        self.assertEqual(os.getsid(mount.process.pid), mount.process.pid)

    def test_whoever_waits_for_the_end_of_an_inherited_pipe_does_not_wait_for_the_daemon(self):
        self.make_repository(1)
        mount = harness.Mount(self, self.url)
        ends = os.pipe()
        caller = harness.start(*mount.arguments(), "--json", pass_fds=[ends[1]])
        os.close(ends[1])
        out, _ = caller.communicate(timeout=60)
        mount.adopt(harness.json.loads(out))
        self.addCleanup(os.close, ends[0])
        self.assertTrue(select.select([ends[0]], [], [], 10)[0], "the pipe is still open")
        self.assertEqual(os.read(ends[0], 1), b"")
        self.assertFalse(mount.process.has_ended())

    def test_the_default_store_is_found_again_without_the_bucket(self):
        steps = self.make_run(1)
        store = "/var/lib/weightfs/" + self.init()
        self.addCleanup(shutil.rmtree, store)
        self.publish(steps[0])
        mount = harness.Mount(self, self.url)
        arguments = ("mount", self.url, mount.path)
        self.assertEqual(mount.adopt(harness.call(*arguments))["store"], store)
        self.assertEqual(os.stat(store).st_mode & 0o777, 0o700)
        mount.process.kill()
        os.rename(self.bucket, self.bucket + ".away")
        self.assertEqual(mount.adopt(harness.call(*arguments))["version"], 1)
        self.assert_same_tree(mount.join("latest/"), steps[0])
        mount.umount()


if __name__ == "__main__":
    harness.main()
