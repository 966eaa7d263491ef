"""Passes: who loads again and again through `latest` follows it, and nobody mixes two versions.

It waits most of the time, so the scenarios run side by side, each on a mount and a repository of
its own. That a loop follows within its period is told by its runs: the first one that begins when a
version is there shows it, however late a busy machine runs it.
"""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import loaders  # noqa: E402

LIMIT = 240  # seconds for anything that must happen at all
SLACK = float(os.environ.get("WEIGHTFS_PASSES_SLACK", 15))  # seconds; of a machine that is busy
CONFIG_PAUSE = 90  # longer than the grace

# A process that loads all shards through `latest`, or by its name, and then polls readlink(2).
LOADS_AND_POLLS = r"""
import os, sys, time
mount, how, shards = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
link = os.path.join(mount, "latest")
first = os.readlink(link)
folder = link if how == "latest" else os.path.join(mount, first)
for shard in shards:
    with open(os.path.join(folder, shard), "rb") as file:
        file.read()
print("loaded", flush=True)
end = time.monotonic() + float(sys.argv[4])
while os.readlink(link) == first and time.monotonic() < end:
    time.sleep(0.05)
print(time.monotonic(), flush=True)
for shard in shards:
    with open(os.path.join(link, shard), "rb") as file:
        print(file.read().hex(), flush=True)
"""

# A process that reads config and index, pauses, and reads the shards: itself, or by a child.
CONFIG_FIRST = r"""
import json, os, subprocess, sys, time
link, pause, shards = sys.argv[1], float(sys.argv[2]), sys.argv[3].split(",")
def read(name):
    with open(os.path.join(link, name), "rb") as file:
        return file.read().hex()
said = [read("config.json"), read("model.safetensors.index.json")]
print("read", flush=True)
time.sleep(pause)
said += [read(shard) for shard in shards[:2]]
said += [subprocess.check_output(["cat", os.path.join(link, shard)]).hex() for shard in shards[2:]]
print(json.dumps(said), flush=True)
"""


class Scenario(harness.MountTest):
    """One repository and its mount; not a test by itself."""

    name = body = problem = None
    published = 0

    @staticmethod
    def of(name, body):
        scenario = Scenario()
        scenario.name, scenario.body = name, body
        return scenario

    def work(self):
        self.workspace = harness.Workspace()
        self.dir = self.workspace.path
        self.url = self.make_url()
        try:
            self.body(self)
        except BaseException as error:
            self.problem = error
            self.workspace.print_logs()
        finally:
            self.doCleanups()
            self.workspace.close()

    def begin(self, *options, one_file=False):
        self.one_file = one_file
        self.init()
        self.publish_next()
        mount = harness.Mount(self, self.url, "--pin-grace", "60", *options)
        mount.start()
        return mount

    def publish_next(self, mount=None, *options):
        self.published += 1
        folder = os.path.join(self.dir, f"checkpoint-{self.published}")
        loaders.write_checkpoint(folder, self.published)
        if self.one_file:
            for shard in range(1, loaders.SHARDS):
                os.unlink(os.path.join(folder, loaders.shard_name(shard)))
            os.unlink(os.path.join(folder, "model.safetensors.index.json"))
            os.rename(os.path.join(folder, loaders.shard_name(0)),
                      os.path.join(folder, "model.safetensors"))
        self.publish(folder, *options)
        if mount is not None:
            mount.wait_version(self.published)
        return time.monotonic()

    def version_of(self, data, shard=0):
        for version in range(1, self.published + 1):
            if loaders.shard_data(version, shard) == data:
                return version
        raise AssertionError("bytes that belong to no version")


def follows(period, command, rounds, one_file):
    """A shell runs `command` on one shard every `period` seconds: the first run that begins when a
    version is there shows it."""
    def body(test):
        mount = test.begin(one_file=one_file)
        path = mount.join("latest", "model.safetensors" if one_file else loaders.shard_name(0))
        script = ('while true; do read began rest < /proc/uptime; echo $began; '
                  f'{command} "$1" || exit 1; echo; sleep {period}; done')
        loop = subprocess.Popen(["sh", "-c", script, "sh", path], stdout=subprocess.PIPE,
                                start_new_session=True)
        test.addCleanup(end, loop)
        test.assertEqual(next_run(loop, command, test)[1], 1)
        for _ in range(rounds):
            test.publish_next(mount)
            shown = time.clock_gettime(time.CLOCK_BOOTTIME)
            began = 0
            while began <= shown:
                began, version = next_run(loop, command, test)
            test.assertEqual(version, test.published, f"{command} every {period} s")
    return body


def next_run(loop, command, test):
    """When it began, and the version that it showed."""
    began = float(loop.stdout.readline())
    known = [loaders.shard_data(version, 0) for version in range(1, test.published + 1)]
    if command == "cat":
        said = loop.stdout.read(len(known[0]))
    else:
        said = loop.stdout.readline().split()[0].decode()
        known = [hashlib.md5(data).hexdigest() for data in known]
    loop.stdout.readline()
    return began, known.index(said) + 1


def end(process):
    if process.poll() is None:
        os.killpg(process.pid, harness.signal.SIGKILL)
    process.communicate()


