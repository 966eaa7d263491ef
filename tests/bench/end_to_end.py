#!/usr/bin/python3
"""From "the checkpoint is in the trainer's memory" to "every byte was read on the other host".

    end_to_end.py [--size 512MiB] [--changed 1.1] [--bucket directory|ceph] [--ways weightfs,slime,...]
                  [--poll SECONDS] [--reader-options "..."] [--save-rate GB/s] [--ranks 1]
                  [--pause SECONDS] [--temporary .tmp] [--rounds R] [--warm-up W] [--json FILE]

weightfs: a writer's and a reader's mount on this machine, each with its own store. The trainer saves
four shards one after the other as safetensors does, renames the directory into publish/, and the reader
reads all files of the version as soon as `latest` names it. With --save-rate the save writes no faster than
that: a trainer that gathers its weights from many devices does not save at the speed of memory. With
`--pause 6` each save begins up to so long after the version before, at random: no version is expected by the
pace of the run. With `--ranks 4` the shards are written side by side, as by ranks of which each saves its own. With
`--temporary tmp` files have such names until they are complete that none is coded before it is closed.
Beside it, in the same run and on the same versions, the ways of others (peers.py), and `cp` of the model.

All ways take turns in each round, in an order that changes; before each, both daemons are idle, the
disk is synced, and free memory was just used (measure.py). The first rounds are not counted: after
them, old versions are removed as new ones come. Every version is compared with the trainer's memory afterwards.

Parts of weightfs: the save; from the hand-over (the rename begins) to the manifest in the bucket; from there
to `latest` on the reader's mount; the read. Written bytes are write_bytes less cancelled_write_bytes of
/proc/PID/io of each daemon. Needs root, /dev/fuse, numpy, a C++ compiler; --bucket ceph needs radosgw.
"""

import argparse
import concurrent.futures
import json
import os
import random
import shlex
import subprocess
import sys
import threading
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import measure  # noqa: E402
import peers  # noqa: E402

SHARDS, TENSORS = 4, 16
WARM_UP = 4  # rounds until the reader removes old versions
MIB = 1 << 20


# ---- the model -----------------------------------------------------------------------------------

class Tensor:
    def __init__(self, begin, size):
        self.begin, self.bytes = begin, size

    def at(self, shard):
        """Its address in these bytes of the shard."""
        return shard.ctypes.data + self.begin


