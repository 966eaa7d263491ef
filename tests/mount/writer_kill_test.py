"""The daemon of a writer's mount is killed at random times while a trainer saves and hands over."""

import errno
import os
import shutil
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import writers  # noqa: E402
from writers import FILE  # noqa: E402

PAUSE = 0.02  # between two looks whether the mount is back


class Trainer(threading.Thread):
    """Saves one checkpoint after another, hands it over and waits; goes on when the mount is back.

    It looks at the mount through one descriptor for each try, so that it never mixes two mounts, or
    a mount with the directory below it."""

    def __init__(self, mount, source):
        super().__init__()
        self.mount = mount
        self.files = {name: harness.read_file(os.path.join(source, name))
                      for name in sorted(os.listdir(source))}
        self.acknowledged = {}  # tag -> version
        self.is_stopped = threading.Event()
        self.error = None

    def checkpoint(self, step):
        """{name: bytes}: another one for each step."""
        data = bytearray(self.files[FILE])
        data[-2 * step - 2] ^= 1
        return {**self.files, FILE: bytes(data)}

    def run(self):
        try:
            step = 0
            while not self.is_stopped.is_set():
                step += 1
                while not self.bring(f"step-{step}", self.checkpoint(step)):
                    self.is_stopped.wait(PAUSE)
        except BaseException as error:  # for the test, which has the other thread
            self.error = error

    def bring(self, tag, files):
        """Returns: true if the version was acknowledged."""
        try:
            root = os.open(self.mount.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return False
        try:
            if not self.is_there(root, "staging"):
                return False  # nothing is mounted at this moment
            if self.find(root, tag) in (None, "staging"):
                self.save(root, tag, files)
                os.rename(f"staging/{tag}", f"publish/{tag}", src_dir_fd=root, dst_dir_fd=root)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.EINTR,
                                   errno.ENODEV, errno.ENOTDIR):
                raise
            return False
        finally:
            os.close(root)
        return self.wait(tag)

    def is_there(self, root, path):
        try:
            os.lstat(path, dir_fd=root)
            return True
        except FileNotFoundError:
            return False

    def find(self, root, tag):
        """Where the checkpoint is.  In this order it cannot pass by unseen."""
        places = [place for place in ("staging", "publish", "tags")
                  if self.is_there(root, f"{place}/{tag}")]
        if "staging" in places and len(places) > 1:
            raise AssertionError(f"{tag} is in {places}")
        return places[-1] if places else None

    def save(self, root, tag, files):
        if self.is_there(root, f"staging/{tag}"):  # half of it
            shutil.rmtree(f"staging/{tag}", dir_fd=root)
        os.mkdir(f"staging/{tag}", dir_fd=root)
        for name, data in files.items():
            fd = os.open(f"staging/{tag}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=root)
            with open(fd, "wb") as file:
                file.write(data)

    def wait(self, tag):
        done = harness.run("wait", self.mount.path, "--tag", tag, "--json")
        said = harness.json.loads(done.stdout)
        if done.returncode == 0:
            self.acknowledged[tag] = said["version"]
            return True
        # The daemon is gone, or the mount; anything else is the queue's fault.
        if said["error"]["code"] not in ("unavailable", "not_found", "timed_out", "io"):
            raise AssertionError(f"wait --tag {tag}: {said}")
        if f"{tag}: " in said["error"]["message"]:
            raise AssertionError(f"wait --tag {tag}: {said}")
        return False


class Kill(writers.WriterTest):
    def survive(self, serve, rounds):
        step = self.make_run(1, params=400_000)[0]
        self.init()
        mount = self.writer("--serve", serve)
        trainer = Trainer(mount, step)
        trainer.start()
        self.addCleanup(trainer.join)
        self.addCleanup(trainer.is_stopped.set)
        kills = 0
        while kills < rounds or len(trainer.acknowledged) < 5:
            mount.process.has_ended(harness.RANDOM.random() * 0.5)
            if trainer.error:
                break
            acknowledged = dict(trainer.acknowledged)
            mount.process.kill()
            kills += 1
            mount.start()
            self.look(mount, trainer, acknowledged)
        trainer.is_stopped.set()
        trainer.join()
        if trainer.error:
            raise trainer.error
        print(f"killed {kills} times, {len(trainer.acknowledged)} versions acknowledged",
              file=sys.stderr)
        self.look_at_the_end(mount, trainer)

    def look(self, mount, trainer, acknowledged):
        """What was acknowledged is there, at once."""
        for tag, version in acknowledged.items():
            self.assertEqual(os.readlink(mount.join("tags", tag)), f"../versions/{version}")
        if acknowledged:
            tag, version = list(acknowledged.items())[-1]
            self.assert_files(mount.join("versions", version),
                              trainer.checkpoint(int(tag.split("-")[1])))

    def look_at_the_end(self, mount, trainer):
        harness.wait_until(lambda: not os.listdir(mount.join("publish")), "the queue to be empty")
        log = harness.call("log", self.url)
        tags = [entry["tag"] for entry in log]
        self.assertEqual(len(tags), len(set(tags)), tags)  # nothing twice
        self.assertEqual({entry["tag"]: entry["version"] for entry in log}, {
            **{entry["tag"]: entry["version"] for entry in log}, **trainer.acknowledged})
        staged = set(os.listdir(mount.join("staging")))
        self.assertEqual(staged & set(tags), set())
        for entry in log:
            out = os.path.join(self.dir, "out")
            harness.call("export", self.url, out, "--version", entry["version"])
            self.assert_files(out, trainer.checkpoint(int(entry["tag"].split("-")[1])))
            shutil.rmtree(out)
        self.assert_clean()

    def assert_files(self, folder, files):
        self.assertEqual(harness.hash_tree(folder),
                         {name: harness.sha256(data) for name, data in files.items()})

    def test_nothing_acknowledged_is_lost_and_nothing_is_published_twice(self):
        self.survive("auto", 14)

    def test_nothing_is_lost_by_the_daemon_either(self):
        self.survive("daemon", 6)


if __name__ == "__main__":
    harness.main()
