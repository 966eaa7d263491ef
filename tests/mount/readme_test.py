"""README.md, as it is printed: its commands on a real mount, its callback without the real packages.

tests/engines/pages_test.py runs the callback in a real Trainer, where transformers is installed.
"""

import os
import re
import shutil
import subprocess
import sys
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

sys.path.insert(0, os.path.join(harness.ROOT, "scripts", "python"))
packages = types.ModuleType("transformers")
packages.TrainerCallback = object
sys.modules["transformers"] = packages
os.environ["WEIGHTFS_BIN"] = os.path.abspath(harness.BINARY)

import weightfs  # noqa: E402

PARAMS = 20_000
URL, MOUNT = "file:///data/run-7", "/mnt/w"


def readme():
    with open(os.path.join(harness.ROOT, "README.md")) as file:
        return file.read()


def commands(begin, end):
    """The commands between two lines of the README, without what is said about them."""
    part = readme().split(f"\n{begin}\n", 1)[1].split(f"\n{end}", 1)[0]
    lines = re.findall(r"^    (\S.*)$", part, re.MULTILINE)
    return [re.sub(r"\s+#.*", "", line) for line in lines]


class Model:
    """What a Trainer gives to a callback."""

    def __init__(self, source, spoil=False):
        self.source, self.spoil = source, spoil

    def save_pretrained(self, path, max_shard_size):
        shutil.copytree(self.source, path, dirs_exist_ok=True)
        if self.spoil:
            name = next(name for name in os.listdir(path) if name.endswith(".safetensors"))
            harness.write_file(os.path.join(path, name), b"no safetensors")


class Readme(harness.MountTest):
    def setUp(self):
        self.steps = self.make_run(3, PARAMS)
        self.init()

    def write_in_place(self, text, mount):
        text = text.replace("/tmp/", "OUT/").replace(URL, self.url).replace(MOUNT, mount)
        text = text.replace(" ckpt/", f" {self.dir}/ckpt/")
        return text.replace("OUT/", f"{self.dir}/out-")

    def execute(self, lines, mount):
        path = os.path.dirname(os.path.abspath(harness.BINARY)) + ":" + os.environ["PATH"]
        store = os.path.join(self.dir, "publisher")
        for line in lines:
            done = subprocess.run(
                ["bash", "-c", self.write_in_place(line, mount)], text=True, capture_output=True,
                timeout=120, env=harness.environment({"PATH": path, "WEIGHTFS_STORE": store}))
            self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}{done.stderr}")

    def test_every_command_works_as_it_is_printed(self):
        for number, step in enumerate(self.steps):
            os.makedirs(os.path.join(self.dir, "ckpt"), exist_ok=True)
            shutil.copytree(step, os.path.join(self.dir, "ckpt", f"step-{number}"))
        writer = self.writer()
        handing_over = commands("On the trainer's host:", "or, the whole trainer's side in Python:")
        self.assertTrue(handing_over[0].startswith("weightfs mount --writer"), handing_over)
        self.execute(handing_over[1:], writer.path)
        self.assertEqual(harness.call("wait", writer.path, "--tag", "step-0")["version"], 1)
        reader = self.mount(name="reader", store="reader-store")
        shown = commands("and everywhere:", "`weightfs help COMMAND` explains each")
        self.assertGreater(len(shown), 10, shown)
        self.execute(shown[:1], reader.path)  # step-1: version 2
        self.publish(self.steps[2])
        reader.wait_version(3)
        self.execute(shown[1:], reader.path)

    def callback(self, mount):
        """What the program gives to its trainer."""
        programs = re.findall(r"^```python\n(.*?)^```$", readme(), re.MULTILINE | re.DOTALL)
        (program,) = [one for one in programs if "PublishCallback" in one]
        given = []
        trainer = types.SimpleNamespace(add_callback=given.append)
        exec(program.replace(MOUNT, mount), {"trainer": trainer})
        return given[0]

    def tell(self, callback, event, step, model=None, rank=0):
        state = types.SimpleNamespace(global_step=step, is_world_process_zero=rank == 0)
        getattr(callback, event)(None, state, None, model=model)

    def test_the_callback_publishes_from_one_rank(self):
        writer = self.writer()
        callbacks = [self.callback(writer.path) for _ in range(8)]
        for rank, callback in enumerate(callbacks):
            self.tell(callback, "on_train_begin", 0, rank=rank)
        for step in (1, 2):
            for rank, callback in enumerate(callbacks):
                self.tell(callback, "on_step_end", step, Model(self.steps[step - 1]), rank)
        for rank, callback in enumerate(callbacks):
            self.tell(callback, "on_train_end", 2, rank=rank)
        self.assertEqual(self.version_count(), 2)
        self.assert_same_tree(writer.join("tags/step-1"), self.steps[0])
        self.assert_same_tree(writer.join("tags/step-2"), self.steps[1])

    def test_the_callback_says_why_a_save_was_refused(self):
        writer = self.writer()
        callback = self.callback(writer.path)
        with self.assertRaises(weightfs.InvalidError) as caught:
            self.tell(callback, "on_step_end", 1, Model(self.steps[0], spoil=True))
        self.assertIn(".safetensors", str(caught.exception))
        self.assertEqual(os.listdir(writer.join("staging")), [])


if __name__ == "__main__":
    harness.main()
