"""New model weights, from a trainer to every inference engine, as ordinary checkpoint directories.

    import weightfs

    weightfs.init("s3://runs/run-7")
    weightfs.publish("/mnt/w", model.state_dict(), tag="step-42", files="base-model")
    weightfs.wait("/mnt/w", tag="step-42")
    weightfs.wait("s3://runs/run-7", replicas=8, version="step-42", max_lag=1)
    with weightfs.open("s3://runs/run-7") as run:
        load(run.latest)
    for change in weightfs.delta("/mnt/w", 41, 42):
        print(change.name, len(change.indices))

All of it is done by the program `weightfs` (find_binary) and by mounts; neither numpy nor torch is
imported before a tensor of it is given or asked for. docs/PYTHON.md is the page, weightfs.errors
the list of errors, weightfs.vllm vLLM's backend.
"""

from weightfs.binary import find_binary
from weightfs.deltas import Change, Delta, delta
from weightfs.errors import (
    BusyError,
    ConflictError,
    CorruptError,
    Error,
    FailedError,
    IncompleteError,
    InvalidError,
    NoBinaryError,
    NotAllowedError,
    ReadOnlyError,
    RefusedError,
    TimedOutError,
    UsageError,
)
from weightfs.opening import Repository, open
from weightfs.publishing import Publication, publish
from weightfs.versions import Engine, Reader, Version, fleet, init, log, status, wait

__version__ = "0.6.0"

__all__ = [
    "BusyError", "Change", "ConflictError", "CorruptError", "Delta", "Engine", "Error",
    "FailedError", "IncompleteError", "InvalidError", "NoBinaryError", "NotAllowedError",
    "Publication", "ReadOnlyError", "Reader", "RefusedError", "Repository", "TimedOutError",
    "UsageError", "Version", "delta", "find_binary", "fleet", "init", "log", "open", "publish",
    "status", "wait"]
