"""docs/engines/recipes, as far as they run without their trainers."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import types

import harness
import pytest
import safetensors.numpy

import weightfs

RECIPES = os.path.join(harness.ROOT, "docs", "engines", "recipes")


def save(place, folder, seed=1):
    os.makedirs(folder)
    safetensors.numpy.save_file(place.tensors(seed), os.path.join(folder, "model.safetensors"))


def tags(place):
    return [one.tag for one in reversed(weightfs.log(place.url))]


def test_marked_directories_become_versions_in_their_order(place):
    writer, folder = place.writer("--store-size", "1G"), place.path("broadcasts")

    def run():
        return subprocess.Popen(
            [sys.executable, os.path.join(RECIPES, "marked_directories.py"), folder, "STABLE",
             writer.path],
            env={**os.environ, "PYTHONPATH": os.path.join(harness.ROOT, "scripts", "python")})

    process = run()
    try:
        for step in (9, 10, 11):
            path = os.path.join(folder, f"step_{step}")
            save(place, path, seed=step)
            if step != 10:
                harness.write_file(os.path.join(path, "STABLE"), b"")
        weightfs.wait(writer.path, tag="step-11", timeout=60)
        assert tags(place) == ["step-9", "step-11"]  # 10 is not complete
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        process = run()  # publishes nothing twice
        harness.write_file(os.path.join(folder, "step_10", "STABLE"), b"")
        weightfs.wait(writer.path, tag="step-10", timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    assert tags(place) == ["step-9", "step-11", "step-10"]
    assert "STABLE" in os.listdir(os.path.join(folder, "step_9"))


def test_verl_publishes_the_actor(place, monkeypatch):
    """With a stand-in for the base class of verl 0.9.1: CheckpointCallback(config)."""
    module = types.ModuleType("verl.trainer.ppo.checkpoint_callback")

    class CheckpointCallback:
        def __init__(self, config=None):
            self.config = config

    module.CheckpointCallback = CheckpointCallback
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location(
        "verl_callback", os.path.join(RECIPES, "verl_callback.py"))
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    monkeypatch.setenv("WEIGHTFS_TARGET", place.writer("--store-size", "1G").path)
    callback = recipe.Publish(config={})
    trainer = types.SimpleNamespace(total_training_steps=2)
    for step in (1, 2):
        folder = place.path(f"global_step_{step}")
        save(place, os.path.join(folder, "actor", "huggingface"), seed=step)
        callback.on_save(trainer=trainer, global_step=step, checkpoint_dir=folder, async_save=False)
        shutil.rmtree(folder)  # as verl does with old ones
    assert tags(place) == ["step-1", "step-2"]
    with pytest.raises(RuntimeError, match="async_save"):
        callback.on_save(trainer=trainer, global_step=3, checkpoint_dir="x", async_save=True)
