"""The programs of README.md and of docs/engines, as they are printed there."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import engines_python  # noqa: E402
import harness  # noqa: E402
import savers  # noqa: E402

# Keep is called before what publishes, and keeps each step in an ordinary directory.
KEEP = """
import os, sys, tiny
from transformers import TrainerCallback

plain, mount, output, *blocks = sys.argv[1:]

class Keep(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, processing_class=None, **more):
        for part in filter(None, (model, processing_class)):
            part.save_pretrained(f"{plain}/step-{state.global_step}")
"""

TRAIN_README = KEEP + """
trainer = tiny.make_trainer(output, [Keep()], steps=2)
exec(blocks[0])
trainer.train()
"""

TRAIN_TRL = KEEP + """
trainer = tiny.make_trainer(output, [Keep()], steps=2, processing_class=tiny.make_tokenizer())
exec(blocks[0])
trainer.train()
trainer = tiny.make_trainer(f"{mount}/staging/run", steps=2, save_strategy="steps", save_steps=1,
                            save_only_model=True)
exec(blocks[1])
trainer.train()
"""

# Without DCP's, which needs ranks: trainers_test.py.
TRAIN_TRAINERS = KEEP + """
trainer = tiny.make_trainer(output, [Keep()], steps=5)
exec(blocks[0])
trainer.train()
model = trainer.model
exec(blocks[2])
"""

LOAD = """
import sys, tiny, torch

source, simple, waiting = sys.argv[1:]
exec(simple)
exec(waiting)
number, newer = load_newer_than(0)
assert number == 1
wanted = AutoModelForCausalLM.from_pretrained(source, dtype="auto").state_dict()
for loaded in (model, newer):
    assert loaded.state_dict().keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in loaded.state_dict().items())
print(len(wanted))
"""

SAVE = """
import sys, tiny
tiny.save(tiny.make_model(), sys.argv[1])
"""


class Pages(savers.SaverTest):
    def setUp(self):
        self.init()
        self.writer = self.mount("--writer", "--store-size", "1G")  # every version stays

    def programs(self, page):
        """The Python of a page, with the mount of this test for its own."""
        with open(os.path.join(harness.ROOT, page)) as file:
            blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
        return [block.replace("/mnt/w", self.writer.path) for block in blocks]

    def train(self, script, page, count, about=""):
        """Runs the programs of a page, or those that are about this."""
        blocks = [block for block in self.programs(page) if about in block]
        self.assertEqual(len(blocks), count)
        plain, _ = self.paths("steps")
        engines_python.run(script, plain, self.writer.path, os.path.join(self.dir, "output"), *blocks)
        return plain

    def assert_steps(self, plain, versions):
        for step, version in versions:
            self.assertEqual(self.wait_tag(f"step-{step}"), version)
            self.assert_version(version, os.path.join(plain, f"step-{step}"))
        first, second = (step for step, _ in versions[:2])
        self.assertNotEqual(harness.hash_tree(os.path.join(plain, f"step-{first}")),
                            harness.hash_tree(os.path.join(plain, f"step-{second}")))

    def test_readme_makes_a_version_of_every_step(self):
        plain = self.train(TRAIN_README, "README.md", 1, "PublishCallback")
        # Publish waited: everything is there when the training has ended.
        self.assertEqual(self.version_count(), 2)
        self.assert_steps(plain, ((1, 1), (2, 2)))
        self.assertEqual(os.listdir(self.writer.join("staging")), [])

    def test_trl_makes_a_version_of_every_step_and_of_every_save(self):
        plain = self.train(TRAIN_TRL, "docs/engines/trl.md", 2)
        self.assert_steps(plain, ((1, 1), (2, 2)))
        self.assertIn("tokenizer.json", os.listdir(self.writer.join("versions/1")))
        for step in (1, 2):  # the same training once more
            version = self.wait_tag(f"saved-{step}")
            self.assertEqual(version, 2 + step)
            self.assertEqual(harness.read_file(self.writer.join("versions", version, "model.safetensors")),
                             harness.read_file(os.path.join(plain, f"step-{step}", "model.safetensors")))

    def test_trainers_makes_a_version_of_every_second_step_and_the_last(self):
        plain = self.train(TRAIN_TRAINERS, "docs/engines/trainers.md", 3)
        self.assert_steps(plain, ((2, 1), (4, 2), (5, 3)))
        self.assertEqual(self.wait_tag("step-43"), 4)

    def test_transformers_loads_the_newest(self):
        source, staged = self.paths("X")
        engines_python.run(SAVE, source)
        harness.call("publish", self.writer.path, source, "--tag", "X")
        count = engines_python.run(LOAD, source, *self.programs("docs/engines/transformers.md"))
        self.assertGreater(int(count.split()[-1]), 10)


if __name__ == "__main__":
    engines_python.main()