def polls(how):
    """A process that has loaded and polls `readlink latest` sees what comes within 3 s, and loads
    it."""
    def body(test):
        mount = test.begin()
        names = ",".join(loaders.shard_name(shard) for shard in range(loaders.SHARDS))
        process = subprocess.Popen([sys.executable, "-c", LOADS_AND_POLLS, mount.path, how, names,
                                    str(LIMIT)],
                                   stdout=subprocess.PIPE, text=True, start_new_session=True)
        test.addCleanup(end, process)
        test.assertEqual(process.stdout.readline(), "loaded\n")
        shown = test.publish_next(mount)
        seen = float(process.stdout.readline())
        test.assertLess(seen - shown, 3 + SLACK)
        again = [bytes.fromhex(process.stdout.readline()) for _ in range(loaders.SHARDS)]
        test.assertEqual([test.version_of(data, shard) for shard, data in enumerate(again)],
                         [2] * loaders.SHARDS)
    return body


def config_first(link):
    """Config and index, a pause that is longer than the grace, shards: one version."""
    def body(test):
        mount = test.begin()
        options = ()
        if link != "latest":
            test.publish_next(mount, "--tag", "best")
            options = ("--tag", "best")
        first = test.published
        names = ",".join(loaders.shard_name(shard) for shard in range(loaders.SHARDS))
        process = subprocess.Popen(
            [sys.executable, "-c", CONFIG_FIRST, mount.join(link), str(CONFIG_PAUSE), names],
            stdout=subprocess.PIPE, text=True, start_new_session=True)
        test.addCleanup(end, process)
        test.assertEqual(process.stdout.readline(), "read\n")
        test.publish_next(mount, *options)
        config, _, *shards = map(bytes.fromhex, json.loads(process.stdout.readline()))
        test.assertEqual(json.loads(config)["step"], first)
        test.assertEqual([test.version_of(data, shard) for shard, data in enumerate(shards)],
                         [first] * loaders.SHARDS)
    return body


def a_full_table_is_one_uids(test):
    """16,500 opens from short-lived sessions of one uid leave another's loader its pass."""
    mount = test.begin()
    shard = mount.join("latest", loaders.shard_name(0))
    script = ("import os, sys\n"
              "for number in range(int(sys.argv[2])):\n"
              "    pid = os.fork()\n"
              "    if pid == 0:\n"
              "        os.setsid()\n"
              "        os.close(os.open(sys.argv[1], os.O_RDONLY))\n"
              "        os._exit(0)\n"
              "    os.waitpid(pid, 0)\n")
    crowd = [subprocess.Popen([sys.executable, "-c", script, path, "8250"], user=1234, group=1234,
                              start_new_session=True)
             for path in (shard, mount.join("latest", "config.json"))]
    for process in crowd:
        test.addCleanup(end, process)
        test.assertEqual(process.wait(LIMIT), 0)
    loader = loaders.Loader(test, mount)
    test.assertEqual(loader.open(0), 1)
    test.publish_next(mount)
    test.assertEqual([loader.open(1), loader.open(2)], [1, 1])
    test.assertEqual(mount.status()["pins_full"], [])


def copies(test):
    """`cp latest/*` while versions come: nothing is replaced while it is copied."""
    mount = test.begin()
    stop = threading.Event()

    def publish():
        while not stop.is_set():
            test.publish_next()
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for number in range(150):
            folder = os.path.join(test.dir, f"copy-{number}")
            os.mkdir(folder)
            names = sorted(os.path.basename(path) for path in glob.glob(mount.join("latest", "*")))
            done = subprocess.run(["cp", *(mount.join("latest", name) for name in names), folder],
                                  stderr=subprocess.PIPE, text=True)
            test.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(os.path.join(folder, "config.json")) as file:
                version = json.load(file)["step"]
            for shard in range(loaders.SHARDS):
                data = harness.read_file(os.path.join(folder, loaders.shard_name(shard)))
                test.assertEqual(data, loaders.shard_data(version, shard))
            shutil.rmtree(folder)
    finally:
        stop.set()
        publisher.join()


class Passes(harness.unittest.TestCase):
    def test_all(self):
        scenarios = [Scenario.of(name, body) for name, body in (
            ("cat every 1 s", follows(1, "cat", 4, one_file=True)),
            ("cat every 5 s", follows(5, "cat", 3, one_file=True)),
            ("cat every 20 s", follows(20, "cat", 2, one_file=True)),
            ("cat every 50 s", follows(50, "cat", 1, one_file=True)),
            ("md5sum every 30 s", follows(30, "md5sum", 2, one_file=False)),
            ("loads through latest and polls", polls("latest")),
            ("loads by its name and polls", polls("name")),
            ("config first", config_first("latest")),
            ("config first, by a tag", config_first("tags/best")),
            ("a full table", a_full_table_is_one_uids),
            ("cp", copies),
        )]
        threads = [threading.Thread(target=scenario.work) for scenario in scenarios]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{len(scenarios)} scenarios in {time.monotonic() - begin:.0f} s", flush=True)
        problems = [f"{one.name}: {one.problem!r}" for one in scenarios if one.problem]
        self.assertEqual(problems, [])


if __name__ == "__main__":
    harness.main()
