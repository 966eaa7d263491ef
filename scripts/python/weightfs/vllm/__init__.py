"""vLLM takes a version in place: the changes alone, from a mount of weightfs.

    vllm serve /mnt/w/latest --weight-transfer-config '{"backend": "weightfs"}' \
        --worker-extension-cls weightfs.vllm.backend.WorkerExtension

vLLM calls register() in each of its processes (entry point vllm.general_plugins). What is called
then, and in which order: docs/engines/vllm-in-place.md

    backend    vLLM's interfaces, and nothing else
    session    one rank: stages, applies, says what it holds
    mapping    where the model's loader puts each element of the checkpoint; learned once
    delta      /deltas/A-B.with-old.safetensors and the checkpoint's headers
    staging    the changes of one version, checked against what is there
    digest     of everything that a model computes with
"""

import logging

NAME = "weightfs"


def register() -> None:
    """Makes the backend known. May be called any number of times, in any process. A vLLM that
    cannot have it starts without: it calls this even if nobody has asked for weightfs."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

        if NAME not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(
                NAME, "weightfs.vllm.backend", "InPlaceEngine")
    except Exception as error:
        logging.getLogger("weightfs").warning(
            "this vLLM takes no version in place, which vLLM 0.32 or later does: %s", error)
