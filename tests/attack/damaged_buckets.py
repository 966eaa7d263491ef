#!/usr/bin/python3
"""Commands on damaged buckets: whatever is wrong with a bucket, an answer is right or an error.

    damaged_buckets.py [--runs N] [--jobs N] [--seed S]

Each run takes a small healthy repository, damages one or two of its objects at random, and gives
one command to it, or two. A run fails if the command
  - dies of a signal, takes longer than 60 s or more than 512 MiB,
  - has an exit code that the documentation does not know, or an error without a message,
  - answers 0 with something else than what was published.

Damage is of three kinds. `bytes`: what rotten disks, torn writes and careless people do; every
answer with exit code 0 is compared. `swapped`: objects in the place of others. `forged`: JSON that
was changed by a program and sealed again as its author would: content may then be what the forger
wants, so only the first two conditions hold.

Prints a table: damage, runs, exit codes. Needs no root and no mount.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

import harness  # noqa: E402
import runs  # noqa: E402

VERSIONS = 4
TIME_MAX_S = 60
MEMORY_MAX_KIB = 512 << 10
EXIT_CODES = {0, 1, 2, 3, 4, 5}


# ---- a healthy repository ------------------------------------------------------------------------

class Repository:
    """A directory bucket with VERSIONS versions, and what they are."""

    def __init__(self, folder):
        self.folder = folder
        self.bucket = os.path.join(folder, "bucket")
        out = os.path.join(folder, "run")
        runs.make_run(out, VERSIONS + 1, 100_000)
        steps = [os.path.join(out, f"step_{i:06d}") for i in range(VERSIONS + 1)]
        self.next = steps.pop()
        store = os.path.join(folder, "store")
        harness.call("init", self.url)
        for number, step in enumerate(steps, 1):
            harness.call("publish", self.url, step, "--store", store, "--tag", f"step-{number}",
                         *(["--snapshot"] if number == 3 else []))
        self.trees = {number: harness.hash_tree(step) for number, step in enumerate(steps, 1)}
        self.next_tree = harness.hash_tree(self.next)
        self.log = [(entry["version"], entry.get("tag")) for entry in harness.call("log", self.url)]
        self.objects = sorted(os.path.relpath(os.path.join(parent, name), self.bucket)
                              for parent, _, names in os.walk(self.bucket) for name in names)
        self.kinds = sorted({key.split("/")[0] for key in self.objects})

    @property
    def url(self):
        return "file://" + self.bucket

    def copy(self, folder):
        """A bucket that shares its objects with this one: they are replaced, never written to."""
        shutil.copytree(self.bucket, folder, copy_function=os.link)


# ---- damage --------------------------------------------------------------------------------------

def replace(path, data):
    os.unlink(path)
    with open(path, "wb") as file:
        file.write(data)


def flip(data, rng):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:]


def zero(data, rng):
    at = rng.randrange(len(data))
    size = min(rng.choice([1, 16, 512, 4096]), len(data) - at)
    return data[:at] + bytes(size) + data[at + size:]


def cut(data, rng):
    return data[:rng.randrange(len(data))]


def insert(data, rng):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice([1, 2, 8, 100])) + data[at:]


def repeat(data, rng):
    return data + data[rng.randrange(len(data)):]


def noise(data, rng):
    return rng.randbytes(rng.choice([0, 1, 10, len(data)]))


BYTES = {"a bit flipped": flip, "zeros": zero, "cut off": cut, "bytes inserted": insert,
         "something appended": repeat, "noise instead": noise}

HOSTILE = [0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**30, 1.5, 1e308, "", "0",
           "../../etc/passwd", "a/b", "/", "\u0000", "x" * 70_000, "\ud7ff", None, True, [], {}]


def places(value, found):
    """Every (container, key) below a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key))
        if isinstance(item, (dict, list)):
            places(item, found)
    return found


def forge(text, rng):
    """JSON in which one thing was changed."""
    document = json.loads(text)
    container, key = rng.choice(places(document, []))
    change = rng.randrange(5)
    if change == 0:
        container[key] = rng.choice(HOSTILE)
    elif change == 1 and isinstance(container, dict):
        del container[key]
    elif change == 2 and isinstance(container, list):
        container.extend([container[key]] * rng.choice([1, 100, 10_000]))
    elif change == 3:
        nested = container[key]
        for _ in range(rng.choice([2, 100, 10_000])):
            nested = [nested]
        return json_of(document, container, key, nested)
    else:
        other, other_key = rng.choice(places(document, []))
        container[key] = other[other_key] if other is not container else rng.choice(HOSTILE)
    try:
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return b"[]"


