#!/usr/bin/python3
"""Compares how two directories behave, call by call.

    posix_compare.py REFERENCE DIR [--only PATTERN] [--like passthrough|daemon|plain] [--trace]
                     [--plant BUG]

REFERENCE is a directory of an ordinary file system, best of the kind that lies below DIR. Each
case of posix_*_cases.py runs in an empty directory in both, in a process of its own, and their
traces (posix_trace.py) are compared. DIR is taken for a place in the staging of a weightfs mount,
with passthrough or served by the daemon, where the differences of ALLOWED are right, and wrong if
they are not there; --like plain allows none. PATTERN is a regular expression for names of cases.
--trace prints every call. --plant makes DIR look wrong in one way, to see that it is noticed.

Exit code 0: no difference but those; 1: differences, which it prints. Needs root.
"""

import argparse
import dataclasses
import inspect
import itertools
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import posix_attribute_cases  # noqa: E402
import posix_file_cases  # noqa: E402
import posix_name_cases  # noqa: E402
import posix_trace  # noqa: E402

LIMIT = 30  # seconds for one case


@dataclasses.dataclass(frozen=True)
class Allowed:
    """In this case, calls that match `call` give `result` in a staging, and not what is usual."""
    case: str
    call: str
    result: str
    reason: str
    served_by: str = ""  # "daemon": not with passthrough


ALLOWED = [
    Allowed("hard_link", r"link\(", "EPERM", "a staged file has one name"),
    Allowed("fifo", r"mkfifo\(", "EPERM", "no FIFOs"),
    Allowed("character_device", r"mknod\(", "EPERM", "no devices"),
    Allowed("unix_socket", r"bind\(", "EPERM", "no sockets"),
    Allowed("nameless_file", r"open\(", "EOPNOTSUPP", "no O_TMPFILE"),
    Allowed("set_an_extended_attribute", r"setxattr\(", "EOPNOTSUPP", "no extended attributes"),
    Allowed("get_an_extended_attribute", r"getxattr\(", "EOPNOTSUPP", "no extended attributes"),
    Allowed("list_extended_attributes", r"listxattr\(", "EOPNOTSUPP", "no extended attributes"),
    Allowed("remove_an_extended_attribute", r"removexattr\(", "EOPNOTSUPP",
            "no extended attributes"),
    Allowed("truncate_refused", r"ftruncate\(.*, 4611686018427387904\)", "ENOSPC",
            "--min-free is asked first"),
    Allowed("collapse_range", r"fallocate\(", "EOPNOTSUPP", "the kernel refuses it for FUSE"),
    Allowed("insert_range", r"fallocate\(", "EOPNOTSUPP", "the kernel refuses it for FUSE"),
    # The kernel asks for holes before it writes back what is only in the mapping's pages.
    Allowed("the_first_data_is_found_by_seeking", r"lseek\(", "0", "all is data", "daemon"),
    Allowed("the_next_hole_is_found_by_seeking", r"lseek\(", "524288", "all is data", "daemon"),
    Allowed("no_data_is_found_in_the_last_hole", r"lseek\(", "409600", "all is data", "daemon"),
]


HELPERS = ("tree", "put_data_between_holes")


def allowed_for(served_by):
    """The part of ALLOWED for a mount with "passthrough" or "daemon"."""
    return [rule for rule in ALLOWED if rule.served_by in ("", served_by)]


def find_cases(pattern=""):
    """{name: function}, in the order of the files."""
    cases = {}
    for module in (posix_file_cases, posix_name_cases, posix_attribute_cases):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            takes = list(inspect.signature(function).parameters)
            if function.__module__ == module.__name__ and takes == ["s"] and name not in HELPERS:
                assert name not in cases, f"two cases are called {name}"
                cases[name] = function
    return {name: function for name, function in cases.items() if re.search(pattern, name)}


# ---- running a case ------------------------------------------------------------------------------

def run_case(function, parent, plant=None):
    """Runs it in a fresh directory in `parent`, which is removed; returns [[call, result]]."""
    folder = tempfile.mkdtemp(prefix="case-", dir=parent)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.umask(0o022)
        os.chdir(folder)
        os.chmod(".", 0o755)
        system = posix_trace.System(writer)
        if plant:
            PLANTS[plant](system)
        posix_trace.run_and_exit(system, lambda: function(system))
    os.close(writer)
    try:
        lines = read_lines(reader, pid)
    finally:
        os.close(reader)
    lines.append(["the case", posix_trace.end_of(os.waitpid(pid, 0)[1])])
    shutil.rmtree(folder)
    return lines


