"""Checkpoints of torch.distributed.checkpoint (DCP), by its writer for Hugging Face.

HuggingFaceStorageWriter of torch 2.13, called by several ranks with DTensors, writes

    default                     each rank its pieces, all under the same file name: the last one
                                stays. Lost weights, and no error
    save_distributed            a file for each rank, with pieces of each tensor under its full name
    and enable_consolidation    the same below sharded/, and whole tensors with an index above it

Only the last is a checkpoint: its sharded/ must go before it is handed over, or the version has
all bytes twice. publish_distributed() does that.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from weightfs.checkpoint import SHARD_BYTES, Files, copy_files, plan
from weightfs.errors import UsageError
from weightfs.integrations.ranks import agree, all_see
from weightfs.publishing import make_folder, publish
from weightfs.tensors import Tensor, shapes_of
from weightfs.versions import Target, Version


def publish_distributed(target: Target, tensors: Mapping[str, Tensor], *, tag: str,
                        meta: Mapping[str, object] | None = None, files: Files | None = None,
                        shard_bytes: int = SHARD_BYTES, threads: int = 1, rebase: bool = False,
                        scratch: Target | None = None) -> Version | None:
    """Publishes the tensors of a trainer of several processes on one host, each of which writes its
    own parts. Every rank must call it. Waits until it is a version.

    target       a writer's mount, or a URL
    tensors      {name: tensor}, such as get_model_state_dict(model): DTensors and plain ones
    tag, meta, files, rebase, shard_bytes  as of weightfs.publish
    threads      that put the parts together, on rank 0
    scratch      where the parts are written, a checkpoint's size; all ranks must see it. Not in
                 staging: there they would be coded and uploaded for nothing. None: the system's
                 directory for temporary files

    Returns the version on rank 0, None on the others. weightfs.publish(rank=...) does without
    scratch, for ranks on several hosts too: there rank 0 gathers and writes all of it.

    Raises UsageError if a rank does not see the directories; what publish() raises, on rank 0, and
    FailedError on the others. Then nothing of it is left in staging.
    """
    import torch.distributed.checkpoint as dcp
    from torch import distributed

    target, is_first = os.fspath(target), distributed.get_rank() == 0
    shards = plan(shapes_of(tensors), shard_bytes)
    mapping = {one.name: at for at, shard in enumerate(shards, 1) for one in shard.shapes}
    made: list[str] = []

    def make() -> list[str]:
        made.append(make_folder(target, tag, scratch))
        made.append(tempfile.mkdtemp(prefix="weightfs-parts-", dir=scratch))
        return made

    try:
        folder, parts = agree(make)
        blind = all_see(os.path.isdir(folder) and os.path.isdir(parts))
        if blind:
            raise UsageError(f"the ranks {blind} do not see '{folder}' and '{parts}': all must be "
                             "on one host, in one mount namespace. For several hosts: "
                             "weightfs.publish(..., rank=rank)")
        writer = dcp.HuggingFaceStorageWriter(
            parts, fqn_to_index_mapping=mapping, save_distributed=True, enable_consolidation=True,
            thread_count_consolidation=threads)
        writer.consolidated_output_path = folder
        dcp.save(dict(tensors), storage_writer=writer)

        def hand_over() -> dict[str, Any]:
            if len(shards) == 1:
                name_as_one_file(folder)
            if files is not None:
                copy_files(files, folder)
            said = publish(target, folder, tag=tag, meta=meta, rebase=rebase)
            return vars(said)

        said = agree(hand_over)
        return Version(**said) if is_first else None
    finally:
        for path in made:  # on rank 0; what was handed over has left it
            shutil.rmtree(path, ignore_errors=True)


def name_as_one_file(folder: str) -> None:
    """As all others name it, so that a run's versions have one layout."""
    os.rename(os.path.join(folder, "model-00001-of-00001.safetensors"),
              os.path.join(folder, "model.safetensors"))
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index, encoding="utf-8") as file:
        text = json.load(file)
    if set(text["weight_map"].values()) == {"model-00001-of-00001.safetensors"}:
        os.remove(index)
