"""weightfs.integrations.steps: a trainer's steps in their order, and what becomes of them if the
bucket is slow, another writer is faster, or the trainer or the mount dies."""

import fcntl
import json
import os
import signal
import subprocess
import sys

import harness
import pytest
import safetensors.numpy

import weightfs
from weightfs.integrations.steps import StepPublisher, copy_checkpoint


def save(place, seed=1):
    """A function that saves as a trainer: weights, configuration, and what is no part of it."""
    def into(folder):
        safetensors.numpy.save_file(place.tensors(seed), os.path.join(folder, "model.safetensors"))
        harness.write_file(os.path.join(folder, "config.json"), b'{"model_type": "llama"}\n')
        harness.write_file(os.path.join(folder, "training_args.bin"), b"no part of a version")
    return into


def publish(steps, place, tag, seed=1, **meta):
    with steps.saving(tag, meta) as folder:
        save(place, seed)(folder)
    return folder


def logged(place):
    return [(one.number, one.tag, dict(one.meta)) for one in reversed(weightfs.log(place.url))]


def staged(mount):
    return os.listdir(mount.join("staging"))


@pytest.fixture
def writer(place):
    return place.writer("--store-size", "1G")


def test_steps_become_versions_in_their_order(place, writer):
    steps = StepPublisher(writer.path, queue=2)
    for at in (1, 2, 3, 4):
        assert steps.has_room()
        folder = publish(steps, place, f"step-{at}", seed=at, step=at, reward=at / 10)
        assert not os.path.lexists(os.path.join(folder, "config.json"))  # handed over already
    steps.wait()
    assert [(number, tag, meta["step"], meta["reward"]) for number, tag, meta in logged(place)] == [
        (at, f"step-{at}", str(at), str(at / 10)) for at in (1, 2, 3, 4)]
    for at in (1, 2, 3, 4):
        assert sorted(os.listdir(writer.join("versions", at))) == ["config.json",
                                                                   "model.safetensors"]
    assert staged(writer) == []  # what is no part of a version is gone too


@pytest.mark.parametrize("tag", ["x" * 200, "a b", "é"])
def test_any_tag_that_a_version_may_have(place, writer, tag):
    steps = StepPublisher(writer.path)
    publish(steps, place, tag, step=1)
    assert [one.tag for one in steps.wait()] == [tag]


def test_steps_for_a_url_follow_each_other(place, tmp_path):
    steps = StepPublisher(place.url, queue=3, scratch=tmp_path, options=place.options)
    for at in (1, 2, 3):
        assert steps.has_room()
        publish(steps, place, f"step-{at}", seed=at)
    assert [one.tag for one in steps.wait()][-1] == "step-3"
    assert [tag for _, tag, _ in logged(place)] == ["step-1", "step-2", "step-3"]
    assert os.listdir(tmp_path) == []


def test_a_folder_that_was_saved_already_is_copied_or_handed_over(place, writer, tmp_path):
    steps = StepPublisher(writer.path)
    outside, inside = str(tmp_path), writer.join("staging", "checkpoint-2")
    os.mkdir(inside)
    for folder, seed in ((outside, 1), (inside, 2)):
        save(place, seed)(folder)
        steps.publish_folder(folder, f"step-{seed}")
    shared = writer.join("staging", "checkpoint-3")
    os.mkdir(shared)
    save(place, 3)(shared)
    steps.has_room()
    steps.publish_folder(shared, "step-3", copy=True)  # others still write there
    steps.wait()
    assert sorted(os.listdir(outside)) == ["config.json", "model.safetensors", "training_args.bin"]
    assert sorted(os.listdir(shared)) == sorted(os.listdir(outside))
    assert os.listdir(inside) == ["training_args.bin"]  # the trainer's own stays
    assert sorted(staged(writer)) == ["checkpoint-2", "checkpoint-3"]
    assert len(weightfs.log(place.url)) == 3


def test_a_folder_without_weights_is_refused_and_the_message_says_what_to_set(writer, tmp_path):
    harness.write_file(str(tmp_path / "pytorch_model_fsdp_0.bin"), b"")
    with pytest.raises(weightfs.UsageError, match="FULL_STATE_DICT.*hf_model"):
        StepPublisher(writer.path).publish_folder(tmp_path, "x")