def read_lines(reader, pid):
    """What comes out of the pipe; a case that takes too long is killed."""
    end, data = time.monotonic() + LIMIT, b""
    while True:
        if not select.select([reader], [], [], max(end - time.monotonic(), 0))[0]:
            os.kill(pid, signal.SIGKILL)
            return [*map(json.loads, data.splitlines()), ["the case", f"takes over {LIMIT} s"]]
        piece = os.read(reader, 1 << 16)
        if not piece:
            return list(map(json.loads, data.splitlines()))
        data += piece


# ---- comparing -----------------------------------------------------------------------------------

def compare(name, expected, found, allowed):
    """Returns (what differs, in words, and which of `allowed` was met)."""
    problems, met = [], set()
    if expected[-1][1] != "exit code 0":
        problems.append(f"  the case itself is broken: {expected[-2:]}")
    for at, (want, have) in enumerate(itertools.zip_longest(expected, found)):
        if want == have:
            continue
        rule = next((rule for rule in allowed if rule.case == name and want and have and
                     want[0] == have[0] and re.match(rule.call, have[0])
                     and rule.result == have[1]), None)
        if rule:
            met.add(rule)
        else:
            problems.append(f"  call {at + 1}\n    usual: {in_words(want)}\n    here:  "
                            f"{in_words(have)}")
    return problems, met


def in_words(line):
    return f"{line[0]} = {line[1]}" if line else "(no call)"


def run(folder, cases, plant=None):
    """Runs the cases in `folder`. Returns their traces."""
    return {name: run_case(function, folder, plant) for name, function in cases.items()}


def judge(expected, found, allowed, out=sys.stdout):
    """Compares two results of run(). Returns the names of the cases that are wrong; prints why."""
    wrong, met = [], set()
    for name, lines in expected.items():
        problems, used = compare(name, lines, found[name], allowed)
        met |= used
        if problems:
            wrong.append(name)
            print(f"{name}: {len(problems)} of {len(lines)} calls differ", *problems[:8],
                  sep="\n", file=out)
    for rule in allowed:
        if rule.case in expected and rule not in met:
            wrong.append(rule.case)
            print(f"{rule.case}: ALLOWED says that {rule.call} gives {rule.result}, and it does not"
                  f" any more", file=out)
    return wrong


# ---- planted bugs --------------------------------------------------------------------------------

def plant(name, change):
    """A plant that changes the result of the calls of one name."""
    def put(system):
        usual = system.PLAIN[name]
        system.PLAIN = {**system.PLAIN, name: lambda *arguments, **more: change(
            usual, *arguments, **more)}
    return put


def no_zeros(usual, fd, size):
    """What was cut off comes back."""
    before = os.fstat(fd).st_size
    usual(fd, size)
    if size > before:
        os.pwrite(fd, b"\xa5", before)


def other_errno(usual, *arguments, **more):
    try:
        return usual(*arguments, **more)
    except OSError as error:
        raise OSError(5, "planted") from error


PLANTS = {
    "truncate-leaves-bytes": plant("ftruncate", no_zeros),
    "rename-forgets": plant("rename", lambda usual, old, new: None),
    "rmdir-errno": plant("rmdir", other_errno),
    "mkdir-mode": plant("mkdir", lambda usual, path, mode=0o777, **more: usual(
        path, mode & 0o700, **more)),
    "pwrite-short": plant("pwrite", lambda usual, fd, data, at: usual(fd, data[:4000], at)),
    "link-works": plant("link", lambda usual, old, new: usual(old, new)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("reference")
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--like", choices=("passthrough", "daemon", "plain"),
                        default="passthrough")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--plant", choices=PLANTS)
    given = parser.parse_args()
    start = time.monotonic()
    cases = find_cases(given.only)
    expected, found = run(given.reference, cases), run(given.folder, cases, given.plant)
    if given.trace:
        for name, lines in found.items():
            print(name, *(f"  {in_words(line)}" for line in lines), sep="\n")
    wrong = judge(expected, found, [] if given.like == "plain" else allowed_for(given.like))
    print(f"{len(cases)} cases, {len(wrong)} wrong, {time.monotonic() - start:.1f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
