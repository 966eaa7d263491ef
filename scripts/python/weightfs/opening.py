"""open(): a repository as directories, for the time of a `with` block.

Mounted where that can be had, else kept up to date as ordinary files by `weightfs sync`. What was
there before stays; what was begun here ends with the block, but never a mount that has hand-overs
which are no versions yet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

from weightfs.binary import LastWords, call, end, error_of, parse, start
from weightfs.errors import Error, UsageError
from weightfs.mounts import UNDER_WAY, is_shown, is_writer, queue_of
from weightfs.versions import Target, Version, status, wait

LEAVE_SECONDS = 600.0
LOOK_SECONDS = 0.05

How = Literal["auto", "mount", "sync"]


class Repository:
    """A repository that is shown at `path`; made by open().

    path      the mount point, or the sync's directory: path/latest, path/versions/N
    how       "mount" or "sync"; of what was there before, too
    is_ours   whether it ends with the block
    why       why it is not mounted; "" if it is
    """

    def __init__(self, path: str, how: Literal["mount", "sync"], *, is_ours: bool,
                 why: str = "", leave_timeout: float | None = None, is_temporary: bool = False,
                 process: subprocess.Popen[str] | None = None) -> None:
        self.path, self.how, self.is_ours, self.why = path, how, is_ours, why
        self._leave_timeout, self._is_temporary = leave_timeout, is_temporary
        self._process = process

    @property
    def latest(self) -> str:
        """The path of the newest version, to be given to a loader: it gets one version whatever
        arrives meanwhile (SEMANTICS, Pins)."""
        return os.path.join(self.path, "latest")

    def version(self) -> int:
        """The number of the version that `latest` names now; 0: there is none yet."""
        try:
            return int(os.path.basename(os.readlink(self.latest)))
        except FileNotFoundError:
            return 0

    def wait(self, *, tag: str | None = None, version: int | str | None = None,
             newer_than: int | None = None, ready: bool = False,
             timeout: float | None = None) -> Version:
        """weightfs.wait() here."""
        return wait(self.path, tag=tag, version=version, newer_than=newer_than, ready=ready,
                    timeout=timeout)

    def status(self) -> dict[str, Any]:
        """weightfs.status() of it."""
        return status(self.path)

    def __enter__(self) -> Repository:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close(wait_for_queue=error is None)

    def close(self, *, wait_for_queue: bool = True) -> None:
        """Ends what open() began. A mount whose hand-overs are no versions yet is waited for
        (`leave_timeout`), and then left as it is, with a RuntimeWarning. May be called again."""
        if not self.is_ours:
            return
        if self.how == "sync":
            self._end_sync()
        elif not self._end_mount(wait_for_queue):
            return
        self.is_ours = False
        if self._is_temporary:
            remove_place(self.path, self.how)

    def _end_sync(self) -> None:
        if self._process is not None:
            end(self._process)

    def _end_mount(self, wait_for_queue: bool) -> bool:
        """Whether it has ended."""
        names = self._queue_that_is_left(self._leave_timeout if wait_for_queue else 0.0)
        if names:
            warnings.warn(f"{self.path} stays mounted: {', '.join(names)} in publish/ are no "
                          f"versions yet. See `weightfs status {self.path}`, then run `weightfs "
                          f"umount {self.path}`", RuntimeWarning, stacklevel=4)
            return False
        try:
            call("umount", self.path)
        except Error as error:
            if error.code != "busy":
                raise
            # A loader's mappings: they stay readable until they are closed.
            call("umount", self.path, "--lazy")
        return True

    def _queue_that_is_left(self, seconds: float | None) -> list[str]:
        """The names of the hand-overs that are no versions when the time is over. Those that have
        failed, or wait for a person, are not waited for."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            queue = queue_of(self.path)
            is_over = end is not None and time.monotonic() >= end
            if is_over or not any(one.get("state") in UNDER_WAY for one in queue):
                return [str(one.get("name")) for one in queue]
            time.sleep(LOOK_SECONDS)


