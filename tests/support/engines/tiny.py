"""A tiny model, its tokenizer, and a trainer for it; runs in the environment of scripts/engines.sh.

Nothing asks the network: the weights are random and the tokenizer knows a few words.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import (LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3MoeConfig,  # noqa: E402
                          Qwen3MoeForCausalLM, Trainer, TrainingArguments)

torch.set_num_threads(1)
WORDS = ["<end>", "a", "version", "is", "complete", "and", "immutable"]


TINY = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}


def make_model(seed=1, **more):
    """`more` are settings that make it less tiny."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**TINY, **more})).to(torch.bfloat16)


def make_experts(seed=1):
    """A mixture of experts."""
    torch.manual_seed(seed)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{
        **TINY, "num_hidden_layers": 2, "head_dim": 32, "moe_intermediate_size": 64, "num_experts": 4,
        "num_experts_per_tok": 2})).to(torch.bfloat16)


def move(model, share=0.01):
    """As a step does: about this share of the weights goes up by one in the last place."""
    with torch.no_grad():
        for weights in model.parameters():
            bits = weights.view(torch.int16)
            bits += (torch.rand(bits.shape) < share).to(torch.int16)


def make_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def save(model, folder, shard_size="400KB"):
    """Several shards with their index, and the tokenizer."""
    model.save_pretrained(folder, max_shard_size=shard_size)
    make_tokenizer().save_pretrained(folder)


def make_trainer(output, callbacks=(), steps=2, processing_class=None, **more):
    """Some steps on random tokens, on the CPU; writes nothing by itself, unless `more` says so."""
    model = make_model()
    tokens = torch.randint(1, 512, (steps, 16))
    examples = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(**{
        "output_dir": output, "max_steps": steps, "per_device_train_batch_size": 1,
        "learning_rate": 1e-3, "save_strategy": "no", "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "seed": 1, **more})
    return Trainer(model, arguments, train_dataset=examples, callbacks=list(callbacks),
                   processing_class=processing_class)
