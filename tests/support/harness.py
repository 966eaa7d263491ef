"""What the tests of real mounts share: a workspace, the weightfs binary, mounts, small runs.

A test is a MountTest: `self.dir` is a directory of its own below $TMPDIR, and everything that it
mounts or starts ends with it, also when the test fails or is interrupted. A run that was killed with
-9 leaves its mounts behind, but never stands in the way of the next: all names are new.

Needs root and /dev/fuse; main() exits with 77, which ctest reads as "skipped", without them.
"""

import atexit
import ctypes
import hashlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

import runs  # noqa: E402

BINARY = os.environ.get("WEIGHTFS_BIN", os.path.join(ROOT, "build", "weightfs"))
PROGRAMS = os.environ.get("WEIGHTFS_TESTS", os.path.join(ROOT, "build", "tests"))
SEED = int(os.environ.get("WEIGHTFS_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
RANDOM = random.Random(SEED)
SKIPPED = 77
POLL = "0.05"
PIN_GRACE = "0.01"  # a test that has looked at `latest` has ended its load; pins_test.py loads for real

libc = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2


def program(name):
    """The path of a program of the tests."""
    return os.path.join(PROGRAMS, name)


# ---- the command line ----------------------------------------------------------------------------

def environment(variables=None):
    """Without WEIGHTFS_* of the caller, so that every run is the same; with `variables`."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("WEIGHTFS_")}
    return {**own, **(variables or {})}


def start(*arguments, variables=None, **more):
    """Starts the binary and does not wait for it. `variables` are added to the environment."""
    more.setdefault("stdout", subprocess.PIPE)
    more.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([BINARY, *map(str, arguments)], text=True, env=environment(variables),
                            **more)


def run(*arguments, timeout=120, variables=None, **more):
    """Runs the binary. Returns the process with returncode, stdout, stderr; any exit code will do.

    `variables` are added to the environment."""
    return subprocess.run([BINARY, *map(str, arguments)], text=True, env=environment(variables),
                          capture_output=True, timeout=timeout, **more)


def call(*arguments, **more):
    """Runs the binary with --json; it must succeed. Returns the JSON."""
    done = run(*arguments, "--json", **more)
    if done.returncode != 0:
        raise AssertionError(f"weightfs {' '.join(map(str, arguments))}: exit code "
                             f"{done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def umount(path, *options, **more):
    """`weightfs umount --json`; it must succeed. Returns the JSON.

    Another test that copies the mounts, or looks through /proc, may use it for a moment."""
    def try_it():
        done = run("umount", path, *options, "--json", **more)
        if done.returncode == 0:
            return json.loads(done.stdout)
        if "not visible here" not in done.stderr:
            raise AssertionError(f"umount {path}: exit code {done.returncode}\n{done.stderr}")
        return None
    return wait_until(try_it, f"the end of the mount {path}")


# For what hangs, not for what is slow: where all cores are busy, a thread of the lowest priority
# gets little.
LIMIT = 240


def wait_until(condition, what, timeout=LIMIT):
    """Returns the first true value of condition(); fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout} s for: {what}")
        time.sleep(0.01)


# ---- files ---------------------------------------------------------------------------------------

def wait_status(find_status, condition, what, timeout=LIMIT):
    """Waits until what find_status() returns fulfils the condition, and returns it."""
    last = {}

    def fulfilled():
        last.update(find_status())
        return condition(last) and dict(last)

    try:
        return wait_until(fulfilled, what, timeout)
    except AssertionError as error:
        raise AssertionError(f"{error}\nlast status: {json.dumps(last, indent=2)}") from None


def hash_tree(folder):
    """{relative path: sha256} of every file below `folder`.  A folder that cannot be listed fails."""
    def fail(error):
        raise error

    hashes = {}
    for parent, _, names in os.walk(folder, onerror=fail):
        for name in names:
            path = os.path.join(parent, name)
            hashes[os.path.relpath(path, folder)] = runs.sha256_of(path)
    return hashes


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def write_file(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


# ---- processes -----------------------------------------------------------------------------------

class Process:
    """A process that is nobody's child here, such as a daemon."""

    def __init__(self, pid):
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    def has_ended(self, timeout=0):
        return bool(select.select([self.pidfd], [], [], timeout)[0])

    def kill(self, number=signal.SIGKILL, timeout=15):
        """Sends a signal and waits for the end."""
        if not self.has_ended():
            signal.pidfd_send_signal(self.pidfd, number)
        if not self.has_ended(timeout):
            raise AssertionError(f"pid {self.pid} has not ended {timeout} s after signal {number}")

    def close(self):
        if not self.has_ended():
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.has_ended(10)
        os.close(self.pidfd)


# ---- the workspace -------------------------------------------------------------------------------

class Workspace:
    """A directory, and the mounts and processes of one test."""

    alive = []

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="weightfs-mount-")
        os.chmod(self.path, 0o755)  # other users read through the mounts
        self.mount_points, self.processes, self.logs, self.sockets = [], [], [], []
        Workspace.alive.append(self)

    def close(self):
        if self not in Workspace.alive:
            return
        Workspace.alive.remove(self)
        for path in [*self.mounts_below(), *reversed(self.mount_points)]:
            while libc.umount2(path.encode(), MNT_DETACH) == 0:
                pass
        for process in self.processes:
            process.close()
        for path in filter(os.path.exists, self.sockets):
            os.unlink(path)
        shutil.rmtree(self.path, ignore_errors=True)

    def mounts_below(self):
        """Also those that something else than the test has made; the last one first."""
        with open("/proc/self/mounts") as file:
            paths = [line.split()[1] for line in file]
        return [path for path in reversed(paths) if path.startswith(self.path + "/")]

    def print_logs(self):
        for path in self.logs:
            try:
                with open(path) as file:
                    print(f"---- {path}\n{''.join(file.readlines()[-40:])}", file=sys.stderr)
            except OSError as error:  # it is gone, or its disk is
                print(f"---- {error}", file=sys.stderr)


def close_all():
    for workspace in list(Workspace.alive):
        workspace.close()


atexit.register(close_all)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda received, frame: sys.exit(128 + received))