class Shard:
    """The file's bytes, three times: the trainer's new and old ones, and an engine's."""

    def __init__(self, number, size, weights):
        self.number, self.name = number, f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        each = size // TENSORS
        header = json.dumps({f"model.layers.{number * TENSORS + i}.weight": {
            "dtype": "BF16", "shape": [each // 2048, 1024], "data_offsets": [i * each, (i + 1) * each]}
            for i in range(TENSORS)}).encode()
        header += b" " * (-len(header) % 64 + 56)  # the data begins at a multiple of 64
        self.tensors = [Tensor(8 + len(header) + i * each, each) for i in range(TENSORS)]
        self.after = np.empty(8 + len(header) + TENSORS * each, np.uint8)
        self.after[:8 + len(header)] = np.frombuffer(len(header).to_bytes(8, "little") + header, np.uint8)
        for i in range(TENSORS):
            self.bits(i)[:] = np.resize(np.roll(weights, 7919 * (number * TENSORS + i)), each // 2)
        self.before, self.engine = self.after.copy(), self.after.copy()

    def bits(self, i):
        tensor = self.tensors[i]
        return self.after[tensor.begin:tensor.begin + tensor.bytes].view("<u2")


class Model:
    def __init__(self, library, size, changed):
        self.library, self.size, self.version = library, size, 0
        normal = np.random.default_rng(1).normal(0, 0.02, 4 * MIB).astype("<f4").view("<u4")
        weights = (normal >> 16).astype("<u2")
        self.chance = chances(weights, changed)
        self.shards = [Shard(i, size // SHARDS, weights) for i in range(SHARDS)]
        self.changed = 0

    def step(self):
        """A step of training: `after` becomes `before`."""
        self.version += 1

        def one(shard):
            np.copyto(shard.before, shard.after)
            np.copyto(shard.engine, shard.after)
            return sum(self.library.step(tensor.at(shard.after), tensor.bytes // 2,
                                         self.version << 32 | shard.number << 16 | i,
                                         self.chance.ctypes.data)
                       for i, tensor in enumerate(shard.tensors))
        self.changed = 2 * sum(peers.each(one, self.shards)) / self.size


def chances(weights, changed):
    """Of 65536, for each exponent: the smaller a weight, the more often it moves by its last place."""
    counts = np.bincount(weights >> 7 & 0xFF, minlength=256)
    exponents = np.arange(256, dtype=float)
    low, high = 0.0, 400.0
    for _ in range(60):  # so that `changed` of all move
        middle = (low + high) / 2
        chance = np.minimum(0.5, 2.0 ** (middle - 130 - exponents))
        chance[0] = 0
        low, high = (middle, high) if (chance * counts).sum() < changed * counts.sum() else (low, middle)
    return np.round(chance * 65536).astype("<u2")


# ---- weightfs ------------------------------------------------------------------------------------

TEMPORARY = ".tmp"  # as safetensors names a file that it writes

class Mounts:
    """A writer's and a reader's mount of an empty repository; `with` ends them."""

    name = "weightfs"

    def __init__(self, model, work, place, options, save_rate=0, ranks=1, pause=0, temporary=TEMPORARY):
        self.model, self.place, self.url = model, place, place.url
        self.save_rate = save_rate  # bytes per second; 0: as fast as it can
        self.ranks = ranks
        self.pause = pause  # seconds, the most
        self.temporary = temporary  # how the names of files begin that are being saved
        self.binary = os.environ["WEIGHTFS_BIN"]
        self.writer, self.reader = (os.path.join(work, name) for name in ("writer", "reader"))
        self.stores = {name: os.path.join(work, name + "-store") for name in ("writer", "reader")}
        self.options, self.version, self.pids, self.sent = options, 0, {}, 0

    def run(self, *arguments):
        return subprocess.run([self.binary, *arguments], check=True, stdout=subprocess.PIPE).stdout

    def mount(self, name, *options):
        path = getattr(self, name)
        os.mkdir(path)
        said = self.run("mount", self.url, path, "--store", self.stores[name], "--json", *options)
        self.pids[name] = json.loads(said)["pid"]

    def __enter__(self):
        self.run("init", self.url)
        try:
            self.mount("writer", "--writer")
            self.mount("reader", *shlex.split(self.options))
        except BaseException:  # __exit__ is not called
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.pids:
            self.run("umount", getattr(self, name), "--lazy")

    def wait_quiet(self):
        measure.wait_quiet(*self.pids.values())

    def save(self, folder):
        """As safetensors does."""
        os.mkdir(folder)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump({"architectures": ["LlamaForCausalLM"]}, file)
        with concurrent.futures.ThreadPoolExecutor(self.ranks) as pool:
            list(pool.map(lambda rank: self.save_shards(folder, self.model.shards[rank::self.ranks]),
                          range(self.ranks)))

    def save_shards(self, folder, shards):
        begin, saved, rate = time.perf_counter(), 0, self.save_rate / self.ranks
        for shard in shards:
            temporary = os.path.join(folder, f"{self.temporary}{shard.number:06}")
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(fd, len(shard.after))
            view = memoryview(shard.after)
            for at in range(0, len(view), peers.PIECE):
                saved += os.write(fd, view[at:at + peers.PIECE])
                if rate:
                    time.sleep(max(0.0, begin + saved / rate - time.perf_counter()))
            os.rename(temporary, os.path.join(folder, shard.name))
            os.close(fd)

    def step(self):
        self.version += 1
        tag = f"step-{self.version}"
        staged, published = (os.path.join(self.writer, place, tag) for place in ("staging", "publish"))
        watch = Watch(self, self.version)
        time.sleep(random.uniform(0, self.pause))
        laps = peers.Laps()
        self.save(staged)
        laps.lap("save")
        handed_over = laps.at
        watch.begin()
        os.rename(staged, published)
        sealed = time.perf_counter()
        watch.wait()
        offset = time.time() - time.perf_counter()  # asked now: a guest that was paused sets its clock
        start = handed_over - laps.parts["save"] + offset
        manifest = min(self.place.manifest_time(self.version) - offset, watch.latest)
        laps.parts["hand-over to manifest"] = manifest - handed_over
        laps.parts["manifest to `latest`"] = watch.latest - manifest
        laps.at = time.perf_counter()
        peers.read_files(self.paths())
        laps.lap("read")
        self.line = {"save": (0, laps.parts["save"]), "seal": self.span(start, handed_over, sealed, offset),
                     **self.span_of_packs(start),
                     "manifest": (manifest + offset - start,) * 2, **self.span_of_images(start),
                     "latest": (watch.latest + offset - start,) * 2,
                     "read": self.span(start, laps.at - laps.parts["read"], laps.at, offset)}
        return laps.parts

    @staticmethod
    def span(start, begin, end, offset):
        return begin + offset - start, end + offset - start

    def span_of_packs(self, start):
        """When the delta's packs were complete in the bucket, where that is a directory: the last one's
        time, and the first one's."""
        if not self.url.startswith("/"):
            return {}
        folder = os.path.join(self.url, "packs")
        found = [entry for at, _, names in os.walk(folder) for entry in (os.path.join(at, n) for n in names)
                 if int(os.path.relpath(entry, folder).split("/")[0]) == self.version]
        times = [os.stat(path).st_mtime for path in found]
        self.sent = sum(os.path.getsize(path) for path in found)
        return {"packs": (min(times) - start, max(times) - start)} if times else {}

    def span_of_images(self, start):
        """From the birth of the reader's first image to the last change of its last one."""
        folder = os.path.join(self.stores["reader"], "images", str(self.version))
        if not os.path.isdir(folder):
            return {}
        said = subprocess.run(["stat", "-c", "%.6W %.6Z", *(os.path.join(folder, shard.name)
                                                           for shard in self.model.shards)],
                              check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        return {"images": (min(map(float, said[::2])) - start, max(map(float, said[1::2])) - start)}

    def paths(self):
        return [os.path.join(self.reader, "versions", str(self.version), shard.name)
                for shard in self.model.shards]

    def check(self):
        for shard, path in zip(self.model.shards, self.paths()):
            if not np.array_equal(np.memmap(path, np.uint8, "r"), shard.after):
                raise RuntimeError(f"weightfs: {path} has other bytes")

    def latest(self):
        try:
            return int(os.readlink(os.path.join(self.reader, "latest")).split("/")[-1])
        except FileNotFoundError:
            return 0

    def written(self):
        return {name: measure.written_bytes(pid) for name, pid in self.pids.items()}


class Watch:
    """When the reader's `latest` named a version. Nobody asks the bucket meanwhile: where that is a server
    on the same cores it would be slower for it."""

    def __init__(self, mounts, version):
        self.mounts, self.version, self.error = mounts, version, None
        self.thread = threading.Thread(target=self.watch)

    def begin(self):
        self.thread.start()

    def watch(self):
        try:
            measure.wait_for(lambda: self.mounts.latest() >= self.version, "`latest`", pause=0.0005)
            self.latest = time.perf_counter()
        except Exception as error:  # for wait()
            self.error = error

    def wait(self):
        self.thread.join()
        if self.error:
            raise self.error


# ---- where the bucket is -------------------------------------------------------------------------

class DirectoryPlace:
    def __init__(self, work):
        self.work, self.url = work, os.path.join(work, "bucket")

    def bucket(self, name):
        return peers.Directory(os.path.join(self.work, "bucket-" + name))

    def manifest_time(self, version):
        return os.stat(os.path.join(self.url, "versions", f"{version:020}.json")).st_ctime


class CephPlace:
    """A private gateway on this machine, in memory."""

    def __init__(self, work):
        import gateway as gateways
        self.gateway = gateways.Gateway()
        os.environ.update(self.gateway.variables())
        self.gateway.client().create_bucket(Bucket=gateways.BUCKET)
        self.name, self.url = gateways.BUCKET, f"s3://{gateways.BUCKET}/run"

    def bucket(self, name):
        return peers.Objects(self.gateway, self.name, name)

    def manifest_time(self, version):
        listed = self.gateway.client().list_objects_v2(Bucket=self.name, Prefix=f"run/versions/{version:020}")
        return listed["Contents"][0]["LastModified"].timestamp()


# ---- the run -------------------------------------------------------------------------------------

class Results:
    """{way: [{part: seconds}]} of the rounds that count, and bytes."""

    def __init__(self, ways):
        self.parts, self.sent = ({way.name: [] for way in ways} for _ in range(2))
        self.lines, self.changed = [], []

    def total(self, way, *parts):
        """Seconds of these parts (all) in each round."""
        return [sum(found[part] for part in parts or found) for found in self.parts[way]]


def run(model, mounts, ways, args):
    ways = [mounts, *ways]
    results = Results(ways)
    written = None
    for number in range(-args.warm_up, args.rounds):
        model.step()
        if number == 0:
            mounts.wait_quiet()
            written = mounts.written()
        for way in measure.in_turn(ways, number + args.warm_up):
            mounts.wait_quiet()
            os.sync()
            measure.touch_memory(3 * model.size)
            parts = way.step()
            way.check()
            if number >= 0:
                results.parts[way.name].append(parts)
                results.sent[way.name].append(way.sent)
                results.lines += [mounts.line] if way is mounts else []
        results.changed.append(model.changed)
        print(f"round {number}: " + ", ".join(f"{part} {1e3 * value:.0f}" for part, value in
                                              mounts_parts(results).items()), file=sys.stderr, flush=True)
    mounts.wait_quiet()
    results.written = {name: (value - written[name]) / args.rounds / model.size
                       for name, value in mounts.written().items()}
    return results


def mounts_parts(results):
    return results.parts["weightfs"][-1] if results.parts["weightfs"] else {}


# ---- what is printed -----------------------------------------------------------------------------

SAVE = "save"
READ = "read"
UNTIL_LATEST = ("hand-over to manifest", "manifest to `latest`")


def ms(values):
    return [f"{1e3 * min(values):.0f}", f"{1e3 * measure.median(values):.0f}"]


def intervals(results, way):
    """Seconds of each round: until it is usable elsewhere, until all was read; for weightfs from the
    hand-over."""
    if way == "weightfs":
        return results.total(way, *UNTIL_LATEST), results.total(way, *UNTIL_LATEST, READ)
    applied = ("encode, upload", "fetch, apply")
    return results.total(way, *applied), results.total(way)


def comparison(results):
    """Rows of all ways, as multiples of weightfs."""
    ours = [*intervals(results, "weightfs"), results.total("weightfs")]
    for way in results.parts:
        if way == "cp":
            continue
        values = [*intervals(results, way), results.total(way)]
        sent = measure.median(results.sent[way])
        row = [way, f"{sent / 1e6:.1f}" if sent else ""]
        for own, weightfs in zip(values, ours):
            row += [" / ".join(ms(own)), " / ".join(measure.ratios(own, weightfs))]
        yield row


def part_rows(results):
    for way, rounds in results.parts.items():
        for part in rounds[0]:
            yield [way, part, *ms(results.total(way, part))]


def print_results(report, results, args):
    report.note("circumstances", f"{args.size} in {SHARDS} shards, {100 * np.mean(results.changed):.2f} % changed, bucket: "
                f"{args.bucket}, reader: `{args.reader_options}`, the save {pace(args)}, {args.rounds} rounds after {args.warm_up}; best / median.")
    report.table("ways", ["way", "MB a version", "to `latest` or applied, ms", "/ weightfs", "to read whole, ms",
                          "/ weightfs", "from the trainer's memory to read whole, ms", "/ weightfs"],
                 comparison(results))
    report.table("parts", ["way", "part", "best, ms", "median, ms"], part_rows(results))
    rows = [[f"written by the {name}'s daemon a version, of the model", f"{share:.3f}"]
            for name, share in results.written.items()]
    if "cp" in results.parts:
        new = results.total("weightfs", "manifest to `latest`")
        rows.append(["manifest to `latest` / cp of the model: best, median", ", ".join(
            measure.ratios(new, results.total("cp")))])
    report.table("host", ["on the host", "share"], rows)
    line = {name: [float(np.median([each[name][i] for each in results.lines])) for i in (0, 1)]
            for name in results.lines[-1]}
    report.table("timeline", ["step of a version (median)", "begins, ms", "ends, ms"],
                 [[name, f"{1e3 * begin:.0f}", f"{1e3 * end:.0f}"] for name, (begin, end) in line.items()])
    report.data("timeline", line)
    report.data("parts", results.parts)


def pace(args):
    said = f"at {args.save_rate:g} GB/s" if args.save_rate else "as fast as it can"
    if args.ranks > 1:
        said += f" by {args.ranks} ranks"
    return said + (f" after a pause of up to {args.pause:g} s" if args.pause else "")


def parse_size(text):
    for unit, factor in (("GiB", 1 << 30), ("MiB", MIB)):
        if text.endswith(unit):
            return int(float(text[:-3]) * factor)
    raise argparse.ArgumentTypeError("512MiB, 2GiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="512MiB")
    parser.add_argument("--changed", type=float, default=1.1, help="percent")
    parser.add_argument("--bucket", choices=("directory", "ceph"), default="directory")
    parser.add_argument("--ways", default=",".join(peers.ALL))
    parser.add_argument("--poll", default="0.02")
    parser.add_argument("--reader-options", default="", help="of the reader's mount, besides --poll")
    parser.add_argument("--save-rate", type=float, default=0, metavar="GB/s", help="0: as fast as it can")
    parser.add_argument("--ranks", type=int, default=1, choices=range(1, SHARDS + 1), help="that save side by side")
    parser.add_argument("--pause", type=float, default=0, metavar="SECONDS", help="before a save, at random, the most")
    parser.add_argument("--temporary", default=TEMPORARY, help="how the names of files begin that are being saved")
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    measure.add_options(parser)
    args = parser.parse_args()
    args.reader_options = f"--poll {args.poll} {args.reader_options}".strip()
    size = parse_size(args.size)
    report = measure.Report("end_to_end", args.json)
    with measure.Workspace() as work:
        place = (CephPlace if args.bucket == "ceph" else DirectoryPlace)(work)
        model = Model(peers.Library(work), size, args.changed / 100)
        ways = [peers.ALL[name](model, place.bucket(name), work) for name in args.ways.split(",") if name != "weightfs"]
        mounts = Mounts(model, work, place, args.reader_options, args.save_rate * 1e9, args.ranks, args.pause, args.temporary)
        with mounts:
            results = run(model, mounts, ways, args)
    print_results(report, results, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
