"""What was done in staging is there after kill -9 of the daemon: names, attributes and bytes."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
sys.path.insert(0, SUPPORT)

import harness  # noqa: E402

HISTORY = os.path.join(SUPPORT, "tree_history.py")
MODES = ("passthrough", "daemon")
KILLS = 6


class StagingKill(harness.MountTest):
    def start_mount(self, serve):
        """A writer's mount, an empty directory in its staging, the name of a JSON file."""
        mount = self.writer("--serve", serve, name=serve, store=f"store-{serve}")
        tree = mount.staging("tree")
        os.mkdir(tree, 0o755)
        return mount, tree, os.path.join(self.dir, f"{serve}.json")

    def history(self, *arguments):
        process = subprocess.Popen([sys.executable, HISTORY, *map(str, arguments)], text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(self.stop, process)
        return process

    @staticmethod
    def stop(process):
        process.kill()
        if not process.stdout.closed:
            process.communicate()

    def end(self, process):
        """Waits for a history that must have found nothing wrong; returns what it printed."""
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)
        return out

    def kill_and_mount(self, mount):
        mount.process.kill()
        harness.libc.umount2(mount.path.encode(), harness.MNT_DETACH)
        mount.start()

    def assert_no_orphans(self, mount, saved):
        """As many backing files as files: what had no name went with the daemon."""
        with open(saved) as file:
            state = json.load(file)["before"]
        self.assertEqual(len(os.listdir(os.path.join(mount.store, "staging"))),
                         sum(told["kind"] == "file" for told in state.values()))

    def test_at_random_times(self):
        for serve in MODES:
            with self.subTest(serve=serve):
                mount, tree, saved = self.start_mount(serve)
                done, resume = 0, []
                for _ in range(KILLS):
                    seed = harness.RANDOM.randrange(1 << 32)
                    history = self.history(tree, "--seed", seed, "--ops", 1_000_000, "--save",
                                           saved, *resume)
                    self.assertEqual(history.stdout.readline(), f"seed {seed}\n")
                    if resume:
                        history.stdout.readline()  # what the kill before left has been compared
                    mount.process.has_ended(0.05 + harness.RANDOM.random() * 0.6)
                    mount.process.kill()
                    out = self.end(history)
                    done += int(re.match(r"died after (\d+) operations", out)[1])
                    self.kill_and_mount(mount)
                    resume = ["--resume", saved]
                self.end(self.history(tree, "--check", saved))
                print(f"{serve}: killed {KILLS} times in {done} operations", file=sys.stderr)

    def test_while_files_are_held_open(self):
        for serve in MODES:
            with self.subTest(serve=serve):
                mount, tree, saved = self.start_mount(serve)
                history = self.history(tree, "--seed", harness.RANDOM.randrange(1 << 32), "--ops",
                                       1000, "--save", saved, "--hold")
                history.stdout.readline()
                self.assertEqual(history.stdout.readline(), "saved\n")
                self.kill_and_mount(mount)
                self.end(self.history(tree, "--check", saved))
                self.assert_no_orphans(mount, saved)
                self.end(history)
                self.end(self.history(tree, "--check", saved))

    def test_a_writer_that_outlives_the_daemon_is_noticed(self):
        """Its descriptor still writes to the staged file, and no daemon counts it."""
        step = self.make_run(1)[0]
        mount = self.writer("--serve", "passthrough")
        saved = mount.staging("step")
        shutil.copytree(step, saved)
        name = next(name for name in sorted(os.listdir(saved)) if name.endswith(".safetensors"))
        fd = os.open(os.path.join(saved, name), os.O_RDWR)
        try:
            self.kill_and_mount(mount)
            last = os.path.getsize(os.path.join(saved, name)) - 1
            os.pwrite(fd, b"\x7f", last)
            self.assertEqual(harness.read_file(os.path.join(saved, name))[last], 0x7f)
            with self.assertRaises(OSError) as refused:
                os.rename(saved, mount.join("publish", "step"))
            self.assertEqual(refused.exception.errno, errno.EBUSY)
            self.assertIn(name.encode(),
                          harness.read_file(mount.join(".weightfs", "last_error")))
        finally:
            os.close(fd)
        shutil.copy(os.path.join(step, name), os.path.join(saved, name))
        os.rename(saved, mount.join("publish", "step"))
        mount.wait_version(1)
        self.assert_same_tree(mount.join("latest/"), step)


if __name__ == "__main__":
    harness.main()
