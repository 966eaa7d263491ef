"""transformers loads models through a mount, unchanged, and keeps their files mapped as long as it has them."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import engines_python  # noqa: E402
import harness  # noqa: E402

PROMPT = [1, 2, 3, 4, 5, 6]
TOKENS = 16
NAMED_SECONDS = 5.5  # what a `latest` has named stays for 5 s


class Transformers(harness.MountTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = harness.Workspace()
        cls.addClassCleanup(cls.shared.close)
        cls.worker = engines_python.Worker(cls.shared, "transformers_worker.py")
        cls.steps = [os.path.join(cls.shared.path, f"step-{i}") for i in range(1, 7)]
        cls.worker.make_steps(cls.steps)

    def setUp(self):
        self.init()

    def publish_version(self, version, *mounts):
        self.publish(self.steps[version - 1])
        for mount in mounts:
            mount.wait_version(version)

    def size(self, step):
        return sum(os.path.getsize(os.path.join(step, name)) for name in os.listdir(step))

    def outputs(self, name):
        return self.worker.generate(name, PROMPT, TOKENS), self.worker.hashes(name)

    def wanted(self, version):
        """Of the plain directory."""
        self.worker.load("plain", self.steps[version - 1])
        outputs = self.outputs("plain")
        self.worker.drop("plain")
        return outputs

    def assert_loads(self, path, version, **more):
        self.worker.load("loaded", path, more)
        self.assertEqual(self.outputs("loaded"), self.wanted(version))

    def test_a_model_keeps_its_version_while_new_ones_come_and_are_loaded(self):
        self.publish_version(1)
        mount = self.mount("--store-size", str(int(2.5 * self.size(self.steps[0]))))
        self.worker.load("old", mount.join("latest"))
        loaded = time.monotonic()
        old = self.outputs("old")
        self.assertEqual(old, self.wanted(1))
        for version in range(2, 6):
            self.publish_version(version, mount)
        # Until here version 1 could also stay because `latest` named it.
        harness.wait_until(lambda: time.monotonic() > loaded + NAMED_SECONDS, "time")
        self.publish_version(6, mount)
        self.assertEqual(self.worker.mapped(mount.join("versions/1")), 4)
        # Version 4 goes after the flip.
        harness.wait_until(lambda: sorted(os.listdir(mount.join("versions"))) == ["1", "5", "6"], "the versions")
        self.assert_loads(mount.join("latest"), 6)
        self.assertEqual(self.worker.mapped(mount.join("versions/6")), 4)
        self.assertEqual(self.outputs("old"), old)
        self.assertNotEqual(self.outputs("loaded")[0], old[0])

        for name in ("old", "loaded"):
            self.worker.drop(name)
        self.assertEqual(self.worker.mapped(mount.path), 0)

    def test_every_way_to_read_gives_the_same_weights(self):
        self.publish_version(1)
        mounts = (self.mount(), self.mount("--serve", "daemon", name="daemon", store="daemon-store"))
        for version in (1, 2):
            if version > 1:
                self.publish_version(version, *mounts)
            for mount in mounts:
                for more in ({}, {"disable_mmap": True}):
                    with self.subTest(version=version, mount=mount.path, more=more):
                        self.assert_loads(mount.join("latest"), version, **more)
        self.worker.drop("loaded")


if __name__ == "__main__":
    engines_python.main()
