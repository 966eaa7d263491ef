"""A trainer and an engine's host, each in a network of its own, that share only the S3 address."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402
import namespaces  # noqa: E402

BUCKET_ADDRESS = "10.77.0.1"
STEPS = 8
TRAINER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trainer.py")
PYTHON = os.environ.get("WEIGHTFS_VENV_PYTHON", sys.executable)

MAKE_BUCKET = """import sys
sys.path.insert(0, sys.argv[1])
import gateway
gateway.make_client(sys.argv[2]).create_bucket(Bucket=gateway.BUCKET)
"""


class ThreeHosts(gateway.S3Test):
    @classmethod
    def setUpClass(cls):
        """The server is in the middle of two cables, and passes nothing on."""
        cls.trainer, cls.middle, cls.host = (namespaces.Namespace() for _ in range(3))
        cls.trainer.connect(cls.middle, "trainer", "10.77.1.2/24", "10.77.1.1/24")
        cls.host.connect(cls.middle, "host", "10.77.2.2/24", "10.77.2.1/24")
        cls.middle.run("ip", "address", "add", BUCKET_ADDRESS, "dev", "lo")
        cls.trainer.run("ip", "route", "add", BUCKET_ADDRESS, "via", "10.77.1.1")
        cls.host.run("ip", "route", "add", BUCKET_ADDRESS, "via", "10.77.2.1")
        gateway.S3Test.gateway = gateway.Gateway(address=BUCKET_ADDRESS, inside=cls.middle.inside)

    @classmethod
    def tearDownClass(cls):
        cls.gateway.close()
        for namespace in (cls.trainer, cls.host, cls.middle):
            namespace.close()

    def call(self, namespace, *arguments):
        done = namespace.run(harness.BINARY, *map(str, arguments), "--json", check=False,
                             env=harness.environment(), timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def mount_inside(self, namespace, *options, name):
        mount = harness.Mount(self, self.url, *options, name=name, store=name + "-store")
        mount.adopt(self.call(namespace, *mount.arguments()))
        return mount

    def assert_apart(self):
        """From neither host the other one, or this machine, can be reached; the bucket can."""
        answers = 'exec 3<>/dev/tcp/$0/$1'
        port = self.gateway.url.split(":")[-1]
        for namespace, other in ((self.trainer, "10.77.2.2"), (self.host, "10.77.1.2")):
            for address, wanted in ((BUCKET_ADDRESS, True), (other, False)):
                done = namespace.run("timeout", "5", "bash", "-c", answers, address, port, check=False)
                self.assertEqual(done.returncode == 0, wanted, done.stderr)
            routes = namespace.run("ip", "route").stdout
            self.assertNotIn("default", routes)

    def test_a_trainer_publishes_each_step_and_the_host_reads_each_byte(self):
        self.trainer.run(sys.executable, "-c", MAKE_BUCKET, os.path.dirname(gateway.__file__),
                         self.gateway.url)
        self.assert_apart()
        self.call(self.trainer, "init", self.url)
        writer = self.mount_inside(self.trainer, "--writer", name="trainer")
        reader = self.mount_inside(self.host, "--store-size", "10G", name="host")
        told = os.path.join(self.dir, "told")
        os.makedirs(told)
        trained = self.trainer.run(PYTHON, TRAINER, writer.path, told, str(STEPS), check=False,
                                   env=harness.environment(), timeout=300)
        self.assertEqual(trained.returncode, 0, trained.stderr)
        for step in range(1, STEPS + 1):
            self.call(self.host, "wait", reader.path, "--tag", f"step-{step}", "--timeout", 60)
            with open(os.path.join(told, f"step-{step}.json")) as file:
                self.assertEqual(harness.hash_tree(reader.join("tags", f"step-{step}/")),
                                 json.load(file))
        self.assertEqual(reader.latest(), STEPS)
        with open(os.path.join(told, "losses.json")) as file:
            losses = json.load(file)
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(self.call(self.host, "verify", self.url)["problems"], [])
        log = self.call(self.host, "log", self.url)
        moved = [entry["delta_bytes"] / entry["version_bytes"] for entry in log
                 if entry.get("delta_bytes")]
        print(f"losses {losses[0]:.3f} to {losses[-1]:.3f}; {trained.stdout.strip()}; "
              f"deltas {100 * min(moved):.0f} to {100 * max(moved):.0f} % of a version",
              file=sys.stderr)


if __name__ == "__main__":
    harness.main()
