"""An engine that is none, and takes versions in place as vLLM does (scripts/python).

It has weights: the tensors of what it loaded, each on one of its ranks. A change is read from the
mount that the engine was started from, compared with what is there, and written in the pause. An
engine that is resumed with anything else than one whole version has died, and says so.
"""

import os
import secrets
import threading

import fake_engine
from tensors import changes_of, tensors_of


class Rank:
    def __init__(self):
        self.instance, self.weights, self.held = secrets.token_hex(8), {}, 0
        self.state, self.error, self.pair, self.staged = "idle", "", (0, 0), None
        self.is_proven, self.is_updating, self.marked, self.refused = False, False, None, ""

    def stage(self, path):
        """In a thread of its own."""
        try:
            values, staged = changes_of(path), {}
            for name, (indices, old) in changes_of(path, "old").items():
                if name in self.weights:
                    if self.weights[name][indices].tobytes() != old.tobytes():
                        raise ValueError(f"{name} does not have the old values")
                    staged[name] = indices, values[name][1]
            self.staged, self.state = staged, "ready"
        except (OSError, KeyError, ValueError) as error:
            self.state, self.error = "failed", str(error)

    def apply(self, old, new):
        if self.state != "ready" or self.pair != (old, new):
            self.state, self.error = "failed", self.error or "nothing is staged"
            return
        for name, (indices, values) in self.staged.items():
            self.weights[name] = self.weights[name].copy()
            self.weights[name][indices] = values
        self.state, self.staged, self.held = "idle", None, new

    def status(self, mount):
        return {"instance": self.instance, "mount": mount, "held": self.held, "state": self.state,
                "from": self.pair[0], "to": self.pair[1], "error": self.error,
                "refused": self.refused, "needs_proof": not self.is_proven,
                "updating": self.is_updating, "changes": 0}


class InPlaceEngine(fake_engine.FakeEngine):
    """`mount`: that it was started from. fail_rank: (what, rank) fails once; what is "stage" or
    "update". stop_at(path or method) waits there until go_on()."""

    def __init__(self, mount, ranks=2):
        self.mount, self.rank_count, self.fail_rank = mount, ranks, None
        self.stops, self.stopped, self.may_go_on = None, threading.Event(), threading.Event()
        self.taken = []  # pairs of versions, taken in place
        super().__init__("vllm")
        self.handlers = {
            **self.handlers,
            ("GET", "/server_info"): lambda *_: {"vllm_config": self.configuration()},
            ("POST", "/collective_rpc"): lambda _, query, body: self.call(body),
            ("POST", "/start_weight_update"): lambda *_: self.each(self.begin),
            ("POST", "/update_weights"): lambda _, query, body: self.update(body["update_info"]),
            ("POST", "/finish_weight_update"): lambda _, query, body: self.finish(body or {}),
            ("POST", "/reset_mm_cache"): fake_engine.success,
            ("POST", "/reset_encoder_cache"): fake_engine.success,
            ("POST", "/resume"): lambda _, query, body: self.resume(query, body)}

    def forget(self):
        super().forget()
        self.ranks = [Rank() for _ in range(self.rank_count)]

    def configuration(self):
        return {"parallel_config": {"worker_extension_cls": "weightfs.vllm.backend.WorkerExtension",
                                    "data_parallel_size": 1, "world_size": self.rank_count},
                "weight_transfer_config": {"backend": "weightfs"},
                "cache_config": {"enable_prefix_caching": True}}

    def stop_at(self, what):
        self.stopped.clear()
        self.may_go_on.clear()
        self.stops = what

    def go_on(self):
        self.stops = None
        self.may_go_on.set()

    def handle(self, method, target, body):
        what = (body or {}).get("method") or target.split("?")[0]
        if what == self.stops:
            self.stopped.set()
            self.may_go_on.wait(60)
        return super().handle(method, target, body)

    def weights(self):
        return {name: tensor for rank in self.ranks for name, tensor in rank.weights.items()}

    def load(self, folder):
        super().load(folder)
        for i, (name, tensor) in enumerate(sorted(tensors_of(folder).items())):
            self.ranks[i % self.rank_count].weights[name] = tensor

    def fails(self, what, i):
        if self.fail_rank != (what, i):
            return False
        self.fail_rank = None
        self.ranks[i].state, self.ranks[i].error = "failed", "it was told to fail"
        return True

    def each(self, act):
        for i, rank in enumerate(self.ranks):
            act(i, rank)
        return {"results": [rank.status(self.mount) for rank in self.ranks]}

    def call(self, body):
        method, arguments = body["method"], body.get("args", [])
        if method == "reload_weights":
            self.load(body["kwargs"]["weights_path"])
            return {"results": [None] * self.rank_count}
        return self.each(lambda i, rank: getattr(self, method)(i, rank, *arguments))

    def weightfs_status(self, i, rank):
        pass

    def weightfs_hold(self, i, rank, version):
        rank.held, rank.state, rank.error, rank.staged = version, "idle", "", None

    def weightfs_stage(self, i, rank, old, new):
        rank.pair, rank.error = (old, new), ""
        if self.fails("stage", i):
            return
        if rank.held != old:
            rank.state, rank.error = "failed", f"this rank holds version {rank.held}, not {old}"
            return
        rank.state = "staging"
        path = os.path.join(self.mount, "deltas", f"{old}-{new}.with-old.safetensors")
        threading.Thread(target=rank.stage, args=(path,), daemon=True).start()

    def weightfs_mark(self, i, rank):
        rank.marked = {name: tensor.tobytes() for name, tensor in rank.weights.items()}

    def weightfs_compare(self, i, rank):
        now = {name: tensor.tobytes() for name, tensor in rank.weights.items()}
        rank.is_proven = rank.marked == now
        rank.refused = "" if rank.is_proven else "tensors are not what a reload makes of them"

    def begin(self, i, rank):
        if rank.is_updating:
            raise fake_engine.Failure(500, "a weight update is already active")
        rank.is_updating = True

    def update(self, info):
        self.is_broken = True
        for i, rank in enumerate(self.ranks):
            if not self.fails("update", i):
                rank.apply(info["old"], info["new"])
        if all(rank.held == info["new"] for rank in self.ranks):
            self.is_broken = False
            self.taken.append((info["old"], info["new"]))
        return {"message": "Weights updated"}

    def finish(self, body):
        if not all(rank.is_updating for rank in self.ranks):
            raise fake_engine.Failure(500, "no weight update is active")
        for rank in self.ranks:
            rank.is_updating = False
        self.version = body.get("weight_version", self.version)
        return {"message": "Weight update finished"}

    def resume(self, query, body):
        if any(rank.is_updating for rank in self.ranks):
            self.died = "it was resumed in the middle of an update"
        return fake_engine.resume(self, query, body)
