"""du and gc on a service: sizes and times of LIST, the service's clock, removal."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402

GRACE = 4  # seconds


class Retention(gateway.S3Test):
    def test_what_is_retired_is_removed_after_its_grace(self):
        self.init()
        steps = self.make_run(5, 20_000)
        for i, step in enumerate(steps):
            self.publish(step, *(["--snapshot"] if i == 3 else []))
        keep = ["--keep", "1"]
        held = harness.call("du", self.url, *keep)
        self.assertEqual(held["gc"]["versions"], [[1, 3]])
        self.assertGreater(held["kinds"]["snapshots"]["bytes"], 2 * 20_000)
        first = harness.call("gc", self.url, *keep, "--grace", f"{GRACE}s", "--delete")
        self.assertEqual(first["removed"]["objects"], 0)
        self.assertEqual(first["retired"]["versions"], [[1, 3]])
        removed = 0
        limit = time.monotonic() + 60
        while removed == 0 and time.monotonic() < limit:
            removed = harness.call("gc", self.url, *keep, "--delete")["removed"]["objects"]
        self.assertEqual(removed, len(first["retired"]["keys"]))
        self.assertEqual(harness.call("verify", self.url)["problems"], [])
        after = harness.call("du", self.url, *keep)
        self.assertEqual(after["retired"]["versions"], [[1, 3]])
        self.assertEqual(after["total"]["objects"],
                         held["total"]["objects"] - removed + 1)  # the record
        out = os.path.join(self.dir, "out")
        harness.call("export", self.url, out, "--version", "5")
        self.assert_same_tree(out, steps[4])


if __name__ == "__main__":
    harness.main()
