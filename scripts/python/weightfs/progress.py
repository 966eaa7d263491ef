"""Progress: a callback, or a bar of tqdm where that is installed."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

Callback = Callable[[int, int, str], None]
"""callback(done, total, what): bytes of `total`; what: "writing" or "publishing"."""


class Bar:
    """A bar of tqdm for each phase; nothing where tqdm is not installed."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._what = ""
        try:
            from tqdm.auto import tqdm
        except ImportError:
            tqdm = None
        self._make: Any = tqdm

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._make is None:
            return
        if what != self._what:
            self.close()
            self._what = what
            self._bar = self._make(total=total, desc=what, unit="B", unit_scale=True)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()
        self._bar, self._what = None, ""


def ignore(done: int, total: int, what: str) -> None:
    """For who wants none."""


class Progress:
    """What publish() is given as `progress`, as a function; closes a bar of its own."""

    def __init__(self, wanted: Callback | bool | None) -> None:
        self._bar = Bar() if wanted is True else None
        self.tell: Callback = self._bar or (wanted if callable(wanted) else ignore)

    def __enter__(self) -> Callback:
        return self.tell

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
