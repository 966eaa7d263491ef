"""weightfs.publish(rank=, world_size=): ranks that publish one version together."""

import os
import sys
import threading
import types

import numpy
import pytest
import safetensors.numpy
from publish_test import assert_equal, load

import weightfs
from weightfs import runs


def part(place, rank, tensors, *, ranks=2, tag="step-1", run="run-1", **more):
    options = ("--store", place.path(f"store-{rank}"))
    return weightfs.publish(place.url, tensors, tag=tag, rank=rank, world_size=ranks, run=run,
                            options=options, **more)


def shares(place, seed=1):
    """Of two ranks; and of both."""
    all_of_it = place.tensors(seed, count=4)
    names = sorted(all_of_it)
    return [{name: all_of_it[name] for name in names[at::2]} for at in (0, 1)], all_of_it


def test_two_ranks_publish_one_version(place):
    mount = place.mount()
    for step in (1, 2, 3):
        of_rank, whole = shares(place, step)
        versions = [None, None]

        def work(rank, step=step, of_rank=of_rank, versions=versions):
            files = {"config.json": b"{}"} if rank == 0 else None
            versions[rank] = part(place, rank, of_rank[rank], tag=f"step-{step}", files=files)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.number for one in versions] == [step, step]
        weightfs.wait(mount.path, version=step)
        folder = mount.join("versions", step)
        assert_equal(load(folder), whole)
        assert sorted(os.listdir(folder)) == [
            "config.json", "model-part-00001-of-00002.safetensors",
            "model-part-00002-of-00002.safetensors", "model.safetensors.index.json"]
    newest = weightfs.log(place.url)[0]
    assert newest.record["snapshot"] is False, "later versions are deltas"


def test_directories_are_parts_too(place):
    of_rank, whole = shares(place)
    for rank in (0, 1):
        folder = place.path(f"rank-{rank}")
        os.mkdir(folder)
        safetensors.numpy.save_file(of_rank[rank], os.path.join(folder, f"r{rank}.safetensors"))
    assert part(place, 1, place.path("rank-1"), part_wait=0) is None
    assert part(place, 0, place.path("rank-0"), part_wait=0).number == 1
    assert_equal(load(place.mount().join("latest")), whole)


def test_shards_of_a_part_have_names_of_their_own(place):
    of_rank, whole = shares(place)
    size = next(iter(whole.values())).nbytes
    part(place, 0, of_rank[0], part_wait=0, shard_bytes=size)
    part(place, 1, of_rank[1], part_wait=0, shard_bytes=size)
    folder = place.mount().join("latest")
    assert "model-part-00002-of-00002-00001-of-00002.safetensors" in os.listdir(folder)
    assert_equal(load(folder), whole)


def test_a_rank_that_does_not_come_is_named(place):
    of_rank, _ = shares(place)
    with pytest.raises(weightfs.TimedOutError, match="part 2 of 2 did not come"):
        part(place, 0, of_rank[0], part_wait=0.05)
    assert part(place, 1, of_rank[1]).number == 1
    assert part(place, 0, of_rank[0]).number == 1, "the same call finds it"


def test_another_run_of_the_step_does_not_mix(place):
    of_rank, whole = shares(place)
    assert part(place, 0, of_rank[0], part_wait=0) is None
    assert part(place, 1, of_rank[1], run="run-2", part_wait=0) is None
    with pytest.raises(weightfs.ConflictError, match="part 1 of 2"):
        part(place, 0, {name: one + 1 for name, one in of_rank[0].items()}, part_wait=0)
    assert part(place, 1, of_rank[1], part_wait=0).number == 1
    assert_equal(load(place.mount().join("latest")), whole)


def test_a_slice_of_a_tensor_on_each_rank_is_refused(place):
    part(place, 0, {"w": numpy.zeros(4, "f4")}, part_wait=0)
    with pytest.raises(weightfs.UsageError, match="'w'.*part 1.*part 2"):
        part(place, 1, {"w": numpy.ones(4, "f4")}, part_wait=0)


@pytest.mark.parametrize("wrong", [
    {"rank": 2}, {"rank": None}, {"tag": None}, {"rank": 0, "asynchronous": True, "part_wait": 0}])
def test_what_makes_no_part_is_refused(place, wrong):
    given = {"tag": "t", "rank": 0, "world_size": 2, "run": "r", **wrong}
    with pytest.raises(weightfs.UsageError):
        weightfs.publish(place.url, place.tensors(), **given)
    with pytest.raises(weightfs.UsageError, match="world_size"):
        weightfs.publish(place.url, place.tensors(), rank=0, run="r")


def test_a_mount_is_refused(place):
    with pytest.raises(weightfs.UsageError, match="URL"):
        weightfs.publish(place.writer().path, place.tensors(), tag="t", rank=0, world_size=2)


class Group:
    """torch.distributed, as one process sees it: what rank 0 sent is `sent`."""

    def __init__(self, size, rank=0, sent=None):
        self.size, self.rank, self.sent, self.calls = size, rank, sent, 0

    def is_available(self):
        return True

    is_initialized = is_available

    def get_world_size(self):
        return self.size

    def broadcast_object_list(self, shared, src):
        assert src == 0
        self.calls += 1
        if self.rank == 0:
            self.sent = shared[0]
        shared[0] = self.sent


def see(monkeypatch, group):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setattr(runs, "drawn", None)


def test_rank_0_draws_the_token_once_for_each_process(monkeypatch):
    first = Group(2)
    see(monkeypatch, first)
    token = runs.shared_token(2)
    assert token == first.sent and len(token) == 32
    assert runs.shared_token(2) == token and first.calls == 1
    other = Group(2, rank=1, sent=token)
    see(monkeypatch, other)
    assert runs.shared_token(2) == token and other.calls == 1
    see(monkeypatch, Group(2))
    assert runs.shared_token(2) != token, "another start of the trainer"


def test_a_token_is_not_drawn_where_others_would_be_waited_for(monkeypatch):
    see(monkeypatch, Group(4))
    with pytest.raises(weightfs.UsageError, match="run="):
        runs.shared_token(2)


def test_without_a_token_the_launcher_s_is_used(place, monkeypatch):
    of_rank, _ = shares(place)
    with pytest.raises(weightfs.UsageError, match="--run"):
        part(place, 0, of_rank[0], run=None, part_wait=0)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_STEP_ID", "2")
    assert part(place, 0, of_rank[0], run=None, part_wait=0) is None
    assert part(place, 1, of_rank[1], run="17.0.2", part_wait=0).number == 1
