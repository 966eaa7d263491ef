#!/usr/bin/python3
"""Makes the checkpoints of an RL run: OUT/step_000000, OUT/step_000001, ... and OUT/sha256.json.

    runs.py OUT [--source RUN] [--versions N] [--params P] [--seed S]

With --source, a sparse run (base/, steps/step_NNNNNN.safetensors with `<param>.indices` and
`<param>.values`, steps/sha256.json) is expanded and every file's hash is checked. Without it a run
is made up: weights like a model's, of which about 1 % move by a unit or two in the last place from
one version to the next, small weights much more often than large ones. Needs python3 and numpy.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys

import numpy as np

DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1}


def find_source():
    """The recorded run beside this checkout, or None."""
    here = os.path.dirname(os.path.abspath(__file__))
    shared = os.environ.get("WEIGHTFS_SHARED", os.path.join(here, "..", "..", "..", "shared"))
    run = os.path.join(shared, "data", "rl-run-a")
    return os.path.abspath(run) if os.path.isdir(run) else None


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sha256_folder(folder):
    return {name: sha256_of(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


def read_header(path):
    """{name: (dtype, shape, begin, end)} with offsets in the file."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: (info["dtype"], info["shape"], *(8 + size + at for at in info["data_offsets"]))
            for name, info in header.items()}


def write_safetensors(path, tensors, metadata=None):
    """tensors: [(name, dtype, shape, array)], written in this order."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust((len(text) + 7) // 8 * 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, data in tensors:
            file.write(data.tobytes())


# ---- a recorded run ------------------------------------------------------------------------------

def apply_patch(folder, patch_path):
    where = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            path = os.path.join(folder, name)
            where.update({key: (path, info) for key, info in read_header(path).items()})
    entries = read_header(patch_path)
    patch = np.memmap(patch_path, np.uint8, "r")
    for entry, (_, _, begin, end) in entries.items():
        if not entry.endswith(".indices"):
            continue
        key = entry[:-len(".indices")]
        path, (dtype, shape, first, _) = where[key]
        values = entries[key + ".values"]
        width = f"<u{DTYPE_BYTES[dtype]}"
        target = np.memmap(path, width, "r+", first, (int(np.prod(shape)),))
        target[patch[begin:end].view("<i4")] = patch[values[2]:values[3]].view(width)
        target.flush()


def expand(source, out, versions):
    with open(os.path.join(source, "steps", "sha256.json")) as file:
        hashes = json.load(file)
    patches = sorted(x for x in os.listdir(os.path.join(source, "steps"))
                     if x.endswith(".safetensors"))
    previous = os.path.join(source, "base")
    for name in (["step_000000.safetensors"] + patches)[:versions]:
        step = name.split(".")[0]
        folder = os.path.join(out, step)
        shutil.copytree(previous, folder, copy_function=shutil.copyfile)
        if name in patches:
            apply_patch(folder, os.path.join(source, "steps", name))
        if sha256_folder(folder) != hashes[step]:
            raise ValueError(f"{folder}: hashes do not agree with {source}")
        previous = folder


# ---- a made-up run -------------------------------------------------------------------------------

def to_bf16(weights):
    bits = weights.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def generate(out, versions, params, seed):
    rng = np.random.default_rng(seed)
    hidden = 256
    rows = max(1, params // (8 * hidden))
    names = [f"model.layers.{i}.mlp.weight" for i in range(8)]
    weights = {name: rng.normal(0, 0.02, rows * hidden).astype(np.float32) for name in names}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden}
    for version in range(versions):
        folder = os.path.join(out, f"step_{version:06d}")
        os.makedirs(folder)
        if version:
            for name in names:  # Adam-like: every weight moves by about the learning rate
                weights[name] += (1e-6 * 0.25 * rng.normal(0, 1, rows * hidden)).astype(np.float32)
        shards = {"model-00001-of-00002.safetensors": names[:4],
                  "model-00002-of-00002.safetensors": names[4:]}
        for shard, members in shards.items():
            write_safetensors(os.path.join(folder, shard),
                              [(n, "BF16", (rows, hidden), to_bf16(weights[n])) for n in members],
                              {"format": "pt"})
        weight_map = {name: shard for shard, members in shards.items() for name in members}
        for name, content in (("config.json", config), ("model.safetensors.index.json", {
                "metadata": {"total_size": 16 * rows * hidden}, "weight_map": weight_map})):
            with open(os.path.join(folder, name), "w") as file:
                json.dump(content, file, indent=2)


def make_run(out, versions=9, params=4_000_000, seed=1, source=None):
    """Makes the run below `out`, which must not exist; returns {step: {file: sha256}}."""
    os.makedirs(out)
    if source:
        expand(source, out, versions)
    else:
        generate(out, versions, params, seed)
    hashes = {step: sha256_folder(os.path.join(out, step)) for step in sorted(os.listdir(out))}
    with open(os.path.join(out, "sha256.json"), "w") as file:
        json.dump(hashes, file, indent=2, sort_keys=True)
    return hashes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--source", help="a sparse run to expand; 'auto': the recorded one if it is there")
    parser.add_argument("--versions", type=int, default=9)
    parser.add_argument("--params", type=int, default=4_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    source = find_source() if args.source == "auto" else args.source
    try:
        hashes = make_run(args.out, args.versions, args.params, args.seed, source)
    except (OSError, ValueError, KeyError) as error:
        print(f"runs.py: {error}", file=sys.stderr)
        return 1
    print(f"{len(hashes)} checkpoints in {args.out}, "
          f"{'the recorded run ' + os.path.basename(source) if source else 'made up'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
