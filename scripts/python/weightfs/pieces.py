"""Whether a directory has whole tensors, or what ranks of a trainer have written of them.

torch's writers for Hugging Face put pieces of a tensor into several files under the tensor's full
name; a loader would take any one of them for all of it. They note where a piece begins.
"""

from __future__ import annotations

import json
import os

from weightfs.errors import CorruptError, InvalidError
from weightfs.safetensors_file import INDEX, Header, files_of, read_header

NOTE = "DCP_SHARDING_INFO"
WHAT_TO_DO = ("save it with HuggingFaceStorageWriter(..., save_distributed=True, "
              "enable_consolidation=True) and remove sharded/, or publish the tensors with "
              "weightfs.integrations.dcp.publish_distributed()")


def check_whole(folder: str) -> None:
    """Looks only at files in which torch has noted that it wrote them. What cannot be read is left
    to the program, which refuses it.

    Raises InvalidError, which names the tensor."""
    headers: dict[str, Header] = {}
    total = None
    try:
        for path in files_of(folder):
            header = read_header(path)
            if NOTE in header.metadata:
                headers[os.path.basename(path)] = header
        index = os.path.join(folder, INDEX)
        if headers and os.path.exists(index):
            with open(index, encoding="utf-8") as file:
                total = json.load(file)["metadata"]["total_size"]
    except (CorruptError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    seen: dict[str, str] = {}
    for name, header in headers.items():
        for tensor in header.entries:
            if tensor in seen:
                raise piece(folder, tensor, f"both '{seen[tensor]}' and '{name}' have a part of it")
            seen[tensor] = name
        for tensor, begins in offsets_of(header).items():
            if any(begins):
                raise piece(folder, tensor, f"what '{name}' has of it begins at {begins}")
    written = sum(one.end - one.begin for header in headers.values()
                  for one in header.entries.values())
    if isinstance(total, int) and total > written:
        raise piece(folder, next(iter(seen), ""), "or no whole one of the others: by "
                    f"{INDEX} they have {total} bytes, in the files {written}")


def offsets_of(header: Header) -> dict[str, list[int]]:
    """Where the piece of each tensor begins, in elements of each dimension; {} if the note cannot
    be read."""
    try:
        return {name: list(one["saved_offsets"])
                for name, one in json.loads(header.metadata[NOTE]).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def piece(folder: str, tensor: str, why: str) -> InvalidError:
    return InvalidError(f"'{folder}' has no whole tensor '{tensor}': {why}. It was written by "
                        f"several ranks, each its own part; {WHAT_TO_DO}")
