"""Four hosts publish versions in parts into one S3 bucket, and are killed at random."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402

ROUNDS = 15


class Parts(gateway.S3Test):
    def test_every_version_has_the_files_of_exactly_one_run(self):
        self.init()
        hosts = os.path.join(self.dir, "hosts")
        done = subprocess.run(
            [gateway.program("weightfs_kill_parts"), self.url, hosts, str(harness.SEED),
             str(ROUNDS)], text=True, env=harness.environment(), capture_output=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        print(done.stdout, file=sys.stderr)
        versions = [entry["version"] for entry in harness.call("log", self.url)]
        self.assertEqual(versions, list(range(len(versions), 0, -1)))
        self.assertGreaterEqual(len(versions), ROUNDS)
        self.assertEqual(harness.call("verify", self.url)["problems"], [])


if __name__ == "__main__":
    harness.main()
