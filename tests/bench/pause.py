#!/usr/bin/python3
"""The pause of a serving vLLM, as a user of a stream meets it: in place, and by reloads.

    pause.py [--layers N] [--hidden N] [--rounds R] [--json FILE]       WEIGHTFS_BIN; scripts/engines.sh vllm

One engine on the CPU, with weights as the checkpoint has them (plain_weights), serves a mount whose hook takes
versions in place (kv=keep). In every round a stream runs, and its weights are changed in each way, in turn:

    in place    a version is published, of which 1.1 % differ; the hook does the rest
    mount       the calls of a hook that reloads, from the same version's path in the mount
    local       the same calls, from a directory with the same files on the same disk
    nothing     the calls of a pause, without any change of weights
    recompute   the same, and the running request loses its keys and values, and computes them anew

The pause is the longest gap between two tokens of the stream, from the first call of the pause until five
tokens after the last, less the median gap of the same stream before. In place the engine stages the change before
that, beside the stream: the longest gap of that time is measured in the same way. What the publish and the
follower of the mount need is the same for every way, and counts for none. Keys and values stay in the first four,
so that recomputation, which depends on the length of a request, is measured alone.
"""

import argparse
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import harness  # noqa: E402
import measure  # noqa: E402
import vllm_engines  # noqa: E402
from measure import median  # noqa: E402

BEFORE, AFTER = 10, 5  # tokens
STREAM = 1200  # tokens at most
SEEN = 0.03  # seconds at most from the end of an update until it is seen in the status
TITLES = {"in place": "in place, by the hook", "mount": "reload from the mount",
          "local": "reload from a local directory", "nothing": "a pause without any change",
          "recompute": "the same, and keys and values computed anew"}

MAKE = """
import os, sys, torch, tiny
layers, hidden, share, *folders = sys.argv[1:]
model = tiny.make_model(num_hidden_layers=int(layers), hidden_size=int(hidden), intermediate_size=4 * int(hidden),
                        num_attention_heads=int(hidden) // 64, num_key_value_heads=int(hidden) // 128,
                        max_position_embeddings=2048)
print(sum(one.numel() for one in model.parameters()))
for at, folder in enumerate(folders):
    if at:
        tiny.move(model, float(share))
    tiny.save(model, folder, "200MB")
"""


class Engine:
    """A mount with a hook in place, its engine, and two directories of which the next version is made."""

    def __init__(self, test, args):
        self.test, self.dir = test, test.dir
        self.folders = [os.path.join(test.dir, f"local-{i}") for i in (0, 1)]
        made = vllm_engines.engines_python.run(MAKE, args.layers, args.hidden, args.share, *self.folders)
        self.parameters = int(str(made).split()[0])
        test.init()
        self.version = 0
        self.served = vllm_engines.Served(test.workspace)
        self.publish()
        self.mount = test.mount("--history", "2", "--hook",
                                f"vllm={self.served.url},every=0.1,kv=keep,timeout=300")
        self.served.start_in_place(self.mount.join("latest"), "--no-enable-prefix-caching", "--max-model-len",
                                   "2048", "--kv-cache-memory-bytes", str(256 << 20),
                                   OMP_NUM_THREADS=str(args.threads))
        self.served.wait_ready()
        self.wait_told()
        for _ in range(2):  # the first is a reload, the second the proof
            self.publish()
            self.wait_told()

    def publish(self):
        self.version = self.test.publish(self.folders[self.version % 2])["version"]

    def hook(self):
        return self.mount.status()["hooks"][0]

    def wait_told(self):
        self.mount.wait_status(lambda status: status["hooks"][0]["state"] == "current"
                               and status["hooks"][0]["reported"] == self.version, "the version", 300)

    def local(self):
        return self.folders[(self.version + 1) % 2]

    def in_place(self):
        """Returns when the hook began to stage, and when the pause began."""
        self.publish()
        self.wait_told()
        end = time.perf_counter()
        update, ranks = self.hook()["update"], self.served.rpc("weightfs_status")
        assert update["how"] == "in-place", update
        for name, seconds in (("stage", update["stage_s"]), ("pause", update["pause_s"]),
                              ("change", max(one["apply_s"] for one in ranks))):
            self.inside.setdefault(name, []).append(seconds)
        paused = end - update["pause_s"] - SEEN
        return paused - update["stage_s"], paused

    def paused(self, *calls):
        post = self.served.call
        post("/pause?mode=keep&clear_cache=false", {})
        for path, body in calls:
            post(path, body)
        post("/update_weight_version", {"new_version": str(self.version)})
        post("/resume", {})

    def reload(self, path):
        self.paused(("/collective_rpc", {"method": "reload_weights", "timeout": 300,
                                         "kwargs": {"weights_path": path, "is_checkpoint_format": True}}),
                    ("/reset_mm_cache", {}), ("/reset_encoder_cache", {}))

    def sides(self):
        self.inside = {}
        return {"in place": self.in_place,
                "mount": lambda: self.reload(self.mount.join("versions", self.version)),
                "local": lambda: self.reload(self.local()),
                "nothing": lambda: self.paused(("/reset_mm_cache", {}), ("/reset_encoder_cache", {})),
                "recompute": lambda: self.paused(
                    ("/reset_mm_cache", {}), ("/reset_encoder_cache", {}),
                    ("/reset_prefix_cache?reset_running_requests=true&reset_external=true", {}))}

    def pause_of(self, action):
        """(the longest gap of the pause less the usual one, the same of the staging or None, the usual one,
        tokens that the stream had)"""
        with vllm_engines.Stream(self.served, STREAM) as stream:
            stream.wait_tokens(BEFORE)
            begin = time.perf_counter()
            staged, paused = action() or (begin, begin)
            stream.wait_tokens(AFTER)
            tokens = len(stream.tokens)
        assert stream.error is None, stream.error
        times = stream.times
        gaps = [(two, two - one) for one, two in zip(times, times[1:])]
        usual = median([gap for until, gap in gaps if until < begin])
        beside = [gap for until, gap in gaps if staged < until < paused]
        return (max(gap for until, gap in gaps if until >= paused) - usual,
                max(beside) - usual if beside else None, usual, tokens)


