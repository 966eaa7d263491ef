"""Tensors written as a checkpoint: safetensors shards, and the index that loaders read.

    model.safetensors                                          if one is enough, else
    model-00001-of-00003.safetensors, ..., model.safetensors.index.json

Of a part of a version, which rank r of n publishes beside the others (r from 0):

    model-part-00001-of-00004.safetensors                      of r = 0 and n = 4, or, if that is
                                                               not enough,
    model-part-00001-of-00004-00001-of-00002.safetensors, ...  without an index: whoever commits
                                                               makes that of the whole version

What goes into which file depends on names, types and shapes alone, so a run's versions have the
same layout, and all ranks of a trainer know in which order tensors are gathered. One tensor at a
time is gathered, copied to this process's memory if it is elsewhere, and written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weightfs.errors import UsageError
from weightfs.progress import Callback
from weightfs.safetensors_file import BITS, INDEX, Entry, header_bytes
from weightfs.tensors import Bytes, Shape, Tensor, gather, is_distributed, shapes_of

SHARD_BYTES = 5_000_000_000
WRITE_BYTES = 16 << 20  # at once, so that progress moves
METADATA = {"format": "pt"}  # transformers refuses files without it

Files = str | os.PathLike[str] | Mapping[str, bytes | str | os.PathLike[str]]
"""A directory, or {relative path: its bytes, or the path of a file to copy}."""


@dataclass(frozen=True)
class Shard:
    """A file to write: its tensors, the widest elements first, so that each is aligned."""

    name: str
    shapes: Sequence[Shape]


Part = tuple[int, int]
"""(rank, number of ranks)"""


def plan(shapes: Sequence[Shape], shard_bytes: int, part: Part | None = None) -> list[Shard]:
    """Shards of at most so many bytes, or of one tensor that is larger.

    Raises UsageError."""
    if shard_bytes < 1:
        raise UsageError(f"a shard of {shard_bytes} bytes cannot hold a tensor")
    groups: list[list[Shape]] = [[]]
    filled = 0
    for shape in shapes:
        if groups[-1] and filled + shape.size_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(shape)
        filled += shape.size_bytes
    stem = "model" if part is None else f"model-part-{part[0] + 1:05d}-of-{part[1]:05d}"
    names = [f"{stem}.safetensors"] if len(groups) == 1 else [
        f"{stem}-{at:05d}-of-{len(groups):05d}.safetensors" for at in range(1, len(groups) + 1)]
    return [Shard(name, sorted(group, key=lambda one: -BITS[one.dtype]))
            for name, group in zip(names, groups, strict=True)]


def entries_of(shard: Shard) -> list[Entry]:
    entries, begin = [], 0
    for one in shard.shapes:
        entries.append(Entry(one.name, one.dtype, one.shape, begin, begin + one.size_bytes))
        begin += one.size_bytes
    return entries


def index_text(shards: Sequence[Shard]) -> str:
    """model.safetensors.index.json, as huggingface_hub writes it."""
    total = sum(one.size_bytes for shard in shards for one in shard.shapes)
    where = {one.name: shard.name for shard in shards for one in shard.shapes}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": where},
                      indent=2, sort_keys=True) + "\n"


class Gathering:
    """The tensors of a plan, in its order, each gathered when it is its turn.

    With distributed tensors every rank goes through all of it: who stops leaves the others waiting
    for ever. So what fails calls finish() before it raises."""

    def __init__(self, tensors: Mapping[str, Tensor], shards: Sequence[Shard]) -> None:
        self._tensors = tensors
        self._names = iter([one.name for shard in shards for one in shard.shapes])

    def take(self) -> Tensor:
        """The next one, whole."""
        return gather(self._tensors[next(self._names)])

    def finish(self) -> None:
        """Takes part in gathering all that is left, and keeps nothing of it."""
        for name in self._names:
            if is_distributed(self._tensors[name]):
                gather(self._tensors[name])


def take_part(tensors: Mapping[str, Tensor], shard_bytes: int) -> None:
    """What ranks other than 0 do: their share of gathering, and nothing else.

    Raises UsageError, as on rank 0."""
    Gathering(tensors, plan(shapes_of(tensors), shard_bytes)).finish()


def write_checkpoint(folder: str, tensors: Mapping[str, Tensor], *, files: Files | None = None,
                     shard_bytes: int = SHARD_BYTES, part: Part | None = None,
                     tell: Callback) -> None:
    """Writes a checkpoint, or a part of one, into `folder`, which must exist and be empty.

    Raises UsageError, OSError; whatever gathering raises."""
    shards = plan(shapes_of(tensors), shard_bytes, part)
    total, done = sum(one.size_bytes for shard in shards for one in shard.shapes), 0
    gathering = Gathering(tensors, shards)
    try:
        if files is not None:
            copy_files(files, folder)
        for shard in shards:
            with open(os.path.join(folder, shard.name), "xb", buffering=0) as file:
                write_all(file.fileno(), memoryview(header_bytes(entries_of(shard), METADATA)))
                for one in shard.shapes:
                    for count in write_tensor(file.fileno(), gathering, one):
                        done += count
                        tell(done, total, "writing")
        if len(shards) > 1 and part is None:  # last: who sees it sees all
            with open(os.path.join(folder, INDEX), "x", encoding="utf-8") as text:
                text.write(index_text(shards))
    except BaseException:
        gathering.finish()
        raise


def write_tensor(descriptor: int, gathering: Gathering, shape: Shape) -> Iterator[int]:
    """Gathers and writes the next one; yields how many bytes were written. It is forgotten before
    the next one is gathered."""
    whole = Bytes(gathering.take())
    if whole.view.nbytes != shape.size_bytes:
        raise UsageError(f"'{shape.name}' has {whole.view.nbytes} bytes, not the "
                         f"{shape.size_bytes} of {shape.dtype} {list(shape.shape)}")
    for piece in pieces_of(whole.view):
        write_all(descriptor, piece)
        yield piece.nbytes


def pieces_of(view: memoryview) -> Iterator[memoryview]:
    for begin in range(0, view.nbytes, WRITE_BYTES):
        yield view[begin:begin + WRITE_BYTES]


def write_all(descriptor: int, view: memoryview) -> None:
    while view.nbytes:
        view = view[os.write(descriptor, view):]


def is_weights(name: str) -> bool:
    """Whether the tensors take the place of this file of another checkpoint."""
    return name.endswith((".safetensors", ".index.json", ".bin", ".pt", ".pth"))


def copy_files(files: Files, folder: str) -> None:
    """Configuration and tokenizer beside the tensors. Of a directory: all but weights and hidden
    files, with its sub-directories.

    Raises UsageError, OSError."""
    if not isinstance(files, Mapping):
        source = os.fspath(files)
        if not os.path.isdir(source):
            raise UsageError(f"files: '{source}' is not a directory")
        for path in small_files(source):
            copy_file(os.path.join(source, path), os.path.join(folder, path))
        return
    for path, content in files.items():
        parts = path.split("/")
        if os.path.isabs(path) or ".." in parts or "" in parts or is_weights(path):
            raise UsageError(f"files: '{path}' cannot be written beside the tensors; give a "
                             "relative path of a configuration or tokenizer file")
        place = os.path.join(folder, path)
        if isinstance(content, bytes):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "xb") as file:
                file.write(content)
        else:
            copy_file(os.fspath(content), place)


def copy_file(source: str, place: str) -> None:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    shutil.copyfile(source, place)


def small_files(folder: str) -> Iterator[str]:
    """Paths, relative to the folder."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and not is_weights(name):
                yield os.path.relpath(os.path.join(parent, name), folder)
