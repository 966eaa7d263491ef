"""A process that loads models with transformers and keeps them, as a rollout or an evaluation does."""

import hashlib

import answers
import tiny
import torch
from transformers import AutoModelForCausalLM

models = {}


def make_steps(folders):
    """A run: the first step, small moves of it, and a last one with other weights altogether."""
    model = tiny.make_model()
    for folder in folders[:-1]:
        tiny.save(model, folder)
        tiny.move(model)
    tiny.save(tiny.make_model(seed=2), folders[-1])


def make_large(folders, mib):
    """Two versions of about that size, the second a small move of the first."""
    model = tiny.make_model(hidden_size=1024, intermediate_size=3072, num_attention_heads=16, vocab_size=8192,
                            num_key_value_heads=8, num_hidden_layers=max(1, mib // 24))
    for folder in folders:
        tiny.save(model, folder, "256MB")
        tiny.move(model)


def load(name, path, more=None):
    models[name] = AutoModelForCausalLM.from_pretrained(path, dtype="auto", **(more or {}))


def load_and_read(path, more=None):
    """Reads every weight, which a mapped model has not when it is loaded, and lets the model go."""
    load("read", path, more)
    total = sum(int(tensor.view(torch.int16).sum()) for tensor in models["read"].state_dict().values())
    drop("read")
    return total


def drop(name):
    del models[name]


def hashes(name):
    """{tensor: SHA-256 of its bytes}; of a mapped model this reads the file."""
    return {key: hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy()).hexdigest()
            for key, tensor in models[name].state_dict().items()}


def generate(name, prompt, count):
    """A greedy answer of that many tokens."""
    prompt = torch.tensor([prompt])
    tokens = models[name].generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                   max_new_tokens=count, min_new_tokens=count)
    return tokens[0, prompt.shape[1]:].tolist()


def mapped(folder):
    """How many files below the folder this process has mapped."""
    with open("/proc/self/maps") as maps:
        return len({line.split(maxsplit=5)[5] for line in maps if f" {folder}/" in line})


answers.answer({function.__name__: function
                for function in (make_steps, make_large, load, load_and_read, drop, hashes, generate, mapped)})
