"""What a mount has: the tensors of a version, and the change between two versions."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from weightfs.deltas import TORCH_OF, Change, Delta
from weightfs.deltas import delta_path as path_of
from weightfs.safetensors_file import files_of, read_header
from weightfs.vllm.mapping import CannotMap, Source


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


def dtype_of(name: str) -> torch.dtype | None:
    """torch's type of this name in safetensors, if it has one."""
    found = getattr(torch, TORCH_OF.get(name, ""), None)
    return found if isinstance(found, torch.dtype) else None


def checkpoint_of(mount: str, version: int) -> Iterator[Source]:
    """The tensors of a version. Only headers are read.
    Raises CannotMap, OSError."""
    for path in files_of(os.path.join(mount, "versions", str(version))):
        for entry in read_header(path).entries.values():
            dtype = dtype_of(entry.dtype)
            if dtype is None:
                raise CannotMap(f"'{entry.name}' has the type {entry.dtype}")
            yield Source(entry.name, dtype, entry.shape)


def delta_path(mount: str, old: int, new: int) -> str:
    return path_of(mount, old, new, with_old=True)


def changes_of(path: str, sources: dict[str, Source]) -> Iterator[Change]:
    """Each with its old values.
    Raises CannotMap if they are not changes of these tensors; OSError, CorruptError."""
    for change in Delta(path, framework="torch"):
        name, source = change.name, sources.get(change.name)
        if source is None:
            raise CannotMap(f"'{name}' changed, and was not in the version that the engine was "
                            "looked at with")
        if change.old is None:
            raise CannotMap(f"'{path}' has no old values")
        if {change.values.dtype, change.old.dtype} != {source.dtype}:
            raise CannotMap(f"the values of '{name}' are {change.values.dtype}, not "
                            f"{source.dtype}")
        count = change.indices.numel()
        if count and not 0 <= int(change.indices[0]) <= int(change.indices[-1]) < source.count:
            raise CannotMap(f"'{name}' has an index behind its end in '{path}'")
        yield change
