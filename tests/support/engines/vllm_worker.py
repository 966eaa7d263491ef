"""A process with vLLM's offline engine on the CPU, one at a time: what a fresh engine gives, and what one
gives that has loaded from somewhere else. Its variables are those of vllm_engines.VARIABLES."""

import gc

import answers
import tiny

KV_CACHE = 16 << 20
engine = None


def make_steps(folders):
    """Three steps: the second has other weights altogether, the third is a small move of it."""
    tiny.save(tiny.make_model(), folders[0])
    model = tiny.make_model(seed=2)
    tiny.save(model, folders[1])
    tiny.move(model)
    tiny.save(model, folders[2])


def load(path, strategy=None, **more):
    """Another engine. The strategy is that of --safetensors-load-strategy."""
    global engine
    import vllm  # takes seconds, and the checkpoints are wanted before
    from vllm.distributed import cleanup_dist_env_and_memory
    if engine is not None:
        engine = None
        cleanup_dist_env_and_memory()
    gc.freeze()  # vLLM collects garbage seven times here, half a second each over all that is imported
    engine = vllm.LLM(path, dtype="bfloat16", max_model_len=64, max_num_seqs=4, enforce_eager=True,
                      kv_cache_memory_bytes=KV_CACHE, distributed_executor_backend="uni",
                      safetensors_load_strategy=strategy, **more)


def load_in_place(path, packed):
    """An engine that takes changes in place (scripts/python), its plug-in loaded by vLLM itself. On a CPU
    vLLM packs weights after loading and drops the originals, unless it is told here not to."""
    if not packed:
        import vllm._custom_ops
        import vllm.model_executor.layers.utils
        vllm._custom_ops._supports_onednn = False
        vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *_: False
    from vllm.config import WeightTransferConfig
    load(path, weight_transfer_config=WeightTransferConfig(backend="weightfs"),
         worker_extension_cls="weightfs.vllm.backend.WorkerExtension")


def rpc(method, *arguments):
    """As /collective_rpc; of the only rank."""
    return engine.collective_rpc(method, args=arguments)[0]


def update(old, new):
    """What happens in the pause."""
    engine.start_weight_update()
    engine.update_weights({"update_info": {"old": old, "new": new}})
    engine.finish_weight_update()
    engine.reset_prefix_cache()


def reload(path):
    """What the hook makes a server do."""
    engine.collective_rpc("reload_weights",
                          kwargs={"weights_path": path, "is_checkpoint_format": True})
    engine.reset_prefix_cache()


def look(prompt, count):
    """What vllm_engines compares."""
    from vllm import SamplingParams
    wanted = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=1)
    answer, = engine.generate([{"prompt_token_ids": prompt}], wanted, use_tqdm=False)
    tokens, chances = answer.outputs[0].token_ids, answer.outputs[0].logprobs
    checksums, = engine.collective_rpc("compute_weight_checksums")
    return {"tokens": list(tokens), "checksums": checksums,
            "logprobs": [chance[token].logprob for token, chance in zip(tokens, chances)]}


answers.answer({function.__name__: function for function in (
    make_steps, load, load_in_place, reload, look, rpc, update)})
