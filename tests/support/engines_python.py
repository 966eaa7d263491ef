"""The interpreter that scripts/engines.sh made, for tests of real engines."""

import os
import sys

import harness
import savers

PYTHON = os.environ.get("WEIGHTFS_ENGINES_PYTHON",
                        os.path.join(harness.ROOT, "build", "engines-hf", "bin", "python"))
MODULES = os.path.join(harness.HERE, "engines")


def run(code, *arguments):
    """Runs code there, which can import tiny; the binary is in its PATH as `weightfs`."""
    path = os.path.dirname(harness.BINARY) + ":" + os.environ["PATH"]
    return savers.run_python(PYTHON, code, *arguments,
                             variables={"PYTHONPATH": MODULES, "PATH": path})


def main():
    if not os.path.exists(PYTHON):
        if os.environ.get("WEIGHTFS_ENGINES_REQUIRED") == "1":
            sys.exit(f"{PYTHON} does not exist: scripts/engines.sh hf makes it")
        print(f"skipped: {PYTHON} does not exist; scripts/engines.sh hf makes it")
        sys.exit(harness.SKIPPED)
    harness.main()
