"""The exact change between two versions, as arrays: sparse deltas (FORMAT, Sparse deltas)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from weightfs.binary import call
from weightfs.errors import CorruptError, FailedError, UsageError
from weightfs.mounts import is_shown
from weightfs.safetensors_file import BITS, NAMES, Entry, Header, count_of, read_header
from weightfs.versions import Target

Array = Any
"""numpy.ndarray or torch.Tensor, as was asked for"""

Framework = Literal["numpy", "torch"]

READ_BYTES = 8 << 20  # at once

# numpy has no such types: their bits, as unsigned integers.
NUMPY_OF = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "C64": "<c8", "I64": "<i8", "I32": "<i4",
            "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
            "BOOL": "?", "BF16": "<u2"}
TORCH_OF = {dtype: name for name, dtype in NAMES.items()}


@dataclass(frozen=True)
class Change:
    """What changed in one tensor.

    name     of the tensor
    indices  [n], int32 or int64, ascending: places in the flattened tensor
    values   [n], of the tensor's type: the new values there
    old      [n], the same of the older version; None where the delta does not have them

    In numpy bf16 is uint16 and fp8 is uint8: the bits of the values. An element may be listed
    several times in a row, with the same values, if its type is coded as bytes (FORMAT).
    """

    name: str
    indices: Array
    values: Array
    old: Array = None


class Delta:
    """A sparse delta: iterate over it, or take one tensor's change by its name. Each is read when
    it is asked for, into memory of its own. The file is not mapped: where a mount's daemon dies, a
    read is an error, and a mapping ends the process.

    old, new  the versions that it leads from and to; 0 where the file does not say
    names     of the tensors that changed, in the order of the layout
    metadata  of the file, all strings
    """

    def __init__(self, path: Target, *, framework: Framework = "numpy") -> None:
        """Raises CorruptError, UsageError, OSError."""
        if framework not in ("numpy", "torch"):
            raise UsageError(f"framework is '{framework}'; it must be 'numpy' or 'torch'")
        self.path = os.fspath(path)
        self._framework = framework
        self._header: Header = read_header(self.path)
        self.metadata = dict(self._header.metadata)
        try:
            names = json.loads(self.metadata["changed_params"])
            if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                raise ValueError("changed_params is not a list of names")
            self.names: list[str] = names
            self.old = int(self.metadata.get("prev_model_version", 0))
            self.new = int(self.metadata.get("model_version", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"'{self.path}' is not a sparse delta: {error}") from None
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Change]:
        return (self[name] for name in self.names)

    def __getitem__(self, name: str) -> Change:
        """The change of this tensor.

        Raises KeyError if it did not change; CorruptError."""
        if name not in self.names:
            raise KeyError(name)
        indices, values = self._array(f"{name}.indices"), self._array(f"{name}.values")
        old = self._array(f"{name}.old") if f"{name}.old" in self._header.entries else None
        if not len(indices) == len(values) == (len(values) if old is None else len(old)):
            raise CorruptError(f"'{name}' has arrays of different lengths in '{self.path}'")
        return Change(name, indices, values, old)

    def _array(self, name: str) -> Array:
        entry = self._header.entries.get(name)
        if entry is None or len(entry.shape) != 1 or entry.dtype not in BITS:
            raise CorruptError(f"'{self.path}' has no array '{name}' of one dimension and a type "
                               "that is known")
        if name.endswith(".indices") and entry.dtype not in ("I32", "I64"):
            raise CorruptError(f"'{name}' in '{self.path}' has the type {entry.dtype}, not I32 or "
                               "I64")
        data = self._read(self._header.data + entry.begin, entry.end - entry.begin)
        if self._framework == "torch":
            return torch_array(data, entry)
        import numpy

        kind = NUMPY_OF.get(entry.dtype, f"<u{BITS[entry.dtype] // 8}")
        return numpy.frombuffer(data, kind, count_of(entry.shape))

    def _read(self, begin: int, size: int) -> bytearray:
        """Without Python's lock: the daemon may be slow, and others of this process go on."""
        if not self._close.alive:
            raise ValueError(f"'{self.path}' was closed")
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            count = os.preadv(self._descriptor, [view[at:at + READ_BYTES]], begin + at)
            if count == 0:
                raise CorruptError(f"'{self.path}' ends {size - at} bytes early")
            at += count
        return data

    def close(self) -> None:
        """Arrays that were taken stay valid."""
        self._close()

    def __enter__(self) -> Delta:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def torch_array(data: bytearray, entry: Entry) -> Array:
    import torch

    dtype = getattr(torch, TORCH_OF[entry.dtype])
    if count_of(entry.shape) == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count_of(entry.shape))


def delta_path(mount: str, old: int, new: int, *, with_old: bool) -> str:
    """Where a mount shows it."""
    return os.path.join(mount, "deltas", f"{old}-{new}{'.with-old' * with_old}.safetensors")


def delta(target: Target, old: int, new: int, *, with_old: bool = False,
          framework: Framework = "numpy", options: Sequence[str] = ()) -> Delta:
    """The exact change from version `old` to version `new`, in either direction.

    target     a mount point, whose deltas/ has it; or a URL, from where it is exported into a
               temporary file
    with_old   the old values beside the new ones (`Change.old`), to check a change before it is
               applied, and to undo it; from a mount only
    framework  "numpy" or "torch": what its arrays are. torch has bf16 and fp8
    options    more options of the command, for URLs

    `older.flatten()[change.indices] = change.values` for each change gives the newer version's
    tensors, bit for bit.

    Raises FailedError if one of the versions is not there, or their tensors differ in name, type or
    shape; UsageError; CorruptError.
    """
    target = os.fspath(target)
    if is_shown(target) and os.path.isdir(os.path.join(target, "deltas")):
        path = delta_path(target, old, new, with_old=with_old)
        try:
            return Delta(path, framework=framework)
        except OSError as error:
            raise FailedError(f"there is no change from version {old} to {new} to be had: {error}; "
                              "the log of the mount (see `weightfs status`) says why") from error
    if with_old:
        raise UsageError(f"'{target}' is not a mount, and only mounts have deltas with the old "
                         "values: mount it, and give the mount point")
    folder = tempfile.mkdtemp(prefix="weightfs-delta-")
    try:
        path = os.path.join(folder, "delta.safetensors")
        call("export", target, path, "--from", str(old), "--to", str(new), *options)
        return Delta(path, framework=framework)  # it stays open, without a name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
