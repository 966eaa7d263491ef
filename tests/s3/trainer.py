#!/usr/bin/python3
"""Trains a small network and publishes its weights after every step.

    trainer.py MOUNT TOLD STEPS

MOUNT is a writer's mount. The weights, bf16 of fp32 masters that Adam moves, are saved into its
staging and handed over by a rename. TOLD/step-K.json then holds the SHA-256 of each file, for whoever
compares; TOLD/losses.json the losses.
"""

import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import runs  # noqa: E402

try:
    import safetensors
except ImportError:
    safetensors = None

SIZES = (384, 1536, 1536, 384)
RATE, BETA1, BETA2, BATCH = 3e-4, 0.9, 0.999, 64


def save(path, weights):
    rounded = {name: runs.to_bf16(array) for name, array in weights.items()}
    if safetensors is None:
        runs.write_safetensors(path, [(name, "BF16", array.shape, array)
                                      for name, array in rounded.items()])
        return
    # numpy has no bf16, so the package is told what the bytes are.
    safetensors.serialize_file(
        {name: safetensors.TensorSpec(dtype="bfloat16", shape=array.shape,
                                      data_ptr=array.ctypes.data, data_len=array.nbytes)
         for name, array in rounded.items()}, path, {"format": "pt"})


class Network:
    """Perceptrons with ReLU between them, that learn a fixed random map."""

    def __init__(self):
        self.random = np.random.default_rng(1)
        self.weights = {f"layers.{i}.weight": self.normal(rows, columns) / np.float32(columns**0.5)
                        for i, (columns, rows) in enumerate(zip(SIZES, SIZES[1:]))}
        self.target = self.normal(SIZES[-1], SIZES[0]) / np.float32(SIZES[0]**0.5)
        self.moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in self.weights.items()}
        self.steps = 0

    def normal(self, *shape):
        return self.random.standard_normal(shape, np.float32)

    def step(self):
        """One step of Adam; returns the loss before it."""
        seen = [self.normal(BATCH, SIZES[0])]
        layers = list(self.weights.values())
        for i, weight in enumerate(layers):
            out = seen[-1] @ weight.T
            seen.append(np.maximum(out, 0) if i + 1 < len(layers) else out)
        error = seen[-1] - seen[0] @ self.target.T
        slope = error / np.float32(BATCH)
        self.steps += 1
        for i in reversed(range(len(layers))):
            gradient = slope.T @ seen[i]
            slope = (slope @ layers[i]) * (seen[i] > 0)
            self.move(f"layers.{i}.weight", gradient)
        return float(np.mean(error**2))

    def move(self, name, gradient):
        mean, square = self.moments[name]
        mean += (1 - BETA1) * (gradient - mean)
        square += (1 - BETA2) * (gradient**2 - square)
        self.weights[name] -= np.float32(RATE) * (mean / (1 - BETA1**self.steps)) / (
            np.sqrt(square / (1 - BETA2**self.steps)) + np.float32(1e-8))


def main():
    mount, told, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    network, losses = Network(), []
    for step in range(1, steps + 1):
        losses.append(network.step())
        folder = os.path.join(mount, "staging", f"step-{step}")
        os.makedirs(folder)
        save(os.path.join(folder, "model.safetensors"), network.weights)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump({"model_type": "mlp", "sizes": SIZES}, file)
        hashes = runs.sha256_folder(folder)
        os.rename(folder, os.path.join(mount, "publish", f"step-{step}"))
        for name, content in ((f"step-{step}.json", hashes), ("losses.json", losses)):
            with open(os.path.join(told, name + ".new"), "w") as file:
                json.dump(content, file)
            os.rename(os.path.join(told, name + ".new"), os.path.join(told, name))
    print("saved by safetensors" if safetensors else "saved without safetensors")


if __name__ == "__main__":
    main()
