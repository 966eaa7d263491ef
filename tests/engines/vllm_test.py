"""vLLM loads from a mount, unchanged, and follows its versions by the hook: as a fresh engine would from
a plain directory."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import engines_python  # noqa: E402
import harness  # noqa: E402
import vllm_engines  # noqa: E402


class Vllm(harness.MountTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = harness.Workspace()
        cls.addClassCleanup(cls.shared.close)
        cls.offline = vllm_engines.Offline(cls.shared)
        cls.steps = [os.path.join(cls.shared.path, f"step-{i}") for i in (1, 2, 3)]
        cls.offline.make_steps(cls.steps)
        cls.looks = []

    def wanted(self):
        """What fresh engines have that serve the plain directories, oldest first."""
        if not self.looks:
            self.looks.extend(self.offline.fresh(step) for step in self.steps)
        return self.looks

    def publish_version(self, version):
        self.assertEqual(self.publish(self.steps[version - 1])["version"], version)

    def wait_told(self, mount, version):
        mount.wait_status(lambda status: status["hooks"][0]["state"] == "current"
                          and status["hooks"][0]["reported"] == version, f"version {version}", 120)

    def test_steps_differ_in_what_is_compared(self):
        first, second, third = self.wanted()
        self.assertNotEqual(first["tokens"], second["tokens"])
        for key in ("logprobs", "checksums"):
            self.assertNotEqual(first[key], second[key])
            self.assertNotEqual(second[key], third[key])
        checked = [name for name, digest in first["checksums"].items() if digest != vllm_engines.NOTHING]
        self.assertTrue(any("embed_tokens" in name for name in checked), checked)
        self.assertTrue(any("lm_head" in name for name in checked), checked)

    def test_a_server_is_brought_to_every_version_by_the_hook(self):
        self.init()
        self.publish_version(1)
        served = vllm_engines.Served(self.workspace)
        mount = self.mount("--hook", f"vllm={served.url},every=0.1")
        served.start(mount.join("latest"))
        wanted = self.wanted()  # while it starts
        served.wait_ready()
        self.wait_told(mount, 1)
        self.assertEqual(served.look(), wanted[0])
        for version in (2, 3):
            with vllm_engines.Client(served) as client:  # no request fails, whatever is loaded meanwhile
                harness.wait_until(lambda: client.answers or client.error, "an answer")
                self.publish_version(version)
                self.wait_told(mount, version)
            self.assertIsNone(client.error)
            self.assertEqual(served.look(), wanted[version - 1])
        self.assertEqual(served.call("/weight_info"), {"weight_version": "3"})
        self.assertEqual(served.call("/is_paused"), {"is_paused": False})

    def test_each_way_to_load_gives_what_a_plain_directory_gives(self):
        """And so does a reload, from a mount that the daemon serves."""
        wanted = self.wanted()
        self.init()
        self.publish_version(1)
        mount = self.mount()
        daemon = self.mount("--serve", "daemon", name="daemon", store="daemon-store")
        self.publish_version(2)
        mount.wait_version(2)
        for strategy in ("lazy", "eager", "prefetch"):
            with self.subTest(strategy=strategy):
                self.assertEqual(self.offline.fresh(mount.join("latest"), strategy), wanted[1])
                self.offline.reload(daemon.join("versions/1"))
                self.assertEqual(self.offline.look(), wanted[0])
        self.publish_version(3)
        mount.wait_version(3)
        self.offline.reload(mount.join("versions/3"))
        self.assertEqual(self.offline.look(), wanted[2])


if __name__ == "__main__":
    engines_python.main("vllm")
