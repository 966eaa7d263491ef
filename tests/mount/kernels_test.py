"""Whatever does the work on chunks, the bytes are the same; a GPU that is not there is no trouble."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

VERSIONS = 3


class Variants(harness.MountTest):
    def pack_hashes(self):
        """sha256 of the packs by version and number; their names hold nonces."""
        hashes = {}
        for version in range(2, VERSIONS + 1):
            folder = self.object(f"packs/{version}")
            for name in os.listdir(folder):
                number = name.split("-")[-1]
                hashes[version, number] = harness.sha256(
                    harness.read_file(os.path.join(folder, name)))
        return hashes

    def test_all_write_the_same_packs_and_read_them(self):
        steps = self.make_run(VERSIONS, params=2_000_000)
        variants = harness.call("doctor")["kernels"]["variants"]
        packs = {}
        for name in ("scalar", "simd"):
            self.bucket = os.path.join(self.dir, f"bucket-{name}")
            self.url = "file://" + self.bucket
            variables = {"WEIGHTFS_KERNELS": name}
            harness.call("init", self.url)
            for step in steps:
                harness.call("publish", self.url, step, "--store",
                             os.path.join(self.dir, f"publisher-{name}"), variables=variables)
            packs[name] = self.pack_hashes()
            self.assertGreaterEqual(len(packs[name]), VERSIONS - 1)
        self.assertEqual(packs["scalar"], packs["simd"])

        # What one has written the other one reads.
        for name in ("scalar", "simd"):
            mount = self.mount(name=f"mnt-{name}", store=f"store-{name}",
                               variables={"WEIGHTFS_KERNELS": name})
            used = mount.status()["kernels"]
            self.assertEqual(used, {"variant": "scalar" if name == "scalar" else variants[-1],
                                    "gpu": None})
            self.assert_same_tree(mount.join("latest/"), steps[-1])


class NoGpu(harness.MountTest):
    def setUp(self):
        if harness.call("doctor")["gpus"]:
            self.skipTest("this machine has a GPU")

    def test_the_cpu_does_the_work_and_it_is_said_once(self):
        steps = self.make_run(2)
        self.init()
        self.publish(steps[0])
        done = harness.run("publish", self.url, steps[1], "--store",
                           os.path.join(self.dir, "publisher"), "--gpu", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("--gpu 0: "), 1, done.stderr)

        mount = self.mount("--gpu", "0")
        self.assert_same_tree(mount.join("latest/"), steps[1])
        gpu = mount.status()["kernels"]["gpu"]
        self.assertEqual(gpu["device"], 0)
        self.assertTrue(gpu["state"].startswith("failed: "), gpu)
        with open(os.path.join(mount.store, "weightfs.log")) as log:
            self.assertEqual(log.read().count("--gpu 0: "), 1)
        said = harness.run("status", mount.path)
        self.assertIn("GPU 0 failed: ", said.stdout)
        self.assert_clean()


if __name__ == "__main__":
    harness.main()