class Mount:
    """One mount of the test, with its store. `options` are those of `weightfs mount`.

    start() waits until all of `latest` is here, unless `ready` is false: then it streams in."""

    def __init__(self, test, url, *options, name="mnt", store="store", variables=None, ready=True):
        self.workspace = test.workspace
        self.url, self.options, self.variables = url, options, variables
        self.ready = ready
        self.path = os.path.join(test.dir, name)
        self.store = os.path.join(test.dir, store)
        self.process = None
        os.makedirs(self.path, exist_ok=True)
        self.workspace.mount_points.append(self.path)
        self.workspace.logs.append(os.path.join(self.store, "weightfs.log"))
        self.workspace.sockets.append(self.control_socket())  # a killed daemon leaves it

    def control_socket(self):
        digits = hashlib.sha256(os.path.realpath(self.store).encode()).hexdigest()[:16]
        return f"/run/weightfs/{digits}.sock"

    def arguments(self):
        usual = {"--poll": POLL, "--pin-grace": PIN_GRACE}
        return ("mount", self.url, self.path, "--store", self.store, *self.options,
                *(word for option, value in usual.items() if option not in self.options
                  for word in (option, value)))

    def start(self):
        """Mounts. Returns what `mount --json` says."""
        return self.adopt(call(*self.arguments(), variables=self.variables))

    def adopt(self, said):
        """Takes over the daemon that said this."""
        self.process = Process(said["pid"])
        self.workspace.processes.append(self.process)
        if self.ready and said.get("partial"):
            call("wait", self.path, "--ready", "--timeout", 120)
        return said

    def umount(self, *options):
        umount(self.path, *options)
        if not self.process.has_ended(10):
            raise AssertionError("umount returned before the daemon had ended")

    def status(self):
        with open(os.path.join(self.path, ".weightfs", "status")) as file:
            return json.load(file)

    def wait_status(self, condition, what, timeout=LIMIT):
        """Waits for a status that fulfils the condition, and returns it."""
        return wait_status(self.status, condition, what, timeout)

    def wait_version(self, version, timeout=LIMIT):
        return self.wait_status(lambda status: status["version"] == version,
                                f"version {version}", timeout)

    def staging(self, *parts):
        """A path in a writer's staging."""
        return self.join("staging", *parts)

    def join(self, *parts):
        return os.path.join(self.path, *map(str, parts))

    def latest(self):
        return int(os.readlink(self.join("latest")).split("/")[-1])


