"""publish(): a directory or tensors become the next version.

Into a writer's mount tensors are written straight into staging/, and handed over by one rename:
the daemon codes each file as soon as it is closed, and what was handed over survives this process.
For a URL they are written into a directory of their own, which `weightfs publish` reads.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

from weightfs.binary import end, find_binary, result_of, start
from weightfs.checkpoint import SHARD_BYTES, Files, Part, take_part, write_checkpoint
from weightfs.errors import OF_ERRNO, Error, ReadOnlyError, TimedOutError, UsageError, of_refusal
from weightfs.mounts import is_shown, is_writer, last_error, queue_of
from weightfs.progress import Callback, Progress, ignore
from weightfs.runs import shared_token
from weightfs.tensors import Tensor, is_distributed
from weightfs.versions import Target, Version, version_of, wait_arguments

HAND_OVER_SECONDS = 0.002  # between looks whether a command has handed over

What = Target | Mapping[str, Tensor]

NAME_MAX = 80  # characters of a tag in the name of a directory in staging

# Kinds of errors that a hand-over is refused with, and the errno of the same refusal (SEMANTICS).
ERRNO_OF_CODE = {"corrupt": "EBADMSG", "invalid": "EBADMSG", "unsupported": "EBADMSG",
                 "not_found": "ENODATA", "busy": "EBUSY", "exists": "EBUSY",
                 "permission": "EACCES", "read_only": "EROFS"}


class Publication:
    """What publish(asynchronous=True) returns: a version on its way.

    Threads: any.
    """

    def __init__(self, tag: str, work: Callable[[], Version], *, outlives_exit: bool) -> None:
        self.tag = tag
        self._work = work
        self._version: Version | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"weightfs-publish-{tag}",
                                        daemon=not outlives_exit)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._version = self._work()
        except BaseException as error:
            self._error = error
            # Whoever never looks at this object must be able to find out.
            logging.getLogger("weightfs").error("the version %s was not published: %s",
                                                self.tag or "(no tag)", error)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    @property
    def exception(self) -> BaseException | None:
        """What it failed with; None as long as it has not ended, and if it is a version."""
        return self._error if self.done() else None

    def wait(self, timeout: float | None = None) -> Version:
        """Waits until the version is in the bucket.

        timeout  seconds; None: as long as it takes

        Raises what publish() raises; TimedOutError, after which it goes on."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimedOutError(f"the version {self.tag or '(no tag)'} was not published within "
                                f"{timeout} s; it goes on", code="timed_out")
        if self._error is not None:
            raise self._error
        assert self._version is not None
        return self._version


@overload
def publish(target: Target, what: What, *, tag: str | None = None,
            meta: Mapping[str, object] | None = None, rank: None = None,
            asynchronous: Literal[False] = False, files: Files | None = None,
            include: Sequence[str] = (), snapshot: bool = False, rebase: bool = False,
            shard_bytes: int = SHARD_BYTES, scratch: Target | None = None,
            progress: Callback | bool | None = None, options: Sequence[str] = ()) -> Version: ...
@overload
def publish(target: Target, what: What, *, tag: str | None = None,
            meta: Mapping[str, object] | None = None, rank: None = None,
            asynchronous: Literal[True], files: Files | None = None,
            include: Sequence[str] = (), snapshot: bool = False, rebase: bool = False,
            shard_bytes: int = SHARD_BYTES, scratch: Target | None = None,
            progress: Callback | bool | None = None,
            options: Sequence[str] = ()) -> Publication: ...
@overload
def publish(target: Target, what: What, *, tag: str | None = None,
            meta: Mapping[str, object] | None = None, rank: int,
            world_size: int | None = None, run: str | None = None, part_wait: float | None = None,
            asynchronous: bool = False, files: Files | None = None,
            include: Sequence[str] = (), snapshot: bool = False, rebase: bool = False,
            shard_bytes: int = SHARD_BYTES, scratch: Target | None = None,
            progress: Callback | bool | None = None,
            options: Sequence[str] = ()) -> Version | Publication | None: ...


