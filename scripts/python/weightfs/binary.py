"""The program `weightfs`: where it is, and how it is run. All that this package does, it does.

Threads: any.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from weightfs.errors import FailedError, NoBinaryError, of_exit_code

BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "weightfs")
VARIABLE = "WEIGHTFS_BIN"
ELF = b"\x7fELF"
MEANWHILE_SECONDS = 0.1
LAST_WORDS_BYTES = 16384
LAST_WORDS_SECONDS = 1.0  # what a program has started may have its stderr, and outlive it
PIPE_BYTES = 65536
END_SECONDS = 30.0
# Ignored signals stay so over an exec.
IGNORE_INTERRUPTS = ("/bin/sh", "-c", "trap '' INT; exec \"$0\" \"$@\"")

_ended_at_exit: set[subprocess.Popen[str]] = set()
_lock = threading.Lock()


def is_program(path: str) -> bool:
    """Whether it is the real thing, and not this package's own script of the same name."""
    try:
        with open(path, "rb") as file:
            return os.access(path, os.X_OK) and file.read(len(ELF)) == ELF
    except OSError:
        return False


def find_binary() -> str:
    """The path of the program: the one in the wheel, else WEIGHTFS_BIN, else the first in PATH.

    Raises NoBinaryError, which says what to do."""
    if is_program(BUNDLED):
        return BUNDLED
    named = os.environ.get(VARIABLE, "")
    if named:
        if is_program(named):
            return named
        raise NoBinaryError(f"{VARIABLE} is '{named}', which is not a program; let it name the "
                            "weightfs binary, or unset it")
    for folder in os.get_exec_path():
        found = shutil.which("weightfs", path=folder or ".")
        if found and is_program(found):
            return found
    raise NoBinaryError(
        "the program weightfs was not found: this installation has none inside (a wheel for x86-64 "
        f"Linux has), {VARIABLE} is not set, and it is not in PATH. Install the wheel, or build it "
        f"(scripts/quickstart.sh) and set {VARIABLE}=/path/to/weightfs")


def start(arguments: Sequence[str], *, ended_at_exit: bool,
          ignores_interrupts: bool = False) -> subprocess.Popen[str]:
    """Runs it with these arguments and --json, and does not wait.

    ended_at_exit       it ends with this process at the latest, as what only waits should
    ignores_interrupts  for what goes on beside the caller: Ctrl-C, which all processes of a
                        terminal or of a notebook get, is for the caller, who may catch it and go
                        on. A hang-up of the terminal ends it as before

    Raises NoBinaryError, OSError."""
    command = [find_binary(), *arguments, "--json"]
    process = subprocess.Popen(
        [*IGNORE_INTERRUPTS, *command] if ignores_interrupts else command,
        stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if ended_at_exit:
        with _lock:
            _ended_at_exit.add(process)
    return process


def result_of(process: subprocess.Popen[str], meanwhile: Callable[[], None] | None = None) -> Any:
    """Waits for its end; returns its JSON. `meanwhile` is called now and then until then.

    Raises Error."""
    try:
        out, err = communicate(process, meanwhile)
    except BaseException:  # an interrupt: it must not go on alone
        process.terminate()
        process.wait()
        raise
    finally:
        with _lock:
            _ended_at_exit.discard(process)
    said = parse(out)
    if process.returncode == 0:
        if said is None:
            raise FailedError(f"weightfs said nothing that can be read: {out or err!r}")
        return said
    raise error_of(process.returncode, said, err)


def end(process: subprocess.Popen[str]) -> None:
    """Ends it, and returns when it has ended."""
    if process.poll() is None:
        process.terminate()
    try:
        process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def communicate(process: subprocess.Popen[str],
                meanwhile: Callable[[], None] | None) -> tuple[str, str]:
    """What it prints until it ends."""
    while meanwhile is not None:
        try:
            return process.communicate(timeout=MEANWHILE_SECONDS)
        except subprocess.TimeoutExpired:
            meanwhile()
    return process.communicate()


class LastWords:
    """The end of what a program says on stderr, all of which is read while it runs: a pipe that
    nobody reads is full at some time, and then everything that logs waits.

    Threads: any. Ownership: takes the process's stderr; communicate() reads only the rest."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self._stream, process.stderr = process.stderr, None
        self._said = b""
        self._thread = threading.Thread(target=self._read, name="weightfs-stderr", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while piece := os.read(self._stream.fileno(), PIPE_BYTES):
                self._said = (self._said + piece)[-LAST_WORDS_BYTES:]

    def text(self) -> str:
        """Of a program that has ended."""
        self._thread.join(LAST_WORDS_SECONDS)
        return self._said.decode(errors="replace")


def error_of(exit_code: int, said: Any, stderr: str) -> Exception:
    """The error of a command that has failed."""
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        error = said["error"]
        return of_exit_code(exit_code, str(error.get("message")), str(error.get("code", "")))
    ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return of_exit_code(exit_code, stderr.strip() or f"weightfs ended with {ended}")


def parse(text: str) -> Any:
    """The JSON in it, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def call(*arguments: str, ended_at_exit: bool = True) -> Any:
    """Runs the program to its end; returns its JSON.

    Raises Error."""
    return result_of(start(arguments, ended_at_exit=ended_at_exit))


def replace_process(arguments: Sequence[str]) -> NoReturn:
    """Becomes the program; for the console script."""
    try:
        path = find_binary()
    except NoBinaryError as error:
        print(f"weightfs: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    os.execv(path, [path, *arguments])


def _end_all() -> None:
    with _lock:
        for process in _ended_at_exit:
            process.terminate()


atexit.register(_end_all)
