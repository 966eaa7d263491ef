"""What images in memory write to the disk, as its block device counts it: journal, records and all."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import disks  # noqa: E402
import harness  # noqa: E402
from images_memory_test import DISK_SHARE, PARAMS, tree_bytes, written_bytes  # noqa: E402

VERSIONS = 20  # two folds by 8 among them


class BlockDevice(harness.MountTest):
    def wait_recorded(self, mount, version):
        mount.wait_status(lambda status: status["history"]["recorded"] == version and
                          not status["history"]["error"], f"patches to version {version}")

    def test_a_version_writes_less_than_a_fiftieth_of_the_model(self):
        made = self.make_run(VERSIONS // 2 + 1, PARAMS)
        steps = (made + made[-2:0:-1])[:VERSIONS]  # there and back: each differs by a step of 1.1 %
        self.init()
        self.publish(steps[0])
        disk = disks.Disk(self, size=1 << 30)
        mount = self.mount("--images", "memory", store="disk/store")
        mount.wait_status(lambda status: status["unsynced"] == [], "the base is synced")
        before = disk.written_bytes(), written_bytes(mount.process.pid)
        for version, step in enumerate(steps[1:], 2):
            self.publish(step)
            mount.wait_version(version)
            self.wait_recorded(mount, version)
        after = disk.written_bytes(), written_bytes(mount.process.pid)
        device, process = ((b - a) / (len(steps) - 1) / tree_bytes(steps[0])
                           for a, b in zip(before, after))
        print(f"written a version, of the model: {device:.4f} by the block device, {process:.4f} by "
              f"/proc/PID/io", flush=True)
        status = mount.status()
        self.assertEqual(status["images"]["base"], 1)
        self.assertGreater(status["history"]["levels"][1]["spans"], 0, "folding is counted too")
        self.assertGreater(device, status["history"]["path_bytes"] / (len(steps) - 1) /
                           tree_bytes(steps[0]), "the device counts nothing")
        self.assertLessEqual(device, DISK_SHARE)
        self.assert_same_tree(mount.join("latest/"), steps[-1])
        mount.umount()


if __name__ == "__main__":
    disks.skip_without_loop_devices()
    harness.main()
