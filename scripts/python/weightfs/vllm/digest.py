"""A digest of all tensors that a model can compute with, wherever it keeps them.

Weights that were made of weights (packed for a kernel, absorbed, quantised) are not parameters that
a loader fills. They lie in attributes, in containers, in closures of functions. If one of them is
not what a reload makes of the same version, the digest is another one.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

SKIPPED = frozenset({"kv_cache"})  # not weights, and large
DEPTH_MAX = 12
BLOCK = 1 << 22  # elements of 8 bytes hashed at once
MASK = (1 << 64) - 1
PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, torch.dtype,
         torch.device, torch.Size)


def children_of(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            if isinstance(key, str | int):
                yield str(key), one
    elif isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield str(at), one
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
    elif isinstance(value, types.FunctionType):
        for at, cell in enumerate(value.__closure__ or ()):
            try:
                yield f"cell{at}", cell.cell_contents
            except ValueError:  # it is empty
                continue
        yield "defaults", value.__defaults__ or ()
    elif hasattr(value, "__dict__"):
        yield from vars(value).items()


def reachable(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that the modules lead to, once, in an order that is the same each time."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", model, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        if isinstance(value, PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield name, value
            continue
        depth = 0 if isinstance(value, torch.nn.Module) else depth + 1
        if depth > DEPTH_MAX:
            continue
        waiting.extend((f"{name}.{key}", one, depth) for key, one in children_of(value)
                       if key not in SKIPPED)


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, as integers of 8."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    words = raw[:whole].clone() if raw.data_ptr() % 8 else raw[:whole]
    words = words.view(torch.int64)
    if whole == raw.numel():
        return words
    rest = torch.zeros(8, dtype=torch.uint8, device=raw.device)
    rest[:raw.numel() - whole] = raw[whole:]
    return torch.cat([words, rest.view(torch.int64)])


def digest_of_tensor(tensor: torch.Tensor) -> int:
    """Of the bytes: sums modulo 2^64 in which each word has an odd factor of its own, so that no
    single change is missed. Computed where the tensor lies."""
    words, total = words_of(tensor), 0
    for begin in range(0, words.numel(), BLOCK):
        block = words[begin:begin + BLOCK]
        place = torch.arange(begin, begin + block.numel(), device=block.device)
        factor = (place * -7046029254386353131 ^ (place << 17)) | 1
        total = total + int((block * factor).sum()) & MASK
        total = total + int(((block ^ (block >> 29)) * (factor * 3)).sum()) & MASK
    return total


def digest(model: torch.nn.Module) -> dict[str, str]:
    """{where it was found: digest}"""
    found: dict[str, str] = {}
    for name, tensor in reachable(model):
        if tensor.device.type == "meta" or tensor.layout != torch.strided:
            continue
        shape = "x".join(map(str, tensor.shape))
        found[name] = f"{tensor.dtype} {shape} {digest_of_tensor(tensor):016x}"
    return found
