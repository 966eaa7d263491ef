"""How long versions took on this host: `status --json` and `log --timing` tell it, also later."""

import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import writers  # noqa: E402

PHASES = ("wait_ms", "plan_ms", "room_ms", "build_ms", "record_ms", "flip_ms")
HAND_OVER_PHASES = ("seal_ms", "wait_ms", "code_ms", "upload_ms", "commit_ms", "adopt_ms")


def log_timing(target, *options):
    return harness.call("log", target, "--timing", *options)


class Timing(writers.WriterTest):
    def timing(self, mount, version):
        """What the status says of `latest` once that version is on the disk."""
        def find():
            timing = mount.status()["timing"]["latest"]
            known = timing and timing["version"] == version and timing["brought"]
            return known and known["sync_ms"] is not None and timing
        return harness.wait_until(find, f"version {version} to be on the disk")

    def assert_same_sum(self, timing, phases):
        self.assertAlmostEqual(timing["total_ms"], sum(timing[phase] for phase in phases), delta=0.01)

    def test_how_versions_came_is_told_and_still_known_after_a_remount(self):
        steps = self.make_run(3)
        self.init()
        self.publish(steps[0])
        before = time.time_ns()
        mount = self.mount()
        first = self.timing(mount, 1)["brought"]
        self.assertTrue(first["streamed"])
        self.assertEqual((first["base"], first["snapshot"], first["deltas"]), (0, 1, 0))
        self.publish(steps[1])
        second = self.timing(mount, 2)
        brought = second["brought"]
        self.assertFalse(brought["streamed"])
        self.assertEqual((brought["base"], brought["snapshot"], brought["deltas"]), (1, 0, 1))
        self.assert_same_sum(brought, PHASES)
        self.assertGreater(brought["seen_ns"], before)
        self.assertGreater(brought["unseen_ms"], 0)
        self.assertGreater(brought["fetched_bytes"], 0)
        self.assertLess(brought["fetched_bytes"], first["fetched_bytes"])
        self.assertEqual(brought["requests"], 0, "its small packs came with their headers")
        self.assertLessEqual(brought["written_bytes"], brought["bytes"])
        self.assertIsNone(second["handed_over"])
        self.assertIsNone(mount.status()["timing"]["hand_over"])

        # What the status says is recorded a moment later.
        log = harness.wait_until(lambda: (found := log_timing(mount.path))[0] == second and found,
                                 "the record of version 2")
        self.assertEqual([one["version"] for one in log], [2, 1])
        self.assertEqual(log[1]["brought"], first)
        self.assertEqual(log_timing(mount.store), log)
        self.assertEqual(log_timing(mount.path, "--limit", 1), log[:1])

        mount.umount()
        self.assertEqual(log_timing(mount.store), log)
        mount.start()
        self.assertEqual(mount.status()["timing"]["latest"], second)
        self.publish(steps[2])
        self.timing(mount, 3)
        self.assertEqual([one["version"] for one in log_timing(mount.path)], [3, 2, 1])

    def test_a_hand_over_is_told(self):
        steps = self.make_run(2)
        self.init()
        mount = self.writer()
        for version, step in enumerate(steps, 1):
            self.publish_through(mount, step, f"step-{version}")
        record = harness.wait_until(
            lambda: (last := mount.status()["timing"]["hand_over"]) and last["version"] == 2 and last,
            "the timing of version 2")
        timing = record["handed_over"]
        self.assertEqual((timing["name"], timing["attempts"]), ("step-2", 1))
        self.assert_same_sum(timing, HAND_OVER_PHASES)
        for phase in HAND_OVER_PHASES:
            self.assertGreater(timing[phase], 0, phase)
        self.assertEqual(timing["bytes"], sum(
            os.path.getsize(os.path.join(steps[1], name)) for name in os.listdir(steps[1])))
        self.assertGreater(timing["uploaded_bytes"], 0)
        self.assertIsNone(record["brought"])
        self.assertEqual(mount.status()["timing"]["latest"], record)
        self.assertEqual(log_timing(mount.path)[0], record)
        mount.umount()
        self.assertEqual([one["version"] for one in log_timing(mount.store)], [2, 1])

    def test_the_tables_fit_a_terminal(self):
        steps = self.make_run(2)
        self.init()
        mount = self.writer()
        self.publish_through(mount, steps[0], "step-1")
        self.publish(steps[1])
        self.timing(mount, 2)
        said = harness.run("log", mount.path, "--timing").stdout
        for word in ("UNSEEN", "BUILD", "SYNC", "version 1 + 1 delta: fetch ", "HANDED OVER",
                     "COMMIT", "step-1: "):
            self.assertIn(word, said)
        self.assertLessEqual(max(map(len, said.splitlines())), 100, said)
        self.assertIn("after its manifest was seen", harness.run("status", mount.path).stdout)
        self.assertIn("handed over  version 1 in ", harness.run("status", mount.path).stdout)

    def test_who_may_not_look_into_the_store_is_told_what_to_do(self):
        self.init()
        self.publish(self.make_run(1)[0])
        mount = self.mount()
        self.timing(mount, 1)
        os.chmod(self.dir, 0o755)
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                               harness.BINARY, "log", mount.path, "--timing"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("weightfs status MOUNTPOINT", done.stderr)

    def test_a_bucket_knows_no_timings(self):
        self.init()
        done = harness.run("log", self.url, "--timing")
        self.assertEqual(done.returncode, 1)
        self.assertIn("mount point", done.stderr)


if __name__ == "__main__":
    harness.main()