def json_of(document, container, key, nested):
    """`document` with something that is too deep for json.dumps()."""
    depth = 0
    while isinstance(nested, list) and len(nested) == 1:
        nested, depth = nested[0], depth + 1
    container[key] = "@deep@"
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        inner = json.dumps(nested)
    except (ValueError, RecursionError):
        return b"[]"
    return text.replace('"@deep@"', "[" * depth + inner + "]" * depth).encode()


def seal(data):
    """Gives a manifest the hash that its author would."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(manifest, dict) or "sha256" not in manifest:
        return data
    manifest.pop("sha256")
    unsigned = {key: value for key, value in manifest.items() if key not in ("key_id", "signature")}
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":")).encode()
    manifest["sha256"] = hashlib.sha256(text).hexdigest()
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def damage_bytes(repository, bucket, rng):
    said = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        kind = rng.choice(repository.kinds)
        key = rng.choice([key for key in repository.objects if key.split("/")[0] == kind])
        path = os.path.join(bucket, key)
        if not os.path.exists(path):
            continue
        if rng.randrange(7) == 0:
            os.unlink(path)
            said.append(f"{key}: removed")
            continue
        name = rng.choice(list(BYTES))
        replace(path, BYTES[name](harness.read_file(path) or b"\0", rng))
        said.append(f"{key}: {name}")
    return said


def damage_swapped(repository, bucket, rng):
    one = rng.choice(repository.objects)
    kind = one.split("/")[0]
    others = [key for key in repository.objects if key.split("/")[0] == kind and key != one]
    other = rng.choice(others or repository.objects)
    first, second = (harness.read_file(os.path.join(bucket, key)) for key in (one, other))
    replace(os.path.join(bucket, one), second)
    if rng.randrange(2):
        replace(os.path.join(bucket, other), first)
    return [f"{one}: what {other} is"]


def damage_forged(repository, bucket, rng):
    keys = [key for key in repository.objects if key.endswith(".json")]
    key = rng.choice(keys)
    path = os.path.join(bucket, key)
    replace(path, seal(forge(harness.read_file(path), rng)))
    return [f"{key}: forged"]


DAMAGES = {"bytes": damage_bytes, "swapped": damage_swapped, "forged": damage_forged}


# ---- commands ------------------------------------------------------------------------------------

class Failure(Exception):
    pass


class Run:
    """One damaged bucket, and what was done to it."""

    def __init__(self, repository, folder, kind, seed):
        self.repository, self.kind = repository, kind
        self.rng = random.Random(seed)
        self.folder = folder
        self.bucket = os.path.join(folder, "bucket")
        self.codes = []
        self.published = set()
        repository.copy(self.bucket)
        self.said = DAMAGES[kind](repository, self.bucket, self.rng)

    @property
    def url(self):
        return "file://" + self.bucket

    def command(self, *arguments):
        """Returns (exit code, stdout); fails if it crashed, hung or grew."""
        with open(os.path.join(self.folder, "err"), "w+") as err, \
                open(os.path.join(self.folder, "out"), "w+") as out:
            process = harness.start(*arguments, "--json", stdout=out, stderr=err,
                                    cwd=self.folder)
            code, usage = self.wait(process)
            err.seek(0)
            message = err.read()
            out.seek(0)
            printed = out.read()
        self.codes.append((arguments[0], code))
        line = "weightfs " + " ".join(map(str, arguments))
        if code not in EXIT_CODES:
            raise Failure(f"{line}: exit code {code}\n{message[-2000:]}")
        if usage.ru_maxrss > MEMORY_MAX_KIB:
            raise Failure(f"{line}: {usage.ru_maxrss >> 10} MiB of memory")
        if code != 0 and not (printed.strip() or message.strip()):
            raise Failure(f"{line}: exit code {code} without a word")
        return code, printed

    def newest(self):
        """The highest manifest that is there: what was removed behind it, nobody can know of."""
        names = os.listdir(os.path.join(self.bucket, "versions"))
        return max((int(name.split(".")[0]) for name in names), default=0)

    @staticmethod
    def wait(process):
        timer = threading.Timer(TIME_MAX_S, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, usage

    def compare(self, folder, wanted, what):
        if self.kind != "forged" and harness.hash_tree(folder) != wanted:
            raise Failure(f"{what}: exit code 0, and other files than were published")

    # Each of these is one way of using a bucket.

    def log(self):
        code, printed = self.command("log", self.url)
        if code == 0 and self.kind != "forged":
            said = [(entry["version"], entry.get("tag")) for entry in json.loads(printed)
                    if entry["version"] not in self.published]
            if said != [entry for entry in self.repository.log if entry[0] <= self.newest()]:
                raise Failure(f"log: exit code 0, and {said}")

    def show(self):
        self.command("show", self.url, str(self.rng.randrange(1, VERSIONS + 2)))

    def export(self):
        number = self.rng.randrange(1, VERSIONS + 1)
        out = os.path.join(self.folder, "exported")
        code, _ = self.command("export", self.url, out, "--version", number)
        if code == 0:
            self.compare(out, self.repository.trees[number], f"export of {number}")

    def export_delta(self):
        first, second = self.rng.sample(range(1, VERSIONS + 1), 2)
        self.command("export", self.url, os.path.join(self.folder, "d.safetensors"),
                     "--from", first, "--to", second)

    def diff(self):
        first, second = self.rng.sample(range(1, VERSIONS + 1), 2)
        self.command("diff", self.url, first, second)

    def verify(self):
        code, _ = self.command("verify", self.url)
        if code != 0 or self.kind == "forged":
            return
        for number in range(1, self.newest() + 1):
            out = os.path.join(self.folder, f"verified-{number}")
            if self.command("export", self.url, out, "--version", number)[0] != 0:
                raise Failure(f"verify: exit code 0, and version {number} cannot be exported")
            self.compare(out, self.repository.trees[number], f"export of {number} after verify")

    def sync(self):
        out = os.path.join(self.folder, "synced")
        code, _ = self.command("sync", self.url, out, "--once")
        latest = os.path.join(out, "latest")
        if os.path.lexists(latest):
            number = int(os.readlink(latest).split("/")[-1])
            wanted = self.repository.trees.get(number, self.repository.next_tree)
            self.compare(latest + "/", wanted, f"sync to {number}")
            if code == 0 and self.kind != "forged" and number != self.newest():
                raise Failure(f"sync --once: exit code 0 at version {number} of {self.newest()}")
        elif code == 0 and self.kind != "forged" and self.newest() > 0:
            raise Failure("sync --once: exit code 0, and nothing is there")

    def publish(self):
        before = self.newest()
        code, printed = self.command("publish", self.url, self.repository.next, "--store",
                                     os.path.join(self.folder, "publisher"))
        if code != 0:
            if self.newest() != before:
                raise Failure(f"publish: exit code {code}, and there is a new manifest")
            return
        number = json.loads(printed)["version"]
        self.published.add(number)
        out = os.path.join(self.folder, "published")
        if self.command("export", self.url, out, "--version", number)[0] != 0:
            raise Failure(f"publish: exit code 0, and version {number} cannot be exported")
        self.compare(out, self.repository.next_tree, f"export of {number}, published")

    def go(self):
        ways = [self.log, self.show, self.export, self.export_delta, self.diff, self.verify,
                self.sync, self.publish]
        for way in self.rng.sample(ways, self.rng.choice([1, 2])):
            way()


def one_run(repository, folder, kind, seed):
    """Returns (kind, exit codes, None or why it failed)."""
    place = tempfile.mkdtemp(dir=folder)
    run = Run(repository, place, kind, seed)
    problem = None
    try:
        run.go()
    except Failure as failure:
        problem = f"seed {seed}, {kind}: {'; '.join(run.said)}\n  {failure}"
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return kind, run.codes, problem


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=harness.SEED, help="of the first run")
    parser.add_argument("--kind", choices=list(DAMAGES))
    args = parser.parse_args()
    print(f"seed: WEIGHTFS_TEST_SEED={args.seed}", flush=True)
    kinds = [args.kind] if args.kind else list(DAMAGES)
    begin = time.monotonic()
    table = collections.defaultdict(collections.Counter)
    counts = collections.Counter()
    problems = []
    with tempfile.TemporaryDirectory(prefix="weightfs-attack-") as folder:
        repository = Repository(folder)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for kind, codes, problem in pool.map(
                    lambda i: one_run(repository, folder, kinds[i % len(kinds)], args.seed + i),
                    range(args.runs)):
                counts[kind] += 1
                for command, code in codes:
                    table[(kind, command)][code] += 1
                if problem:
                    problems.append(problem)
                    print("FAILED " + problem, flush=True)
    print(f"\n{'damage':<9}{'command':<9}" + "".join(f"{f'exit {c}':>8}" for c in sorted(EXIT_CODES)))
    for (kind, command), codes in sorted(table.items()):
        print(f"{kind:<9}{command:<9}" + "".join(f"{codes[c]:>8}" for c in sorted(EXIT_CODES)))
    print(f"{sum(counts.values())} damaged buckets, {sum(sum(c.values()) for c in table.values())} "
          f"commands, {len(problems)} failures, {time.monotonic() - begin:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
