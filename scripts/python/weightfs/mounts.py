"""What a mount shows of itself, as far as this package reads it without the program."""

from __future__ import annotations

import json
import os
from typing import Any

UNDER_WAY = ("queued", "uploading", "waiting", "committing")


def is_shown(target: str) -> bool:
    """Whether it is a mount, or the directory of a sync; a URL is neither."""
    return "://" not in target and os.path.exists(os.path.join(target, ".weightfs", "status"))


def is_writer(target: str) -> bool:
    """Whether it takes hand-overs."""
    return is_shown(target) and os.path.isdir(os.path.join(target, "publish"))


def last_error(mount: str, tag: str) -> str:
    """Why the hand-over publish/TAG was refused. "" if the last refusal is another one's, so that
    nobody is told a reason that is not theirs, or it cannot be read."""
    try:
        with open(os.path.join(mount, ".weightfs", "last_error"), encoding="utf-8") as file:
            text = file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if not tag or f" publish/{tag}: " in text else ""


def read_status(mount: str) -> dict[str, Any]:
    """{} if it cannot be read."""
    try:
        with open(os.path.join(mount, ".weightfs", "status"), encoding="utf-8") as file:
            read = json.load(file)
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def queue_of(mount: str) -> list[dict[str, Any]]:
    """The hand-overs that are no versions yet, in their order."""
    writer = read_status(mount).get("writer") or {}
    return list(writer.get("queue") or [])
