"""The trainer of README.md, as it is printed there, makes a version of every step."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import engines_python  # noqa: E402
import harness  # noqa: E402
import savers  # noqa: E402

# Keep is called before Publish, and keeps each step in an ordinary directory.
TRAIN = """
import sys, tiny
from transformers import TrainerCallback

code, mount, output, plain = sys.argv[1:]
exec(code)
Publish.mount = mount

class Keep(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **more):
        model.save_pretrained(f"{plain}/step-{state.global_step}")

tiny.make_trainer(output, [Keep(), Publish()], steps=2).train()
"""


def python_of_readme():
    with open(os.path.join(harness.ROOT, "README.md")) as file:
        block, = re.findall(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    return block


class ReadmeCallback(savers.SaverTest):
    def test_makes_a_version_of_every_step(self):
        plain, _ = self.paths("steps")
        engines_python.run(TRAIN, python_of_readme(), self.writer.path,
                           os.path.join(self.dir, "output"), plain)
        # Publish waited: everything is there when the training has ended.
        self.assertEqual(self.version_count(), 2)
        for step in (1, 2):
            self.assertEqual(os.readlink(self.writer.join("tags", f"step-{step}")),
                             f"../versions/{step}")
            self.assert_version(step, os.path.join(plain, f"step-{step}"))
        self.assertNotEqual(harness.hash_tree(os.path.join(plain, "step-1")),
                            harness.hash_tree(os.path.join(plain, "step-2")))
        self.assertEqual(os.listdir(self.writer.join("staging")), [])


if __name__ == "__main__":
    engines_python.main()