def test_copies_leave_out_hidden_files_and_pickles(tmp_path):
    for name in ("model.safetensors", ".hidden", "optimizer.pt", "sub/tokenizer.json", ".x/y"):
        path = tmp_path / "from" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "to").mkdir()
    copy_checkpoint(str(tmp_path / "from"), str(tmp_path / "to"))
    assert sorted(harness.hash_tree(str(tmp_path / "to"))) == ["model.safetensors",
                                                               "sub/tokenizer.json"]


def test_a_save_that_raises_publishes_nothing(place, writer):
    steps = StepPublisher(writer.path)
    with pytest.raises(ZeroDivisionError), steps.saving("a") as folder:
        save(place)(folder)
        print(1 / 0)
    assert staged(writer) == [] and steps.wait() == []


def test_what_is_wrong_with_the_arguments_is_said_at_once(place, writer):
    for more in ({"queue": 0}, {"when_full": "drop"}):
        with pytest.raises(weightfs.UsageError):
            StepPublisher(writer.path, **more)
    with pytest.raises(weightfs.FailedError, match="is not mounted"):
        StepPublisher(place.path("nothing"))
    with pytest.raises(weightfs.ReadOnlyError, match="not a writer's mount"):
        StepPublisher(place.mount(name="reader", store="other").path)


@pytest.mark.parametrize("meta", [None, {"step": 1}])  # by a rename, and by the command
def test_a_save_that_is_refused_is_raised_and_removed(place, writer, meta):
    steps = StepPublisher(writer.path)
    with pytest.raises(weightfs.InvalidError, match="model.safetensors"), \
            steps.saving("bad", meta) as folder:
        harness.write_file(os.path.join(folder, "model.safetensors"), b"no safetensors")
    assert steps.has_room() and staged(writer) == []
    publish(steps, place, "good")
    assert [one.tag for one in steps.wait()] == ["good"]


# ---- a slow bucket -------------------------------------------------------------------------------

@pytest.fixture
def slow(place):
    """A writer's mount whose bucket does not answer, and a function that lets it."""
    bucket, hidden = place.path("bucket"), place.path("hidden")
    writer = place.writer("--store-size", "1G")
    os.rename(bucket, hidden)

    def answer():
        if os.path.exists(hidden):
            os.rename(hidden, bucket)

    yield writer, answer
    answer()


def test_a_full_queue_leaves_steps_out_or_waits(place, slow):
    writer, answer = slow
    skipping = StepPublisher(writer.path, queue=2, when_full="skip")
    for at in (1, 2):
        assert skipping.has_room()
        publish(skipping, place, f"step-{at}", seed=at)
    assert not skipping.has_room() and not skipping.has_room()
    assert skipping.skipped == 2
    with pytest.raises(weightfs.TimedOutError):
        skipping.wait(timeout=0.05)
    answer()
    assert skipping.has_room(wait=True)  # waits for the first
    publish(skipping, place, "step-5", seed=5)
    skipping.wait()
    assert [tag for _, tag, _ in logged(place)] == ["step-1", "step-2", "step-5"]


def test_a_trainer_that_waits_publishes_every_step(place, slow):
    writer, answer = slow
    steps = StepPublisher(writer.path, queue=1)
    publish(steps, place, "step-1")
    answer()
    assert steps.has_room() and weightfs.log(place.url)[0].tag == "step-1"  # it is a version by now


def test_what_was_handed_over_survives_the_trainer(place, slow):
    """Killed while a step is saved, and two before it wait for the bucket."""
    writer, answer = slow
    code = ("import os, sys, signal\n"
            "sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
            "import numpy, safetensors.numpy\n"
            "from weightfs.integrations.steps import StepPublisher\n"
            "steps = StepPublisher(sys.argv[3], queue=5)\n"
            "for at in (1, 2, 3):\n"
            "    with steps.saving(f'step-{at}', {'step': at}) as folder:\n"
            "        weights = {'a': numpy.full(1000, at, 'f4')}\n"
            "        safetensors.numpy.save_file(weights, folder + '/model.safetensors')\n"
            "        if at == 3:\n"
            "            os.killpg(0, signal.SIGKILL)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", code, os.path.join(harness.ROOT, "scripts", "python"),
         os.path.dirname(os.path.dirname(safetensors.__file__)), writer.path],
        start_new_session=True)
    assert process.wait(timeout=120) == -signal.SIGKILL  # with the commands that it had started
    (left,) = staged(writer)
    assert left.startswith("step-3.saving-")
    answer()
    for at in (1, 2):
        assert weightfs.wait(writer.path, tag=f"step-{at}", timeout=60).number == at
    again = StepPublisher(writer.path)
    assert again.remove_leftovers() == [left] and staged(writer) == []
    publish(again, place, "step-2", seed=7)  # resumed from a checkpoint: the same tag again
    publish(again, place, "step-3", seed=8)
    again.wait()
    assert [tag for _, tag, _ in logged(place)] == ["step-1", "step-2", "step-2", "step-3"]
    assert os.readlink(writer.join("tags", "step-2")).endswith("/3")


