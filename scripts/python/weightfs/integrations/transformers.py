"""A callback for `Trainer` of transformers, and so for all trainers of TRL.

    from weightfs.integrations.transformers import PublishCallback
    trainer = GRPOTrainer(..., callbacks=[PublishCallback("/mnt/w")])

Each step is saved by the model's own save_pretrained, and not as its state_dict: only that knows
the names and the layout of the checkpoint that from_pretrained, vLLM and SGLang read (transformers
5 converts weights when it loads), which of tied weights is stored, what an adapter is, and the
configuration. It writes straight into the mount's staging; the tokenizer goes beside it.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

from transformers import TrainerCallback

from weightfs.errors import UsageError
from weightfs.integrations.ranks import agree, count
from weightfs.integrations.steps import StepPublisher, WhenFull
from weightfs.versions import Target

Meta = Mapping[str, object] | Callable[[Any], Mapping[str, object]]

logger = logging.getLogger("weightfs")


class PublishCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Makes a version of every step. Training goes on while it is published.

    target      a writer's mount point, or a URL
    every       steps from one version to the next. The last one (max_steps) is always published
    on          "step": saves by itself at the end of a step. "save": hands over what the trainer
                has saved (checkpoint-N in its output_dir; save_strategy says when). From the
                mount's staging that is a rename, with save_only_model or one rank; else a copy
    tag         of a version; {step} is its number
    meta        to store with it beside "step" and the newest "loss" and "reward" of the log: a
                mapping, or a function of the TrainerState. Values are stored as text
    queue       versions that may be on their way to the bucket at a time
    when_full   what happens to the next one: "wait", training waits; "skip", it is left out
    rebase      if another writer publishes meanwhile, go on from that version
    timeout     seconds that the end of the training waits for each version; None: no limit
    shard_size  of save_pretrained: a file that is complete is coded while the next one is saved
    scratch, options  as of weightfs.publish, with a URL

    Rank 0 publishes; the others do nothing, unless parameters are sharded: then all ranks gather
    them, onto rank 0's CPU (FSDP, FSDP2, tensor parallel). DeepSpeed's ZeRO-3 gathers only when it
    saves: on="save".

    Raises in on_train_begin: what StepPublisher raises, UsageError for ZeRO-3. In on_step_end and
    on_save: what an earlier version has failed with, and what saving this one raises: that ends
    the training. In on_train_end: what the last ones fail with, TimedOutError.
    """

    def __init__(self, target: Target, *, every: int = 1, on: Literal["step", "save"] = "step",
                 tag: str = "step-{step}", meta: Meta | None = None, queue: int = 2,
                 when_full: WhenFull = "wait", rebase: bool = False, timeout: float | None = None,
                 shard_size: int | str = "5GB", scratch: Target | None = None,
                 options: Sequence[str] = ()) -> None:
        if every < 1:
            raise UsageError(f"every={every}: give 1 or more steps")
        if on not in ("step", "save"):
            raise UsageError(f"on='{on}': it is 'step' or 'save'")
        if tag.format(step=1) == tag.format(step=2):
            raise UsageError(f"the tag '{tag}' is the same for all steps; put {{step}} into it")
        self._every, self._on, self._tag, self._meta = every, on, tag, meta
        self._timeout, self._shard_size = timeout, shard_size
        self._make = partial(StepPublisher, target, queue=queue, when_full=when_full, rebase=rebase,
                             scratch=scratch, options=options)
        self._steps: StepPublisher | None = None

    # ---- events ----------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None,
                       **more: Any) -> None:
        """Says at once what would not work."""
        if self._on == "step" and is_zero3(model):
            raise UsageError("the parameters are partitioned by DeepSpeed's ZeRO-3, which gathers "
                             "them only when the trainer saves: PublishCallback(..., on='save') "
                             "with save_strategy='steps' and "
                             "stage3_gather_16bit_weights_on_model_save")

        def begin() -> None:
            self._steps = self._make()
            for name in self._steps.remove_leftovers():
                logger.warning("removed staging/%s, which a trainer left that was killed", name)

        if count() > 1:
            agree(begin)
        elif state.is_world_process_zero:
            begin()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None,
                    processing_class: Any = None, **more: Any) -> None:
        """Saves this step, and hands it over."""
        if self._on != "step":
            if state.is_world_process_zero:
                self._publisher().raise_failed()
            return
        is_last = state.global_step >= (getattr(state, "max_steps", 0) or float("inf"))
        is_due = is_last or state.global_step % self._every == 0
        by_all = is_sharded(model)
        if not state.is_world_process_zero and not by_all:
            return
        with ExitStack() as stack:

            def begin() -> str | None:
                """The directory to save into, on rank 0."""
                if not is_due:
                    self._publisher().raise_failed()
                    return None
                if not self._publisher().has_room(wait=is_last):
                    return None
                return stack.enter_context(self._publisher().saving(
                    self._tag.format(step=state.global_step), self._meta_of(state)))

            folder = agree(begin) if by_all else begin()
            if folder is None:
                return
            if not state.is_world_process_zero:  # may have no mount: takes part in gathering
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weightfs-rank-"))
            save_model(model, folder, self._shard_size, state.is_world_process_zero)
            if state.is_world_process_zero and processing_class is not None:
                processing_class.save_pretrained(folder)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Hands over what the trainer has saved."""
        if self._on != "save" or not state.is_world_process_zero:
            return
        # The other ranks write their random states and optimizers into it, and may not be done.
        is_shared = args.world_size > 1 and not args.save_only_model
        if self._publisher().has_room():
            self._publisher().publish_folder(
                os.path.join(args.output_dir, f"checkpoint-{state.global_step}"),
                self._tag.format(step=state.global_step), self._meta_of(state), copy=is_shared)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Waits until all of it is in the bucket."""
        if state.is_world_process_zero:
            self._publisher().wait(self._timeout)

    # ---- private ---------------------------------------------------------------------------------

    def _publisher(self) -> StepPublisher:
        if self._steps is None:  # a trainer that does not tell when it begins
            self._steps = self._make()
        return self._steps

    def _meta_of(self, state: Any) -> dict[str, object]:
        """What is logged for a step is logged after it: the newest values are of an earlier one,
        which logged_step names."""
        meta: dict[str, object] = {"step": state.global_step}
        for logged in reversed(getattr(state, "log_history", None) or []):
            if "loss" in logged:
                meta |= {name: logged[name] for name in ("loss", "reward") if name in logged}
                meta["logged_step"] = logged.get("step", "")
                break
        return meta | dict(self._meta(state) if callable(self._meta) else self._meta or {})


