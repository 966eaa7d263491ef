"""`weightfs`, and `python -m weightfs`: the program itself, by whatever way it was installed."""

from __future__ import annotations

import sys

from weightfs.binary import replace_process


def main() -> None:
    """Becomes the program, with this process's arguments."""
    replace_process(sys.argv[1:])


if __name__ == "__main__":
    main()
