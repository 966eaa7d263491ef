"""PublishCallback in a real Trainer, also of several processes: what each step's version is, and
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
trainer = tiny.make_trainer(output, [PublishCallback(target)], steps=2,
                            processing_class=tiny.make_tokenizer())
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
            model.save_pretrained = lambda folder, **more: open(
                f"{folder}/model.safetensors", "w").close()
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
    tiny.make_trainer(where, [PublishCallback(target, on="save", tag=tag)], steps=4,
                      save_strategy="steps", save_steps=2, save_total_limit=1).train()
print(sorted(os.listdir(f"{output}/checkpoint-4")),
      sorted(os.listdir(f"{target}/staging/run/checkpoint-4")))
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
from torch import distributed
distributed.barrier()  # a rank that ends while another is still at it is aborted now and then
distributed.destroy_process_group()
"""

# A model that is sharded in each way; its callback is told of one step, as a Trainer would.
SHARDED = TRAIN + """
import types
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.distributed import DistributedConfig

distributed.init_process_group("gloo")
rank, tokenizer = distributed.get_rank(), tiny.make_tokenizer()

def sharded(how, folder):
    if how.startswith("native"):
        size = {"native-fsdp": {"fsdp_size": 2}, "native-tp": {"tp_size": 2}}[how]
        return tiny.LlamaForCausalLM.from_pretrained(
            folder, dtype="auto", distributed_config=DistributedConfig(**size))
    model = tiny.make_model(tie_word_embeddings=True)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    return model

def tell(callback, model, step, events=("on_train_begin", "on_step_end", "on_train_end")):
    state = types.SimpleNamespace(global_step=step, max_steps=0, is_world_process_zero=rank == 0,
                                  log_history=[])
    for event in events:
        getattr(callback, event)(None, state, None, model=model, processing_class=tokenizer)

for step, how in enumerate(rest, 1):
    if rank == 0:
        tiny.make_model(tie_word_embeddings=how == "fsdp2").save_pretrained(f"{plain}/step-{step}")
    distributed.barrier()
    tell(PublishCallback(target), sharded(how, f"{plain}/step-{step}"), step)
model = sharded("fsdp2", "")
for event in ("on_train_begin", "on_step_end"):  # rank 0's error must reach all ranks
    try:
        tell(PublishCallback("/nowhere/mounted"), model, 9, [event])
    except weightfs.Error as error:
        print(rank, type(error).__name__, error)
distributed.barrier()
distributed.destroy_process_group()
"""

WRITE_DISTRIBUTED = """
import glob, shutil, sys
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from safetensors.torch import load_file

import weightfs
from weightfs.integrations.dcp import publish_distributed

target, *hows = sys.argv[1:]
distributed.init_process_group("gloo")
rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (2,))
torch.manual_seed(0)
whole = {"rows": torch.randn(8, 6).to(torch.bfloat16), "columns": torch.randn(6, 8),
         "same": torch.randn(3), "odd": torch.randn(7, 3)}
tensors = {name: distribute_tensor(tensor, mesh, [place]) for (name, tensor), place in
           zip(whole.items(), [Shard(0), Shard(1), Replicate(), Shard(0)])}

def write(how):
    if how in ("one-file", "two-files"):
        return publish_distributed(target, tensors, tag=how, files={"config.json": b"{}"},
                                   meta={"step": 1},
                                   shard_bytes=10_000 if how == "one-file" else 250)
    if how == "nowhere":
        return publish_distributed("/nowhere/mounted", tensors, tag=how)
    folder = f"{target}/staging/{how}"
    dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(
        folder, save_distributed=True, enable_consolidation=how == "by-hand"))
    distributed.barrier()
    if rank == 0:
        if how == "by-hand":
            shutil.rmtree(f"{folder}/sharded")
        return weightfs.publish(target, folder, tag=how)

for how in hows:
    try:
        version = write(how)
        print(how, version.number if version else None)
    except (weightfs.Error, OSError) as error:
        print(how, type(error).__name__, error)
    distributed.barrier()
    if rank == 0 and how in ("one-file", "two-files", "by-hand"):
        found = {}
        for path in glob.glob(f"{target}/tags/{how}/*.safetensors"):
            found.update(load_file(path))
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)
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
            [engines_python.PYTHON, "-c", script, *map(str, arguments)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=harness.environment(engines_python.variables_with({
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
        # Kept, for `weightfs rebase`.
        self.assertIn("step-2", os.listdir(self.writer.join("publish")))

    def test_a_trainer_that_was_killed_goes_on_from_its_checkpoint(self):
        killed = subprocess.run(
            [engines_python.PYTHON, "-c", KILLED, self.writer.path, self.plain, self.output,
             "kill"],
            env=harness.environment(engines_python.variables_with()), stderr=subprocess.DEVNULL,
            timeout=600)
        self.assertEqual(killed.returncode, -signal.SIGKILL)
        self.assertEqual(self.wait_tag("step-3"), 3)  # handed over before
        # As one that died while it saved.
        os.mkdir(self.writer.join("staging", "step-9.saving-01234567"))
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
        hows = ("fsdp2", "native-fsdp", "native-tp")
        zero, one = self.run_ranks(SHARDED, self.writer.path, self.plain, "-", *hows)
        for step, how in enumerate(hows, 1):
            found = harness.hash_tree(self.writer.join("versions", step))
            wanted = harness.hash_tree(os.path.join(self.plain, f"step-{step}"))
            self.assertEqual(found["model.safetensors"], wanted["model.safetensors"], how)
            self.assertLessEqual(wanted.keys() | {"tokenizer.json"}, found.keys())
        self.assert_clean_staging()
        for said, begin in ((zero, "0 FailedError "), (one, "1 FailedError rank 0: ")):
            self.assertEqual(len(said.splitlines()), 2, said)
            for line in said.splitlines():
                self.assertTrue(line.startswith(f"{begin}'/nowhere/mounted' is not mounted"), said)


class DistributedCheckpoint(TrainerTest):
    def test_parts_of_two_ranks_become_one_version_or_are_refused(self):
        zero, one = self.run_ranks(WRITE_DISTRIBUTED, self.writer.path, "one-file", "two-files",
                                   "by-hand", "nowhere", "pieces")
        *made, nowhere, refused = zero.splitlines()
        self.assertEqual(made, ["one-file 1", "two-files 2", "by-hand 3"])
        self.assertTrue(nowhere.startswith("nowhere "), nowhere)
        self.assertRegex(refused, "pieces InvalidError .*has no whole tensor '(rows|columns|odd)'")
        self.assertIn("enable_consolidation=True", refused)
        *others, nowhere, pieces = one.splitlines()
        self.assertEqual(others, ["one-file None", "two-files None", "by-hand None"])
        self.assertTrue(nowhere.startswith("nowhere FailedError rank 0: "), nowhere)
        self.assertEqual(sorted(os.listdir(self.writer.join("versions/1"))),
                         ["config.json", "model.safetensors"])
        self.assertIn("model.safetensors.index.json", os.listdir(self.writer.join("versions/2")))
        self.assertEqual(self.meta(1)["step"], "1")
        self.assertEqual(self.version_count(), 3)
        self.assertEqual(os.listdir(self.writer.join("staging")), ["pieces"])


if __name__ == "__main__":
    engines_python.main()
