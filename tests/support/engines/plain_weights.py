"""A plug-in of vLLM for tests: weights as the checkpoint has them, on a CPU too.

There vLLM packs the weights of linear layers, and those of experts, for its kernels, and drops the originals.
Linear layers have another kernel for those that are not packed. Experts have not: what the kernel computes
of them then is no language model any more, but every bit of them has the same part in it. Processes that vLLM
starts are told by the variable PLAIN_WEIGHTS.
"""

import os

WANTED = "PLAIN_WEIGHTS"


def switch(plain):
    """In this process, for engines that are made after it; those of its own take over."""
    import vllm._custom_ops
    import vllm.model_executor.layers.utils
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    for owner, name, value in (
            (vllm._custom_ops, "_supports_onednn", False),
            (vllm.model_executor.layers.utils, "check_cpu_sgl_kernel", lambda *_: False),
            (CPUUnquantizedExperts, "process_weights_after_loading",
             CPUUnquantizedExperts.__base__.process_weights_after_loading)):
        original = f"packed_{name}"
        if not hasattr(owner, original):
            setattr(owner, original, getattr(owner, name))
        setattr(owner, name, value if plain else getattr(owner, original))
    os.environ[WANTED] = str(int(plain))


def register():
    """vLLM calls it in each of its processes."""
    if os.environ.get(WANTED) == "1":
        switch(True)
