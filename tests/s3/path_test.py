"""The whole way over an s3:// URL: every command, readers' and writers' mounts, a real run."""

import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402
import runs  # noqa: E402


class Path(gateway.S3Test):
    def test_every_command(self):
        steps = self.make_run(3)
        self.assertEqual(harness.call("init", self.url)["created"], True)
        self.assertEqual(harness.call("init", self.url)["created"], False)
        mounts = [self.mount(name=f"mnt-{i}", store=f"store-{i}") for i in range(2)]
        for i, step in enumerate(steps, 1):
            said = self.publish(step, "--tag", f"step-{i}")
            self.assertEqual(said["version"], i)
            for mount in mounts:
                harness.call("wait", mount.path, "--tag", f"step-{i}", "--timeout", 60)
                self.assertEqual(mount.latest(), i)
                self.assert_same_tree(mount.join("latest/"), step)
        self.assertEqual([entry["version"] for entry in harness.call("log", self.url)], [3, 2, 1])
        self.assertEqual(harness.call("show", self.url, 2)["tag"], "step-2")
        self.assertGreater(harness.call("diff", self.url, 1, 3)["changed"], 0)
        self.assert_clean()
        for i, step in enumerate(steps, 1):
            out = os.path.join(self.dir, f"out-{i}")
            harness.call("export", self.url, out, "--version", i)
            self.assert_same_tree(out, step)
        status = mounts[0].status()
        self.assertEqual(status["repository"], harness.call("init", self.url)["repository"])
        self.assertEqual(self.url, status["url"])

    def test_doctor_looks_at_the_bucket(self):
        self.init()
        said = json.dumps(harness.call("doctor", self.url))
        self.assertIn(self.gateway.url.split("//")[1], said)
        self.assertNotIn(gateway.SECRET_KEY, said)

    def test_what_is_mounted_opens_without_the_bucket(self):
        steps = self.make_repository(2)
        mount = self.mount()
        mount.umount()
        self.use("http://127.0.0.1:1")
        mount.start()
        self.assertEqual(mount.latest(), 2)
        self.assert_same_tree(mount.join("latest/"), steps[1])
        mount.wait_status(lambda status: status["offline_since"], "the bucket to be out of reach")

    def test_a_real_run_from_a_trainers_mount_to_a_host(self):
        out = os.path.join(self.dir, "run")
        made = runs.make_run(out, source=runs.find_source())
        steps = sorted(made)
        trainer = self.writer(name="trainer", store="trainer-store")
        host = self.mount("--store-size", "10G", name="host", store="host-store")
        for i, step in enumerate(steps, 1):
            shutil.copytree(os.path.join(out, step), trainer.staging(step))
            subprocess.run(["mv", "-T", trainer.staging(step), trainer.join("publish", step)],
                           check=True)
            harness.call("wait", host.path, "--tag", step, "--ready", "--timeout", 60)
            self.assertEqual(harness.hash_tree(host.join("versions", i)), made[step])
        self.assertEqual(host.status()["serve"]["daemon_reads"], 0)
        for i, step in enumerate(steps, 1):
            self.assertEqual(harness.hash_tree(host.join("tags", f"{step}/")), made[step])
        shown = [harness.call("show", self.url, i) for i in range(2, len(steps) + 1)]
        for entry in shown:
            self.assertFalse(entry["snapshot"], entry)
        self.assert_clean()
        late = self.mount(name="late", store="late-store")
        self.assertEqual(harness.hash_tree(late.join("latest/")), made[steps[-1]])


if __name__ == "__main__":
    harness.main()