def test_a_trainer_that_still_saves_keeps_its_directory(place, writer):
    other = StepPublisher(writer.path)
    with other.saving("step-1") as folder:
        save(place)(folder)
        assert StepPublisher(writer.path).remove_leftovers() == []
    other.wait()
    path = writer.join("staging", "step-9.saving-00000000")
    os.mkdir(path)
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert other.remove_leftovers() == []
    os.close(descriptor)
    assert other.remove_leftovers() == [os.path.basename(path)]


# ---- other writers, and mounts that go away ------------------------------------------------------

def test_a_conflict_is_raised_in_the_next_step_and_rebase_goes_on(place, writer):
    steps = StepPublisher(writer.path)
    publish(steps, place, "step-1")
    steps.wait()
    place.publish(place.tensors(9), tag="other")
    publish(steps, place, "step-2", seed=2)
    with pytest.raises(weightfs.ConflictError):
        steps.wait()
    assert steps.wait() == []  # said once
    assert os.listdir(writer.join("publish")) == ["step-2"]  # kept, as SEMANTICS says
    harness.call("rebase", writer.path)
    assert weightfs.wait(writer.path, tag="step-2", timeout=60).number == 3
    publish(steps, place, "step-3", seed=3)
    steps.wait()
    place.publish(place.tensors(9), tag="other")
    rebasing = StepPublisher(writer.path, rebase=True)
    publish(rebasing, place, "step-4", seed=4)
    assert [one.number for one in rebasing.wait()] == [6]


def test_two_trainers_on_one_mount_mix_nothing(place, slow):
    """The same step of both, saved at a time: one is taken, the other is told."""
    writer, answer = slow
    one, two = StepPublisher(writer.path), StepPublisher(writer.path)
    with pytest.raises(weightfs.BusyError, match="publish/step-1 is already being published"), \
            one.saving("step-1") as first, two.saving("step-1") as second:
        assert first != second
        save(place, 1)(first)
        save(place, 2)(second)
    answer()
    assert [version.number for version in two.wait()] == [1] and one.wait() == []
    weights = harness.read_file(writer.join("versions", 1, "model.safetensors"))
    assert weights == safetensors.numpy.save(place.tensors(2)) and staged(writer) == []


def test_a_mount_that_goes_away(place, writer):
    steps = StepPublisher(writer.path)
    publish(steps, place, "step-1")
    steps.wait()
    writer.process.kill()
    with pytest.raises(weightfs.FailedError, match="Mount it again"):
        publish(steps, place, "step-2")
    writer.start()
    publish(steps, place, "step-2", seed=2)
    assert [one.number for one in steps.wait()] == [2]


def test_a_daemon_that_dies_while_steps_wait_ends_the_waiting(place, slow):
    writer, answer = slow
    steps = StepPublisher(writer.path)
    publish(steps, place, "step-1", step=1)
    writer.process.kill()
    with pytest.raises(weightfs.FailedError, match="the daemon .* ended"):
        steps.wait()
    answer()
    writer.start()
    assert weightfs.wait(writer.path, tag="step-1", timeout=60).number == 1


def test_the_package_needs_neither_torch_nor_transformers(place):
    code = ("import sys, weightfs, weightfs.integrations.steps; print([one for one in "
            "('numpy', 'torch', 'transformers', 'trl') if one in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True,
                          env={"PYTHONPATH": os.path.join(harness.ROOT, "scripts", "python")})
    assert json.loads(done.stdout.replace("'", '"')) == []
