"""The Python package with real torch: tests/python/torch_test.py, by the pytest of build/venv in the
environment of scripts/engines.sh."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import engines_python  # noqa: E402
import harness  # noqa: E402

VENV = os.path.join(harness.ROOT, "build", "venv", "bin", "python")
PYTEST = os.path.join(os.path.dirname(os.path.dirname(os.environ.get("WEIGHTFS_VENV_PYTHON", VENV))), "pytest")


class Package(unittest.TestCase):
    def test_tensors_of_torch(self):
        done = subprocess.run(
            [engines_python.PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider",
             os.path.join(harness.ROOT, "tests", "python", "torch_test.py")], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1100,
            env={**os.environ, "PYTHONPATH": PYTEST, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("skipped", done.stdout)


if __name__ == "__main__":
    engines_python.main()
