"""Tensors of checkpoints and sparse deltas, as what they are to a reader: arrays of elements whose
bytes are all that matters. Needs numpy."""

import os

import harness
import numpy as np
import runs

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
          "BOOL": 1}


def read_arrays(path):
    """{name: bytes as an array of elements} of a safetensors file."""
    data = harness.read_file(path)
    return {name: np.frombuffer(data[begin:end], f"V{WIDTHS[dtype]}")
            for name, (dtype, _, begin, end) in runs.read_header(path).items()}


def tensors_of(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            found.update(read_arrays(os.path.join(folder, name)))
    return found


def changes_of(delta, values="values"):
    """{tensor: (indices, values)} of a sparse delta."""
    arrays = read_arrays(delta)
    return {name.removesuffix(".indices"):
            (np.frombuffer(indices.tobytes(), f"<i{indices.itemsize}"),
             arrays[f"{name.removesuffix('.indices')}.{values}"])
            for name, indices in arrays.items() if name.endswith(".indices")}


def applied(delta, tensors, values="values"):
    """The tensors after flat[indices] = values, which is all that a reader does."""
    result = dict(tensors)
    for name, (indices, changed) in changes_of(delta, values).items():
        flat = result[name].copy()
        flat[indices] = changed
        result[name] = flat
    return result
