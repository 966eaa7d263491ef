"""The token of this start of a trainer, which all its processes share.

Parts of one version find each other by it, and parts of two runs of the same step never do.
"""

from __future__ import annotations

import secrets
import sys
from typing import Any

from weightfs.errors import UsageError

drawn: str | None = None  # by rank 0, once for each process


def shared_token(world_size: int) -> str | None:
    """Draws one where torch.distributed is initialised, the first time; all ranks must call it
    then. None: the program takes what a launcher has set.

    Raises UsageError if others than these ranks are in the group: they would be waited for."""
    global drawn
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if drawn is not None:
        return drawn
    ranks = int(distributed.get_world_size())
    if ranks != world_size:
        raise UsageError(f"{world_size} ranks publish, of {ranks} in torch.distributed: draw a "
                         "token that is new for each start of the trainer, give it to these, and "
                         "pass it as run=")
    shared: list[Any] = [secrets.token_hex(16)]
    distributed.broadcast_object_list(shared, src=0)
    drawn = str(shared[0])
    return drawn
