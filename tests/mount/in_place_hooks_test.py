"""An engine takes versions in place by the hook of a real mount: it reads the changes from /deltas,
and has the published bytes afterwards, whatever dies or fails meanwhile."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
from hooked import QUICK, HookTest  # noqa: E402
from in_place_engine import InPlaceEngine  # noqa: E402
from tensors import tensors_of  # noqa: E402


class InPlaceHooks(HookTest, harness.MountTest):
    def follow(self, versions, first=1, more="", options=()):
        """Publishes the first of so many versions, and starts an engine and its mount."""
        self.steps = self.make_run(versions)
        self.init()
        self.told = 0
        self.served = InPlaceEngine(os.path.join(self.dir, "mnt"))
        self.addCleanup(self.served.__exit__)
        self.addCleanup(self.served.go_on)
        self.publish_next(first)
        self.following = self.mount("--hook", f"vllm={self.served.url}{QUICK}{more}", *options)
        self.assertEqual(self.following.path, self.served.mount)

    def publish_next(self, count=1):
        for _ in range(count):
            self.publish(self.steps[self.told])
            self.told += 1

    def update(self):
        """How the newest version came; the engine has its bytes."""
        hook = self.wait_reported(self.following, self.told)
        self.assert_bytes()
        return hook["update"]

    def assert_bytes(self):
        wanted, got = tensors_of(self.steps[self.told - 1]), self.served.weights()
        self.assertEqual(got.keys(), wanted.keys())
        for name, tensor in wanted.items():
            self.assertEqual(got[name].tobytes(), tensor.tobytes(), name)
        self.assertFalse(self.served.is_paused)
        self.assertEqual(self.served.died, "")

    def bring_to_2(self):
        self.assertEqual(self.update()["how"], "reload")
        self.publish_next()
        self.assertEqual(self.update()["how"], "proof")

    def test_it_is_reloaded_and_proven_once_and_takes_changes_alone_from_then_on(self):
        self.follow(6)
        first = self.update()
        self.assertEqual(first["how"], "reload")
        self.assertIn("new to this hook", first["reason"])
        for wanted in ("proof", "in-place", "in-place", "in-place", "in-place"):
            self.publish_next()
            update = self.update()
            self.assertEqual((update["how"], update["reason"]), (wanted, None))
            self.assertEqual(update["running"], "recomputed")
            self.assertGreaterEqual(update["pause_s"], update["apply_s"])
            self.assertGreater(update["apply_s"], 0)
            self.assertGreater(update["stage_s"], 0)
        self.assertEqual(self.served.taken, [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6)])
        self.assertEqual([path for path, _ in self.served.loaded()],
                         [self.following.join("versions", version) for version in (1, 2)])
        self.assertIn("5-6.with-old.safetensors",
                      os.listdir(os.path.join(self.following.store, "deltas")))
        self.assertIn("in place, paused for", harness.run("status", self.following.path).stdout)

    def test_the_changes_are_made_with_their_versions(self):
        self.follow(4, options=("--images", "memory"))
        self.bring_to_2()
        for _ in range(2):
            self.publish_next()
            self.assertEqual(self.update()["how"], "in-place")
        made = self.following.status()["deltas"]
        self.assertEqual((made["ahead"], made["on_demand"], made["given_up"]), (3, 0, 0))
        self.assertGreaterEqual(made["served_ahead"], 3)
        self.assertEqual(os.listdir(os.path.join(self.following.store, "deltas")), [])

    def test_versions_that_arrive_meanwhile_are_one_change(self):
        self.follow(6, options=("--history", "8"))
        self.bring_to_2()
        self.served.stop_at("/resume")
        self.publish_next()
        harness.wait_until(self.served.stopped.is_set, "it to be resumed")
        self.publish_next(3)
        self.following.wait_version(6)
        self.served.go_on()
        self.assertEqual(self.update()["how"], "in-place")
        self.assertEqual(self.served.taken[-2:], [(2, 3), (3, 6)])

    def test_a_daemon_that_is_killed_at_any_step_leaves_nothing_half_done(self):
        stops = ["weightfs_stage", "/pause", "/start_weight_update", "/update_weights",
                 "/finish_weight_update", "/reset_prefix_cache", "/resume"]
        self.follow(3 + 2 * len(stops))
        self.bring_to_2()
        for stop in stops:
            with self.subTest(stop=stop):
                self.served.stop_at(stop)
                self.publish_next()
                harness.wait_until(self.served.stopped.is_set, f"the call of {stop}")
                self.following.process.kill()
                self.served.go_on()
                self.following.start()
                update = self.update()
                self.assertEqual(update["how"], "reload")
                self.publish_next()
                self.assertEqual(self.update()["how"], "in-place")

    def test_an_engine_that_was_restarted_is_reloaded_first(self):
        self.follow(4)
        self.bring_to_2()
        self.served.restart()
        harness.wait_until(lambda: self.served.version == "2", "it to be brought up")
        self.assertEqual(self.update()["how"], "reload")
        self.publish_next()
        self.assertEqual(self.update()["how"], "proof")
        self.publish_next()
        self.assertEqual(self.update()["how"], "in-place")

    def test_a_rank_that_fails_is_reloaded_and_is_in_place_again_at_the_next_version(self):
        self.follow(6)
        self.bring_to_2()
        for what in ("stage", "update"):
            with self.subTest(what=what):
                self.served.fail_rank = what, 1
                self.publish_next()
                update = self.update()
                self.assertEqual(update["how"], "reload")
                self.assertEqual(update["reason"], "rank 1: it was told to fail")
                self.publish_next()
                self.assertEqual(self.update()["how"], "in-place")

    def test_an_engine_of_another_mount_is_reloaded(self):
        self.follow(3)
        self.bring_to_2()
        self.served.mount = "/mnt/other"
        self.publish_next()
        update = self.update()
        self.assertEqual(update["how"], "reload")
        self.assertIn(f"from the mount /mnt/other, and this one is {self.following.path}",
                      update["reason"])
        self.assertIn("not in place: ", harness.run("status", self.following.path).stdout)

    def test_in_place_is_not_done_where_it_is_not_wanted(self):
        self.follow(2, more=",inplace=no")
        self.update()
        self.publish_next()
        self.assertEqual(self.update()["reason"], "inplace=no")
        self.assertEqual(self.served.taken, [])
        asked = [path for _, path, _, _ in self.served.calls if "/server_info" in path]
        self.assertEqual(len(asked), 1, "which process it is, and no more")


if __name__ == "__main__":
    harness.main()
