"""vLLM's interfaces: the backend of --weight-transfer-config, and the methods of each worker that
are called through /collective_rpc."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts

from weightfs.vllm.delta import find_mount
from weightfs.vllm.mapping import CannotMap
from weightfs.vllm.session import Session

logger = logging.getLogger("vllm.weightfs")


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing: the mount is the one that the engine was started from."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    old: int
    new: int


def reason_against(config: Any) -> str:
    """Why engines of this configuration are not updated in place."""
    if config.parallel_config.enable_eplb:
        return "experts move between ranks (EPLB)"
    if config.model_config.enable_sleep_mode:
        return "the engine may sleep, and its weights have no memory then"
    if config.speculative_config is not None:
        return "a speculative model shares weights with it"
    return ""


def reason_against_model(model: torch.nn.Module) -> str:
    """vLLM makes the weights of some experts again for their kernel, after loading. Of unquantised
    ones it does so at the start alone (0.32.0): a reload leaves what the checkpoint has, and the
    engine computes with that as if it were made. So a reload proves nothing there."""
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        experts = type(getattr(kernel, "fused_experts", None))
        prepare = getattr(experts, "process_weights_after_loading", None)
        if prepare not in (None, FusedMoEExperts.process_weights_after_loading):
            return (f"{experts.__name__} makes other weights of the experts' after loading, and "
                    "vLLM may leave that out in a reload: restart the engine for a new version")
    return ""


class InPlaceEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device,
                 model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        # Now, not later: a reload by HTTP replaces the configuration's path.
        mount, refused = None, reason_against(vllm_config) or reason_against_model(model)
        try:
            mount = find_mount(str(vllm_config.model_config.model))
        except CannotMap as error:
            refused = refused or str(error)
        self.session = Session(model, mount, refused)

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """There is nothing to agree on."""

    # None of these fails. With several ranks vLLM 0.32 forgets the answers of the others when one
    # fails, and gives them to later calls. What a rank has done is in its status.

    def start_weight_update(self) -> None:
        self.session.begin()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        try:
            self.session.apply(update_info.old, update_info.new)
        except Exception as error:
            logger.error("weightfs: %s: %s", type(error).__name__, error)

    def finish_weight_update(self) -> None:
        """The weights are there when receive_weights returns."""
        self.session.end()

    def shutdown(self) -> None:
        self.session.close()


class WorkerExtension:
    """For --worker-extension-cls. All answer with the status of this rank."""

    weight_transfer_engine: Any

    def weightfs_session(self) -> Session:
        engine = self.weight_transfer_engine
        if not isinstance(engine, InPlaceEngine):
            raise RuntimeError("start vLLM with --weight-transfer-config "
                               "'{\"backend\": \"weightfs\"}' to update it in place")
        return engine.session

    def weightfs_status(self) -> dict[str, Any]:
        return self.weightfs_session().status()

    def weightfs_hold(self, version: int) -> dict[str, Any]:
        return self.weightfs_session().hold(version)

    def weightfs_stage(self, old: int, new: int) -> dict[str, Any]:
        return self.weightfs_session().stage(old, new)

    def weightfs_mark(self) -> dict[str, Any]:
        return self.weightfs_session().mark()

    def weightfs_compare(self) -> dict[str, Any]:
        return self.weightfs_session().compare()