class Bench(harness.MountTest):
    def bench(self, args):
        report = measure.Report("pause", args.json)
        engine = Engine(self, args)
        sides = engine.sides()
        for name in measure.in_turn(sides, 0):  # each once, as a warm-up
            engine.pause_of(sides[name])
        engine.inside.clear()
        pauses, besides, usuals, tokens = {name: [] for name in sides}, [], [], 0
        for number in range(args.rounds):
            for name in measure.in_turn(sides, number):
                pause, beside, usual, count = engine.pause_of(sides[name])
                pauses[name].append(pause)
                besides += [beside] if beside is not None else []
                usuals.append(usual)
                tokens = max(tokens, count) if name == "recompute" else tokens
        changes = sum(one["changes"] for one in engine.served.rpc("weightfs_status"))
        report.note("circumstances", f"{engine.parameters / 1e6:.0f} M parameters in bf16, of which "
                    f"{changes / 1e6:.2f} M change in each version; {args.threads} thread; {args.rounds} rounds; "
                    f"a token usually takes {1e3 * median(usuals):.0f} ms.")
        local = pauses["local"]
        report.table("pauses", ["what happens", "best, ms", "median, ms", "best / local", "median / local"],
                     [[TITLES[name], f"{1e3 * min(times):.0f}", f"{1e3 * median(times):.0f}",
                       *measure.ratios(times, local)] for name, times in pauses.items()])
        inside = {name: f"{1e3 * median(times):.0f} ms" for name, times in engine.inside.items()}
        report.note("inside", f"In place, medians: {inside['stage']} to stage the change beside the stream, of which "
                    f"the longest gap was {1e3 * median(besides):.0f} ms longer than usual; {inside['pause']} "
                    f"from the hook's first call of the pause to the end of its last, of which {inside['change']} "
                    f"are the change of the weights. The request of the last row had up to {tokens} tokens.")
        report.data("besides", besides)
        report.data("pauses", pauses)
        report.data("inside", engine.inside)

    def runTest(self):
        self.bench(self.args)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=1280)
    parser.add_argument("--share", type=float, default=0.011, help="of the weights that change")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    measure.add_options(parser)
    args = parser.parse_args()
    if not os.path.exists(vllm_engines.PYTHON):
        sys.exit(f"{vllm_engines.PYTHON} does not exist: scripts/engines.sh vllm makes it")
    Bench.args = args
    result = unittest.TextTestRunner().run(Bench())
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
