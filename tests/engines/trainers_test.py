"""Trainers of several processes, and PublishCallback in a real Trainer: what each step's version is, and
what ends a training. The processes are on one host, with gloo, on the CPU."""

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import engines_python  # noqa: E402
import harness  # noqa: E402
import savers  # noqa: E402

# `keep` saves each step into an ordinary directory, before it is published.
TRAIN = """
import os, sys, tiny
from transformers import TrainerCallback
import weightfs
from weightfs.integrations.transformers import PublishCallback

target, plain, output, *rest = sys.argv[1:]

class Keep(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, processing_class=None, **more):
        if state.is_world_process_zero:
            for part in filter(None, (model, processing_class)):
                part.save_pretrained(f"{plain}/step-{state.global_step}")
"""

EVERY_SECOND = TRAIN + """
tiny.make_trainer(output, [Keep(), PublishCallback(target, every=2, meta={"run": 7})], steps=5,
                  processing_class=tiny.make_tokenizer(), logging_steps=1).train()
"""

TIED = TRAIN + """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
trainer = tiny.make_trainer(output, [PublishCallback(target)], steps=2, processing_class=tiny.make_tokenizer())
trainer.model = tiny.make_model(tie_word_embeddings=True)
trainer.train()
loaded = AutoModelForCausalLM.from_pretrained(f"{target}/latest", dtype="auto")
assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
for name, tensor in trainer.model.state_dict().items():
    assert torch.equal(tensor, loaded.state_dict()[name]), name
assert AutoTokenizer.from_pretrained(f"{target}/latest").tokenize("a version") == ["a", "version"]
"""

# Without one of the weights, as a bug of the training would leave it.
SPOILED = TRAIN + """
class Spoil(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **more):
        if state.global_step == 2:
            model.save_pretrained = lambda folder, **more: open(f"{folder}/model.safetensors", "w").close()
trainer = tiny.make_trainer(output, [Spoil(), PublishCallback(target)], steps=5)
try:
    trainer.train()
except weightfs.InvalidError as error:
    print(trainer.state.global_step, error)
"""

# Another writer publishes after step 1.
CONFLICT = TRAIN + """
class Intrude(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if state.global_step == 1:
            weightfs.wait(target, tag="step-1")
            weightfs.publish(rest[0], f"{plain}/step-1", options=("--store", rest[1]))
trainer = tiny.make_trainer(output, [Keep(), PublishCallback(target, queue=1), Intrude()], steps=9)
try:
    trainer.train()
except weightfs.ConflictError as error:
    print(trainer.state.global_step, error)
"""

# Killed after a step was handed over; goes on from its own checkpoint, and does that step again.
KILLED = TRAIN + """
import signal
class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if rest == ["kill"] and state.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
tiny.make_trainer(output, [Keep(), PublishCallback(target), Kill()], steps=4, save_strategy="steps",
                  save_steps=2).train(resume_from_checkpoint=rest != ["kill"])
"""

SAVES = TRAIN + """
for where, tag in ((output, "a-{step}"), (f"{target}/staging/run", "b-{step}")):
    tiny.make_trainer(where, [PublishCallback(target, on="save", tag=tag)], steps=4, save_strategy="steps",
                      save_steps=2, save_total_limit=1).train()
print(sorted(os.listdir(f"{output}/checkpoint-4")), sorted(os.listdir(f"{target}/staging/run/checkpoint-4")))
"""

ZERO_3 = TRAIN + """
trainer = tiny.make_trainer(output, [PublishCallback(target)], steps=1)
next(trainer.model.parameters()).ds_id = 0  # as deepspeed.zero.Init marks it
try:
    trainer.train()
except weightfs.UsageError as error:
    print(error)
"""

DATA_PARALLEL = TRAIN + """
tiny.make_trainer(output, [Keep(), PublishCallback(target)], steps=2, ddp_backend="gloo").train()
"""

# A model that is sharded by `how`; its callback is told of two steps, as a Trainer would.
SHARDED = TRAIN + """
import types
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.distributed import DistributedConfig

how = rest[0]
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = tiny.make_model(tie_word_embeddings=how == "fsdp2")
if rank == 0:
    model.save_pretrained(f"{plain}/step-1")
distributed.barrier()
if how.startswith("native"):
    size = {"native-fsdp": {"fsdp_size": 2}, "native-tp": {"tp_size": 2}}[how]
    model = tiny.LlamaForCausalLM.from_pretrained(
        f"{plain}/step-1", dtype="auto", distributed_config=DistributedConfig(**size))
else:
    mesh = init_device_mesh("cpu", (2,))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
callback = PublishCallback(target)
state = types.SimpleNamespace(global_step=1, max_steps=0, is_world_process_zero=rank == 0, log_history=[])
tokenizer = tiny.make_tokenizer()
if how == "gone":  # rank 0's error must reach all ranks
    callback = PublishCallback("/nowhere/mounted")
try:
    callback.on_step_end(None, state, None, model=model, processing_class=tokenizer)
    callback.on_train_end(None, state, None, model=model)
except weightfs.Error as error:
    print(rank, type(error).__name__, error)
distributed.barrier()
distributed.destroy_process_group()
"""

