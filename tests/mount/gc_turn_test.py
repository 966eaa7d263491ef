"""gc of a writer's mount waits while a hand-over is under way.

The bucket's disk is frozen: a publish hangs in its first write, as in a slow upload, and what only reads
goes on. So would gc, up to its first record, if it did not wait."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import disks  # noqa: E402
import harness  # noqa: E402
from writers import WriterTest  # noqa: E402

PARAMS = 20_000


class GcTurn(WriterTest):
    def gc(self, mount):
        return mount.status()["writer"]["gc"]

    def test_it_waits_for_a_hand_over_and_runs_after_it(self):
        disk = disks.Disk(self)
        self.bucket = os.path.join(disk.path, "bucket")
        self.url = "file://" + self.bucket
        self.init()
        steps = self.make_run(3, PARAMS)
        self.publish(steps[0])
        self.publish(steps[1], "--snapshot")
        mount = self.writer()
        self.take_bucket_away()
        self.save_and_hand_over(mount, steps[2], "third")
        mount.process.kill()
        self.bring_bucket_back()
        # Now the hand-over is under way as soon as the mount is there, and gc is due at once.
        mount.options = ("--writer", "--gc", "--gc-keep", "1", "--gc-keep-tagged=", "--gc-grace", "0s",
                         "--gc-interval", "0s")
        disk.freeze()
        try:
            mount.start()
            status = mount.wait_status(
                lambda status: status["writer"]["gc"]["gives_way"] and
                [entry["state"] for entry in status["writer"]["queue"]] == ["uploading"],
                "gc that waits for an upload")
            gc = status["writer"]["gc"]
            self.assertEqual((gc["running"], gc["runs"], gc["error"]), (False, 0, None))
        finally:
            disk.thaw()
        self.wait(mount, "--tag", "third")
        mount.wait_status(lambda status: status["writer"]["gc"]["runs"] > 0 and
                          not status["writer"]["gc"]["gives_way"], "gc after the hand-over")
        self.assertEqual([one["retired"] for one in harness.call("log", self.url)],
                         [False, False, True])
        self.assert_same_tree(mount.join("latest/"), steps[2])


if __name__ == "__main__":
    disks.skip_without_loop_devices()
    harness.main()
