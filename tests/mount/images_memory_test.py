"""--images memory: versions come into memory that only the daemon has, and the disk stays quiet."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import cgroups  # noqa: E402
import harness  # noqa: E402
import runs  # noqa: E402

PARAMS = 32_000_000  # 64 MiB a version
MIB = 1 << 20
DISK_SHARE = 0.02  # of the model, that a version may write to the disk
MANY_VERSIONS = 132  # beyond the first cumulative span: store/patches/plan_folds.hpp


def tree_bytes(folder):
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))


def written_bytes(pid):
    """What the process gave the disk to write; files that were removed before it did so do not count."""
    with open(f"/proc/{pid}/io") as file:
        fields = dict(line.split(": ") for line in file)
    return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])


def shared_memory():
    """Bytes of tmpfs on this host."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Shmem:"))


def mounts():
    with open("/proc/self/mountinfo") as file:
        return [line.split()[4] for line in file]


class ImagesMemory(harness.MountTest):
    def publish_all(self, mount, steps, first):
        """One after another, each seen at the mount. Returns the newest version."""
        for version, step in enumerate(steps, first):
            self.publish(step)
            mount.wait_version(version)
        return first + len(steps) - 1

    def wait_in_memory(self, mount, versions):
        """Older ones go after `latest` has moved. Returns the status."""
        return mount.wait_status(lambda status: status["images"]["memory_versions"] == versions,
                                 f"versions {versions} in memory, and no others")

    def wait_base(self, mount, version):
        return mount.wait_status(lambda status: status["images"]["base"] == version,
                                 f"base {version}")

    def wait_recorded(self, mount, version):
        """Patches lead from the base to the version, and nothing is left to be folded."""
        return mount.wait_status(
            lambda status: status["history"]["recorded"] == version and
            not status["history"]["error"], f"patches to version {version}")["history"]

    def test_versions_are_right_and_the_disk_is_hardly_written(self):
        steps = self.make_run(10, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        mount.wait_status(lambda status: status["unsynced"] == [], "the base is synced")
        before = written_bytes(mount.process.pid)
        newest = self.publish_all(mount, steps[1:], 2)
        history = self.wait_recorded(mount, newest)
        written = written_bytes(mount.process.pid) - before

        self.assertGreater(history["path_bytes"], 0)
        self.assertLessEqual(history["path_bytes"], written)
        self.assertLessEqual(written / (len(steps) - 1), DISK_SHARE * tree_bytes(steps[0]))
        status = self.wait_in_memory(mount, [newest - 1, newest])
        self.assertEqual(status["images"]["home"], "memory")
        self.assertEqual(status["images"]["base"], 1)
        self.assertGreater(status["images"]["memory_bytes"], 1.9 * tree_bytes(steps[0]))
        self.assertEqual(os.listdir(os.path.join(mount.store, "images")), ["1"])
        for version in (1, newest - 1, newest):
            self.assert_same_tree(mount.join("versions", version), steps[version - 1])
        reads = mount.status()["serve"]
        if reads["mode"] == "passthrough":
            self.assertEqual(reads["daemon_reads"], status["serve"]["daemon_reads"])
        self.assertIn(b"in memory", harness.read_file(mount.join(".weightfs/advice")))

    def test_patches_are_noted_while_versions_are_made(self):
        steps = self.make_run(6, PARAMS // 8)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        for version, step in enumerate(steps[1:], 2):
            self.publish(step)
            mount.wait_version(version)
            history = self.wait_recorded(mount, version)
            self.assertEqual(history["spans_fresh"], version - 1, "no image was read for them")
        self.assertEqual(history["spans_from_images"], 0)
        self.assertEqual(history["given_up"], 0)
        self.assertEqual(history["levels"][0]["spans"], 5, "one a version")

        # They lead to the right bytes.
        mount.process.kill()
        harness.libc.umount2(mount.path.encode(), harness.MNT_DETACH)
        os.rename(self.bucket, self.bucket + ".away")
        self.assertEqual(mount.start()["version"], 6)
        self.assert_same_tree(mount.join("latest/"), steps[5])

    def test_a_pinned_version_stays_besides_the_two_newest_ones(self):
        steps = self.make_run(5, 1_000_000)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        self.publish_all(mount, steps[1:2], 2)
        name = sorted(name for name in os.listdir(steps[0]) if name.endswith(".safetensors"))[0]
        with open(mount.join("versions/2", name), "rb") as opened:
            self.publish_all(mount, steps[2:], 3)
            self.wait_in_memory(mount, [2, 4, 5])
            self.assertEqual(opened.read(), harness.read_file(os.path.join(steps[1], name)))
        self.publish(steps[0])
        mount.wait_version(6)
        self.wait_in_memory(mount, [5, 6])

    def test_a_restart_brings_the_newest_version_before_it_is_ready(self):
        steps = self.make_run(5, PARAMS // 8)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        self.publish_all(mount, steps[1:4], 2)
        self.wait_recorded(mount, 4)
        mount.umount()
        said = mount.start()
        self.assertEqual(said["version"], 4)
        self.assert_same_tree(mount.join("latest/"), steps[3])
        self.assertEqual(mount.status()["images"]["memory_versions"], [4])

        # The same without the bucket, of the base and the patches.
        mount.umount()
        os.rename(self.bucket, self.bucket + ".away")
        self.assertEqual(mount.start()["version"], 4)
        self.assert_same_tree(mount.join("latest/"), steps[3])
        timing = mount.wait_status(
            lambda status: status["timing"]["latest"] and status["timing"]["latest"]["brought"],
            "a timing")["timing"]["latest"]["brought"]
        self.assertEqual((timing["base"], timing["deltas"], timing["fetched_bytes"]), (1, 0, 0))
        self.assertGreater(timing["patches"], 0)
        self.assertGreater(timing["patched_bytes"], 0)
        # Older ones too, by name.
        self.assert_same_tree(mount.join("versions/3"), steps[2])
        os.rename(self.bucket + ".away", self.bucket)
        self.publish_all(mount, steps[4:], 5)
        self.assert_same_tree(mount.join("latest/"), steps[4])

    def test_a_restart_after_kill_makes_the_newest_version_without_any_pack(self):
        steps = self.make_run(20, PARAMS // 8)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        self.publish_all(mount, steps[1:], 2)
        history = self.wait_recorded(mount, 20)
        self.assertGreaterEqual(history["levels"][0]["spans"], 1)
        os.rename(os.path.join(self.bucket, "packs"), os.path.join(self.bucket, "packs.away"))
        os.rename(os.path.join(self.bucket, "snapshots"), os.path.join(self.bucket, "snapshots.away"))
        mount.process.kill()
        harness.libc.umount2(mount.path.encode(), harness.MNT_DETACH)
        self.assertEqual(mount.start()["version"], 20)
        self.assert_same_tree(mount.join("latest/"), steps[19])
        self.assertEqual(mount.status()["images"]["base"], 1)
        self.assertIn("of patches in", harness.run("status", mount.path).stdout)

    def test_damaged_packs_of_what_was_here_do_not_matter(self):
        steps = self.make_run(5, PARAMS // 8)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        self.publish_all(mount, steps[1:4], 2)
        self.wait_recorded(mount, 4)
        pack = self.pack(3)
        good = harness.read_file(pack)
        mount.umount()
        harness.write_file(pack, good[:-1] + bytes([good[-1] ^ 1]))
        self.assertEqual(mount.start()["version"], 4)
        self.assert_same_tree(mount.join("latest/"), steps[3])
        self.publish_all(mount, steps[4:], 5)
        self.assert_same_tree(mount.join("latest/"), steps[4])
        self.assertIsNone(mount.status()["error"])

    def test_what_a_reader_has_in_a_pipe_stays_when_its_version_goes(self):
        """A lease does not see pages in a pipe or a socket, so files are never written again."""
        steps = self.make_run(6, PARAMS // 8)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        self.publish_all(mount, steps[1:2], 2)
        name = max((name for name in os.listdir(steps[1]) if name.endswith(".safetensors")),
                   key=lambda name: os.path.getsize(os.path.join(steps[1], name)))
        size, at = 8192, os.path.getsize(os.path.join(steps[1], name)) // 2 // 4096 * 4096
        out, into = os.pipe()
        with open(mount.join("versions/2", name), "rb") as file:
            spliced = os.splice(file.fileno(), into, size, offset_src=at)
        self.publish_all(mount, steps[2:], 3)
        self.wait_in_memory(mount, [5, 6])
        os.close(into)
        with open(out, "rb") as pipe, open(os.path.join(steps[1], name), "rb") as file:
            self.assertEqual(pipe.read(), os.pread(file.fileno(), spliced, at))

    def test_a_store_may_change_from_memory_to_disk_and_back(self):
        steps = self.make_run(4, 1_000_000)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        self.publish_all(mount, steps[1:2], 2)
        mount.umount()
        mount.options = ()
        mount.start()
        mount.wait_version(2)
        self.publish_all(mount, steps[2:3], 3)
        self.assertEqual(mount.status()["images"]["home"], "disk")
        mount.umount()
        mount.options = ("--images", "memory")
        mount.start()
        self.publish_all(mount, steps[3:], 4)
        for version in (2, 3, 4):
            self.assert_same_tree(mount.join("versions", version), steps[version - 1])

    def test_a_host_that_keeps_a_part_keeps_that_in_memory(self):
        steps = self.make_run(3, 4_000_000)
        self.init()
        self.publish(steps[0])
        names = sorted(name for name in os.listdir(steps[0]) if name.endswith(".safetensors"))
        self.assertGreater(len(names), 1)
        mount = self.mount("--images", "memory", "--only", names[0])
        self.publish_all(mount, steps[1:], 2)
        self.assert_same_tree(mount.join("latest/"), steps[2])
        status = self.wait_in_memory(mount, [2, 3])
        self.assertLess(status["images"]["memory_bytes"], 2 * tree_bytes(steps[0]))
        self.assertEqual(status["kept"]["only"], [names[0]])

    def test_the_base_is_renewed_when_the_patches_are_large(self):
        sparse = self.make_run(1, PARAMS // 8)
        other = os.path.join(self.dir, "other")
        runs.make_run(other, 5, PARAMS // 8, seed=7)
        dense = [os.path.join(other, name) for name in sorted(os.listdir(other))
                 if name.startswith("step_")]
        self.init()
        self.publish(sparse[0])
        mount = self.mount("--images", "memory")
        self.assertEqual(mount.status()["images"]["base_renewals"], 0)
        self.publish_all(mount, dense[:1], 2)
        images = mount.wait_status(lambda status: status["images"]["base_renewals"] > 0,
                                   "another base")["images"]
        self.assertEqual((images["base"], images["base_renewed"], images["base_renewals"]), (2, 2, 1))
        self.assertIn("version 2, the base, renewed once", harness.run("status", mount.path).stdout)
        harness.wait_until(
            lambda: os.listdir(os.path.join(mount.store, "images")) == ["2"], "one base")
        self.assert_same_tree(mount.join("versions/2"), dense[0])
        # The base leaves the memory, and is read from the disk from then on.
        newest = self.publish_all(mount, dense[1:], 3)
        self.wait_recorded(mount, newest)
        self.assertEqual(mount.status()["images"]["base_renewals"], 1)
        self.wait_in_memory(mount, [newest - 1, newest])
        self.assert_same_tree(mount.join("versions/2"), dense[0])

    def test_kill_while_a_base_is_written_leaves_one_that_is_right(self):
        steps = self.make_run(1, PARAMS)
        other = os.path.join(self.dir, "other")
        runs.make_run(other, 1, PARAMS, seed=7)
        steps.append(os.path.join(other, "step_000000"))
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        temporary = os.path.join(mount.store, "tmp")
        for newest in (3, 5):  # two dense deltas are more than the model
            for version in (newest - 1, newest):
                self.publish(steps[(version - 1) % 2])
                mount.wait_version(version)
            harness.wait_until(
                lambda: any(name.startswith("base-") for name in os.listdir(temporary)) or
                mount.status()["images"]["base"] >= newest - 1, "a base is being written")
            mount.process.kill()
            harness.libc.umount2(mount.path.encode(), harness.MNT_DETACH)
            self.assertEqual(mount.start()["version"], newest)
            self.assert_same_tree(mount.join("latest/"), steps[(newest - 1) % 2])
            base = mount.status()["images"]["base"]
            self.assert_same_tree(mount.join("versions", base), steps[(base - 1) % 2])

    def test_over_many_versions_folding_included_the_disk_is_hardly_written(self):
        made = self.make_run(20, PARAMS // 8)
        # There and back, so that each version differs from the one before by a step.
        cycle = made + made[-2:0:-1]
        steps = [cycle[i % len(cycle)] for i in range(MANY_VERSIONS)]
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        mount.wait_status(lambda status: status["unsynced"] == [], "the base is synced")
        before = written_bytes(mount.process.pid)
        newest = self.publish_all(mount, steps[1:], 2)
        history = self.wait_recorded(mount, newest)
        harness.wait_until(lambda: mount.status()["history"]["levels"][3]["spans"] == 1,
                           "a cumulative span")
        written = written_bytes(mount.process.pid) - before
        share = written / (len(steps) - 1) / tree_bytes(steps[0])
        print(f"written to the disk, of the model a version: {share:.4f}; patches written "
              f"{history['write_amplification']:.2f} times")
        self.assertLessEqual(share, DISK_SHARE)
        self.assertEqual(mount.status()["images"]["base"], 1)
        mount.umount()
        self.assertEqual(mount.start()["version"], newest)
        self.assert_same_tree(mount.join("latest/"), steps[-1])

    def test_kill_leaves_no_mount_and_no_memory(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        mount = self.mount("--images", "memory")
        self.publish_all(mount, steps[1:], 2)
        there = mount.status()["images"]["memory_bytes"]
        self.assertEqual([path for path in mounts() if path.startswith(self.dir)], [mount.path])
        before = shared_memory()
        mount.process.kill()
        harness.wait_until(lambda: shared_memory() <= before - there // 2, "no memory is taken")
        harness.libc.umount2(mount.path.encode(), harness.MNT_DETACH)
        mount.start()
        self.assert_same_tree(mount.join("latest/"), steps[2])

    def test_a_host_without_the_memory_is_refused_with_the_numbers(self):
        self.make_repository(1, PARAMS * 2)  # 128 MiB
        cgroup = cgroups.Cgroup(256 * MIB)
        if cgroup.path is None:
            self.skipTest("no cgroup with a limit of memory can be made")
        self.addCleanup(harness.wait_until, cgroup.try_close, "an empty cgroup")
        mount = harness.Mount(self, self.url, "--images", "memory")
        refused = harness.run(*mount.arguments(), preexec_fn=cgroup.enter)
        self.assertNotEqual(refused.returncode, 0)
        for words in ("--images memory needs", "two versions", "weightfs-test", "leave out --images"):
            self.assertIn(words, refused.stderr)
        self.assertNotIn(mount.path, mounts())

    def test_without_room_for_the_next_version_the_host_stays_on_the_old_one(self):
        steps = self.make_run(3, PARAMS)
        self.init()
        self.publish(steps[0])
        cgroup = cgroups.Cgroup(2 << 30)
        if cgroup.path is None:
            self.skipTest("no cgroup with a limit of memory can be made")
        self.addCleanup(harness.wait_until, cgroup.try_close, "an empty cgroup")
        mount = harness.Mount(self, self.url, "--images", "memory")
        mount.adopt(harness.call(*mount.arguments(), preexec_fn=cgroup.enter))
        self.addCleanup(mount.process.kill)
        self.publish_all(mount, steps[1:2], 2)
        cgroup.set_limit(cgroup.used_bytes() + 64 * MIB)  # a tenth of the limit is left alone
        self.publish(steps[2])
        status = mount.wait_status(lambda status: status["error"], "an error")
        self.assertEqual(status["error"]["code"], "no_space")
        self.assertIn("in memory", status["error"]["message"])
        self.assertEqual(status["version"], 2)
        self.assert_same_tree(mount.join("latest/"), steps[1])
        cgroup.set_limit(2 << 30)
        mount.wait_version(3)
        self.assert_same_tree(mount.join("latest/"), steps[2])

    def test_writers_and_binds_are_refused_with_what_to_do(self):
        self.make_repository(1)
        for more, words in ((("--writer",), "for readers"), (("--serve", "bind"), "--serve passthrough")):
            mount = harness.Mount(self, self.url, "--images", "memory", *more)
            refused = harness.run(*mount.arguments())
            self.assertEqual(refused.returncode, 2)
            self.assertIn(words, refused.stderr)


if __name__ == "__main__":
    harness.main()
