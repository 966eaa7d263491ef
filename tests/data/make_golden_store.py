#!/usr/bin/python3
"""Makes a golden store: make_golden_store.py WEIGHTFS REPOSITORY OUT.  See tests/mount/golden_store_test.py.

A writer's mount follows a copy of a golden repository (make_golden.py), pins a version, and leaves a
directory in staging. Run once for each release whose stores must be opened. What is committed is an archive,
which keeps modes and times (tar -C OUT -cJf store-VERSION.tar.xz .), and never changes.
"""

import os
import shutil
import subprocess
import sys
import tempfile


def main():
    weightfs, repository, out = map(os.path.abspath, sys.argv[1:])
    with tempfile.TemporaryDirectory() as work:
        bucket, mount = os.path.join(work, "bucket"), os.path.join(work, "mnt")
        shutil.copytree(repository, bucket)
        os.mkdir(mount)

        def run(*arguments):
            subprocess.run([weightfs, *arguments], check=True)

        run("mount", "file://" + bucket, mount, "--writer", "--store", out)
        run("wait", mount, "--version", "3")
        for version in (1, 2, 3):
            for name in sorted(os.listdir(os.path.join(mount, "versions", str(version)))):
                path = os.path.join(mount, "versions", str(version), name)
                if os.path.isfile(path):
                    with open(path, "rb") as file:
                        file.read()
        run("pin", mount, "--version", "2")
        os.mkdir(os.path.join(mount, "staging", "step-9"))
        with open(os.path.join(mount, "staging", "step-9", "notes.txt"), "w") as file:
            file.write("staged by 0.5\n")
        run("umount", mount)
    for name in os.listdir(out):
        if name.endswith(".log"):
            os.remove(os.path.join(out, name))


if __name__ == "__main__":
    main()