def publish(target: Target, what: What, *, tag: str | None = None,
            meta: Mapping[str, object] | None = None, rank: int | None = None,
            world_size: int | None = None, run: str | None = None, part_wait: float | None = None,
            asynchronous: bool = False, files: Files | None = None,
            include: Sequence[str] = (), snapshot: bool = False, rebase: bool = False,
            shard_bytes: int = SHARD_BYTES, scratch: Target | None = None,
            progress: Callback | bool | None = None,
            options: Sequence[str] = ()) -> Version | Publication | None:
    """Publishes a checkpoint as the next version, and returns it when the bucket has it.

    target        a URL ("s3://runs/run-7", "file:///data/run-7") or a writer's mount point
    what          a directory; it stays as it is unless it lies in the mount's staging, from where
                  it is handed over. Or {name: tensor}: numpy.ndarray, torch.Tensor or DTensor of
                  any shape and of a type that safetensors has, on any device. They are written as
                  safetensors shards, bit for bit, one tensor at a time
    tag           a name for the version: "step-42"
    meta          what to store with it: {"reward": 0.31}; values are stored as text
    rank          of this process in a trainer of several. Rank 0 publishes. The others take part
                  in gathering distributed tensors, which needs all of them, wait for nothing else,
                  and return None. None: the only process
    world_size    so many ranks publish one version together, each what it has: rank r (from 0) is
                  part r + 1. The version exists, and is returned on every rank, when all parts have
                  come. Needs a URL and a tag. Tensors must be whole: each of one rank
    run           with world_size: a token, new for each start of the trainer and the same on all
                  ranks, so that parts of two runs do not mix. None: drawn by rank 0 and broadcast
                  once, where torch.distributed is initialised; else what Slurm sets
    part_wait     with world_size: seconds to wait for other parts; then TimedOutError names them.
                  The own part stays, and the same call waits on. 0: do not wait, and return None
                  if others are missing. None: 600
    asynchronous  return a Publication as soon as `what` may change again: when tensors are
                  written, and, on a mount, handed over. A directory must stay as it is until done
    files         beside tensors: a directory whose configuration and tokenizer files are copied, or
                  {relative path: bytes, or the path of a file}
    include       globs of files of a directory that are published too, such as "*.py"
    snapshot      write the full bytes too, so that readers can start here
    rebase        if another writer publishes meanwhile, take that version as the parent
    shard_bytes   of one file of tensors at most; a larger tensor gets a file of its own
    scratch       with a URL and tensors: where they are written, a checkpoint's size; removed
                  afterwards. None: the system's directory for temporary files
    progress      callback(done, total, what), in bytes, of another thread if asynchronous; True: a
                  bar, where tqdm is installed
    options       more options of the command, for URLs: ("--endpoint-url", "https://...")

    Raises RefusedError and its kinds if a mount refuses it; CorruptError for a directory with
    pieces of tensors; ConflictError if another writer has published since;
    UsageError, CorruptError, FailedError; OSError if tensors cannot be written.
    """
    target = os.fspath(target)
    tensors = what if isinstance(what, Mapping) else None
    part = part_of(target, tensors, tag, rank, world_size, run, part_wait, asynchronous)
    if tensors is not None and part is None:
        check_rank(tensors, rank)
    if part is None and rank not in (None, 0):
        if tensors is not None:
            take_part(tensors, shard_bytes)
        return None
    wishes = arguments_of(meta, include, snapshot, rebase, options)
    if part is not None:
        wishes += part_arguments(part, run, part_wait)
    if tensors is None:
        if files is not None:
            raise UsageError("files are for tensors; put them into the directory")
        attempt = Attempt(target, os.fspath(what), tag or "", wishes)  # type: ignore[arg-type]
    else:
        try:
            attempt = Attempt(target, make_folder(target, tag or "", scratch), tag or "", wishes,
                              is_own=True)
        except BaseException:
            if part is None:
                take_part(tensors, shard_bytes)
            raise
    with Progress(progress) as tell:
        if tensors is not None:
            with attempt.removed_on_failure():
                write_checkpoint(attempt.folder, tensors, files=files, shard_bytes=shard_bytes,
                                 part=part, tell=tell)
        attempt.begin()
        if not asynchronous:
            version = attempt.finish(tell)
            return None if version.record.get("missing") else version
    later = Progress(progress)

    def work() -> Version:
        with later as tell:
            return attempt.finish(tell)

    return Publication(tag or "", work, outlives_exit=not attempt.is_handed_over)


