#!/usr/bin/python3
"""How long after a publish a hook tells its engine.

    hook_latency.py [--mib N] [--versions V] [--poll SECONDS] [--json FILE]

From the return of `weightfs publish`, when the manifest is in the bucket, to the engine's first call
of the telling: as a ratio to --poll, and to the time from the same moment until `latest` shows the
version (polling and materialisation). What is left between the two is the hook's own. The engine
answers at once and loads nothing.
"""

import argparse
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import measure  # noqa: E402
import runs  # noqa: E402
from fake_engine import FakeEngine  # noqa: E402
from measure import Workspace, median, wait_for  # noqa: E402
from writer import Writer  # noqa: E402


class Reader(Writer):
    """A reader's mount that tells an engine."""

    def __init__(self, work, url, poll, hook):
        super().__init__(work)
        self.bucket, self.poll, self.hook = url, poll, hook
        self.path, self.store = os.path.join(work, "reader"), os.path.join(work, "reader-store")

    def __enter__(self):
        os.mkdir(self.path)
        self.run("mount", self.bucket, self.path, "--store", self.store, "--poll", str(self.poll),
                 "--hook", self.hook)
        return self


class LatestWatch:
    """When `latest` first showed each version."""

    def __init__(self, path):
        self.path, self.seen, self.stopped = path, {}, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.stopped.wait(0.001):
            version = int(os.readlink(os.path.join(self.path, "latest")).split("/")[-1])
            self.seen.setdefault(version, time.time())

    def stop(self):
        self.stopped.set()
        self.thread.join()


def told_at(engine, version):
    """When this version's /pause came: the last one before its label."""
    with engine.lock:
        calls = list(engine.calls)
    at = None
    for _, path, body, when in calls:
        if path.startswith("/pause"):
            at = when
        if path == "/update_weight_version" and body["new_version"] == str(version):
            return at
    return None


def bench(work, args):
    """[(seconds to `latest`, seconds to the call)]"""
    run = os.path.join(work, "run")
    runs.make_run(run, versions=args.versions + measure.WARM_UP + 1, params=args.mib << 19)
    steps = sorted(os.path.join(run, x) for x in os.listdir(run) if x.startswith("step_"))
    url = "file://" + os.path.join(work, "bucket")
    engine = FakeEngine("vllm")
    engine.load = lambda path: None
    store = os.path.join(work, "publisher")
    publisher = Writer(work)
    publisher.run("init", url)
    publisher.run("publish", url, steps[0], "--store", store)
    rows = []
    with engine, Reader(work, url, args.poll, "vllm=" + engine.url) as reader:
        wait_for(lambda: engine.version == "1", "the first version")
        watch = LatestWatch(reader.path)
        try:
            for version, step in enumerate(steps[1:], 2):
                publisher.run("publish", url, step, "--store", store)
                published = time.time()
                wait_for(lambda: engine.version == str(version) and version in watch.seen,
                         f"version {version}")
                rows.append((watch.seen[version] - published, told_at(engine, version) - published))
        finally:
            watch.stop()
    return rows[measure.WARM_UP:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--versions", type=int, default=15)
    parser.add_argument("--poll", type=float, default=1.0)
    measure.add_options(parser, rounds=None)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))  # unmounts
    with Workspace() as work:
        rows = bench(work, args)
    shown, told = [row[0] for row in rows], [row[1] for row in rows]
    own = [row[1] - row[0] for row in rows]
    report = measure.Report("hook_latency", args.json)
    report.note("circumstances", f"{args.mib} MiB, {len(rows)} versions, --poll {args.poll:g}")
    report.table("latency", ["from the publish's return to", "median, ms", "worst, ms", "median / --poll",
                             "median / latest"],
                 [[name, f"{1e3 * median(times):.1f}", f"{1e3 * max(times):.1f}",
                   f"{median(times) / args.poll:.2f}", f"{median(times) / median(shown):.3f}"]
                  for name, times in (("`latest` shows it", shown), ("the engine's first call", told),
                                      ("between the two", own))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
