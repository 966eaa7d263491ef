"""What a mount has: the tensors of a version, and the change between two versions."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from weightfs.vllm.mapping import CannotMap, Source

HEADER_MAX = 100_000_000  # what safetensors allows
PIECE = 1 << 23  # bytes that are read at once
INDEX = "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu}


@dataclass(frozen=True)
class Change:
    """Of one tensor: ascending indices, the new values there, and the old ones."""

    name: str
    indices: torch.Tensor
    values: torch.Tensor
    old: torch.Tensor


def find_mount(path: str) -> str:
    """The mount (or its copy under another name) that an engine was started from, by its model's
    path: MOUNT/latest, MOUNT/tags/TAG or MOUNT/versions/N.
    Raises CannotMap."""
    parent, name = os.path.split(os.path.normpath(path))
    mount = parent if name == "latest" else os.path.dirname(parent)
    is_version = name == "latest" or os.path.basename(parent) in ("tags", "versions")
    has_deltas = os.path.isdir(os.path.join(mount, "deltas"))
    if not os.path.isabs(path) or not is_version or not has_deltas:
        raise CannotMap(f"'{path}' is not MOUNT/latest or MOUNT/versions/N of a mount of weightfs")
    return mount


def parse_header(file: io.RawIOBase, path: str) -> tuple[dict[str, Any], int]:
    """What a safetensors file has, and where its data begin."""
    size = int.from_bytes(file.read(8) or b"", "little")
    if size > HEADER_MAX:
        raise CannotMap(f"'{path}' is not a safetensors file")
    text = b""
    while len(text) < size:
        piece = file.read(size - len(text))
        if not piece:
            raise OSError(f"'{path}' ends in its header")
        text += piece
    return json.loads(text), 8 + size


def read_header(path: str) -> dict[str, Any]:
    with open(path, "rb", buffering=0) as file:
        entries, _ = parse_header(file, path)
    entries.pop("__metadata__", None)
    return entries


def files_of(folder: str) -> list[str]:
    """The safetensors files that a loader reads: those of the index, or all."""
    index = os.path.join(folder, INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    else:
        names = {name for name in os.listdir(folder) if name.endswith(".safetensors")}
    return [os.path.join(folder, name) for name in sorted(names)]


def checkpoint_of(mount: str, version: int) -> Iterator[Source]:
    """The tensors of a version. Only headers are read.
    Raises CannotMap, OSError."""
    for path in files_of(os.path.join(mount, "versions", str(version))):
        for name, entry in read_header(path).items():
            dtype = DTYPES.get(str(entry["dtype"]))
            if dtype is None:
                raise CannotMap(f"'{name}' has the type {entry['dtype']}")
            yield Source(name, dtype, tuple(entry["shape"]))


def delta_path(mount: str, old: int, new: int) -> str:
    return os.path.join(mount, "deltas", f"{old}-{new}.with-old.safetensors")


def read_arrays(path: str) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The metadata and the arrays of a sparse delta, in one piece of memory. Not by safetensors: it
    opens and reads a file with Python's lock held. The daemon may have to make this one first, and
    the engine would stand still meanwhile."""
    with open(path, "rb", buffering=0) as file:
        entries, begin = parse_header(file, path)
        size = os.fstat(file.fileno()).st_size - begin
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            count = file.readinto(view[at:at + PIECE])
            if not count:
                raise OSError(f"'{path}' ends {size - at} bytes early")
            at += count
    metadata, arrays = entries.pop("__metadata__", {}), {}
    for name, entry in entries.items():
        dtype = DTYPES.get(str(entry["dtype"]))
        first, end = entry["data_offsets"]
        if dtype is None or not 0 <= first <= end <= size or first % dtype.itemsize:
            raise OSError(f"'{path}' has an array '{name}' that cannot be")
        count = (end - first) // dtype.itemsize
        arrays[name] = (torch.frombuffer(data, dtype=dtype, count=count, offset=first) if count > 0
                        else torch.empty(0, dtype=dtype))
    return metadata, arrays


def changes_of(path: str, sources: dict[str, Source]) -> Iterator[Change]:
    """Raises CannotMap if they are not changes of these tensors; OSError, KeyError, ValueError."""
    metadata, arrays = read_arrays(path)
    for name in json.loads(metadata["changed_params"]):
        change = Change(name, *(arrays[f"{name}.{part}"] for part in ("indices", "values", "old")))
        source = sources.get(name)
        if source is None:
            raise CannotMap(f"'{name}' changed, and was not in the version that the engine was "
                            "looked at with")
        if {change.values.dtype, change.old.dtype} != {source.dtype}:
            raise CannotMap(f"the values of '{name}' are {change.values.dtype}, not "
                            f"{source.dtype}")
        count = change.indices.numel()
        if not count == change.values.numel() == change.old.numel():
            raise CannotMap(f"'{name}' has arrays of different lengths in '{path}'")
        if count and not 0 <= int(change.indices[0]) <= int(change.indices[-1]) < source.count:
            raise CannotMap(f"'{name}' has an index behind its end in '{path}'")
        yield change
