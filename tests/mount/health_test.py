"""Health: what monitoring sees of a mount and of a sync, by `status --check` and .weightfs/health."""

import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "support"))

import harness  # noqa: E402
from harness import MountTest, read_file, run, wait_until  # noqa: E402


class Health(MountTest):
    def check(self, place, code):
        """The line of status --check, once it ends with this code."""
        def seen():
            done = run("status", place, "--check")
            self.assertEqual(done.stderr, "")
            self.assertEqual(done.stdout.count("\n"), 1, done.stdout)
            return done.returncode == code and done.stdout
        return wait_until(seen, f"status --check to end with {code}")

    def test_a_mount_is_healthy_degraded_and_failed(self):
        self.make_repository(1)
        mount = self.mount("--max-lag", "2")
        self.assertEqual(self.check(mount.path, 0), f"healthy: {mount.path} shows version 1\n")
        self.assertEqual(read_file(mount.join(".weightfs/health")), b"healthy\n")
        self.assertEqual(mount.status()["max_lag"], 2)

        os.rename(self.bucket, self.bucket + ".away")
        line = self.check(mount.path, 1)
        self.assertIn(f"degraded: {mount.path}: ", line)
        self.assertIn("bucket", line)
        line = self.check(mount.path, 2)  # later than --max-lag
        self.assertIn("the bucket has not been reached for", line)
        self.assertTrue(read_file(mount.join(".weightfs/health")).startswith(b"failed: "))
        said = json.loads(run("status", mount.path, "--check", "--json").stdout)
        self.assertEqual(said["health"], "failed")
        self.assertEqual([one["mountpoint"] for one in said["mounts"]], [mount.path])

        os.rename(self.bucket + ".away", self.bucket)
        self.check(mount.path, 0)

    def test_a_clock_that_is_set_back_hides_no_bucket_that_is_away(self):
        clock = harness.program("libweightfs_skewed_clock.so")
        if not os.path.exists(clock):
            self.skipTest(f"no {clock}; WEIGHTFS_TESTS names its directory")
        back = os.path.join(self.dir, "back")  # its size: seconds
        harness.write_file(back, b"")
        self.make_repository(1)
        mount = self.mount("--max-lag", "1",
                           variables={"LD_PRELOAD": clock, "WEIGHTFS_TEST_BACK": back})
        os.rename(self.bucket, self.bucket + ".away")
        mount.wait_status(lambda status: status["offline_since"], "the bucket to be missed")
        os.truncate(back, 3600)
        mount.wait_status(lambda status: status["state"] == "behind", "it to be late")

    def test_a_conflict_is_a_failure(self):
        steps = self.make_repository(2)
        mount = self.writer()
        self.publish(steps[0])  # another writer is faster
        subprocess.run(["cp", "-r", steps[1], mount.staging("step-9")], check=True)
        os.rename(mount.staging("step-9"), mount.join("publish/step-9"))
        self.assertIn(f"failed: {mount.path}: step-9: ", self.check(mount.path, 2))
        self.assertIn(" failed ", run("status").stdout)

    def test_a_mount_whose_daemon_is_gone_has_failed(self):
        self.make_repository(1)
        mount = self.mount()
        mount.process.kill(signal.SIGKILL)
        self.assertIn(f"failed: {mount.path}: ", self.check(mount.path, 2))
        row = next(line for line in run("status").stdout.splitlines() if mount.path in line)
        self.assertEqual(row.split()[3:5], ["failed", "dead"])

    def test_what_is_no_mount_has_failed(self):
        self.make_repository(1)
        mount = self.mount()
        mount.umount()
        self.assertIn(f"failed: {mount.path} is not a weightfs mount: nothing is mounted there",
                      self.check(mount.path, 2))
        said = json.loads(run("status", mount.path, "--check", "--json").stdout)
        self.assertEqual(said["health"], "failed")

    def start_sync(self, *options):
        """Returns: the process, and its directory."""
        folder = os.path.join(self.dir, "folder")
        sync = harness.start("sync", self.url, folder, "--poll", "0.05", *options,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.workspace.processes.append(harness.Process(sync.pid))
        return sync, folder

    def test_a_sync_has_a_health_too(self):
        self.make_repository(1)
        sync, folder = self.start_sync()
        path = os.path.join(folder, ".weightfs/health")
        wait_until(lambda: os.path.exists(path) and read_file(path) == b"healthy\n", "its health")
        self.check(folder, 0)
        sync.terminate()
        sync.wait(timeout=30)
        self.assertIn("no process keeps it up to date", self.check(folder, 2))

    def test_a_sync_that_is_stopped_is_stuck(self):
        self.make_repository(1)
        sync, folder = self.start_sync()
        wait_until(lambda: os.path.exists(os.path.join(folder, "latest")), "its version")
        self.check(folder, 0)
        sync.send_signal(signal.SIGSTOP)
        line = self.check(folder, 2)
        self.assertIn(f"weightfs sync, pid {sync.pid}, does not answer", line)
        self.assertEqual(harness.call("status", folder)["state"], "stuck")
        sync.send_signal(signal.SIGCONT)
        self.check(folder, 0)

    def test_a_sync_whose_files_were_removed_has_failed(self):
        self.make_repository(1)
        _, folder = self.start_sync()
        latest = os.path.join(folder, "latest")
        wait_until(lambda: os.path.exists(latest), "its version")
        self.check(folder, 0)
        os.unlink(latest)
        self.assertIn(f"{latest} is missing", self.check(folder, 2))


if __name__ == "__main__":
    harness.main()
