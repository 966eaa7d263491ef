"""A repository and its versions: making it, waiting for one, listing them, who reads it, the state
of a mount."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from weightfs.binary import call
from weightfs.errors import FailedError, TimedOutError, UsageError

Target = str | os.PathLike[str]

SHORTEST_SECONDS, LONGEST_SECONDS = 0.01, 86400.0  # that --timeout takes


@dataclass(frozen=True)
class Version:
    """One complete immutable checkpoint.

    number  1, 2, 3, ...
    tag     the name that it was published with; "" for none
    path    the directory where it opens on this host; "" where that is not known
    time    of its publication, in seconds since 1970 (UTC); 0 where it is not known
    meta    the metadata that it was published with; all values are strings
    record  everything that the command said about it (`weightfs log --json` and so on)
    """

    number: int
    tag: str = ""
    path: str = ""
    time: int = 0
    meta: Mapping[str, str] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def version_of(said: Mapping[str, Any], tag: str = "") -> Version:
    """From what a command printed."""
    return Version(number=int(said["version"]), tag=str(said.get("tag") or tag),
                   path=str(said.get("path") or ""), time=int(said.get("time") or 0),
                   meta=dict(said.get("meta") or {}), record=said)


@dataclass(frozen=True)
class Engine:
    """An engine that a reader keeps up to date (`--hook`).

    name     its kind and its URL or program: "vllm http://127.0.0.1:8000"
    state    idle, current, telling, failed or unreachable
    version  that it reports, or else was told; 0: none
    """

    name: str
    state: str
    version: int


@dataclass(frozen=True)
class Reader:
    """A mount or a sync that announces itself (`--announce`).

    id            32 hex digits, the same after a restart
    host, place   where it is: the host's name, the mount point or directory
    presence      "live", "left" (it has ended), or "gone" (not heard of for three intervals)
    age           of all this, in seconds
    version       that `latest` shows there; 0: none yet
    whole         whether all bytes of that version are on the host
    lag_versions  how many versions that is behind the newest
    lag_seconds   since when it is
    health        "healthy", "degraded" or "failed"
    engines       of the host
    record        everything that `weightfs fleet --json` said about it
    """

    id: str
    host: str
    place: str
    presence: str
    age: int
    version: int
    whole: bool
    lag_versions: int
    lag_seconds: int
    health: str
    engines: tuple[Engine, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def reader_of(said: Mapping[str, Any]) -> Reader:
    """From what `fleet` printed."""
    return Reader(
        id=str(said["id"]), host=str(said["host"]), place=str(said["place"]),
        presence=str(said["presence"]), age=int(said["age"]), version=int(said["version"]),
        whole=bool(said["whole"]), lag_versions=int(said["lag_versions"]),
        lag_seconds=int(said["lag_seconds"]), health=str(said["health"]),
        engines=tuple(Engine(str(one["name"]), str(one["state"]), int(one["version"]))
                      for one in said["engines"]),
        record=said)


def fleet(target: Target, *, limit: int | None = None,
          options: Sequence[str] = ()) -> list[Reader]:
    """Who reads a repository: every reader that announces itself, by host and place.

    target   a URL or a mount point
    limit    only the so many that were heard of last
    options  more options of the command: ("--endpoint-url", "https://rgw.example.com")

    Raises Error.
    """
    limited = [] if limit is None else ["--limit", str(limit)]
    said = call("fleet", os.fspath(target), *limited, *options)
    return [reader_of(one) for one in said["readers"]]


def gate_arguments(target: Target, *, replicas: int, version: int | str | None, max_lag: int,
                   others: Sequence[object]) -> list[str]:
    """Of the command `wait --replicas`. `others`: what does not go with it, if given.

    Raises UsageError."""
    if version is None or any(one is not None and one is not False for one in others):
        raise UsageError("wait(replicas=) takes version, which may be a number, a tag or 'latest', "
                         "max_lag and timeout, and neither tag, newer_than nor ready")
    arguments = ["wait", os.fspath(target), "--replicas", str(replicas), "--version", str(version)]
    if max_lag != 0:
        arguments += ["--max-lag", str(max_lag)]
    return arguments


def wait_arguments(target: Target, *, tag: str | None, version: int | str | None,
                   newer_than: int | None, ready: bool) -> list[str]:
    """Of the command `wait`.

    Raises UsageError."""
    given = {"--tag": tag, "--version": version, "--newer-than": newer_than}
    chosen = {option: value for option, value in given.items() if value is not None}
    if len(chosen) > 1 or (not chosen and not ready):
        raise UsageError("wait() takes exactly one of tag, version and newer_than; none of them "
                         "only with ready=True, which then means `latest`")
    arguments = ["wait", os.fspath(target)]
    for option, value in chosen.items():
        arguments += [option, str(value)]
    if ready:
        arguments.append("--ready")
    return arguments


def call_within(timeout: float | None, arguments: Sequence[str]) -> Any:
    """call() of a command with --timeout. A time that is longer than it takes is several calls.

    Raises Error."""
    if timeout is None:
        return call(*arguments)
    left = timeout
    while True:
        begin = time.monotonic()
        try:
            seconds = min(max(left, SHORTEST_SECONDS), LONGEST_SECONDS)
            return call(*arguments, "--timeout", f"{seconds:.3f}")
        except TimedOutError:
            # That a daemon does not answer is known sooner, and final.
            if left <= LONGEST_SECONDS or time.monotonic() - begin < LONGEST_SECONDS:
                raise
        left -= LONGEST_SECONDS


def wait(target: Target, *, tag: str | None = None, version: int | str | None = None,
         newer_than: int | None = None, ready: bool = False, timeout: float | None = None,
         replicas: int | None = None, max_lag: int = 0, options: Sequence[str] = ()) -> Version:
    """Waits until a version is in the bucket and opens here; with `replicas`, until so many readers
    have it, wherever they are.

    target      a mount point, or the directory of a running sync; with `replicas` also a URL
    tag         the hand-over publish/TAG, else the newest version with this tag
    version     this number
    newer_than  any version above this number; 0: any at all
    ready       also until every byte of it is on this host
    timeout     seconds; None: as long as it takes. 0 and less are as 0.01: enough for a mount to
                answer, not for a bucket that is far away
    replicas    a gate for trainers: until so many live readers that announce themselves have
                `version` (a number, a tag, or "latest") or a later one, and so have their engines
    max_lag     with `replicas`: a reader may be so many versions before `version`
    options     with `replicas`: more options of the command, such as "--endpoint-url"

    With `replicas` the answer has no path, and its `record` has "readers". TimedOutError says who
    is behind.

    Raises TimedOutError; ConflictError if another writer published first; FailedError if the
    hand-over failed or was taken back; CorruptError if what `ready` fetches is damaged.
    """
    if replicas is not None:
        gate = gate_arguments(target, replicas=replicas, version=version, max_lag=max_lag,
                              others=(tag, newer_than, ready))
        return version_of(call_within(timeout, [*gate, *options]))
    if max_lag != 0 or options:
        raise UsageError("wait() takes max_lag and options only with replicas")
    said = call_within(timeout, wait_arguments(target, tag=tag, version=version,
                                               newer_than=newer_than, ready=ready))
    return version_of(said, tag or "")


@overload
def status(target: Target) -> dict[str, Any]: ...
@overload
def status(target: None = None) -> list[dict[str, Any]]: ...


def status(target: Target | None = None) -> dict[str, Any] | list[dict[str, Any]]:
    """The state of a mount or of a sync's directory, as `weightfs status --json` prints it: among
    others "version" (that of `latest`), "newest", "lag_versions", "lag_seconds", "problems",
    "queued", "writer". Without a target: a list, of all mounts of this host.

    Raises FailedError if nothing is mounted there, or its daemon is gone.
    """
    said = call("status", *([] if target is None else [os.fspath(target)]))
    if target is not None and not isinstance(said, dict):
        raise FailedError(f"'{os.fspath(target)}' is neither a mount nor the directory of a sync")
    return said  # type: ignore[no-any-return]


def init(url: Target, *, options: Sequence[str] = ()) -> str:
    """Makes a repository at this URL, and proves that two publishers are kept apart there; returns
    its id. One that is there already stays as it is.

    options  more options of the command: ("--endpoint-url", "https://rgw.example.com")

    Raises Error.
    """
    return str(call("init", os.fspath(url), *options)["repository"])


def log(target: Target, *, limit: int | None = None, options: Sequence[str] = ()) -> list[Version]:
    """The versions of a repository, newest first.

    target   a URL, a mount point or a store
    limit    only the newest so many
    options  more options of the command: ("--endpoint-url", "https://rgw.example.com")

    `record` of each has the rest: "changed_elements" of "elements", "delta_bytes", "snapshot" ...

    Raises Error.
    """
    limited = [] if limit is None else ["--limit", str(limit)]
    return [version_of(one) for one in call("log", os.fspath(target), *limited, *options)]
