"""How a publish uses the disk, by its system calls: what makes it fast is done, not only there to be called."""

import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

CALLS = "sync_file_range,fsync,unlink,unlinkat"
LARGE_PARAMS = 24_000_000  # two files of 24 MB: large for who removes them, and written in three parts
LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += 0")


class PublishDisk(harness.MountTest):
    def traced(self, folder):
        """[(call, arguments)] of a publish, each when it ended."""
        trace = os.path.join(self.dir, "trace")
        subprocess.run(["strace", "-f", "-y", "-o", trace, "-e", f"trace={CALLS}", harness.BINARY, "publish",
                        self.url, folder, "--store", os.path.join(self.dir, "publisher")],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=harness.environment())
        unfinished, calls = {}, []
        with open(trace) as file:
            for line in file:
                thread, rest = line.split(None, 1)
                if "<unfinished ...>" in rest:
                    unfinished[thread] = rest.split("<unfinished")[0].rstrip()
                    continue
                if rest.startswith("<..."):
                    rest = unfinished.pop(thread) + rest.split("resumed>", 1)[1]
                found = LINE.match(f"{thread} {rest}")
                if found:
                    calls.append((found[1], found[2]))
        return calls

    def begun(self, calls, folder):
        """How many ranges of files below a folder the disk was told to begin with, without waiting."""
        return sum(call == "sync_file_range" and folder in arguments and arguments.endswith(", SYNC_FILE_RANGE_WRITE")
                   for call, arguments in calls)

    def test_what_makes_it_fast_is_done(self):
        steps = self.make_run(2, LARGE_PARAMS)
        self.init()
        calls = self.traced(steps[0])
        bucket = self.url.removeprefix("file://")
        # Two files in three parts each; and what is kept, in two batches each.
        self.assertGreaterEqual(self.begun(calls, bucket + "/.tmp/"), 6)
        self.assertGreaterEqual(self.begun(calls, "/publisher/images/1/"), 4)
        calls = self.traced(steps[1])
        removed = [arguments for call, arguments in calls
                   if call == "unlink" and "/tmp/removed-" in arguments and ".safetensors" in arguments]
        self.assertEqual(len(removed), 2, "large files of the old version, side by side")


if __name__ == "__main__":
    if shutil.which("strace") is None:
        print("skipped: needs strace")
        sys.exit(harness.SKIPPED)
    harness.main()
