"""Checks scripts/python: ruff, mypy --strict, and the tests of this folder. In build/venv
(WEIGHTFS_VENV_PYTHON), which scripts/test.sh makes; exit code 77, which ctest reads as skipped,
without it.

    tests/python/run.py [pytest options]
"""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PACKAGE = os.path.join(ROOT, "scripts", "python")
CONFIGURATION = os.path.join(PACKAGE, "pyproject.toml")
PYTHON = os.environ.get("WEIGHTFS_VENV_PYTHON", os.path.join(ROOT, "build/venv/bin/python"))
PYTEST = os.path.join(os.path.dirname(os.path.dirname(PYTHON)), "pytest")
SKIPPED = 77


def run(module, *arguments):
    """Whether it found nothing wrong."""
    print(f"== {module}", flush=True)
    return subprocess.run([PYTHON, "-m", module, *arguments], cwd=PACKAGE, env={
        **os.environ, "PYTHONPATH": PYTEST, "PYTHONDONTWRITEBYTECODE": "1"}).returncode == 0


def main():
    if not os.path.exists(PYTHON):
        print(f"skipped: {PYTHON} does not exist; scripts/test.sh makes it")
        return SKIPPED
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        print("skipped: needs root and /dev/fuse")
        return SKIPPED
    passed = [run("ruff", "check", "--no-cache", "--config", CONFIGURATION, PACKAGE, HERE),
              run("mypy", "--cache-dir", os.devnull, "weightfs"),
              run("pytest", "-q", "-p", "no:cacheprovider", HERE, *sys.argv[1:])]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
