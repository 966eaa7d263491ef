"""A process with vLLM's offline engine on the CPU, one at a time: what a fresh engine gives, and what one
gives that has loaded from somewhere else. Its variables are those of vllm_engines.VARIABLES."""

import gc

import answers
import plain_weights
import tiny
import torch

KV_CACHE = 16 << 20
engine = None


def make_steps(folders, kind="dense"):
    """Steps: the second has other weights altogether, and each after it is a small move of the one before."""
    make, more = {"dense": (tiny.make_model, {}), "moe": (tiny.make_experts, {}),
                  "tied": (tiny.make_model, {"tie_word_embeddings": True})}[kind]
    tiny.save(make(**more), folders[0])
    model = make(seed=2, **more)
    tiny.save(model, folders[1])
    for folder in folders[2:]:
        tiny.move(model)
        tiny.save(model, folder)


def make_moves(folders):
    """Steps: each is a small move of the one before, of every tensor, so that one proof is one of all."""
    model = tiny.make_model(max_position_embeddings=1024)
    for folder in folders:
        tiny.save(model, folder)
        tiny.move(model)
        with torch.no_grad():
            for weights in model.parameters():
                weights.view(torch.int16).view(-1)[0] += 1


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
                      kv_cache_memory_bytes=KV_CACHE, safetensors_load_strategy=strategy,
                      **{"distributed_executor_backend": "uni", **more})


def load_in_place(path, packed, ranks=1):
    """An engine that takes changes in place (scripts/python), its plug-in loaded by vLLM itself. More than one
    rank: each is a process."""
    plain_weights.switch(not packed)
    from vllm.config import WeightTransferConfig
    more = {} if ranks == 1 else {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    load(path, weight_transfer_config=WeightTransferConfig(backend="weightfs"),
         worker_extension_cls="weightfs.vllm.backend.WorkerExtension", **more)


def rpc(method, *arguments):
    """As /collective_rpc: the answer of each rank."""
    return engine.collective_rpc(method, args=arguments)


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
    checksums = engine.collective_rpc("compute_weight_checksums")
    return {"tokens": list(tokens), "checksums": {name: one for rank in checksums for name, one in rank.items()},
            "logprobs": [chance[token].logprob for token, chance in zip(tokens, chances)]}


if __name__ == "__main__":  # and not in the processes that vLLM starts
    answers.answer({function.__name__: function for function in (
        make_steps, make_moves, load, load_in_place, reload, look, rpc,
        update)})
