"""Tensors of numpy and torch, also distributed ones (DTensor), seen as bytes.

Neither library is imported: what is given brings its own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weightfs.errors import UsageError
from weightfs.safetensors_file import BITS, NAMES, count_of

Tensor = Any
"""numpy.ndarray, torch.Tensor or torch.distributed.tensor.DTensor"""


@dataclass(frozen=True)
class Shape:
    """What a file's header says about a tensor; of a DTensor, the whole one."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return count_of(self.shape) * BITS[self.dtype] // 8


def torch_type(name: str) -> Any:
    """A class of a torch module that is loaded already, or None."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None)


def is_a(value: object, name: str) -> bool:
    """isinstance(), where the type's module may not be loaded."""
    kind = torch_type(name)
    return kind is not None and isinstance(value, kind)


def is_distributed(tensor: Tensor) -> bool:
    """Whether parts of it lie in other processes."""
    return is_a(tensor, "torch.distributed.tensor.DTensor")


def shape_of(name: str, tensor: Tensor) -> Shape:
    """Raises UsageError if safetensors cannot hold it."""
    if is_a(tensor, "torch.Tensor"):
        if str(tensor.layout) != "torch.strided" or tensor.device.type == "meta":
            raise UsageError(f"'{name}' has no plain elements ({tensor.layout} on "
                             f"{tensor.device}): give a dense tensor")
        kind = str(tensor.dtype).removeprefix("torch.")
    elif is_a(tensor, "numpy.ndarray"):
        kind = str(tensor.dtype.name)
    else:
        raise UsageError(f"'{name}' is a {type(tensor).__name__}; a tensor must be a numpy.ndarray "
                         "or a torch.Tensor")
    dtype = NAMES.get(kind)
    if dtype is None:
        raise UsageError(f"'{name}' has the type {kind}, which safetensors does not have")
    return Shape(name, dtype, tuple(int(size) for size in tensor.shape))


def gather(tensor: Tensor) -> Tensor:
    """All of it. For a DTensor every process of its mesh must call this, in the same order."""
    return tensor.full_tensor() if is_distributed(tensor) else tensor


class Bytes:
    """A tensor's elements in row-major order, little-endian. `view` is valid as long as this is.
    Copies only what is not in this process's memory in that form already."""

    def __init__(self, tensor: Tensor) -> None:
        self._kept: Any
        if is_a(tensor, "torch.Tensor"):
            self._kept = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
            size = self._kept.numel() * self._kept.element_size()
            raw = (ctypes.c_ubyte * size).from_address(self._kept.data_ptr()) if size else b""
            self.view = memoryview(raw).cast("B") if size else memoryview(b"")
        else:
            little = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
            shaped = little if little.flags.c_contiguous else little.copy(order="C")
            self._kept = shaped.reshape(-1).view("u1")
            self.view = memoryview(self._kept)


def shapes_of(tensors: Mapping[str, Tensor]) -> list[Shape]:
    """Raises UsageError; also if there is none, or a name cannot be used."""
    if not tensors:
        raise UsageError("there is no tensor to publish")
    for name in tensors:
        if not isinstance(name, str) or not name or name == "__metadata__":
            raise UsageError(f"{name!r} cannot be the name of a tensor")
    return [shape_of(name, tensor) for name, tensor in tensors.items()]