# ---- models --------------------------------------------------------------------------------------

def is_zero3(model: Any) -> bool:
    """Whether DeepSpeed has partitioned it: each parameter is empty but where it is used."""
    return any(hasattr(one, "ds_id") for one in parameters_of(model))


def is_sharded(model: Any) -> bool:
    """Whether no rank has all of it, so that saving it takes all of them."""
    if count() == 1 or not hasattr(model, "modules"):
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    return (getattr(model, "is_distributed_loading_by_transformers", False)
            or any(isinstance(one, FullyShardedDataParallel) for one in model.modules())
            or any(isinstance(one, DTensor) for one in parameters_of(model)))


def parameters_of(model: Any) -> Sequence[Any]:
    return list(model.parameters()) if hasattr(model, "parameters") else []


def unwrapped(model: Any) -> Any:
    """The model that knows how to save itself, without DDP, FSDP or torch.compile around it."""
    while not hasattr(type(model), "save_pretrained"):
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if inner is None:
            raise UsageError(f"a {type(model).__name__} has no save_pretrained(); publish its "
                             "tensors with weightfs.publish(target, model.state_dict(), tag=...)")
        model = inner
    return model


def save_model(model: Any, folder: str, shard_size: int | str, writes: bool) -> None:
    """Saves it; if it is sharded, every rank calls this, and one writes."""
    inner = unwrapped(model)
    if not is_sharded(model):
        inner.save_pretrained(folder, max_shard_size=shard_size)
        return
    if getattr(model, "is_distributed_loading_by_transformers", False):  # gathers by itself
        inner.save_pretrained(folder, max_shard_size=shard_size, is_main_process=writes)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    whole = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if writes:
        inner.save_pretrained(folder, max_shard_size=shard_size, state_dict=tied(inner, whole))


def tied(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Gathering makes two tensors of one that has two names; save_pretrained stores it once only
    if they are one again."""
    for name, owner in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        if name in state and owner in state:
            state[name] = state[owner]
    return state
