"""A trainer's steps on their way into the bucket, while it goes on training.

    steps = StepPublisher("/mnt/w", queue=2)
    for step in range(1, 1000):
        train()
        if steps.has_room():
            with steps.saving(f"step-{step}", meta={"reward": reward}) as folder:
                model.save_pretrained(folder)
    steps.wait()

has_room() and wait() raise what an earlier step has failed with. On a writer's mount a step is
saved straight into staging/, where it is coded file by file, and handed over at the end of the
block: from there on it is the daemon's, whatever becomes of the trainer. For a URL it is saved into
a directory of its own, and this process lives until it is published.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from weightfs.errors import FailedError, UsageError
from weightfs.mounts import is_shown, is_writer
from weightfs.publishing import Publication, check_writer, publish
from weightfs.versions import Target, Version

WhenFull = Literal["wait", "skip"]
SUFFIX = ".saving-"  # of a directory that is saved into; with eight digits more
NAME_MAX = 80  # characters of a tag in the name of such a directory
UNPUBLISHED = (".bin", ".pt", ".pth")  # never weights of a version: optimizers, random states

logger = logging.getLogger("weightfs")


@dataclass(frozen=True)
class Step:
    """A checkpoint that was saved. `folder` is removed at the end if it is our own."""

    folder: str
    publication: Publication
    is_own: bool


class StepPublisher:
    """Publishes one step after another, at most `queue` at a time.

    target     a writer's mount point, or a URL
    queue      steps that may be on their way; one more has no room
    when_full  has_room() then waits until one of them is a version ("wait": the trainer gets as
               slow as the bucket, and every step is published), or says no ("skip": the trainer is
               never held up, and this step is never published)
    rebase     if another writer publishes meanwhile, go on from that version
    scratch    with a URL: where steps are saved; None: the system's directory for temporary files
    options    more options of `weightfs publish`, with a URL

    Threads: one. In a trainer of several processes, one of them has it.

    Raises UsageError; ReadOnlyError for a reader's mount; FailedError if a path is no mount.
    """

    def __init__(self, target: Target, *, queue: int = 2, when_full: WhenFull = "wait",
                 rebase: bool = False, scratch: Target | None = None,
                 options: Sequence[str] = ()) -> None:
        if queue < 1:
            raise UsageError(f"a queue of {queue} steps publishes nothing; give 1 or more")
        if when_full not in ("wait", "skip"):
            raise UsageError(f"when_full is '{when_full}'; it is 'wait' or 'skip'")
        self.target = os.fspath(target)
        self.skipped = 0  # steps for which there was no room
        self._queue, self._when_full = queue, when_full
        self._rebase, self._scratch, self._options = rebase, scratch, tuple(options)
        self._steps: deque[Step] = deque()
        self._on_mount = "://" not in self.target
        if self._on_mount:
            if not is_shown(self.target):
                raise FailedError(f"'{self.target}' is not mounted; on this host run `weightfs "
                                  f"mount --writer URL {self.target}` first, or give the URL")
            check_writer(self.target)

    def remove_leftovers(self) -> list[str]:
        """Removes what trainers that were killed while they saved have left in staging; returns
        the names. A trainer that is alive keeps its directory locked."""
        removed = []
        for name in sorted(os.listdir(self._parent())) if self._on_mount else ():
            path = os.path.join(self._parent(), name)
            if SUFFIX in name and os.path.isdir(path):
                with locked(path) as is_ours:
                    if is_ours:
                        shutil.rmtree(path, ignore_errors=True)
                        removed.append(name)
        return removed

    def raise_failed(self) -> None:
        """Raises what a step has failed with, once for each; forgets the ones that are versions."""
        for step in list(self._steps):
            if step.publication.done():
                self._end(step)

    def has_room(self, *, wait: bool = False) -> bool:
        """Whether another step may be published. With when_full="wait", or `wait`, it always may,
        after a while.

        Raises what an earlier step has failed with."""
        self.raise_failed()
        if len(self._steps) < self._queue:
            return True
        if self._when_full == "skip" and not wait:
            self.skipped += 1
            logger.warning("a step is not published: %d before it are still on their way to the "
                           "bucket (%d left out so far)", len(self._steps), self.skipped)
            return False
        while len(self._steps) >= self._queue:
            self._end(self._steps[0])
        return True

    @contextmanager
    def saving(self, tag: str, meta: Mapping[str, object] | None = None) -> Iterator[str]:
        """Gives an empty directory to save a checkpoint into, and hands it over at the end of the
        block. Does not look whether there is room. If the block raises, the directory is removed.

        tag   of the version; if there is one with it already, the tag then means the newer one
        meta  values are stored as text

        Raises RefusedError if the mount does not take it; FailedError if the mount is gone."""
        folder = self._new_folder(tag)
        try:
            with self._a_mount_that_goes_away(), locked(folder):
                yield folder
                self._hand_over(folder, tag, meta, is_own=True)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def publish_folder(self, folder: Target, tag: str, meta: Mapping[str, object] | None = None, *,
                       copy: bool = False) -> None:
        """Hands over a checkpoint that was saved already. In the mount's staging it is handed over
        as it is, and is gone from there; anywhere else it is copied first, since its trainer may
        remove it. Neither waits for the bucket.

        copy  also from staging: if somebody still writes other files into it, or needs it again

        Raises as saving(); UsageError if no weights of safetensors are in it."""
        folder = os.fspath(folder)
        if not has_weights(folder):
            raise UsageError(
                f"'{folder}' has no *.safetensors file: a trainer that is sharded over ranks must "
                "gather the full weights when it saves (FSDP: state_dict_type FULL_STATE_DICT; "
                "DeepSpeed: stage3_gather_16bit_weights_on_model_save; verl: hf_model among the "
                "save_contents)")
        if self._on_mount and not copy and is_below(folder, self._parent()):
            with self._a_mount_that_goes_away():
                self._hand_over(folder, tag, meta, is_own=False)
            return
        with self.saving(tag, meta) as place:
            copy_checkpoint(folder, place)

    def wait(self, timeout: float | None = None) -> list[Version]:
        """Waits until all steps are versions; returns those that it had to wait for.

        timeout  seconds for each; None: as long as it takes

        Raises what the first one failed with; TimedOutError, after which they go on."""
        versions = []
        while self._steps:
            versions.append(self._end(self._steps[0], timeout))
        return versions

    # ---- private ---------------------------------------------------------------------------------

    def _end(self, step: Step, timeout: float | None = None) -> Version:
        """Forgets a step that has ended."""
        try:
            return step.publication.wait(timeout)
        finally:
            if step.publication.done():
                self._steps.remove(step)
                if step.is_own:  # what is never published came back
                    shutil.rmtree(step.folder, ignore_errors=True)

    def _hand_over(self, folder: str, tag: str, meta: Mapping[str, object] | None, *,
                   is_own: bool) -> None:
        if self._on_mount:
            publication = publish(self.target, folder, tag=tag, meta=meta, rebase=self._rebase,
                                  asynchronous=True)
        else:
            publication = self._publish_in_turn(folder, tag, meta)
        self._steps.append(Step(folder, publication, is_own))

    def _publish_in_turn(self, folder: str, tag: str,
                         meta: Mapping[str, object] | None) -> Publication:
        """Two publishes at a time would be in conflict with each other."""
        before = self._steps[-1].publication if self._steps else None

        def work() -> Version:
            if before is not None:
                with suppress(Exception):  # raised where it is waited for
                    before.wait()
            return publish(self.target, folder, tag=tag, meta=meta, rebase=self._rebase,
                           options=self._options)

        return Publication(tag, work, outlives_exit=True)

    def _parent(self) -> str:
        return os.path.join(self.target, "staging")

    def _new_folder(self, tag: str) -> str:
        if not self._on_mount:
            return tempfile.mkdtemp(prefix="weightfs-step-", dir=self._scratch)
        clean = re.sub("[^A-Za-z0-9.+=-]", "_", tag)[:NAME_MAX]
        name = f"{clean}{SUFFIX}{secrets.token_hex(4)}"
        with self._a_mount_that_goes_away():
            os.mkdir(os.path.join(self._parent(), name))
        return os.path.join(self._parent(), name)

    @contextmanager
    def _a_mount_that_goes_away(self) -> Iterator[None]:
        """Says so, where the error alone would not."""
        try:
            yield
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else None
            is_gone = number in (errno.ENOTCONN, errno.ECONNABORTED) or not is_writer(self.target)
            if not self._on_mount or not is_gone:
                raise
            raise FailedError(
                f"'{self.target}' is no writer's mount any more ({error}). Mount it again with the "
                "same command; what was handed over before goes on then") from error


# ---- directories ---------------------------------------------------------------------------------

@contextmanager
def locked(folder: str) -> Iterator[bool]:
    """Locks a directory as long as the block runs, or this process lives; False if somebody else
    has it. Two processes of one host see each other's locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
    finally:
        os.close(descriptor)


def is_below(folder: str, parent: str) -> bool:
    return os.path.realpath(folder).startswith(os.path.realpath(parent) + os.sep)


def has_weights(folder: str) -> bool:
    return any(name.endswith(".safetensors") for name in os.listdir(folder))


def copy_checkpoint(folder: str, place: str) -> None:
    """Copies all but hidden files, and those that are no part of a version."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        target = os.path.join(place, os.path.relpath(parent, folder))
        for name in names:
            if not name.startswith(".") and not name.endswith(UNPUBLISHED):
                os.makedirs(target, exist_ok=True)
                shutil.copyfile(os.path.join(parent, name), os.path.join(target, name))
