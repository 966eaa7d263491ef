"""Nine versions of a real training run, bit for bit, through the mount.

The run is ../shared/data/rl-run-a beside the checkout (or below $WEIGHTFS_SHARED), whose every file
of every version has a recorded sha256; without it one is made up.
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import runs  # noqa: E402


class RecordedRun(harness.MountTest):
    def recorded_hashes(self, out):
        """[{file: sha256}], as recorded, or of what was made up."""
        source = runs.find_source()
        made = runs.make_run(out, source=source)
        print("recorded" if source else "made up", file=sys.stderr)
        if source:
            with open(os.path.join(source, "steps", "sha256.json")) as file:
                made = json.load(file)
        return [made[step] for step in sorted(made)]

    def test_every_file_of_every_version(self):
        out = os.path.join(self.dir, "run")
        hashes = self.recorded_hashes(out)
        self.assertEqual(len(hashes), 9)
        self.init()
        kernel = self.mount("--store-size", "10G")
        daemon = self.mount("--store-size", "10G", "--serve", "daemon", name="daemon",
                            store="daemon-store")
        for i in range(len(hashes)):
            said = self.publish(os.path.join(out, f"step_{i:06d}"), "--tag", f"step-{i}")
            for mount in (kernel, daemon):
                mount.wait_version(i + 1)
            if i > 0:
                self.assertLess(said["uploaded_bytes"], said["version_bytes"] / 50)
        for mount in (kernel, daemon):
            self.assertEqual(sorted(os.listdir(mount.join("versions"))),
                             sorted(str(i + 1) for i in range(len(hashes))))
            for i, wanted in enumerate(hashes):
                self.assertEqual(harness.hash_tree(mount.join("versions", i + 1)), wanted)
                self.assertEqual(harness.hash_tree(mount.join("tags", f"step-{i}/")), wanted)
        self.assertEqual(kernel.status()["serve"]["daemon_reads"], 0)
        self.assert_clean()

        late = self.mount(name="late", store="late-store")  # from version 1, all deltas in one pass
        self.assertEqual(harness.hash_tree(late.join("latest/")), hashes[-1])
        for i, wanted in enumerate(hashes):
            exported = os.path.join(self.dir, f"export-{i}")
            harness.call("export", self.url, exported, "--version", i + 1)
            self.assertEqual(harness.hash_tree(exported), wanted)


if __name__ == "__main__":
    harness.main()
