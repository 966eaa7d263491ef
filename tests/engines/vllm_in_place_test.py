"""vLLM takes versions in place (scripts/python/weightfs/vllm), from a real mount: called one by one, and by the
mount's hook, under running requests and with whatever fails."""

import os
import signal
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import engines_python  # noqa: E402
import harness  # noqa: E402
import vllm_engines  # noqa: E402

LENGTH = 400  # tokens of an answer that streams
# In CI few: streams and ranks keep all cores busy as long as this lasts.  With 20 nothing is left out.
FOLLOWED = int(os.environ.get("WEIGHTFS_ENGINE_VERSIONS", "8"))


shared = offline = None  # one engine at a time, of a process that has loaded vLLM


def setUpModule():
    global shared, offline
    shared = harness.Workspace()
    unittest.addModuleCleanup(shared.close)
    offline = vllm_engines.Offline(shared, **vllm_engines.installed(shared))


class InPlace(harness.MountTest):
    """Versions from a real mount, in place; what an engine has then is what one has that was reloaded, and
    what one has that has just started."""

    def open(self, kind="dense", packed=False, ranks=1):
        """An engine on the first of three versions, as it has just started: `self.started` is its look."""
        self.init()
        self.steps = [os.path.join(self.dir, f"step-{i}") for i in (1, 2, 3)]
        offline.make_steps(self.steps, kind)
        for step in self.steps:
            self.publish(step)
        mount = self.mount("--history", "8")
        offline.load_in_place(mount.join("versions/1"), packed, ranks)
        self.started = offline.look()
        self.assertEqual(self.each("mount", offline.rpc("weightfs_status")), [mount.path] * ranks)
        return mount

    def each(self, key, answers):
        """Of every rank."""
        return [answer[key] for answer in answers]

    def reload(self, mount, version):
        offline.reload(mount.join("versions", version))
        return offline.rpc("weightfs_hold", version)

    def stage(self, old, new):
        offline.rpc("weightfs_stage", old, new)
        harness.wait_until(lambda: "staging" not in self.each("state", offline.rpc("weightfs_status")),
                           "the change to be staged")
        return offline.rpc("weightfs_status")

    def assert_ready(self, answers):
        self.assertEqual({(one["state"], one["error"], one["refused"]) for one in answers}, {("ready", "", "")})

    def follow(self, mount):
        """Returns what every version looks like."""
        wanted = {}
        for version in (3, 2, 1):
            self.reload(mount, version)
            wanted[version] = offline.look()
        self.assertEqual(wanted[1], self.started)
        self.assertNotEqual(wanted[2]["logprobs"], wanted[3]["logprobs"])
        answers = self.stage(1, 2)
        self.assert_ready(answers)
        self.assertTrue(all(self.each("needs_proof", answers)))
        self.assertTrue(all(self.each("changes", answers)))
        self.assertEqual(offline.look(), wanted[1])  # staging changes nothing
        offline.update(1, 2)
        self.assertEqual(offline.look(), wanted[2])
        offline.rpc("weightfs_mark")
        offline.reload(mount.join("versions/2"))
        answers = offline.rpc("weightfs_compare")
        self.assertEqual({(one["refused"], one["needs_proof"]) for one in answers}, {("", False)})
        offline.rpc("weightfs_hold", 2)
        self.assert_ready(self.stage(2, 3))
        offline.update(2, 3)
        self.assertEqual(offline.look(), wanted[3])
        self.assertEqual(set(self.each("held", offline.rpc("weightfs_status"))), {3})
        return wanted

    def test_versions_are_what_a_reload_makes_of_them(self):
        mount = self.open()
        self.follow(mount)
        # A version that somebody loaded without saying so is seen before the pause.
        offline.reload(mount.join("versions/1"))
        answer, = self.stage(3, 2)
        self.assertEqual(answer["state"], "failed")
        self.assertIn("holds version unknown, not 3", answer["error"])

    def test_tied_weights(self):
        self.follow(self.open("tied"))

    def test_experts(self):
        self.follow(self.open("moe"))

    def test_two_ranks(self):
        """Tensor parallel: each has its part of every change."""
        mount = self.open(ranks=2)
        wanted = self.follow(mount)
        self.assertEqual({name.split(":")[3] for name in wanted[3]["checksums"]}, {"tp0", "tp1"})
        offline.load_in_place(mount.join("versions/3"), False, 2)
        self.assertEqual(offline.look(), wanted[3])

    def test_packed_weights_are_refused_and_a_reload_still_works(self):
        mount = self.open(packed=True)
        self.reload(mount, 1)
        answer, = self.stage(1, 2)
        if vllm_engines.NOTHING in self.started["checksums"].values():
            self.assertEqual(answer["state"], "failed")
            self.assertNotEqual(answer["refused"], "")
        else:  # vLLM packs nothing for a CPU without AVX-512
            self.assert_ready([answer])
        self.reload(mount, 2)
        got = offline.look()
        self.assertEqual(got, offline.fresh(mount.join("versions/2")))

    def test_packed_experts_are_refused_because_a_reload_does_not_pack_them_again(self):
        """A defect of vLLM 0.32.0, on a CPU: if this fails, docs/engines/vllm-in-place.md is to be changed."""
        mount = self.open("moe", packed=True)
        answer, = self.reload(mount, 1)
        self.assertIn("CPUUnquantizedExperts makes other weights", answer["refused"])
        self.assertEqual(self.stage(1, 2)[0]["state"], "failed")
        self.assertNotEqual(offline.look()["checksums"], self.started["checksums"])