WRITE_DISTRIBUTED = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import weightfs
from weightfs.integrations.dcp import publish_distributed

target, how = sys.argv[1:]
distributed.init_process_group("gloo")
rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (2,))
torch.manual_seed(0)
whole = {"rows": torch.randn(8, 6).to(torch.bfloat16), "columns": torch.randn(6, 8), "same": torch.randn(3),
         "odd": torch.randn(7, 3)}
tensors = {name: distribute_tensor(tensor, mesh, [place]) for (name, tensor), place in
           zip(whole.items(), [Shard(0), Shard(1), Replicate(), Shard(0)])}

def write(**more):
    dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(f"{target}/staging/{how}", **more))
    distributed.barrier()

try:
    if how in ("one-file", "two-files"):
        version = publish_distributed(target, tensors, tag=how, files={"config.json": b"{}"}, meta={"step": 1},
                                      shard_bytes=10_000 if how == "one-file" else 250)
        print(rank, "version", version.number if version else None)
    elif how == "nowhere":
        publish_distributed("/nowhere/mounted", tensors, tag=how)
    else:
        write(**{"pieces": {"save_distributed": True}, "by-hand": {
            "save_distributed": True, "enable_consolidation": True}}[how])
        if rank == 0:
            if how == "by-hand":
                import shutil
                shutil.rmtree(f"{target}/staging/{how}/sharded")
            print(rank, "version", weightfs.publish(target, f"{target}/staging/{how}", tag=how).number)
except (weightfs.Error, OSError) as error:
    print(rank, type(error).__name__, error)
distributed.barrier()
if how in ("one-file", "two-files", "by-hand"):
    from safetensors.torch import load_file
    import glob
    found = {}
    for path in glob.glob(f"{target}/latest/*.safetensors"):
        found.update(load_file(path))
    assert found.keys() == whole.keys() and all(torch.equal(found[name], whole[name]) for name in whole)
