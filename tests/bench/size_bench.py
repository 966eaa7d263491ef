#!/usr/bin/python3
"""All bytes that a version adds to the bucket, beside the bound and beside what others ship.

    size_bench.py [--quick] [--params N] [--only PART]

Each run is published for real, into a bucket in a directory, and the new objects' bytes are
counted.  The bound is the order-0 entropy of which elements change and by how much, both given the
exponent of the old element: what a coder with ideal arithmetic and no other context would take.
The other formats are computed on the same pairs of versions, tensors only, without their
containers.  arc_v3 is run where WEIGHTFS_ARC_PYTHON names a Python that has the package
fireworks-delta-compression; otherwise its published figure is quoted.

Runs are those of tools/make_run.py in the shared folder where it is, and made up here otherwise.
Needs numpy and libzstd; WEIGHTFS_BIN names the program.  Memory below 2 GiB, disk below 8 GiB.
"""

import argparse
import ctypes
import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
import json

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import runs  # noqa: E402

# What an element is: docs/FORMAT.md, "Layouts".  (width in bytes, lowest exponent bit, its bits)
KINDS = {"BF16": (2, 7, 8), "F16": (2, 10, 5), "F32": (4, 23, 8), "F8_E4M3": (1, 3, 4),
         "F8_E5M2": (1, 2, 5)}
BYTES = (1, 0, 0)
PIECE = 1 << 24  # elements compared at a time
RECORDED = "rl-run-a"
ARC_PUBLISHED_BITS = 13.8  # per change, on rl-run-a


# ---- the bound -----------------------------------------------------------------------------------

def entropy(counts):
    """Bits to say which of several things happened, for all of them together."""
    counts = np.asarray(counts, np.float64)
    counts = counts[counts > 0]
    return float((counts * np.log2(counts.sum() / counts)).sum()) if len(counts) else 0.0


def ordered(bits, width):
    """Numbers whose order is that of the values."""
    top = 1 << (8 * width - 1)
    bits = bits.astype(np.int64)
    return np.where(bits & top, (2 * top - 1) ^ bits, bits | top)


class Bound:
    """Of any number of pairs of one kind."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.width, self.shift, self.exponent_bits = KINDS.get(dtype, BYTES)
        self.elements = np.zeros(1 << self.exponent_bits, np.int64)  # by exponent
        self.counts = {}  # by exponent: {difference: how often}

    def add(self, old, new):
        exponent = (old >> self.shift) & ((1 << self.exponent_bits) - 1)
        self.elements += np.bincount(exponent, minlength=len(self.elements))
        where = np.flatnonzero(old != new)
        if not len(where):
            return
        was, is_now = old[where], new[where]
        if self.dtype in KINDS:
            d = ordered(is_now, self.width) - ordered(was, self.width)
        else:
            d = is_now.astype(np.int64) - was
        half = 1 << (8 * self.width - 1)
        d = (d + half) % (2 * half) - half
        keys, counts = self.count(exponent[where].astype(np.int64), d)
        for key, count in zip(keys.tolist(), counts.tolist()):
            self.counts[key] = self.counts.get(key, 0) + count

    def count(self, exponent, d):
        """Pairs (exponent, difference) as numbers, and how often each occurs."""
        low, high = int(d.min()), int(d.max())
        span = high - low + 1
        keys = exponent * span + (d - low)
        if span << self.exponent_bits <= 1 << 26:
            counts = np.bincount(keys)
            keys = np.flatnonzero(counts)
            counts = counts[keys]
        else:
            keys, counts = np.unique(keys, return_counts=True)
        return (keys // span << 40) + (keys % span + low + (1 << 39)), counts

    def changed(self):
        return sum(self.counts.values())

    def bits(self):
        by_exponent = {}
        for key, count in self.counts.items():
            by_exponent.setdefault(key >> 40, []).append(count)
        return sum(entropy([sum(counts), self.elements[e] - sum(counts)]) + entropy(counts)
                   for e, counts in by_exponent.items())


# ---- other formats -------------------------------------------------------------------------------

class Zstd:
    """libzstd at level 1."""

    def __init__(self):
        self.lib = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
        self.lib.ZSTD_compressBound.restype = ctypes.c_size_t
        self.lib.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
        self.lib.ZSTD_compress.restype = ctypes.c_size_t
        self.lib.ZSTD_compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                                           ctypes.c_size_t, ctypes.c_int]

    def size(self, array):
        array = np.ascontiguousarray(array)
        if not array.nbytes:
            return 0
        room = np.empty(self.lib.ZSTD_compressBound(array.nbytes), np.uint8)
        size = self.lib.ZSTD_compress(room.ctypes.data, room.nbytes, array.ctypes.data,
                                      array.nbytes, 1)
        if size > room.nbytes:
            raise RuntimeError("zstd failed")
        return size


class Peers:
    """Bytes of a version in each format, tensor by tensor.

    TRL      i32 index and the new value
    TRL gap  u16 gap (u32 for the whole tensor if one is longer) and the new value
    slime    zstd-1 of new XOR old, the whole tensor
    NeMo     gaps as TRL's and the XORs of the changed elements, zstd-1 over both
    """

    NAMES = ("TRL", "TRL gap", "slime", "NeMo")

    def __init__(self):
        self.zstd = Zstd()
        self.bytes = dict.fromkeys(self.NAMES, 0)

    def add(self, old, new):
        where = np.flatnonzero(old != new)
        if not len(where):
            return
        gaps = np.diff(where, prepend=-1) - 1
        gaps = gaps.astype("<u2" if gaps.max() < 1 << 16 else "<u4")
        self.bytes["TRL"] += len(where) * (4 + old.itemsize)
        self.bytes["TRL gap"] += gaps.nbytes + len(where) * old.itemsize
        xor = old ^ new
        self.bytes["slime"] += self.zstd.size(xor)
        both = np.concatenate([gaps.view(np.uint8), xor[where].view(np.uint8)])
        self.bytes["NeMo"] += self.zstd.size(both)


ARC = """
import logging, os, sys
from fireworks_delta_compression import delta_compress_files_to_file
old, new, out = sys.argv[1:]
for name in sorted(os.listdir(old)):
    if name.endswith(".safetensors"):
        delta_compress_files_to_file(src=os.path.join(old, name), dst=os.path.join(new, name),
                                     diff_file=out, compression_format="arc_v3")
        print(os.path.getsize(out))
        os.unlink(out)