def open(url: Target, path: Target | None = None, *, writer: bool = False, how: How = "auto",
         store: Target | None = None, follow: str | int | None = None,
         leave_timeout: float | None = LEAVE_SECONDS,
         options: Sequence[str] = ()) -> Repository:
    """Shows a repository as directories; for a `with` statement:

        with weightfs.open("s3://runs/run-7") as run:
            model = AutoModel.from_pretrained(run.latest)

    url            of the repository; or a mount point, which is used as it is and stays
    path           where to show it: an empty directory, made if it is missing. If this repository
                   is mounted there already, that mount is used and stays. None: a temporary one
    writer         a writer's mount, for publish(); never a sync
    how            "auto": mount, and where that cannot be had, sync. "mount", "sync": only that
    store          the directory for images and records (`--store`). None: that of the command
    follow         what `latest` means: a tag, a number, or "latest"
    leave_timeout  seconds that leaving the block waits for hand-overs that are no versions yet;
                   None: as long as it takes. A block that raises does not wait. What is then still
                   queued keeps the mount, and a RuntimeWarning says so
    options        more options of `mount` and `sync`: ("--endpoint-url", "https://...")

    Returns when `latest` exists, or the repository is empty.

    Raises Error.
    """
    url = os.fspath(url)
    if how not in ("auto", "mount", "sync") or (writer and how == "sync"):
        raise UsageError(f"how is '{how}'; it must be 'auto' or 'mount' for a writer, else 'auto', "
                         "'mount' or 'sync'")
    if is_shown(url):
        if path is not None or (writer and not is_writer(url)):
            raise UsageError(f"'{url}' is a mount already; give it alone, or give its URL")
        return Repository(url, "mount" if os.path.ismount(url) else "sync", is_ours=False)
    if path is not None and is_shown(os.fspath(path)):
        return adopt(url, os.fspath(path), writer=writer)
    is_temporary = path is None
    place = tempfile.mkdtemp(prefix="weightfs-") if path is None else os.fspath(path)
    with contextlib.suppress(FileExistsError):  # a dead mount, which the new one replaces
        os.makedirs(place, exist_ok=True)
    common = [*(["--store", os.fspath(store)] if store is not None else []),
              *([f"--follow={follow}"] if follow is not None else []), *options]
    tried: How = "mount"
    try:
        why = "" if how != "sync" else "sync was asked for"
        if how != "sync":
            why = "" if how == "mount" or writer else reason_against_mount()
        if not why:
            try:
                call("mount", url, place, *(["--writer"] if writer else []), *common,
                     ended_at_exit=False)
                return Repository(place, "mount", is_ours=True, leave_timeout=leave_timeout,
                                  is_temporary=is_temporary)
            except Error as error:
                if how == "mount" or writer or error.code not in ("permission", "unsupported"):
                    raise
                why = error.message
        tried = "sync"
        return Repository(place, "sync", is_ours=True, why=why, is_temporary=is_temporary,
                          process=start_sync(url, place, common))
    except BaseException:
        if is_temporary:
            remove_place(place, tried)
        raise


def remove_place(path: str, how: How) -> None:
    """A temporary directory of open(). What may be mounted is never entered: a mount that came up
    while we were interrupted has a trainer's files in it."""
    with contextlib.suppress(OSError):
        if how == "sync":
            shutil.rmtree(path)
        else:
            os.rmdir(path)


def adopt(url: str, path: str, *, writer: bool) -> Repository:
    """What is shown there already, if it is the same.

    Raises UsageError."""
    found = status(path)
    shown = str(found.get("url", ""))
    if full_url(shown) != full_url(url):
        raise UsageError(f"'{path}' shows {shown}, not {url}")
    if writer and not is_writer(path):
        raise UsageError(f"'{path}' is a reader's mount; end it first (weightfs umount {path})")
    return Repository(path, "mount" if os.path.ismount(path) else "sync", is_ours=False)


def full_url(url: str) -> str:
    """As the program writes it: a directory has no URL of its own."""
    path = url.removeprefix("file://")
    return "file://" + os.path.abspath(path) if path.startswith(("/", ".")) else url.rstrip("/")


def reason_against_mount() -> str:
    """Why this process cannot mount; "" if nothing is known against it."""
    if not os.path.exists("/dev/fuse"):
        return "this host has no /dev/fuse"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "this user may not open /dev/fuse"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3, which mounts for users other than root, is not installed"
    return ""


def start_sync(url: str, path: str, options: Sequence[str]) -> subprocess.Popen[str]:
    """Returns when it shows a version, or the repository is empty.

    Raises Error."""
    process = start(["sync", url, path, *options], ended_at_exit=True, ignores_interrupts=True)
    try:
        last_words = LastWords(process)
        assert process.stdout is not None
        said = ""
        for line in process.stdout:  # JSON, pretty: it ends with the first line that is `}` alone
            said += line
            if line.rstrip() == "}":
                break
        found = parse(said)
        if not isinstance(found, dict) or "error" in found:
            out, _ = process.communicate()
            raise error_of(process.returncode, found or parse(said + out), last_words.text())
        return process
    except BaseException:  # an interrupt: nothing may write to a directory that goes
        end(process)
        raise
