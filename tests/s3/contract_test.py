"""The contract of all buckets (tests/store/bucket/bucket_contract_test.cpp), on a live server."""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402


class Contract(gateway.S3Test):
    def test_the_suite_of_every_bucket(self):
        done = subprocess.run([gateway.program("weightfs_store_test"), "--gtest_filter=*BucketContract.*/live"],
                              env={**os.environ, "WEIGHTFS_TEST_S3_URL": self.url}, text=True,
                              capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        passed = int(re.search(r"\[  PASSED  \] (\d+) test", done.stdout)[1])
        self.assertGreaterEqual(passed, 10, done.stdout)
        self.assertNotIn("SKIPPED", done.stdout)
        print(f"{passed} tests passed", file=sys.stderr)


if __name__ == "__main__":
    harness.main()
