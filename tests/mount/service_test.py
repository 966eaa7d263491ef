"""Under a service manager: what it is told, by its protocol; and the units of scripts/systemd.

The manager is a socket of this test, as systemd's would be (sd_notify(3)).
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

UNITS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "systemd"
# As systemd-analyze counts, 0 is best. A mount needs CAP_SYS_ADMIN and the host's mounts.
EXPOSURE_MAX = {"weightfs@.service": 5.6, "weightfs-sync@.service": 2.0}


class Service(harness.MountTest):
    def setUp(self):
        self.steps = self.make_repository(1)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.manager.bind(os.path.join(self.dir, "notify"))
        self.manager.settimeout(30)

    def start(self, table, text, watchdog=0):
        """The command by its configuration, as a unit starts it; its process."""
        config = os.path.join(self.dir, "a.toml")
        harness.write_file(config, f'poll = 0.05\nstore = "{self.dir}/store"\n[{table}]\n'
                                   f'url = "{self.url}"\n{text}\n'.encode())
        words = (["--foreground"] if table == "mount" else []) + ["--config", config]
        variables = {"NOTIFY_SOCKET": os.path.join(self.dir, "notify")}
        if watchdog:
            variables["WATCHDOG_USEC"] = str(watchdog)
        process = harness.start(table, *words, variables=variables, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def told(self):
        return self.manager.recv(4096).decode()

    def until(self, pattern):
        while not re.match(pattern, message := self.told()):
            pass
        return message

    def test_a_mount_tells_that_it_is_ready_and_when_it_stops(self):
        place = harness.Mount(self, self.url)
        process = self.start("mount", f'mountpoint = "{place.path}"')
        self.assertEqual(self.told(), f"READY=1\nMAINPID={process.pid}")
        self.assert_same_tree(place.join("latest/"), self.steps[0])
        self.assertEqual(self.told(), "STATUS=healthy")
        process.terminate()
        self.assertEqual(self.until("STOPPING"), "STOPPING=1")
        self.assertEqual(process.wait(20), 0)
        self.assertFalse(os.path.ismount(place.path))

    def test_a_killed_service_is_started_over_its_dead_mount(self):
        place = harness.Mount(self, self.url)
        text = f'mountpoint = "{place.path}"'
        for _ in range(2):
            process = self.start("mount", text)
            self.until("READY=1")
            self.assert_same_tree(place.join("latest/"), self.steps[0])
            process.kill()
            process.wait()
        harness.umount(place.path)

    def test_umount_is_an_end_and_no_failure(self):
        place = harness.Mount(self, self.url)
        process = self.start("mount", f'mountpoint = "{place.path}"')
        self.until("READY=1")
        harness.umount(place.path)
        self.assertEqual(process.wait(20), 0)

    def test_the_watchdog_is_fed_as_long_as_the_mount_answers(self):
        place = harness.Mount(self, self.url)
        process = self.start("mount", f'mountpoint = "{place.path}"', watchdog=300_000)
        self.until("WATCHDOG=1")
        os.kill(process.pid, signal.SIGSTOP)
        harness.wait_until(self.is_silent, "silence")
        os.kill(process.pid, signal.SIGCONT)
        self.until("WATCHDOG=1")
        process.terminate()
        self.assertEqual(process.wait(20), 0)

    def is_silent(self):
        self.manager.settimeout(1)
        try:
            self.told()
            return False
        except TimeoutError:
            return True
        finally:
            self.manager.settimeout(30)

    def test_a_sync_tells_its_health(self):
        directory = os.path.join(self.dir, "files")
        process = self.start("sync", f'dir = "{directory}"\nmax-lag = 1', watchdog=300_000)
        self.assertEqual(self.told(), f"READY=1\nMAINPID={process.pid}")
        self.assert_same_tree(os.path.join(directory, "latest/"), self.steps[0])
        self.until("WATCHDOG=1")
        os.rename(self.bucket, self.bucket + "-away")
        self.until("STATUS=failed")
        os.rename(self.bucket + "-away", self.bucket)
        self.until("STATUS=healthy")
        process.terminate()
        self.assertEqual(self.until("STOPPING"), "STOPPING=1")
        self.assertEqual(process.wait(20), 0)


class Units(harness.unittest.TestCase):
    def run_analyze(self, *arguments):
        done = subprocess.run(["systemd-analyze", *arguments], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_systemd_takes_them(self):
        with harness.tempfile.TemporaryDirectory() as folder:
            for name in EXPOSURE_MAX:
                unit = pathlib.Path(folder, name.replace("@", "@instance"))
                unit.write_text((UNITS / name).read_text()
                                .replace("/usr/bin/weightfs", os.path.abspath(harness.BINARY)))
                self.assertEqual(self.run_analyze("verify", "--man=no", str(unit)), "")
                said = self.run_analyze("security", "--offline=yes", "--no-pager", str(unit))
                exposure = float(re.search(r"exposure level for .*: ([\d.]+)", said).group(1))
                self.assertLessEqual(exposure, EXPOSURE_MAX[name], said)

    def test_a_mount_is_seen_by_the_host(self):
        """None of these may be in its unit: each makes a mount namespace (systemd.exec(5))."""
        text = (UNITS / "weightfs@.service").read_text()
        keys = {line.split("=")[0] for line in text.splitlines() if "=" in line and line[0] != "#"}
        private = re.compile("Protect(System|Home|Kernel|Control|Proc|Hostname|Clock)|Private|"
                             "ReadOnlyPaths|ReadWritePaths|InaccessiblePaths|Bind|TemporaryFile|"
                             "RootDirectory|RootImage|MountFlags|DynamicUser|.*Directory$")
        self.assertEqual([key for key in sorted(keys) if private.match(key)], [])


if __name__ == "__main__":
    harness.main()
