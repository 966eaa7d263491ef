"""transformers and torch save into a writer's mount, unchanged; each save becomes its version."""

import errno
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import engines_python  # noqa: E402
import harness  # noqa: E402
import savers  # noqa: E402

# Two steps of one model, each into FOLDER/plain/step-N and FOLDER/staging/step-N.
SAVE_PRETRAINED = """
import sys, tiny

shard_size, plain, staging = sys.argv[1:]
model, tokenizer = tiny.make_model(), tiny.make_tokenizer()
for step in (1, 2):
    for folder in (plain, staging):
        model.save_pretrained(f"{folder}/step-{step}", max_shard_size=shard_size)
        tokenizer.save_pretrained(f"{folder}/step-{step}")
    tiny.move(model)
"""

# As a long-running trainer: every step under one name in staging, and handed over by the trainer.
SAVE_UNDER_ONE_NAME = """
import os, sys, tiny

plain, mount = sys.argv[1:]
model = tiny.make_model()
for step in (1, 2, 3):
    model.save_pretrained(f"{plain}/step-{step}")
    model.save_pretrained(f"{mount}/staging/checkpoint")
    os.rename(f"{mount}/staging/checkpoint", f"{mount}/publish/step-{step}")
    tiny.move(model)
"""

# Loaded from staging, so that its files are mapped while they are saved over.
SAVE_OVER_ITSELF = """
import os, sys, tiny
from transformers import AutoModelForCausalLM

plain, staged, published = sys.argv[1:]
models = []
for folder in (plain, staged):
    tiny.make_model().save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tiny.torch.manual_seed(2)
    tiny.move(model)
    model.save_pretrained(folder)
    models.append(model)  # keeps its files mapped
os.rename(staged, published)
"""

SAVE_MODEL = """
import sys, tiny

output, plain, staged = sys.argv[1:]
trainer = tiny.make_trainer(output)
trainer.train()
assert trainer.state.global_step == 2
for folder in (plain, staged):
    trainer.save_model(folder)
"""

# A trainer whose whole output is in staging: it writes checkpoints there and removes the older ones.
TRAIN_IN_STAGING = """
import os, sys, tiny

for output in sys.argv[1:]:
    tiny.make_trainer(output, steps=3, save_strategy="steps", save_steps=1, save_total_limit=1).train()
    assert os.listdir(output) == ["checkpoint-3"], os.listdir(output)
"""

SAVE_DISTRIBUTED = """
import sys, tiny, torch
import torch.distributed.checkpoint as checkpoint

model = tiny.make_model()
for folder in sys.argv[1:]:
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder, no_dist=True)
    loaded = {"model": tiny.make_model(seed=2).state_dict()}
    checkpoint.load(loaded, checkpoint_id=folder, no_dist=True)
    for name, weights in model.state_dict().items():
        assert torch.equal(loaded["model"][name], weights), name
"""

SAVE_WITH_OPTIMIZER = """
import sys, tiny, torch

model = tiny.make_model()
optimizer = torch.optim.AdamW(model.parameters())
for folder in sys.argv[1:]:
    model.save_pretrained(folder)
    torch.save(optimizer.state_dict(), f"{folder}/optimizer.pt")
"""


class Transformers(savers.SaverTest):
    def assert_saves_pretrained(self, shard_size, shards):
        plain = os.path.join(self.dir, "plain")
        engines_python.run(SAVE_PRETRAINED, shard_size, plain, self.writer.join("staging"))
        for version in (1, 2):
            name = f"step-{version}"
            saved, staged = os.path.join(plain, name), self.writer.join("staging", name)
            self.assertEqual(sum(x.endswith(".safetensors") for x in os.listdir(saved)), shards)
            self.assert_same_tree(staged, saved)
            self.assertEqual(self.hand_over(staged, name), version)
            self.assert_version(version, saved)
            self.assert_left(staged, saved, ())

    def test_save_pretrained(self):
        self.assert_saves_pretrained("5GB", 1)

    def test_save_pretrained_in_shards(self):
        self.assert_saves_pretrained("400KB", 4)

    def test_steps_that_are_always_saved_under_one_name(self):
        plain, _ = self.paths("steps")
        engines_python.run(SAVE_UNDER_ONE_NAME, plain, self.writer.path)
        for step in (1, 2, 3):
            self.assertEqual(self.wait_tag(f"step-{step}"), step)
            self.assert_version(step, os.path.join(plain, f"step-{step}"))

    def test_a_model_that_is_saved_over_the_files_it_was_loaded_from(self):
        plain, staged = self.paths("X")
        engines_python.run(SAVE_OVER_ITSELF, plain, staged, self.writer.join("publish", "X"))
        self.assert_version(self.wait_tag("X"), plain)

    def test_save_model_of_a_trainer(self):
        plain, staged = self.paths("X")
        engines_python.run(SAVE_MODEL, os.path.join(self.dir, "output"), plain, staged)
        self.assert_same_tree(staged, plain)
        left = ("training_args.bin",)
        self.assert_version(self.hand_over(staged, "X"), plain, left)
        self.assert_left(staged, plain, left)


    def test_a_trainer_whose_output_is_in_staging(self):
        plain, staged = self.paths("run")
        engines_python.run(TRAIN_IN_STAGING, plain, staged)
        folder = os.path.join(staged, "checkpoint-3")
        self.assertEqual(sorted(os.listdir(folder)), sorted(os.listdir(plain + "/checkpoint-3")))
        before = harness.hash_tree(folder)
        self.assertEqual(before["model.safetensors"], harness.sha256(harness.read_file(
            os.path.join(plain, "checkpoint-3", "model.safetensors"))))
        published = {"model.safetensors", "config.json", "generation_config.json",
                     "trainer_state.json"}
        version = self.hand_over(folder, "X")
        self.assertEqual(harness.hash_tree(self.writer.join("versions", version)),
                         {name: before[name] for name in published})
        self.assertEqual(harness.hash_tree(folder), {
            name: digest for name, digest in before.items() if name not in published})


class Torch(savers.SaverTest):
    def test_a_distributed_checkpoint_is_staged_and_is_no_version(self):
        plain, staged = self.paths("X")
        engines_python.run(SAVE_DISTRIBUTED, plain, staged)
        self.assertIn(".metadata", os.listdir(staged))
        before = harness.hash_tree(staged)
        with self.assertRaises(OSError) as refused:
            os.rename(staged, self.writer.join("publish", "X"))
        self.assertEqual(refused.exception.errno, errno.EBADMSG)
        self.assertEqual(harness.hash_tree(staged), before)
        self.assertEqual(sorted(os.listdir(staged)), sorted(os.listdir(plain)))
        self.assertEqual(self.version_count(), 0)

    def test_the_state_of_an_optimizer_comes_back_to_staging(self):
        plain, staged = self.paths("X")
        engines_python.run(SAVE_WITH_OPTIMIZER, plain, staged)
        left = ("optimizer.pt",)
        self.assert_version(self.hand_over(staged, "X"), plain, left)
        self.assert_left(staged, plain, left)


if __name__ == "__main__":
    engines_python.main()
