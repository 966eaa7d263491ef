"""What the benchmarks share: how two ways are compared, and how the result is printed.

Memory that a virtual machine has never touched is about ten times slower at its first use, whoever
uses it: a file that is written second is then faster than one that is written first, and the ratio
says nothing. So every ratio here is measured in one way:

- all sides take turns within one run, in an order that changes from round to round;
- what one will allocate is memory that was used just before (touch_memory);
- the first rounds are not counted: they fill caches, and bring stores to their size;
- what a round leaves is removed or overwritten;
- of the rounds that count (nine), the best and the median are printed.
"""

import json
import os
import shutil
import statistics
import tempfile
import time

ROUNDS, WARM_UP = 9, 2


def timed(action, *arguments):
    start = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - start


def median(values):
    return statistics.median(values)


# ---- taking turns --------------------------------------------------------------------------------

def in_turn(sides, number):
    """The sides in the order of this round: each comes first equally often."""
    sides = list(sides)
    at = number % len(sides)
    return sides[at:] + sides[:at]


def alternate(sides, rounds=ROUNDS, warm_up=WARM_UP, prepare=None, clean=None, memory=0):
    """Runs all sides in each round. Returns {side: [seconds of each round that counts]}.

    `sides`: {name: action}. An action that returns a number has measured itself; what others take is
    measured. `prepare(name)` comes before each, `clean(name)` after; neither is counted. `memory`: bytes that one
    needs, at most."""
    seconds = {name: [] for name in sides}
    for number in range(-warm_up, rounds):
        for name in in_turn(sides, number + warm_up):
            if prepare:
                prepare(name)
            if memory:
                touch_memory(memory)
            start = time.perf_counter()
            measured = sides[name]()
            taken = time.perf_counter() - start if measured is None else measured
            if number >= 0:
                seconds[name].append(taken)
            if clean:
                clean(name)
    return seconds


class UsedMemory:
    """Free memory that was used just before.

    Free memory is filled with the cache of a file that has only holes; release(size) drops so much of it.
    What is allocated next gets these pages. To touch memory once, at the beginning, does not do: a guest
    that reports its free pages (virtio-balloon) loses them within seconds. Measured here: a write of
    16 MiB takes 4 ms in such pages, and 53 ms in pages that the host has to find first."""

    KEEP = 768 << 20  # free, so that nobody waits for memory
    PIECE = 8 << 20

    def __init__(self):
        self.file = tempfile.TemporaryFile(dir=scratch())
        self.file.truncate(1 << 40)
        self.filled, self.buffer = 0, bytearray(self.PIECE)

    def fill(self):
        """Not more than is free: the cache that others need stays."""
        for _ in range(max(0, free_memory() - self.KEEP) // self.PIECE):
            os.preadv(self.file.fileno(), [self.buffer], self.filled)
            self.filled += self.PIECE

    def release(self, size):
        self.fill()
        begin = max(0, self.filled - size) // self.PIECE * self.PIECE
        os.posix_fadvise(self.file.fileno(), begin, self.filled - begin, os.POSIX_FADV_DONTNEED)
        self.filled = begin


used_memory = None


def touch_memory(size):
    """Before each measurement: what it will allocate was used before."""
    global used_memory
    used_memory = used_memory or UsedMemory()
    used_memory.release(size)


def free_memory():
    with open("/proc/meminfo") as file:
        return next(int(row.split()[1]) << 10 for row in file if row.startswith("MemFree"))


def to_and_fro(folders, count):
    """(old, new) of `count` steps over these versions, from the first to the last, back, and so on: each
    step is one between neighbours, so a few versions do for any number of rounds."""
    order = folders + folders[-2:0:-1]
    return [(order[i % len(order)], order[(i + 1) % len(order)]) for i in range(count)]


def ratios(values, others):
    """The best and the median of `values`, each over that of `others`."""
    return [f"{of(values) / of(others):.2f}" for of in (min, median)]


# ---- the result ----------------------------------------------------------------------------------

def machine():
    """Under which circumstances it was measured."""
    return {"date": time.strftime("%Y-%m-%d"), "load": round(os.getloadavg()[0], 1),
            "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release}


class Report:
    """Tables and notes of one benchmark: printed as they come, and written to --json FILE.

    scripts/benchmarks.py puts each part into docs/BENCHMARKS.md by its name."""

    def __init__(self, bench, path=None):
        self.path = path
        self.content = {"bench": bench, "started": machine(), "parts": {}, "data": {}}

    def table(self, name, columns, rows):
        """Rows may come one by one: a generator is printed as it goes."""
        part = self.content["parts"][name] = {"columns": list(columns), "rows": []}
        print("\n".join(header(columns)), flush=True)
        for row in rows:
            row = [str(cell) for cell in row]
            part["rows"].append(row)
            print(line(row), flush=True)
        print(flush=True)
        self.save()

    def note(self, name, text):
        self.content["parts"][name] = {"text": text}
        print(text + "\n", flush=True)
        self.save()

    def data(self, name, value):
        """What is not printed as a table: for the plot."""
        self.content["data"][name] = value
        self.save()

    def save(self):
        self.content["ended"] = machine()
        if self.path:
            with open(self.path, "w") as file:
                json.dump(self.content, file, indent=1)


def line(cells):
    return "| " + " | ".join(cells) + " |"


def header(columns):
    return [line(columns), "|" + "---|" * len(columns)]


def add_options(parser, rounds=ROUNDS):
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help="rounds that count")
    parser.add_argument("--json", metavar="FILE", help="write the result there, too")


# ---- places and processes ------------------------------------------------------------------------

def scratch():
    """The benchmark's disk."""
    return os.environ.get("TMPDIR", "/var/tmp")


class Workspace:
    """A directory there."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="weightfs-bench-", dir=scratch())
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        columns = file.read().rsplit(")", 1)[1].split()
    return int(columns[11]) + int(columns[12])


def family_seconds(pid):
    """Processor time so far of a process and its children that live."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(child) for child in file.read().split()]
    return sum(map(cpu_ticks, [pid, *children])) / os.sysconf("SC_CLK_TCK")


def wait_quiet(*pids):
    """Until these processes do nothing any more for themselves: half a second in which each uses at
    most one tick of each tenth."""
    still, before = 0, [cpu_ticks(pid) for pid in pids]
    while still < 5:
        time.sleep(0.1)
        now = [cpu_ticks(pid) for pid in pids]
        quiet = all(b - a <= 1 for a, b in zip(before, now))
        still, before = (still + 1, now) if quiet else (0, now)


def written_bytes(pid):
    """What a process has sent towards the disk, less what was given up before it got there."""
    with open(f"/proc/{pid}/io") as file:
        counts = dict(row.split(": ") for row in file.read().splitlines())
    return int(counts["write_bytes"]) - int(counts["cancelled_write_bytes"])


def wait_for(condition, what, timeout=300, pause=0.001):
    """Returns the first true value of condition()."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout} s for: {what}")
        time.sleep(pause)
