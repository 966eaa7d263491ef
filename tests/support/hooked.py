"""Tests of hooks: fake engines, and what is known about them.

`mount` is a mount or a running sync: whatever has status(), wait_status() and join().
"""

import harness
from fake_engine import FakeEngine

QUICK = ",every=0.1"


class HookTest:
    """Beside a harness.MountTest."""

    def engine(self, protocol, **more):
        engine = FakeEngine(protocol, **more)
        self.addCleanup(engine.__exit__)
        return engine

    def hook(self, mount, i=0):
        return mount.status()["hooks"][i]

    def wait_hook(self, mount, condition, what, i=0):
        mount.wait_status(lambda status: condition(status["hooks"][i]), what)
        return self.hook(mount, i)

    def wait_reported(self, mount, version, i=0):
        """Until the engine has it, and nothing is left to do."""
        return self.wait_hook(mount, lambda hook: hook["state"] == "current"
                              and hook["reported"] == hook["wanted"] == version,
                              f"the engine to have version {version}", i)

    def assert_loaded(self, mount, engine, version, step):
        """The last load was this version, by its own path, with the published bytes."""
        path, hashes = engine.loaded()[-1]
        self.assertEqual(path, mount.join("versions", version))
        self.assertEqual(hashes, harness.hash_tree(step))
