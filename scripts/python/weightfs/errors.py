"""What can go wrong: a class for each exit code, and for each refusal of a hand-over.

    Error
      FailedError           exit code 1
        RefusedError        a writer's mount did not take what was handed over; `errno` says why
          InvalidError      EBADMSG: a damaged file, nothing to publish, no tag
          IncompleteError   ENODATA: a shard is missing
          BusyError         EBUSY: somebody can still write to it, or the tag is queued already
          NotAllowedError   EACCES: another user's file, or a bucket that may not be written
          ReadOnlyError     EROFS: a reader's mount
      UsageError            exit code 2, and arguments that this package refuses itself
        NoBinaryError       there is no `weightfs` to run
      ConflictError         exit code 3: another writer published first
      CorruptError          exit code 4: bytes that are not what they must be
      TimedOutError         exit code 5; also a TimeoutError
"""

from __future__ import annotations

import errno as numbers
from collections.abc import Mapping


class Error(Exception):
    """The base of all errors of weightfs.

    message    names the object, what was expected, what was found, and what to do
    exit_code  that of the command: 1 to 5
    code       the kind in one word, as `--json` shows it ("not_found"); "" if there is none
    """

    exit_code = 1

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class FailedError(Error):
    """Exit code 1: it did not work, for the reason that the message gives."""


class UsageError(Error):
    """Exit code 2: the arguments are wrong. Also raised by this package, before anything is run."""

    exit_code = 2


class NoBinaryError(UsageError):
    """There is no program `weightfs` in the package, in WEIGHTFS_BIN, or in PATH."""


class ConflictError(Error):
    """Exit code 3: another writer has published since. Nothing was changed."""

    exit_code = 3


class CorruptError(Error):
    """Exit code 4: bytes that do not match their description or their hash."""

    exit_code = 4


class TimedOutError(Error, TimeoutError):
    """Exit code 5: the time that was given has passed. What was waited for may still come."""

    exit_code = 5


class RefusedError(FailedError):
    """A hand-over was refused; what is in staging stays as it was.

    errno       of the rename
    last_error  the mount's .weightfs/last_error: the reason in words. "" where it cannot be read
    """

    errno: int = 0

    def __init__(self, message: str, *, errno: int = 0, last_error: str = "") -> None:
        super().__init__(message, code=numbers.errorcode.get(errno, ""))
        self.errno = errno or type(self).errno
        self.last_error = last_error


class InvalidError(RefusedError):
    """EBADMSG: a damaged file, nothing to publish, or no tag."""

    errno = numbers.EBADMSG


class IncompleteError(RefusedError):
    """ENODATA: a shard that the index, or another shard's name, tells of is missing."""

    errno = numbers.ENODATA


class BusyError(RefusedError):
    """EBUSY: somebody can still write to it, or this tag is queued already."""

    errno = numbers.EBUSY


class NotAllowedError(RefusedError):
    """EACCES: a file belongs to another user, or the bucket may not be written."""

    errno = numbers.EACCES


class ReadOnlyError(RefusedError):
    """EROFS: the mount is a reader's, or what was to be published is not in its staging."""

    errno = numbers.EROFS


OF_EXIT_CODE: Mapping[int, type[Error]] = {
    1: FailedError, 2: UsageError, 3: ConflictError, 4: CorruptError, 5: TimedOutError}
OF_ERRNO: Mapping[int, type[RefusedError]] = {
    one.errno: one
    for one in (InvalidError, IncompleteError, BusyError, NotAllowedError, ReadOnlyError)}


def of_exit_code(exit_code: int, message: str, code: str = "") -> Error:
    """The error of a command that has ended so. An unknown exit code, or a signal, is a failure."""
    return OF_EXIT_CODE.get(exit_code, FailedError)(message, code=code)


def of_refusal(error: OSError, what: str, last_error: str) -> RefusedError:
    """The error of a rename into publish/. `what` names it: "/mnt/w/publish/step-1"."""
    number = error.errno or 0
    reason = last_error or error.strerror or "unknown error"
    name = numbers.errorcode.get(number, str(number))
    return OF_ERRNO.get(number, RefusedError)(
        f"{what} was refused ({name}): {reason}", errno=number, last_error=last_error)
