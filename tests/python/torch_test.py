"""Tensors of torch: bf16 and fp8 bit for bit, DTensors of two ranks, deltas as tensors.

Runs where torch is: in the environment of scripts/engines.sh, by tests/engines/python_test.py.
"""

import os
import subprocess
import sys

import harness
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

import weightfs  # noqa: E402

TYPES = ["float64", "float32", "float16", "bfloat16", "complex64", "int64", "int32", "int16",
         "int8", "uint8", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_every_type_of_torch_bit_for_bit(place):
    torch.manual_seed(harness.SEED)
    tensors = {kind: torch.randint(0, 256, (8 * 24,), dtype=torch.uint8).view(
        getattr(torch, kind)) for kind in TYPES}
    tensors["bool"] = torch.tensor([True, False, True])
    tensors["scalar"] = torch.tensor(3.5, dtype=torch.bfloat16)
    tensors["empty"] = torch.zeros(0, 4, dtype=torch.bfloat16)
    tensors["transposed"] = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).t()
    tensors["parameter"] = torch.nn.Parameter(torch.ones(3, 2))
    tensors["conjugated"] = torch.tensor([1 + 2j], dtype=torch.complex64).conj()
    version = weightfs.publish(place.writer().path, tensors, tag="types")
    found = load_file(os.path.join(version.path, "model.safetensors"))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert bits(found[name]) == bits(tensor.detach().resolve_conj()), name


@pytest.mark.parametrize("tensor, message", [
    (torch.zeros(3, device="meta"), "no plain elements"),
    (torch.zeros(3, 3).to_sparse(), "no plain elements"),
    (torch.zeros(2, dtype=torch.complex128), "has the type complex128"),
])
def test_tensors_without_plain_elements_are_refused(place, tensor, message):
    with pytest.raises(weightfs.UsageError, match=message):
        place.publish({"a": tensor})


def test_a_state_dict(place):
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5)).to(torch.bfloat16)
    version = weightfs.publish(place.writer().path, model.state_dict(), tag="a")
    found = load_file(os.path.join(version.path, "model.safetensors"))
    assert all(torch.equal(found[name], one) for name, one in model.state_dict().items())


def test_deltas_as_tensors_of_torch(place):
    old = {"a": torch.randn(300).to(torch.bfloat16), "b": torch.ones(4)}
    new = {"a": old["a"].clone(), "b": old["b"]}
    new["a"][[3, 70, 299]] *= -2
    place.publish(old)
    place.publish(new)
    found = weightfs.delta(place.mount().path, 1, 2, with_old=True, framework="torch")
    assert found.names == ["a"]
    change = found["a"]
    assert change.values.dtype == change.old.dtype == torch.bfloat16
    assert change.indices.tolist() == [3, 70, 299]
    assert torch.equal(change.old, old["a"][change.indices])
    patched = old["a"].clone()
    patched[change.indices.long()] = change.values
    assert torch.equal(patched, new["a"])
    in_numpy = weightfs.delta(place.url, 1, 2)["a"]  # numpy has no bf16: the bits
    assert in_numpy.values.dtype == "uint16"
    assert in_numpy.values.tolist() == change.values.view(torch.uint16).tolist()


def test_a_tensor_at_a_time_is_in_memory(place):
    """What a mapping makes when it is asked, as a sharded trainer does, is forgotten again."""
    import weakref

    alive, most = weakref.WeakSet(), 0

    class Lazy(dict):
        def __getitem__(self, name):
            nonlocal most
            made = torch.full((64, 64), float(name))
            alive.add(made)
            most = max(most, len(alive))
            return made

        def items(self):
            return ((name, self[name]) for name in self)

    names = [str(at) for at in range(20)]
    version = weightfs.publish(place.writer().path, Lazy.fromkeys(names), tag="lazy")
    assert most <= 2
    found = load_file(os.path.join(version.path, "model.safetensors"))
    assert all(torch.equal(found[name], torch.full((64, 64), float(name))) for name in names)


RANKS = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, Replicate, distribute_tensor
import weightfs

target, how = sys.argv[1:]
dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
torch.manual_seed(0)
whole = {"rows": torch.randn(7, 6).to(torch.bfloat16), "columns": torch.randn(6, 5),
         "same": torch.randn(3)}
tensors = {name: distribute_tensor(tensor, mesh, [place]) for (name, tensor), place in
           zip(whole.items(), [Shard(0), Shard(1), Replicate()])}
tensors["plain"] = torch.full((2,), float(rank))
try:
    version = weightfs.publish(target, tensors, tag="d", shard_bytes=100,
                               rank=None if how == "no rank" else rank)
    print(rank, "version", version.number if version else None)
except weightfs.Error as error:
    print(rank, type(error).__name__, error)
except OSError as error:
    print(rank, "OSError", error)
dist.barrier()  # nobody waits for a rank that has gone
dist.destroy_process_group()
"""


def run_ranks(place, target, how=""):
    script = place.path("ranks.py")
    harness.write_file(script, RANKS.encode())
    port = str(29000 + os.getpid() % 2000)
    ranks = [subprocess.Popen(
        [sys.executable, script, target, how], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
             "PYTHONPATH": os.path.dirname(os.path.dirname(weightfs.__file__))})
        for rank in (0, 1)]
    said = []
    for process in ranks:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        said.append(out.strip())
    return said


def test_distributed_tensors_are_gathered_on_rank_0(place):
    writer = place.writer()
    assert run_ranks(place, writer.path) == ["0 version 1", "1 version None"]
    torch.manual_seed(0)
    whole = {"rows": torch.randn(7, 6).to(torch.bfloat16), "columns": torch.randn(6, 5),
             "same": torch.randn(3), "plain": torch.zeros(2)}
    found = {}
    for name in os.listdir(writer.join("latest")):
        if name.endswith(".safetensors"):
            found.update(load_file(writer.join("latest", name)))
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


def test_a_rank_that_fails_leaves_no_other_waiting(place):
    reader = place.path("nothing", "is", "here")
    zero, one = run_ranks(place, f"file://{reader}")
    assert zero.startswith("0 FailedError") and one == "1 version None"
    place.publish({"a": torch.ones(1)})
    zero, one = run_ranks(place, place.mount().path)
    assert zero.startswith("0 ReadOnlyError") and one == "1 version None"


def test_distributed_tensors_want_a_rank(place):
    for rank, said in enumerate(run_ranks(place, place.url, "no rank")):
        assert said.startswith(f"{rank} UsageError") and "rank=" in said
