"""A publisher that is killed or stopped at any point leaves a repository that is whole."""

import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402


class KillPublisher(harness.MountTest):
    def test_kill_at_random_points_leaves_a_repository_that_is_whole(self):
        steps = self.make_run(2, params=2_000_000)
        self.init()
        began = time.monotonic()
        self.publish(steps[0])
        takes = time.monotonic() - began
        mount = self.mount()
        killed = 0
        for i in range(12):
            before = self.version_count()
            publisher = self.start_publish(steps[(before + 1) % 2])
            try:
                publisher.wait(timeout=harness.RANDOM.random() * takes)
            except subprocess.TimeoutExpired:
                publisher.kill()
                killed += 1
            publisher.communicate()
            after = self.version_count()
            self.assertIn(after, (before, before + 1))
            if i % 4 == 3:
                self.assert_clean()
            said = self.publish(steps[after % 2])  # the next one works
            self.assertEqual(said["version"], after + 1)
            mount.wait_version(after + 1)
            self.assert_same_tree(mount.join("latest/"), steps[after % 2])
        self.assert_clean()
        self.assertGreater(killed, 0)
        print(f"killed {killed} of 12", file=sys.stderr)

    def test_a_signal_cancels_and_leaves_nothing(self):
        steps = self.make_run(1, params=30_000_000)
        self.init()
        publisher = self.start_publish(steps[0])
        self.addCleanup(publisher.kill)
        harness.wait_until(
            lambda: os.path.exists(os.path.join(self.dir, "publisher", "lock")), "the store")
        publisher.send_signal(signal.SIGTERM)
        out, err = publisher.communicate(timeout=30)
        self.assertEqual(publisher.returncode, 1, out + err)
        self.assertEqual(harness.json.loads(out)["error"]["code"], "cancelled")
        self.assertEqual(self.version_count(), 0)
        self.assert_clean()
        self.assertEqual(self.publish(steps[0])["version"], 1)


# Dirties a page, and goes on storing in it until stdin ends: neither mtime nor ctime moves then.
STORE = """
import mmap, os, sys, threading
file = os.open(sys.argv[1], os.O_RDWR)
bytes = mmap.mmap(file, 0)
os.close(file)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()
bytes[-1] ^= 1
print("storing", flush=True)
while not ended.is_set():
    bytes[-1] ^= 1
"""


class MappedWriter(harness.MountTest):
    def test_who_stores_through_a_mapping_is_found(self):
        steps = self.make_run(1)
        shard = next(entry.path for entry in os.scandir(steps[0])
                     if entry.name.endswith(".safetensors"))
        self.init()
        writer = subprocess.Popen([sys.executable, "-c", STORE, shard], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(writer.kill)
        self.assertEqual(writer.stdout.readline(), "storing\n")
        publisher = self.start_publish(steps[0])
        out, err = publisher.communicate(timeout=60)
        self.assertEqual(publisher.returncode, 1, out + err)
        self.assertEqual(harness.json.loads(out)["error"]["code"], "busy")
        self.assertIn(os.path.basename(shard), out)
        self.assertEqual(self.version_count(), 0)
        writer.communicate()
        self.assertEqual(self.publish(steps[0])["version"], 1)
        self.assert_clean()


if __name__ == "__main__":
    harness.main()
