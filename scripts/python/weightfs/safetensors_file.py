"""Safetensors files: their header, and their types. Neither the package safetensors nor numpy nor
torch is needed for it.

    8 bytes  length of the header, little-endian
    header   JSON: name -> {"dtype", "shape", "data_offsets": [begin, end]}, padded with spaces
    data     little-endian, row-major, one behind the other
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weightfs.errors import CorruptError

HEADER_MAX = 100_000_000  # bytes; what safetensors allows
INDEX = "model.safetensors.index.json"
ALIGNMENT = 8

BITS: Mapping[str, int] = {
    "F64": 64, "C64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16,
    "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
"""Bits of an element, of the types that have whole bytes."""

NAMES: Mapping[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32",
    "uint16": "U16", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ"}
"""Names of types in numpy (with ml_dtypes) and in torch, and those in safetensors."""


def count_of(shape: Iterable[int]) -> int:
    """Elements of a tensor of this shape; 1 for a scalar."""
    count = 1
    for size in shape:
        count *= size
    return count


@dataclass(frozen=True)
class Entry:
    """A tensor of a file. `begin` and `end` are bytes, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """The header of a file. `data` is where the tensors' bytes begin in it."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    data: int


def read_header(path: str | os.PathLike[str]) -> Header:
    """Reads nothing but the header, and checks each entry against the file's size.

    Raises CorruptError, OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(HEADER_MAX, size - 8):
            raise CorruptError(f"'{os.fspath(path)}' is not a safetensors file: a header of "
                               f"{length} bytes does not fit a file of {size}")
        text = file.read(length)
    try:
        parsed = json.loads(text)
        metadata = parsed.pop("__metadata__", {}) or {}
        entries = {name: entry_of(name, one) for name, one in parsed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"'{os.fspath(path)}' has a header that cannot be read: {error}") \
            from None
    for entry in entries.values():
        bits = BITS.get(entry.dtype)
        wanted = None if bits is None else count_of(entry.shape) * bits // 8
        if not 0 <= entry.begin <= entry.end <= size - 8 - length or (
                wanted is not None and entry.end - entry.begin != wanted):
            raise CorruptError(f"'{entry.name}' in '{os.fspath(path)}' has bytes {entry.begin} to "
                               f"{entry.end}, which are not those of {entry.dtype} "
                               f"{list(entry.shape)} in a file of {size} bytes")
    return Header(entries, metadata, 8 + length)


def entry_of(name: str, one: Mapping[str, object]) -> Entry:
    """Raises ValueError, KeyError, TypeError."""
    shape, offsets = one["shape"], one["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError(f"'{name}' has no shape or no offsets")
    numbers = [*shape, *offsets]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"'{name}' has a size or an offset that is no natural number")
    return Entry(name, str(one["dtype"]), tuple(shape), offsets[0], offsets[1])


def header_bytes(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """The length and the header of a file with these tensors."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for entry in entries:
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape),
                              "data_offsets": [entry.begin, entry.end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def files_of(folder: str) -> list[str]:
    """The safetensors files that a loader reads: those of the index, or all."""
    index = os.path.join(folder, INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    else:
        names = {name for name in os.listdir(folder) if name.endswith(".safetensors")}
    return [os.path.join(folder, name) for name in sorted(names)]
