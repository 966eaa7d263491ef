"""Decisions that all ranks of a trainer must share: who stops alone leaves the others waiting."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from weightfs.errors import FailedError

Answer = TypeVar("Answer")


def count() -> int:
    """Processes of this trainer; 1 unless torch.distributed is in use."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def agree(decide: Callable[[], Answer]) -> Answer:
    """Rank 0's answer on every rank; the others do not decide. All must call it.

    Raises on rank 0 what `decide` raises, on the others FailedError with its words."""
    from torch import distributed

    shared: list[Any] = [None, ""]
    error: Exception | None = None
    if distributed.get_rank() == 0:
        try:
            shared[0] = decide()
        except Exception as raised:
            error, shared[1] = raised, str(raised) or type(raised).__name__
    distributed.broadcast_object_list(shared, src=0)
    if error is not None:
        raise error
    if shared[1]:
        raise FailedError(f"rank 0: {shared[1]}")
    return shared[0]  # type: ignore[no-any-return]


def all_see(holds: bool) -> list[int]:
    """The ranks for which it does not hold. All must call it."""
    from torch import distributed

    answers: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(answers, holds)
    return [rank for rank, one in enumerate(answers) if not one]
