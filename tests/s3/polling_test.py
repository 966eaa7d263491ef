"""What an idle mount of a long run asks for: one small GET in each interval, and no LIST."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402
import s3_faults  # noqa: E402

VERSIONS = 1000
POLL = 0.4  # seconds; the mount draws each pause from 0.75 to 1.25 of it
POLLS = 8


class Polling(gateway.S3Test):
    def test_an_idle_mount_of_a_thousand_versions(self):
        self.init()
        subprocess.run([gateway.program("weightfs_s3_driver"), "history", self.gateway.url, self.url,
                        self.dir, str(VERSIONS)], check=True, env=harness.environment())
        harness.POLL = str(POLL)
        with s3_faults.Proxy(self.gateway) as proxy:
            self.use(proxy.url)
            mount = self.mount()
            mount.wait_version(VERSIONS)
            wanted = f"/{gateway.BUCKET}/{self.prefix}/versions/{VERSIONS + 1:020d}.json"

            def is_poll(request):
                return request.method == "GET" and request.path == wanted

            harness.wait_until(lambda: all(map(is_poll, proxy.seen[-3:])), "nothing but polls")
            first = len(proxy.seen)
            harness.wait_until(lambda: len(proxy.seen) > first + POLLS, "polls")
            seen = proxy.seen[first:first + POLLS]
            self.assertEqual([request.first for request in seen if not is_poll(request)], [])
            self.assertEqual({request.outcome for request in seen}, {"404"})
            self.assertLess(max(request.reply_bytes for request in seen), 1000)
            pauses = [after.time_s - before.time_s for before, after in zip(seen, seen[1:])]
            self.assertGreater(min(pauses), 0.7 * POLL)  # one in each interval
            starting = [request for request in proxy.seen[:first] if request.is_list()]
            self.assertLessEqual(len(starting), 3)  # versions, what is behind them, skips
            print(f"{first} requests to start, {len(starting)} of them LISTs", file=sys.stderr)


if __name__ == "__main__":
    harness.main()