class Streams:
    """With `with`: one answer after another streams, token by token, and each must be whole."""

    def __init__(self, served):
        self.served, self.ended, self.answers, self.problems = served, threading.Event(), 0, []
        self.now, self.thread = None, threading.Thread(target=self.run)

    def run(self):
        while not self.ended.is_set() and not self.problems:
            self.now = vllm_engines.Stream(self.served, LENGTH)
            self.now.ask()
            self.answers += 1
            if self.now.error or (len(self.now.tokens), self.now.finish_reason) != (LENGTH, "length"):
                self.problems.append((self.now.error, len(self.now.tokens), self.now.finish_reason))

    def is_streaming(self):
        return self.now is not None and len(self.now.times) > 0 or self.problems

    def __enter__(self):
        self.thread.start()
        harness.wait_until(self.is_streaming, "a stream")
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


class Hooked(harness.MountTest):
    """`vllm serve`, and the hook of its mount."""

    VERSIONS = max(FOLLOWED + 2, 16)

    @classmethod
    def setUpClass(cls):
        cls.steps = [os.path.join(shared.path, f"step-{i}") for i in range(1, cls.VERSIONS + 1)]
        offline.make_moves(cls.steps)

    def open(self, ranks):
        """Version 1 is served, and told."""
        self.init()
        self.ranks, self.version, self.is_compared = ranks, 0, False
        self.meddling = os.path.join(self.dir, "meddling")
        os.mkdir(self.meddling)
        self.served = vllm_engines.Served(self.workspace)
        self.publish_next()
        self.mounted = self.mount("--history", "8", "--hook", f"vllm={self.served.url},every=0.1")
        self.start("latest")
        self.assertEqual(self.wait_told()["how"], "reload")

    def start(self, version):
        self.served.start_in_place(self.mounted.join(version), "--max-model-len", "512", "--tensor-parallel-size",
                                   str(self.ranks), MEDDLING=self.meddling)

    def restart(self, version):
        self.served.close()
        self.start(version)

    def publish_next(self):
        self.version += 1
        self.assertEqual(self.publish(self.steps[self.version - 1])["version"], self.version)

    def hook(self):
        return self.mounted.status()["hooks"][0]

    def wait_told(self):
        """Returns how the engine was brought to this version."""
        def is_told(status):
            self.served.check()
            hook = status["hooks"][0]
            return hook["state"] == "current" and hook["reported"] == self.version
        self.mounted.wait_status(is_told, f"version {self.version}", 300)
        return self.hook()["update"]

    def tell_next(self):
        self.publish_next()
        return self.wait_told()

    def statuses(self):
        return self.served.rpc("weightfs_status")

    def meddle(self, what, point, rank):
        harness.write_file(os.path.join(self.meddling, f"{what}-{point}-{rank}"), b"")

    def wait_stopped(self, point, rank):
        """Returns the file which says so."""
        path = os.path.join(self.meddling, f"stopped-{point}-{rank}")
        harness.wait_until(lambda: os.path.exists(path), "the rank to be there")
        return path

    def assert_fresh(self):
        """The engine is what a new one is that serves the step's own directory, or is reloaded from it."""
        self.assertEqual({one["held"] for one in self.statuses()}, {self.version})
        self.assertEqual(self.served.call("/is_paused"), {"is_paused": False})
        look, step = self.served.look(), self.steps[self.version - 1]
        if self.is_compared:  # what a reload gives is proven above
            offline.reload(step)
        else:
            offline.load_in_place(step, False, self.ranks)
        self.is_compared = True
        self.assertEqual(look, offline.look())

    def test_versions_under_running_requests(self):
        self.open(ranks=1)
        self.assertEqual(self.tell_next()["how"], "proof")
        with Streams(self.served) as one, Streams(self.served) as other:
            hows = [self.tell_next() for _ in range(FOLLOWED)]
            for streams in (one, other):
                harness.wait_until(streams.is_streaming, "a stream")  # one may just have ended
        self.assertEqual([(how["how"], how["reason"]) for how in hows], [("in-place", None)] * FOLLOWED)
        self.assertEqual(one.problems + other.problems, [])
        self.assertEqual(self.version, FOLLOWED + 2)
        self.assert_fresh()

    def test_whatever_fails(self):
        """Two ranks. Each time the engine is reloaded, and after that it is in place again; streams go on as
        long as the engine lives."""
        self.open(ranks=2)
        self.assertEqual(self.tell_next()["how"], "proof")
        with Streams(self.served) as streams:
            with self.subTest("a rank fails in the middle of the change"):
                self.meddle("fail", "apply", 1)
                update = self.tell_next()
                self.assertEqual(update["how"], "reload")
                self.assertIn("rank 1: RuntimeError: planted", update["reason"])
                self.assertEqual(self.tell_next()["how"], "in-place")
            with self.subTest("a rank fails before the pause"):
                self.meddle("fail", "stage", 0)
                update = self.tell_next()
                self.assertEqual(update["how"], "reload")
                self.assertIn("rank 0: RuntimeError: planted", update["reason"])
                self.assertEqual(self.tell_next()["how"], "in-place")
            with self.subTest("somebody else loads an older version"):
                self.served.rpc("reload_weights", weights_path=self.mounted.join("versions/3"),
                                is_checkpoint_format=True)
                update = self.tell_next()
                self.assertEqual(update["how"], "reload")
                self.assertIn("it has no known version, not version", update["reason"])
                self.assertEqual(self.tell_next()["how"], "in-place")
            with self.subTest("the daemon is killed in the pause"):
                self.meddle("stop", "apply", 1)
                self.publish_next()
                stopped = self.wait_stopped("apply", 1)
                self.mounted.process.kill()
                self.mounted.start()
                os.unlink(stopped)
                self.assertEqual(self.wait_told()["how"], "reload")
                self.assertEqual(self.tell_next()["how"], "in-place")
        self.assertEqual(streams.problems, [])
        self.assert_fresh()
        kills = (("stage", "versions/4"), ("apply", "latest"))
        for point, version in harness.RANDOM.sample(kills, 2 if FOLLOWED >= 20 else 1):
            with self.subTest("a rank is killed", point=point):
                self.meddle("stop", point, 1)
                self.publish_next()
                with open(self.wait_stopped(point, 1)) as file:
                    os.kill(int(file.read()), signal.SIGKILL)
                os.unlink(self.wait_stopped(point, 1))
                self.restart(version)  # an older one, then
                self.assertEqual(self.wait_told()["how"], "reload")
                self.assertEqual(self.tell_next()["how"], "proof")
                self.assertEqual(self.tell_next()["how"], "in-place")
        self.assert_fresh()


if __name__ == "__main__":
    engines_python.main("vllm")
