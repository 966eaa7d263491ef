"""A reader makes what is saved while it is saved, and has little to do when the version comes."""

import contextlib
import json
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import writers  # noqa: E402

LARGE_PARAMS = 44_000_000
PARAMS = 3_000_000  # two shards of some MiB: smaller files are not coded early


def weights(step):
    return sorted(name for name in os.listdir(step) if name.endswith(".safetensors"))


class HeadStart(writers.WriterTest):
    images = "disk"

    def setUp(self):
        self.init()
        self.writing = self.writer()
        self.steps = self.make_run(5, PARAMS)
        self.save(self.writing, self.steps[0], "step-1")
        self.wait_uploaded(self.steps[0])  # or readers would expect nothing early of this writer
        self.hand_over(self.writing, "step-1")
        self.wait(self.writing, "--tag", "step-1")
        self.reading = self.mount("--images", self.images, name="reader", store="reader-store")
        self.reading.wait_version(1)
        harness.run("wait", self.reading.path, "--ready")

    def start(self):
        return self.reading.status()["images"]["head_start"]

    def bytes_of(self, step, names):
        return sum(os.path.getsize(os.path.join(step, name)) for name in names)

    def save_files(self, step, names):
        folder = self.writing.staging("saved")
        os.makedirs(folder, exist_ok=True)
        for name in names:
            with open(os.path.join(folder, name), "wb") as file:
                file.write(harness.read_file(os.path.join(step, name)))

    def wait_made(self, size):
        harness.wait_until(lambda: self.start()["waiting_bytes"] == size,
                           f"{size} bytes to be made ahead of the version")

    def wait_uploaded(self, step):
        size = self.bytes_of(step, weights(step))
        self.writing.wait_status(
            lambda status: status["writer"]["early"]["waiting_files"] == 0 and
            status["writer"]["early"]["uploaded_bytes"] == size, "all to be coded and uploaded")

    def early_record(self, version):
        return self.object(f"early/{version:020}.json")

    def brought(self, version):
        """How the version came to the reader."""
        self.reading.wait_version(version)
        entries = harness.call("log", self.reading.path, "--timing")
        return next(entry for entry in entries if entry["version"] == version)["brought"]

    def rest(self, step):
        return [name for name in os.listdir(step) if name not in weights(step)]

    def hand_over_and_look(self, version, early):
        step = self.steps[version - 1]
        self.hand_over(self.writing, "saved", f"step-{version}")
        self.assertEqual(self.wait(self.writing, "--tag", f"step-{version}"), version)
        brought = self.brought(version)
        self.assertEqual(brought["early_bytes"], early)
        if early == self.bytes_of(step, weights(step)):
            self.assertEqual(brought["fetched_bytes"], 0, "no pack again")
        self.assert_same_tree(self.reading.join("versions", version), step)
        self.assertEqual(self.start()["waiting_bytes"], 0)

    def test_files_are_made_while_others_are_still_saved(self):
        taken = 0
        for version in range(2, 5):
            step = self.steps[version - 1]
            first, *others = weights(step)
            self.save_files(step, [first])
            self.wait_made(self.bytes_of(step, [first]))
            with open(self.early_record(version)) as file:
                named = json.load(file)
            self.assertEqual([entry["path"] for entry in named["files"]], [first])
            self.save_files(step, [*others, *self.rest(step)])
            size = self.bytes_of(step, weights(step))
            self.wait_made(size)
            self.assertEqual(os.readlink(self.reading.join("latest")), f"versions/{version - 1}")
            self.hand_over_and_look(version, size)
            taken += size
            self.assertEqual(self.start()["taken_bytes"], taken)
            harness.wait_until(lambda at=version: not os.path.exists(self.early_record(at)),
                               "the early record to be gone")
        self.assertEqual(harness.run("verify", self.url, "--deep").returncode, 0)

    def test_a_large_file_is_made_while_it_is_written(self):
        self.make_large_steps()
        for version, temporary in ((3, False), (4, True)):
            step = self.large[version - 2]
            first, last = weights(step)
            self.save_files(step, [first, *self.rest(step)])
            made = self.bytes_of(step, [first])
            self.wait_made(made)
            path = self.writing.staging("saved", ".tmpQ4LQlO" if temporary else last)
            data = harness.read_file(os.path.join(step, last))
            with open(path, "wb", buffering=0) as file:
                file.write(data[:len(data) * 2 // 3])
                self.wait_made(made + len(data))  # room for all of it, with the first piece
                with open(self.early_record(version)) as record:
                    named = json.load(record)["files"]
                self.assertEqual([entry["path"] for entry in named], [first, last])
                self.assertLess(named[1]["coded_bytes"], len(data))
                self.assertIsInstance(self.start()["due_in_ms"], int)
                file.write(data[len(data) * 2 // 3:])
            os.rename(path, self.writing.staging("saved", last))
            self.wait_uploaded(step)
            self.hand_over(self.writing, "saved", f"step-{version}")
            self.assertEqual(self.wait(self.writing, "--tag", f"step-{version}"), version)
            self.assertGreater(self.brought(version)["early_bytes"], made)
            self.assert_same_tree(self.reading.join("versions", version), step)
            harness.wait_until(lambda: self.start()["due_in_ms"] is None, "nothing to be due")

    def test_the_pack_before_the_last_piece_is_not_fetched_again(self):
        """It has the chunk that reaches over the border. The reader sleeps while the last piece is named."""
        self.make_large_steps()
        step = self.large[1]
        first, last = weights(step)
        self.save_files(step, [first, *self.rest(step)])
        made = self.bytes_of(step, [first])
        self.wait_made(made)
        data = harness.read_file(os.path.join(step, last))
        with open(self.writing.staging("saved", last), "wb", buffering=0) as file:
            file.write(data[:len(data) * 2 // 3])
            self.wait_made(made + len(data))
            pid = self.reading.status()["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                file.write(data[len(data) * 2 // 3:])
                file.close()
                self.hand_over(self.writing, "saved", "step-3")
                self.assertEqual(self.wait(self.writing, "--tag", "step-3"), 3)
            finally:
                os.kill(pid, signal.SIGCONT)
        brought = self.brought(3)
        self.assertLess(brought["early_bytes"], made + len(data))
        self.assertEqual(brought["requests"], 0)
        self.assert_same_tree(self.reading.join("versions", 3), step)

    def test_all_of_a_file_is_made_before_it_is_closed(self):
        self.make_large_steps()
        step = self.large[1]
        first, last = weights(step)
        self.save_files(step, [first, *self.rest(step)])
        data = harness.read_file(os.path.join(step, last))
        with open(self.writing.staging("saved", last), "wb", buffering=0) as file:
            file.write(data[:len(data) // 2])
            self.wait_made(self.bytes_of(step, [first, last]))
            file.write(data[len(data) // 2:])
            # By the bytes: status counts begun files in full.
            harness.wait_until(lambda: self.has_file_of(data), "the last piece to be made")
        self.wait_uploaded(step)
        self.hand_over(self.writing, "saved", "step-3")
        self.assertEqual(self.wait(self.writing, "--tag", "step-3"), 3)
        brought = self.brought(3)
        self.assertEqual(brought["early_bytes"], self.bytes_of(step, [first, last]))
        self.assertEqual(brought["fetched_bytes"], 0, "no pack again")
        self.assert_same_tree(self.reading.join("versions", 3), step)

    def has_file_of(self, data):
        """Whether the reader's store has a file of these bytes, by whatever name."""
        paths = (os.path.join(folder, name) for folder, _, names in os.walk(self.reading.store)
                 for name in names)
        try:
            return any(os.path.getsize(path) == len(data) and harness.read_file(path) == data
                       for path in paths)
        except FileNotFoundError:  # it has got another name
            return False

    def test_files_are_made_while_ranks_write_them_side_by_side(self):
        self.make_large_steps()
        step = self.large[1]
        self.save_files(step, self.rest(step))
        shards = {name: harness.read_file(os.path.join(step, name)) for name in weights(step)}
        with contextlib.ExitStack() as stack:
            files = {name: stack.enter_context(
                open(self.writing.staging("saved", name), "wb", buffering=0)) for name in shards}
            for name, data in shards.items():
                files[name].write(data[:len(data) * 2 // 3])
            self.wait_made(self.bytes_of(step, shards))  # room for all, with the first pieces
            with open(self.early_record(3)) as record:
                named = json.load(record)["files"]
            self.assertEqual([entry["path"] for entry in named], sorted(shards))
            for entry in named:
                self.assertLess(entry["coded_bytes"], len(shards[entry["path"]]))
            for name, data in shards.items():
                files[name].write(data[len(data) * 2 // 3:])
        self.wait_uploaded(step)
        coded = self.writing.status()["writer"]["early"]
        self.assertEqual(coded["grown_bytes"], self.bytes_of(step, shards))
        self.hand_over(self.writing, "saved", "step-3")
        self.assertEqual(self.wait(self.writing, "--tag", "step-3"), 3)
        self.assertGreater(self.brought(3)["early_bytes"], self.bytes_of(step, shards) // 3)
        self.assert_same_tree(self.reading.join("versions", 3), step)

    def make_large_steps(self):
        """Version 2: two shards, each of more than two pieces.  Others follow."""
        self.large = self.make_run(3, LARGE_PARAMS, "large")
        self.save_files(self.large[0], os.listdir(self.large[0]))
        self.hand_over(self.writing, "saved", "large")
        self.assertEqual(self.wait(self.writing, "--tag", "large"), 2)
        self.reading.wait_version(2)

    def test_what_is_saved_again_is_made_again(self):
        step = self.steps[1]
        self.save_files(self.steps[2], weights(step))
        self.wait_made(self.bytes_of(step, weights(step)))
        self.save_files(step, [*weights(step), *self.rest(step)])
        self.wait_uploaded(step)
        self.hand_over(self.writing, "saved", "step-2")
        self.reading.wait_version(2)
        self.assert_same_tree(self.reading.join("versions", 2), step)

    def test_a_record_that_somebody_has_changed_does_no_harm(self):
        """The reader begins with it, since it has just started."""
        def swap_paths(record):
            value = json.loads(record)
            first, second = value["files"]
            first["path"], second["path"] = second["path"], first["path"]
            return json.dumps(value).encode()

        changes = (lambda record: b"", lambda record: record[:-9], lambda record: b"[" * 200_000, swap_paths)
        for version, change in enumerate(changes, 2):
            with self.subTest(version=version):
                step = self.steps[version - 1]
                self.save_files(step, weights(step))
                self.wait_uploaded(step)
                path = self.early_record(version)
                harness.wait_until(lambda at=path, all_of=weights(step): self.files_named(at) == all_of,
                                   "all files to be named")
                self.reading.process.kill()
                harness.write_file(path, change(harness.read_file(path)))
                self.reading.start()
                self.reading.wait_version(version - 1)
                self.save_files(step, self.rest(step))
                self.hand_over(self.writing, "saved", f"step-{version}")
                self.assertEqual(self.wait(self.writing, "--tag", f"step-{version}"), version)
                self.reading.wait_version(version)
                self.assert_same_tree(self.reading.join("versions", version), step)
        self.assertEqual(harness.run("verify", self.url, "--deep").returncode, 0)

    def files_named(self, path):
        if not os.path.exists(path):
            return []
        with open(path) as file:
            return sorted(entry["path"] for entry in json.load(file)["files"])

    def test_a_killed_reader_begins_again(self):
        step = self.steps[1]
        self.save_files(step, weights(step))
        size = self.bytes_of(step, weights(step))
        self.wait_made(size)
        self.reading.process.kill()
        self.reading.start()
        self.wait_made(size)
        self.save_files(step, self.rest(step))
        self.hand_over_and_look(2, size)

    def test_a_killed_writer_leaves_a_record_that_does_no_harm(self):
        step = self.steps[1]
        self.save_files(self.steps[2], weights(step))
        self.wait_made(self.bytes_of(step, weights(step)))
        self.writing.process.kill()
        self.writing.start()
        harness.run("publish", self.url, step, "--store", os.path.join(self.dir, "another"))
        self.assertEqual(self.brought(2)["early_bytes"], 0)
        self.assert_same_tree(self.reading.join("versions", 2), step)
        self.assertEqual(self.start()["waiting_bytes"], 0)

    def test_an_old_version_that_stays_open_takes_no_room_of_it(self):
        """As an engine does that keeps its files mapped."""
        name = weights(self.steps[0])[0]
        with open(self.reading.join("versions/1", name), "rb") as opened:
            for version in range(2, 6):
                step = self.steps[version - 1]
                self.save_files(step, weights(step))
                size = self.bytes_of(step, weights(step))
                self.wait_made(size)
                self.save_files(step, self.rest(step))
                self.hand_over_and_look(version, size)
            self.assertEqual(opened.read(), harness.read_file(os.path.join(self.steps[0], name)))

    def test_old_versions_are_made_of_patches_that_were_noted_on_both_ways(self):
        for version in range(2, 5):
            step = self.steps[version - 1]
            self.save_files(step, [weights(step)[0]])
            self.wait_made(self.bytes_of(step, [weights(step)[0]]))
            self.save_files(step, [*weights(step)[1:], *self.rest(step)])
            self.hand_over(self.writing, "saved", f"step-{version}")
            self.reading.wait_version(version)
        for version in range(1, 5):
            self.assert_same_tree(self.reading.join("versions", version), self.steps[version - 1])


class HeadStartInMemory(HeadStart):
    images = "memory"
    test_all_of_a_file_is_made_before_it_is_closed = None  # it looks into the store


class NoHeadStart(writers.WriterTest):
    def test_a_writers_mount_a_frozen_one_and_one_that_keeps_a_part_have_none(self):
        self.init()
        writing = self.writer()
        step, = self.make_run(1, PARAMS)
        self.publish_through(writing, step, "step-1")
        self.assertIsNone(writing.status()["images"]["head_start"])
        for name, options in (("frozen", ("--follow", "1")), ("part", ("--only", "*00001*"))):
            mount = self.mount(*options, name=name, store=name + "-store")
            mount.wait_version(1)
            self.assertIsNone(mount.status()["images"]["head_start"], name)


if __name__ == "__main__":
    harness.main()