# ---- a test --------------------------------------------------------------------------------------

class MountTest(unittest.TestCase):
    """`self.dir` is a fresh directory, `self.url` a bucket in it that does not exist yet."""

    maxDiff = None

    def run(self, result=None):
        self.workspace = Workspace()
        self.dir = self.workspace.path
        self.url = self.make_url()
        before = len(result.failures) + len(result.errors)
        try:
            return super().run(result)
        finally:
            if len(result.failures) + len(result.errors) > before:
                print(f"seed: WEIGHTFS_TEST_SEED={SEED}", file=sys.stderr)
                self.workspace.print_logs()
            self.workspace.close()

    def make_url(self):
        self.bucket = os.path.join(self.dir, "bucket")
        return "file://" + self.bucket

    def make_run(self, versions, params=200_000, name="run"):
        """Checkpoints of a made-up run; returns their folders, the first version first."""
        out = os.path.join(self.dir, name)
        runs.make_run(out, versions, params)
        return [os.path.join(out, f"step_{i:06d}") for i in range(versions)]

    def init(self):
        return call("init", self.url)["repository"]

    def publish(self, folder, *options):
        return call("publish", self.url, folder, "--store", os.path.join(self.dir, "publisher"),
                    *options)

    def start_publish(self, folder, store="publisher", *options):
        """Starts a publisher and does not wait for it."""
        return start("publish", self.url, folder, "--store", os.path.join(self.dir, store),
                     "--json", *options)

    def version_count(self):
        return len(call("log", self.url))

    def make_repository(self, versions, params=200_000):
        """A repository with these versions published; returns their folders."""
        steps = self.make_run(versions, params)
        self.init()
        for i, step in enumerate(steps):
            self.publish(step, "--tag", f"step-{i + 1}")
        return steps

    def mount(self, *options, **names):
        mount = Mount(self, self.url, *options, **names)
        mount.start()
        return mount

    def writer(self, *options, **names):
        """A writer's mount; the repository is made if there is none."""
        if not os.path.exists(self.bucket):
            self.init()
        return self.mount("--writer", *options, **names)

    def tmpfs(self, name, size):
        """Mounts a small tmpfs; returns its path."""
        path = os.path.join(self.dir, name)
        os.makedirs(path)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "weightfs-test", path],
                       check=True)
        self.workspace.mount_points.append(path)
        return path

    def object(self, key):
        return os.path.join(self.bucket, key)

    def manifest(self, version):
        return self.object(f"versions/{version:020d}.json")

    def pack(self, version):
        """The one pack of a version."""
        folder = self.object(f"packs/{version}")
        names = os.listdir(folder)
        self.assertEqual(len(names), 1)
        return os.path.join(folder, names[0])

    def assert_same_tree(self, folder, source):
        self.assertEqual(hash_tree(folder), hash_tree(source))

    def assert_same_file(self, path, source):
        """Through a symlink of the mount, too: a failure says which version that led to."""
        with open(path, "rb") as file:
            opened, data = os.readlink(f"/proc/self/fd/{file.fileno()}"), file.read()
        wanted = read_file(source)
        if data != wanted:
            differ = [i for i in range(0, len(wanted), 4096) if data[i:i + 4096] != wanted[i:i + 4096]]
            self.fail(f"{opened} is not {source}: {len(data)} and {len(wanted)} bytes, "
                      f"{len(differ)} pages differ, at {differ[:1]} to {differ[-1:]}")

    def assert_clean(self):
        """The repository is whole."""
        self.assertEqual(call("verify", self.url)["problems"], [])


def main():
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        print("skipped: needs root and /dev/fuse")
        sys.exit(SKIPPED)
    if not os.path.exists(BINARY):
        sys.exit(f"{BINARY} does not exist; WEIGHTFS_BIN names the binary")
    print(f"seed: WEIGHTFS_TEST_SEED={SEED}", flush=True)
    unittest.main(verbosity=2)
