"""One rank of an engine: stages a change beside its work, applies it in the pause, and knows what
it holds.

    hold(N) ----> stage(N, M) ----> ready ----> apply(N, M), holds M
                      \\---------> failed: the engine is reloaded, then hold(M)

Only hold(), after a reload by an explicit path, says what an engine has; a label does not. Whether
in place is right for this model at all is proven, not believed: after an update of tensors for
which it is not proven yet, mark() takes a digest, the engine is reloaded, and compare() takes
another one. If they differ, this engine is never updated in place again (`refused`). A proof is for
kinds of tensors (staging.kind_of): what changes later for the first time is proven then.

Whoever loads anything by the model's load_weights, as each reload of vLLM does, makes it hold
nothing, until hold().

Threads: any; staging has one of its own.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from weightfs.vllm.delta import changes_of, checkpoint_of, delta_path
from weightfs.vllm.digest import digest
from weightfs.vllm.mapping import CannotMap, Mapping, learn
from weightfs.vllm.staging import Staged, stage

SHOWN_MAX = 3  # tensors that a reason names


class NotReady(Exception):
    """What was asked for is not what was staged."""


class Loader:
    """In the place of a model's load_weights: says first that it is called. What it refers to is in
    slots, since digest() follows attributes and closures, and must not find a session there."""

    __slots__ = ("_load", "_note")

    def __init__(self, load: Callable[..., Any], note: Callable[[], None]) -> None:
        self._load, self._note = load, note

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self._note()
        return self._load(*arguments, **more)


class Session:
    def __init__(self, model: torch.nn.Module, mount: str | None, refused: str = "") -> None:
        self._model, self._mount = model, mount
        self._instance = secrets.token_hex(8)  # another one after a restart
        self._lock = threading.Lock()  # guards what follows
        self._refused = refused
        self._held: int | None = None
        self._state, self._error = "idle", ""
        self._pair: tuple[int, int] = (0, 0)
        self._staged: Staged | None = None
        self._generation = 0  # a thread that staged for an earlier one is not listened to
        self._thread: threading.Thread | None = None
        self._seconds = {"learn": 0.0, "stage": 0.0, "apply": 0.0}
        self._changes = 0
        self._updating = False
        self._proven: frozenset[str] = frozenset()
        self._kinds: frozenset[str] = frozenset()  # that the last update in place changed
        self._marked: dict[str, str] = {}
        # Of the staging thread alone.
        self._mapping: Mapping | None = None
        self._learner = 0  # the thread that learns; 0: none
        if callable(load := getattr(model, "load_weights", None)):
            model.__dict__["load_weights"] = Loader(load, self._note_load)

    def status(self) -> dict[str, Any]:
        with self._lock:
            kinds = self._staged.kinds if self._staged else self._kinds
            return {"instance": self._instance, "mount": self._mount or "", "held": self._held or 0,
                    "state": self._state, "from": self._pair[0], "to": self._pair[1],
                    "error": self._error, "refused": self._refused,
                    "needs_proof": not kinds <= self._proven, "changes": self._changes,
                    "updating": self._updating,
                    # What the loader replaces is put back then: not beside a reload.
                    "learning": self._learner != 0,
                    **{f"{what}_s": round(took, 6) for what, took in self._seconds.items()}}

    def hold(self, version: int) -> dict[str, Any]:
        """It was reloaded from this version; 0: nobody knows what it has."""
        with self._lock:
            self._held = version or None
            self._generation += 1
            self._state, self._error, self._staged = "idle", "", None
        return self.status()

    def _note_load(self) -> None:
        """Somebody loads something: nobody knows what the model has then."""
        if threading.get_ident() != self._learner:
            self.hold(0)

    def stage(self, old: int, new: int) -> dict[str, Any]:
        """Begins to, and returns at once."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                self._state, self._error = "failed", "the staging before has not ended yet"
            elif self._refused:
                self._state, self._error = "failed", self._refused
            elif self._held != old:
                self._state = "failed"
                self._error = f"this rank holds version {self._held or 'unknown'}, not {old}"
            else:
                self._generation += 1
                self._state, self._error, self._pair = "staging", "", (old, new)
                self._staged = None
                self._thread = threading.Thread(target=self._run, args=(self._generation, old, new),
                                                name="weightfs-stage", daemon=True)
                self._thread.start()
        return self.status()

    def _run(self, generation: int, old: int, new: int) -> None:
        staged, error, refused, begin = None, "", "", time.perf_counter()
        try:
            with torch.inference_mode(False), torch.no_grad():
                mapping = self._learned(old)
                staged = stage(mapping, changes_of(delta_path(self._mount or "", old, new),
                                                   mapping.sources))
        except CannotMap as reason:
            error = str(reason)
            refused = error if self._mapping is None else ""
        except Exception as reason:
            error = f"{type(reason).__name__}: {reason}"
        with self._lock:
            if generation != self._generation:
                return
            self._seconds["stage"] = time.perf_counter() - begin
            self._staged, self._error = staged, error
            self._changes = staged.changes if staged else 0
            self._refused = self._refused or refused
            self._state = "ready" if staged else "failed"

    def _learned(self, version: int) -> Mapping:
        """Again if the model's tensors have moved."""
        if self._mapping is None or not self._mapping.is_of(self._model):
            begin, self._mapping = time.perf_counter(), None
            self._learner = threading.get_ident()
            try:
                self._mapping = learn(self._model, checkpoint_of(self._mount or "", version))
            finally:
                self._learner = 0
            with self._lock:
                self._seconds["learn"] = time.perf_counter() - begin
        return self._mapping

    def begin(self) -> None:
        with self._lock:
            self._updating = True

    def end(self) -> None:
        with self._lock:
            self._updating = False

    def apply(self, old: int, new: int) -> None:
        """In the pause. If it throws, the model has the old version, or must be reloaded."""
        with self._lock:
            if self._state != "ready" or self._pair != (old, new) or self._staged is None:
                reason = NotReady(f"the change from version {old} to {new} is not staged: "
                                  f"{self._state}, {self._pair[0]} to {self._pair[1]}")
                self._state, self._error = "failed", self._error or str(reason)
                raise reason
            staged, self._staged = self._staged, None
            self._held = None
        begin = time.perf_counter()
        try:
            if self._mapping is None or not self._mapping.is_of(self._model):
                raise NotReady("the model's tensors have moved since the change was staged")
            with torch.inference_mode(False), torch.no_grad():
                staged.apply()
        except BaseException as error:
            with self._lock:
                self._state, self._error = "failed", f"{type(error).__name__}: {error}"
            raise
        with self._lock:
            self._seconds["apply"] = time.perf_counter() - begin
            self._held, self._state, self._kinds = new, "idle", staged.kinds

    # Neither of these raises (backend.py): where there is no digest, nothing is proven.

    def mark(self) -> dict[str, Any]:
        """What the model computes with now, after an update in place."""
        self._marked = self._digest()
        return self.status()

    def compare(self) -> dict[str, Any]:
        """After a reload of the same version."""
        marked, self._marked = self._marked, {}
        now = self._digest() if marked else {}
        different = sorted(name for name in marked.keys() | now.keys()
                           if marked.get(name) != now.get(name))
        with self._lock:
            if not now:
                self._refused = self._refused or "there was nothing to compare with"
            elif different:
                shown = ", ".join(different[:SHOWN_MAX])
                self._refused = (f"{len(different)} of {len(now)} tensors are not what a reload "
                                 f"makes of the same version: {shown}")
            else:
                self._proven |= self._kinds
        return self.status()

    def _digest(self) -> dict[str, str]:
        """Empty, and refused, if it cannot be computed."""
        try:
            return digest(self._model)
        except Exception as error:  # no memory, a tensor that has no bytes
            with self._lock:
                self._refused = (self._refused
                                 or f"the proof failed: {type(error).__name__}: {error}")
            return {}

    def close(self) -> None:
        with self._lock:
            self._generation += 1
            self._staged, self._state = None, "idle"