distributed.destroy_process_group()
"""


class TrainerTest(savers.SaverTest):
    def setUp(self):
        self.init()
        self.writer = self.mount("--writer", "--store-size", "1G")
        self.plain = os.path.join(self.dir, "plain")
        self.output = os.path.join(self.dir, "output")

    def train(self, script, *rest):
        return engines_python.run(script, self.writer.path, self.plain, self.output, *rest)

    def run_ranks(self, script, *arguments, count=2):
        """What each rank printed."""
        port = str(29000 + os.getpid() % 2000)
        ranks = [subprocess.Popen(
            [engines_python.PYTHON, "-c", script, *map(str, arguments)], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=harness.environment(engines_python.variables_with({
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"})))
            for rank in range(count)]
        said = []
        try:
            for rank, process in enumerate(ranks):
                out, err = process.communicate(timeout=600)
                self.assertEqual(process.returncode, 0, f"rank {rank}\n{out}{err}")
                said.append(out)
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
        return said

    def tags(self):
        return [one["tag"] for one in reversed(harness.call("log", self.url))]

    def meta(self, version):
        (one,) = [one for one in harness.call("log", self.url) if one["version"] == version]
        return one["meta"]

    def assert_clean_staging(self):
        self.assertEqual(os.listdir(self.writer.join("staging")), [])

    def assert_step(self, version, step):
        self.assert_version(version, os.path.join(self.plain, f"step-{step}"))


class Callback(TrainerTest):
    def test_every_second_step_and_the_last_one(self):
        self.train(EVERY_SECOND)
        self.assertEqual(self.tags(), ["step-2", "step-4", "step-5"])
        for version, step in ((1, 2), (2, 4), (3, 5)):
            self.assert_step(version, step)
        meta = self.meta(2)
        self.assertEqual((meta["step"], meta["run"], meta["logged_step"]), ("4", "7", "3"))
        self.assertGreater(float(meta["loss"]), 0)
        self.assert_clean_staging()

    def test_tied_weights_and_the_tokenizer_load(self):
        self.train(TIED)

    def test_a_save_that_is_refused_ends_the_training_with_the_reason(self):
        said = self.train(SPOILED)
        self.assertTrue(said.startswith("2 ") and "model.safetensors" in said, said)
        self.assertEqual(self.tags(), ["step-1"])
        self.assert_clean_staging()

    def test_a_conflict_ends_the_training_within_two_steps(self):
        said = self.train(CONFLICT, self.url, os.path.join(self.dir, "other"))
        self.assertTrue(said.startswith(("2 ", "3 ")), said)
        self.assertEqual(self.tags(), ["step-1", ""])
        self.assertIn("step-2", os.listdir(self.writer.join("publish")))  # kept, for `weightfs rebase`

    def test_a_trainer_that_was_killed_goes_on_from_its_checkpoint(self):
        killed = subprocess.run(
            [engines_python.PYTHON, "-c", KILLED, self.writer.path, self.plain, self.output, "kill"],
            env=harness.environment(engines_python.variables_with()), stderr=subprocess.DEVNULL, timeout=600)
        self.assertEqual(killed.returncode, -signal.SIGKILL)
        self.assertEqual(self.wait_tag("step-3"), 3)  # handed over before
        os.mkdir(self.writer.join("staging", "step-9.saving-01234567"))  # as one that died while it saved
        self.train(KILLED)
        self.assertEqual(self.tags(), ["step-1", "step-2", "step-3", "step-3", "step-4"])
        self.assertEqual(os.readlink(self.writer.join("tags", "step-3")), "../versions/4")
        self.assert_step(5, 4)
        self.assert_clean_staging()

    def test_what_the_trainer_saves(self):
        saved, staged = self.train(SAVES).splitlines()[-1].split("] [")
        self.assertEqual(self.tags(), ["a-2", "a-4", "b-2", "b-4"])
        self.assertIn("model.safetensors", saved)  # copied
        self.assertNotIn("model.safetensors", staged)  # handed over; the optimizer's state stays
        self.assertIn("optimizer.pt", staged)
        self.assertEqual(os.listdir(self.writer.join("staging")), ["run"])
        for version in (2, 4):
            self.assertEqual(
                harness.read_file(self.writer.join("versions", version, "model.safetensors")),
                harness.read_file(os.path.join(self.output, "checkpoint-4", "model.safetensors")))

    def test_zero_3_is_told_what_to_do(self):
        self.assertIn("on='save'", self.train(ZERO_3))
        self.assertEqual(self.version_count(), 0)


class Ranks(TrainerTest):
    def test_data_parallel_is_saved_by_one_rank(self):
        self.run_ranks(DATA_PARALLEL, self.writer.path, self.plain, self.output)
        self.assertEqual(self.tags(), ["step-1", "step-2"])
        self.assert_step(2, 2)

    def test_sharded_models_are_gathered_by_all_ranks(self):
        for version, how in enumerate(("fsdp2", "native-fsdp", "native-tp"), 1):
            self.plain = os.path.join(self.dir, how)
            self.assertEqual(self.run_ranks(SHARDED, self.writer.path, self.plain, "-", how), ["", ""])
            found = harness.hash_tree(self.writer.join("versions", version))
            wanted = harness.hash_tree(os.path.join(self.plain, "step-1"))
            self.assertEqual(found["model.safetensors"], wanted["model.safetensors"], how)
            self.assertLessEqual(wanted.keys(), found.keys())
            self.assertIn("tokenizer.json", found)
        self.assert_clean_staging()

    def test_an_error_of_rank_0_reaches_all_ranks(self):
        zero, one = self.run_ranks(SHARDED, self.writer.path, self.plain, "-", "gone")
        self.assertIn("0 FailedError '/nowhere/mounted' is not mounted", zero)
        self.assertIn("1 FailedError rank 0: '/nowhere/mounted' is not mounted", one)


class DistributedCheckpoint(TrainerTest):
    def write(self, how):
        return [said.strip() for said in self.run_ranks(WRITE_DISTRIBUTED, self.writer.path, how)]

    def test_parts_of_two_ranks_become_one_version(self):
        self.assertEqual(self.write("one-file"), ["0 version 1", "1 version None"])
        self.assertEqual(sorted(os.listdir(self.writer.join("versions/1"))), ["config.json", "model.safetensors"])
        self.assertEqual(self.meta(1)["step"], "1")
        self.assertEqual(self.write("two-files"), ["0 version 2", "1 version None"])
        self.assertIn("model.safetensors.index.json", os.listdir(self.writer.join("versions/2")))
        self.assertEqual(self.write("by-hand")[0], "0 version 3")
        self.assert_clean_staging()

    def test_pieces_are_refused_and_the_message_names_a_tensor_and_the_option(self):
        said = self.write("pieces")[0]
        self.assertRegex(said, "0 InvalidError .*has no whole tensor '(rows|columns|odd)'")
        self.assertIn("enable_consolidation=True", said)
        self.assertEqual(self.version_count(), 0)

    def test_an_error_of_rank_0_is_all_ranks(self):
        for rank, said in enumerate(self.write("nowhere")):
            self.assertTrue(said.startswith(f"{rank} "), said)


if __name__ == "__main__":
    engines_python.main()