def part_of(target: str, tensors: Mapping[str, Tensor] | None, tag: str | None, rank: int | None,
            world_size: int | None, run: str | None, part_wait: float | None,
            asynchronous: bool) -> Part | None:
    """None: this process publishes the whole version, or nothing.

    Raises UsageError."""
    if world_size is None:
        if run is not None or part_wait is not None:
            raise UsageError("run and part_wait are for parts: give world_size too")
        return None
    if rank is None or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of {world_size}: ranks are numbered from 0")
    if is_shown(target):
        raise UsageError(f"'{target}' is a mount: parts are published to its URL")
    if not tag:
        raise UsageError("parts find each other by their tag: give one, such as the step")
    if asynchronous and part_wait == 0:
        raise UsageError("what is asynchronous waits for the version: part_wait must not be 0")
    for name, tensor in (tensors or {}).items():
        if is_distributed(tensor):
            raise UsageError(f"'{name}' is distributed: a part has whole tensors only.  Without "
                             "world_size rank 0 gathers and publishes it")
    return rank, world_size


def part_arguments(part: Part, run: str | None, part_wait: float | None) -> list[str]:
    """Of the command `publish`.  With torch.distributed all ranks must call it.

    Raises UsageError."""
    rank, world_size = part
    arguments = [f"--part={rank + 1}/{world_size}"]
    token = run if run is not None else shared_token(world_size)
    if token is not None:
        arguments.append(f"--run={token}")
    if part_wait is not None:
        arguments.append(f"--part-wait={part_wait:g}")
    return arguments


def check_rank(tensors: Mapping[str, Tensor], rank: int | None) -> None:
    """Raises UsageError where the other ranks would be waited for in vain."""
    if rank is not None or not any(is_distributed(one) for one in tensors.values()):
        return
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.get_world_size() > 1:
        raise UsageError("distributed tensors are gathered by all ranks together: call publish() "
                         "on each of them, with rank=torch.distributed.get_rank()")


def arguments_of(meta: Mapping[str, object] | None, include: Sequence[str], snapshot: bool,
                 rebase: bool, options: Sequence[str]) -> list[str]:
    """Of the command `publish`; none if a rename alone says all of it."""
    arguments = [f"--meta={key}={value}" for key, value in (meta or {}).items()]
    arguments += [f"--include={glob}" for glob in include]
    arguments += ["--snapshot"] * snapshot + ["--rebase"] * rebase
    return [*arguments, *options]


def make_folder(target: str, tag: str, scratch: Target | None) -> str:
    """An empty directory to write tensors into: in the mount's staging, else anywhere.

    Raises ReadOnlyError, OSError."""
    if is_shown(target):
        check_writer(target)
        clean = re.sub("[^A-Za-z0-9.+=-]", "_", tag)[:NAME_MAX]
        name = f"publish-{clean}.{os.getpid()}-{secrets.token_hex(4)}"
        folder = os.path.join(target, "staging", name)
        os.mkdir(folder)
        return folder
    return tempfile.mkdtemp(prefix="weightfs-publish-", dir=scratch)


def check_writer(mount: str) -> None:
    if not is_writer(mount):
        raise ReadOnlyError(f"'{mount}' is not a writer's mount; mount it with `weightfs mount "
                            "--writer`, or publish to its URL")


