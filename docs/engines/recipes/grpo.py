"""GRPO with TRL: every step becomes a version, and engines follow it.

    weightfs init s3://my-runs/run-7
    weightfs mount --writer s3://my-runs/run-7 /mnt/w
    python grpo.py MODEL /mnt/w

and on every inference host, beside `vllm serve /mnt/w/latest`:

    weightfs mount s3://my-runs/run-7 /mnt/w --hook vllm=http://127.0.0.1:8000

MODEL is a directory or a name of the Hub. The reward is a toy: replace it, and the prompts.
"""

import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from weightfs.integrations.transformers import PublishCallback


def reward(completions, **columns):
    """Short answers are better."""
    return [-float(len(one)) for one in completions]


def main(source, mount, steps=3, output="/tmp/grpo"):
    tokenizer = AutoTokenizer.from_pretrained(source)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(source, dtype="bfloat16"),  # as it is served
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": ["a version is", "complete and immutable"] * 8}),
        args=GRPOConfig(output_dir=output, max_steps=steps, per_device_train_batch_size=4,
                        num_generations=4, max_completion_length=8, learning_rate=1e-3,
                        logging_steps=1, save_strategy="no", report_to=[],
                        bf16=False),  # not mixed: the weights themselves are bf16
        callbacks=[PublishCallback(mount)])
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:3])
