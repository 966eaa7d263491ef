"""A trainer that writes a directory for each step, and marks it when it is complete: each becomes a
version.

    python marked_directories.py DIRECTORIES MARKER /mnt/w

prime-rl broadcasts its weights so: broadcasts/step_N/, and an empty file STABLE at last.

    python marked_directories.py outputs/broadcasts STABLE /mnt/w

The directories are copied, in the order of their numbers, and left to the trainer. One that was
published before this program started is not published again: its tag is there. Ends on SIGTERM or
SIGINT, when all that it has copied is published.
"""

import os
import re
import signal
import sys
import threading

import weightfs
from weightfs.integrations.steps import StepPublisher

POLL_SECONDS = 0.2


def marked(parent, marker):
    """{number: path} of the directories that are complete."""
    found = {}
    for name in os.listdir(parent) if os.path.isdir(parent) else ():
        number = re.search(r"(\d+)$", name)
        if number and os.path.exists(os.path.join(parent, name, marker)):
            found[int(number.group(1))] = os.path.join(parent, name)
    return found


def main(parent, marker, target, stopped):
    steps = StepPublisher(target)
    seen = {version.tag for version in weightfs.log(target)}
    while not stopped.wait(POLL_SECONDS):
        for number, folder in sorted(marked(parent, marker).items()):
            tag = f"step-{number}"
            if tag not in seen and steps.has_room():
                steps.publish_folder(folder, tag, {"step": number})
                seen.add(tag)
        steps.raise_failed()
    steps.wait()


if __name__ == "__main__":
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    main(*sys.argv[1:4], stopping)
