"""A plug-in of vLLM for tests: a rank that takes versions in place fails, or stops, where it is told to.

Told by files in the folder $MEDDLING: `fail-POINT-RANK` makes it fail there, once. `stop-POINT-RANK` makes it wait
there, with its pid in `stopped-POINT-RANK`, until that file is removed. Points: `stage`, in the thread that stages;
`apply`, in the pause, when all but the last tensor are written.
"""

import os
import time


def meddle(folder, point):
    import torch.distributed
    name = f"{point}-{torch.distributed.get_rank()}"
    stop, stopped, fail = (os.path.join(folder, f"{what}-{name}") for what in ("stop", "stopped", "fail"))
    if os.path.exists(stop):
        with open(stop, "w") as file:
            file.write(str(os.getpid()))
        os.rename(stop, stopped)
        while os.path.exists(stopped):
            time.sleep(0.01)
    if os.path.exists(fail):
        os.unlink(fail)
        raise RuntimeError("planted")


def register():
    """vLLM calls it in each of its processes, some more than once."""
    folder = os.environ.get("MEDDLING")
    if folder is None:
        return
    from weightfs.vllm import session, staging
    if hasattr(staging, "is_meddled_with"):
        return
    staging.is_meddled_with = True
    stage, apply = session.stage, staging.Staged.apply

    def meddled_stage(*arguments):
        meddle(folder, "stage")
        return stage(*arguments)

    def meddled_apply(staged):
        last = staged.scatters[-1]

        def write(values):
            del last.write  # what is undone is not meddled with
            meddle(folder, "apply")
            last.write(values)

        last.write = write
        apply(staged)

    session.stage, staging.Staged.apply = meddled_stage, meddled_apply
