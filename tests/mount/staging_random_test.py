"""Random operations in the staging of a writer's mount, against models: fsx.py, tree_history.py."""

import os
import subprocess
import sys

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
sys.path.insert(0, SUPPORT)

import harness  # noqa: E402

MODES = ("passthrough", "daemon")


class StagingRandom(harness.MountTest):
    def start(self, program, *arguments):
        """Starts a checker."""
        process = subprocess.Popen([sys.executable, os.path.join(SUPPORT, program),
                                    *map(str, arguments)], text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(process.kill)
        return process

    def end(self, process):
        """Waits for a checker, which must have found nothing wrong."""
        out, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, out)

    def check(self, program, *arguments):
        self.end(self.start(program, *arguments))

    def seed(self):
        return harness.RANDOM.randrange(1 << 32)

    def test_one_file(self):
        for serve in MODES:
            with self.subTest(serve=serve):
                mount = self.writer("--serve", serve, name=serve, store=f"store-{serve}")
                for size in (20_000, 1 << 18):
                    self.check("fsx.py", mount.staging("file"), "--seed", self.seed(), "--ops",
                               1500, "--size", size)
                self.assertEqual(os.listdir(mount.staging()), [])

    def test_a_tree_and_the_same_tree_after_a_restart(self):
        for serve in MODES:
            with self.subTest(serve=serve):
                mount = self.writer("--serve", serve, name=serve, store=f"store-{serve}")
                tree, saved = mount.staging(), os.path.join(self.dir, f"{serve}.json")
                self.check("tree_history.py", tree, "--seed", self.seed(), "--ops", 3000, "--save",
                           saved)
                mount.umount()
                mount.start()
                self.check("tree_history.py", tree, "--seed", self.seed(), "--ops", 1000,
                           "--resume", saved)

    def test_several_trees_and_files_at_once(self):
        for serve in MODES:
            with self.subTest(serve=serve):
                mount = self.writer("--serve", serve, name=serve, store=f"store-{serve}")
                checkers = []
                for i in range(3):
                    tree = mount.staging(f"tree-{i}")
                    os.mkdir(tree, 0o755)
                    checkers.append(self.start("tree_history.py", tree, "--seed", self.seed(),
                                               "--ops", 700))
                    checkers.append(self.start("fsx.py", mount.staging(f"file-{i}"), "--seed",
                                               self.seed(), "--ops", 500, "--size", 60_000))
                for checker in checkers:
                    self.end(checker)


if __name__ == "__main__":
    harness.main()