class Attempt:
    """One checkpoint on its way to be a version; `folder` has it.

    begin() hands it over, or starts the command; finish() waits for the end."""

    def __init__(self, target: str, folder: str, tag: str, wishes: Sequence[str], *,
                 is_own: bool = False) -> None:
        if is_shown(target):
            check_writer(target)
        self.target, self.folder, self.tag = target, folder, tag
        self._wishes, self._is_own = wishes, is_own
        self._on_mount = is_shown(target)
        self._process: Any = None
        self.is_handed_over = False

    def removed_on_failure(self) -> RemovedOnFailure:
        """In it what was made for this attempt goes if something is raised."""
        return RemovedOnFailure(self.folder if self._is_own else "")

    def begin(self) -> None:
        """Raises RefusedError, NoBinaryError, OSError."""
        with self.removed_on_failure():
            if self._is_said_by_a_rename():
                find_binary()  # what is handed over without it is never waited for
                place = os.path.join(self.target, "publish", self.tag)
                try:
                    os.rename(self.folder, place)
                except OSError as error:
                    raise of_refusal(error, place, last_error(self.target, self.tag)) from error
                self.is_handed_over = True
                self._process = start(
                    wait_arguments(self.target, tag=self.tag, version=None, newer_than=None,
                                   ready=False), ended_at_exit=True, ignores_interrupts=True)
                return
            tag = ["--tag", self.tag] if self.tag else []
            self._process = start(["publish", self.target, self.folder, *tag, *self._wishes],
                                  ended_at_exit=False, ignores_interrupts=True)
            if self._is_staged():
                self._await_hand_over()

    def _is_staged(self) -> bool:
        """Whether the command hands over this directory, and not a copy of it."""
        staging = os.path.realpath(os.path.join(self.target, "staging"))
        return self._on_mount and os.path.realpath(self.folder).startswith(staging + os.sep)

    def _await_hand_over(self) -> None:
        """Until the command has handed it over, so that the next one comes after it, and it
        survives this process.

        Raises Error if it was refused."""
        try:
            while os.path.lexists(self.folder) and self._process.poll() is None:
                time.sleep(HAND_OVER_SECONDS)
        except BaseException:  # an interrupt: it must not hand over what is removed
            end(self._process)
            raise
        if self._process.poll():
            self.finish(ignore)
        self.is_handed_over = True

    def _is_said_by_a_rename(self) -> bool:
        """What it does not say, or the kernel would refuse without a reason, the command does."""
        if not self._on_mount or self._wishes or not is_plain(self.tag):
            return False
        staging = os.path.realpath(os.path.join(self.target, "staging"))
        return os.path.realpath(self.folder).startswith(staging + os.sep)

    def finish(self, tell: Callback) -> Version:
        """Raises Error."""
        last = (0, 0)

        def tell_queue() -> None:
            nonlocal last
            for one in queue_of(self.target):
                if one.get("tag") == self.tag and one.get("total"):
                    last = (int(one["done"]), int(one["total"]))
                    tell(*last, "publishing")

        try:
            said = result_of(self._process, tell_queue if self._on_mount else None)
        except Error as error:
            reason = last_error(self.target, self.tag) if self._on_mount else ""
            self._remove_own()
            raise refusal_of(error, reason) from None
        except BaseException:
            self._remove_own()
            raise
        total = int(said.get("version_bytes") or last[1])
        tell(total, total, "publishing")
        self._remove_own()
        return version_of(said, self.tag)

    def _remove_own(self) -> None:
        """A hand-over has left it, and is the daemon's."""
        if self._is_own and not self.is_handed_over:
            shutil.rmtree(self.folder, ignore_errors=True)


def is_plain(tag: str) -> bool:
    """Whether it can be the last name of a path. The daemon decides what it takes."""
    return bool(tag) and tag not in (".", "..") and tag.isprintable() and "/" not in tag


class RemovedOnFailure:
    """A directory that goes if the block raises; none if it is ""."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: object) -> None:
        if error is not None and self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def refusal_of(error: Error, last_error: str) -> Error:
    """The same refusal as a RefusedError, if the mount says that it was one."""
    import errno as numbers

    name = ERRNO_OF_CODE.get(error.code, "")
    if not name or not last_error.endswith(error.message):
        return error
    number = int(getattr(numbers, name))
    return OF_ERRNO[number](f"{error.message} ({name})", errno=number, last_error=last_error)
