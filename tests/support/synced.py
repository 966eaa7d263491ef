"""A running `weightfs sync`, as a user without privileges.

Run by root it becomes user 65534 for `sync`; run by anybody else it stays who it is.
"""

import json
import os
import signal
import subprocess

import harness

USER = 65534 if os.geteuid() == 0 else os.geteuid()
NOBODY = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}


def environment():
    """Neither a home nor a runtime directory is needed."""
    return {key: value for key, value in harness.environment().items()
            if key not in ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")}


def run(*arguments, **more):
    """As the user. Any exit code will do."""
    return subprocess.run([harness.BINARY, *map(str, arguments)], text=True, env=environment(),
                          capture_output=True, timeout=120, **NOBODY, **more)


class Service:
    """A running sync."""

    def __init__(self, test, *options, url=None, under=()):
        self.test, self.path = test, test.path
        self.join = test.join
        self.log = os.path.join(test.dir, "sync.log")
        test.workspace.logs.append(self.log)
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [*under, harness.BINARY, "sync", url or test.url, self.path, "--poll", harness.POLL,
                 "--json", *map(str, options)],
                text=True, env=environment(), stdout=subprocess.PIPE, stderr=log, **NOBODY)
        test.addCleanup(self.kill)

    def ready(self):
        """What it prints when DIR is up to date for the first time."""
        text = ""
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                return json.loads(text)
        raise AssertionError(f"sync ended: {self.process.wait(10)}\n{harness.read_file(self.log)}")

    def status(self):
        return json.loads(harness.read_file(self.join(".weightfs/status")))

    def wait_status(self, condition, what, timeout=harness.LIMIT):
        """Waits for a status that fulfils the condition, and returns it."""
        return harness.wait_status(self.status, condition, what, timeout)

    def stop(self):
        """SIGTERM. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(15)
        self.process.stdout.close()
        return code

    def kill(self):
        self.process.kill()
        self.process.wait(15)
        self.process.stdout.close()


class SyncTest(harness.MountTest):
    """`self.path`, in the user's home, is not there yet."""

    def setUp(self):
        self.home = os.path.join(self.dir, "home")
        os.makedirs(self.home)
        os.chown(self.home, USER, USER)
        self.path = os.path.join(self.home, "models")

    def join(self, *parts):
        return os.path.join(self.path, *map(str, parts))

    def latest(self):
        """0 if it is not there."""
        try:
            return int(os.readlink(self.join("latest")).removeprefix("versions/"))
        except FileNotFoundError:
            return 0

    def status(self):
        return harness.call("status", self.path)

    def wait_latest(self, version):
        harness.wait_until(lambda: self.latest() == version, f"version {version}")

    def once(self, *options):
        done = run("sync", self.url, self.path, "--once", "--json", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    @staticmethod
    def room_for_two(step):
        """The oldest goes when a third version comes."""
        size = sum(entry.stat().st_size for entry in os.scandir(step))
        return "--store-size", 5 * size // 2, "--min-free", 0

    def assert_tidy(self):
        """Nothing is left of what was being made or removed."""
        self.assertEqual(os.listdir(self.join(".weightfs/tmp")), [])
        self.assertEqual({name + ".json" for name in os.listdir(self.join("versions"))},
                         set(os.listdir(self.join(".weightfs/versions"))))