"""


def arc_bytes(old, new, scratch):
    """Bytes of arc_v3's files, or None if it cannot be run."""
    python = os.environ.get("WEIGHTFS_ARC_PYTHON")
    if not python:
        return None
    done = subprocess.run([python, "-c", ARC, old, new, os.path.join(scratch, "arc")],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return sum(int(x) for x in done.stdout.split()) if done.returncode == 0 else None


# ---- pairs of versions ---------------------------------------------------------------------------

def tensors_of(folder):
    """{(file, name): (dtype, path, begin, end)}, largest memory use one tensor at a time."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            path = os.path.join(folder, name)
            for tensor, (dtype, _, begin, end) in runs.read_header(path).items():
                found[name, tensor] = (dtype, path, begin, end)
    return found


def compare(old_folder, new_folder, peers):
    """Adds up a pair of versions; returns its bounds by dtype and its number of elements."""
    bounds, elements = {}, 0
    new_tensors = tensors_of(new_folder)
    for key, (dtype, path, begin, end) in tensors_of(old_folder).items():
        width = KINDS.get(dtype, BYTES)[0]
        _, new_path, new_begin, _ = new_tensors[key]
        count = (end - begin) // width
        elements += count
        if not count:
            continue
        old = np.memmap(path, f"<u{width}", "r", begin, (count,))
        new = np.memmap(new_path, f"<u{width}", "r", new_begin, (count,))
        bound = bounds.setdefault(dtype, Bound(dtype))
        for at in range(0, count, PIECE):
            bound.add(old[at:at + PIECE], new[at:at + PIECE])
        peers.add(old, new)
    return bounds, elements


class Bucket:
    """A repository in a directory, and what each publish adds to it."""

    def __init__(self, weightfs, work):
        self.weightfs, self.work = weightfs, work
        self.path = os.path.join(work, "bucket")
        self.run("init", "file://" + self.path)

    def run(self, *arguments):
        subprocess.run([self.weightfs, *arguments], check=True, stdout=subprocess.PIPE)

    def objects(self):
        return {os.path.join(at, name) for at, _, names in os.walk(self.path) for name in names}

    def publish(self, folder):
        """Returns (bytes of all new objects, those of coded blocks)."""
        before = self.objects()
        self.run("publish", "file://" + self.path, folder, "--store",
                 os.path.join(self.work, "trainer"))
        added = self.objects() - before
        blocks = 0
        for path in added:
            if f"{os.sep}packs{os.sep}" in path:
                _, _, begin, end = runs.read_header(path)["data"]
                blocks += end - begin
        return sum(os.path.getsize(path) for path in added), blocks


class Sums:
    """Over the steps of a run."""

    def __init__(self):
        self.steps = self.elements = self.changed = 0
        self.total = self.blocks = self.raw = self.bound_bits = 0
        self.peers = Peers()
        self.arc = 0

    def add_pair(self, old_folder, new_folder, added, scratch):
        bounds, elements = compare(old_folder, new_folder, self.peers)
        self.steps += 1
        self.elements += elements
        self.changed += sum(bound.changed() for bound in bounds.values())
        self.bound_bits += sum(bound.bits() for bound in bounds.values())
        self.raw += sum(end - begin for _, _, begin, end in tensors_of(old_folder).values())
        self.total += added[0]
        self.blocks += added[1]
        arc = arc_bytes(old_folder, new_folder, scratch) if self.arc is not None else None
        self.arc = None if arc is None else self.arc + arc


def measure(weightfs, folders, scratch):
    """Publishes the versions of a run one after another."""
    work = tempfile.mkdtemp(prefix="size-", dir=scratch)
    try:
        bucket, sums = Bucket(weightfs, work), Sums()
        bucket.publish(folders[0])
        for old, new in zip(folders, folders[1:]):
            sums.add_pair(old, new, bucket.publish(new), scratch)
        return sums
    finally:
        shutil.rmtree(work, ignore_errors=True)


# ---- runs made up here ---------------------------------------------------------------------------

def to_f16(weights):
    return weights.astype("<f2").view("<u2")


def to_f32(weights):
    return weights.astype("<f4").view("<u4")


ROUND = {"BF16": runs.to_bf16, "F16": to_f16, "F32": to_f32}


def draw(rng, name, count):
    """fp32 weights, and an update for a learning rate of 1: Adam's, after many steps."""
    weights = rng.standard_normal(count, np.float32)
    if "norm" in name:
        weights = np.float32(1) + weights * np.float32(0.1)
    else:
        weights *= np.float32(0.02 * np.exp(0.25 * rng.standard_normal()))
    return weights, rng.standard_normal(count, np.float32) * np.float32(0.23)


def rate_for(density, dtype, seed=7):
    """The learning rate at which this share of such weights changes."""
    weights, update = draw(np.random.default_rng(seed), "", 1 << 20)
    old = ROUND[dtype](weights)
    low, high = 1e-12, 1e2
    for _ in range(60):
        middle = (low * high) ** 0.5
        changed = np.mean(ROUND[dtype](weights + update * np.float32(middle)) != old)
        low, high = (middle, high) if changed < density else (low, middle)
    return low


def write_pair(folders, shapes, dtype, rate, seed=1):
    """Two versions; one tensor in memory at a time, in pieces."""
    files = []
    for folder in folders:
        os.makedirs(folder)
        path = os.path.join(folder, "model.safetensors")
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for name, shape in shapes:
            size = int(np.prod(shape)) * KINDS[dtype][0]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text = text.ljust((len(text) + 7) // 8 * 8)
        files.append(open(path, "wb"))
        files[-1].write(len(text).to_bytes(8, "little") + text)
        with open(os.path.join(folder, "config.json"), "w") as config:
            json.dump({"model_type": "qwen3"}, config)
    for number, (name, shape) in enumerate(shapes):
        count = int(np.prod(shape))
        for at in range(0, count, 1 << 22):
            rng = np.random.default_rng([seed, number, at])
            weights, update = draw(rng, name, min(1 << 22, count - at))
            files[0].write(ROUND[dtype](weights))
            files[1].write(ROUND[dtype](weights + update * np.float32(rate)))
    for file in files:
        file.close()


def plain_shapes(params):
    rows = max(1, params // (8 * 1024))
    return [(f"model.layers.{i}.mlp.weight", (rows, 1024)) for i in range(8)]


def qwen3_shapes():
    """Qwen3-0.6B as trainers ship it: the tied embedding once, 596,049,920 parameters."""
    hidden, heads, kv_heads, head, inner = 1024, 16, 8, 128, 3072
    shapes = [("model.embed_tokens.weight", (151936, hidden))]
    for i in range(28):
        for name, shape in (("input_layernorm", (hidden,)), ("mlp.down_proj", (hidden, inner)),
                            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
                            ("post_attention_layernorm", (hidden,)), ("self_attn.k_norm", (head,)),
                            ("self_attn.k_proj", (kv_heads * head, hidden)),
                            ("self_attn.o_proj", (hidden, heads * head)),
                            ("self_attn.q_norm", (head,)),
                            ("self_attn.q_proj", (heads * head, hidden)),
                            ("self_attn.v_proj", (kv_heads * head, hidden))):
            shapes.append((f"model.layers.{i}.{name}.weight", shape))
    return shapes + [("model.norm.weight", (hidden,))]


# ---- the table -----------------------------------------------------------------------------------

class Bench:
    def __init__(self, args, scratch):
        self.weightfs = os.environ["WEIGHTFS_BIN"]
        self.scratch, self.params = scratch, args.params
        source = runs.find_source()
        tool = source and os.path.join(source, "..", "..", "tools", "make_run.py")
        self.make_run = tool if tool and os.path.isfile(tool) else None
        self.source = source
        self.notes = []  # printed below the table

    def row(self, label, folders, goal):
        sums = measure(self.weightfs, folders, self.scratch)
        changed, steps = sums.changed, sums.steps

        def bits(size):
            return f"{8 * size / changed:.2f}"

        quoted = f"({ARC_PUBLISHED_BITS})" if label.startswith(RECORDED) else ""
        arc = quoted if sums.arc is None else bits(sums.arc)
        ratio = 8 * sums.total / sums.bound_bits
        cells = [label, f"{100 * changed / sums.elements:.3g} %", f"{sums.total / steps:,.0f}",
                 f"{(sums.total - sums.blocks) / steps:,.0f}",
                 f"{sums.bound_bits / changed:.2f}", bits(sums.total), f"**{ratio:.3f}**", goal,
                 f"{100 * sums.total / sums.raw:.2f} %",
                 *(bits(sums.peers.bytes[name]) for name in Peers.NAMES), arc]
        print("| " + " | ".join(cells) + " |", flush=True)
        return sums

    def made_run(self, label, rate, goal, dtype="bf16", density=None):
        """A run of tools/make_run.py; without it, one of ours with this density."""
        out = os.path.join(self.scratch, "run")
        folders = [os.path.join(out, f"step_00000{i}") for i in range(2)]
        try:
            if self.make_run:
                subprocess.run(["/usr/bin/python3", self.make_run, out, "--params",
                                str(self.params), "--steps", "1", "--lr", str(rate), "--shards",
                                "2", "--dtype", dtype], check=True, stdout=subprocess.PIPE)
            elif dtype == "fp8":
                return
            else:
                write_pair(folders, plain_shapes(self.params), "BF16", rate_for(density, "BF16"))
            self.row(label, folders, goal)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def our_run(self, label, shapes, dtype, density, goal, rate=None):
        out = os.path.join(self.scratch, "run")
        folders = [os.path.join(out, "old"), os.path.join(out, "new")]
        try:
            write_pair(folders, shapes, dtype, rate or rate_for(density, dtype))
            return self.row(label, folders, goal)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def recorded(self):
        if not self.source:
            return
        out = os.path.join(self.scratch, "run")
        try:
            runs.make_run(out, source=self.source)
            folders = sorted(os.path.join(out, x) for x in os.listdir(out) if x.startswith("step_"))
            sums = self.row(f"{RECORDED}, 8 steps", folders, "1.09")
            self.notes.append("Fixed cost of a version of rl-run-a, all that is not block bytes: "
                              f"{(sums.total - sums.blocks) / sums.steps:,.0f} B (goal 2,500).")
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def densities(self):
        # Learning rates that give these shares on make_run's model.
        for density, rate, goal in ((0.0003, 1.75e-8, "1.6"), (0.005, 4.1e-7, "1.12"),
                                    (0.012, 1e-6, "1.08"), (0.034, 3.3e-6, "1.08"),
                                    (0.10, 1.35e-5, "1.12"), (0.25, 5e-5, "1.12"),
                                    (0.50, 1.85e-4, "1.12"), (0.98, 2e-2, "1.12")):
            self.made_run(f"bf16, lr {rate:g}", rate, goal, density=density)

    def kinds(self):
        self.made_run("fp8 e4m3, lr 1e-6", 1e-6, "1.12", dtype="fp8")
        for dtype in ("F16", "F32"):
            self.our_run(f"{dtype.lower()}, lr 1e-6", plain_shapes(self.params), dtype, None,
                         "1.12", rate=1e-6)

    def qwen3(self):
        lines = []
        for density in (0.0056, 0.0097):
            sums = self.our_run("Qwen3-0.6B's layout", qwen3_shapes(), "BF16", density, "")
            lines.append(f"{100 * sums.changed / sums.elements:.2f} % changed: "
                         f"{sums.total / 1e6:.2f} MB a step, as TRL "
                         f"{sums.peers.bytes['TRL'] / 1e6:.1f} MB")
        self.notes.append("Qwen3-0.6B: " + "; ".join(lines) + " (TRL published 20 to 35 MB).")


PARTS = ("recorded", "densities", "kinds", "qwen3")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--params", type=int, default=100_000_000)
    parser.add_argument("--quick", action="store_true", help="4M parameters, no Qwen3 layout")
    parser.add_argument("--only", choices=PARTS)
    args = parser.parse_args()
    if args.quick:
        args.params = 4_000_000
    print("| run | changed | bytes a version | of these not blocks | bound, b/change | weightfs | "
          "**to the bound** | goal | of raw | " + " | ".join(Peers.NAMES) + " | arc_v3 |")
    print("|" + "---|" * (10 + len(Peers.NAMES)), flush=True)
    scratch = tempfile.mkdtemp(prefix="weightfs-size-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        bench = Bench(args, scratch)
        for part in [args.only] if args.only else PARTS:
            if not (args.quick and part == "qwen3"):
                getattr(bench, part)()
        for note in bench.notes:
            print("\n" + note)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
