"""Handing over: what is moved from staging to publish becomes a version, or stays as it is."""

import errno
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import writers  # noqa: E402
from writers import FILE  # noqa: E402

WAYS = (writers.rename, writers.rename_noreplace, writers.mv, writers.move)


class HandOver(writers.WriterTest):
    def setUp(self):
        self.steps = self.make_run(4)
        self.init()

    def hands_over(self, serve):
        mount = self.writer("--serve", serve)
        for version, (how, step) in enumerate(zip(WAYS, self.steps), 1):
            name = f"step-{version}"
            self.save(mount, step, name)
            self.hand_over(mount, name, how=how)
            self.assertNotIn(name, os.listdir(mount.join("staging")))
            self.assertEqual(self.wait(mount, "--tag", name), version)
            self.assert_same_tree(mount.join("versions", version), step)
            self.assertEqual(os.readlink(mount.join("tags", name)), f"../versions/{version}")
            self.assertEqual(mount.latest(), version)
        self.assertEqual(os.listdir(mount.join("staging")), [])
        self.assertEqual(os.listdir(mount.join("publish")), [])
        self.assertEqual(mount.status()["bytes"]["fetched"], 0)
        mount.umount()
        self.assert_clean()
        reader = self.mount(name="reader", store="reader-store")
        self.assert_same_tree(reader.join("latest/"), self.steps[-1])

    def test_every_way_to_move_hands_over_by_passthrough(self):
        self.hands_over("passthrough")

    def test_every_way_to_move_hands_over_by_the_daemon(self):
        self.hands_over("daemon")

    def test_a_directory_deep_in_staging_is_handed_over_under_another_name(self):
        mount = self.writer()
        os.makedirs(mount.join("staging/run/out"))
        self.save(mount, self.steps[0], "run/out/last")
        self.hand_over(mount, "run/out/last", "best")
        self.assertEqual(self.wait(mount, "--tag", "best"), 1)
        self.assertEqual(os.listdir(mount.join("staging/run/out")), [])

    def test_a_copy_into_publish_is_told_what_to_do_and_finds_no_older_error(self):
        mount = self.writer()
        self.save(mount, self.steps[0], "broken")
        harness.write_file(mount.staging("broken", FILE), b"no safetensors")
        self.refused(mount, "broken", errno.EBADMSG, FILE)
        done = subprocess.run(["cp", "-r", self.steps[0], mount.join("publish/step-1")],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Read-only file system", done.stderr)
        self.assertIn("mv staging/step-1 publish/step-1", self.last_error(mount))
        self.assertNotIn(FILE, self.last_error(mount))

    def test_the_staged_files_become_the_images(self):
        mount = self.writer()
        staged = self.save(mount, self.steps[0], "step-1")
        backing = os.path.join(mount.store, "staging")
        inodes = {os.stat(entry.path).st_ino for entry in os.scandir(backing) if entry.is_file()}
        self.assertEqual(len(inodes), len(os.listdir(staged)))
        self.hand_over(mount, "step-1")
        self.wait(mount, "--version", 1)
        images = os.path.join(mount.store, "images/1")
        self.assertEqual({os.stat(os.path.join(images, name)).st_ino
                          for name in os.listdir(images)}, inodes)
        self.assertEqual(mount.status()["bytes"]["fetched"], 0)
        with self.assertRaises(OSError):
            open(mount.join("versions/1", FILE), "r+b")

    # ---- refusals ----

    def test_a_bad_header_is_refused_in_every_way(self):
        mount = self.writer()
        self.save(mount, self.steps[0], "step-1")
        with open(mount.join("staging/step-1", FILE), "r+b") as file:
            file.write(b"\xff" * 8)
        for how in (writers.rename, writers.rename_noreplace, writers.mv):
            self.refused(mount, "step-1", errno.EBADMSG, "step-1", FILE, how=how)
        # It falls back to copying, which nobody can do there.
        self.refused(mount, "step-1", errno.EROFS, FILE, how=writers.move)
        self.assertIn(FILE, harness.read_file(os.path.join(mount.store, "weightfs.log")).decode())

    def test_a_missing_shard_is_refused_and_can_be_added(self):
        mount = self.writer()
        self.save(mount, self.steps[0], "step-1")
        os.unlink(mount.join("staging/step-1", FILE))
        for how in (writers.rename, writers.mv):
            self.refused(mount, "step-1", errno.ENODATA, FILE, how=how)
        shutil.copy(os.path.join(self.steps[0], FILE), mount.join("staging/step-1"))
        self.hand_over(mount, "step-1")
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)

    def test_an_open_descriptor_is_refused_with_its_pid(self):
        mount = self.writer()
        self.save(mount, self.steps[0], "step-1")
        with open(mount.join("staging/step-1", FILE), "r+b"):
            self.refused(mount, "step-1", errno.EBUSY, FILE, f"pid {os.getpid()}")
        self.hand_over(mount, "step-1")
        self.wait(mount, "--tag", "step-1")

    def test_what_is_no_checkpoint_is_refused(self):
        mount = self.writer()
        os.makedirs(mount.join("staging/empty"))
        self.refused(mount, "empty", errno.EBADMSG, "empty")
        self.save(mount, self.steps[0], "links")
        os.symlink("config.json", mount.join("staging/links/copy.json"))
        self.refused(mount, "links", errno.EBADMSG, "copy.json", "symlink")
        harness.write_file(mount.join("staging/file.safetensors"), b"")
        self.refused(mount, "file.safetensors", errno.EBADMSG, "only a directory")

    def test_a_bad_tag_is_refused(self):
        mount = self.writer()
        self.save(mount, self.steps[0], "step-1")
        for tag in (".hidden", "-flag", "x" * 201):
            self.refused(mount, "step-1", errno.EBADMSG, tag=tag)

    def test_nothing_can_be_made_in_publish(self):
        mount = self.writer()
        for make in (os.mkdir, lambda path: open(path, "w").close(),
                     lambda path: os.symlink("x", path)):
            with self.assertRaises(OSError) as raised:
                make(mount.join("publish/x"))
            self.assertEqual(raised.exception.errno, errno.EROFS)

    # ---- what is not published ----

    def test_what_is_not_published_comes_back(self):
        mount = self.writer()
        self.save(mount, self.steps[0], "step-1")
        harness.write_file(mount.join("staging/step-1/optimizer.pt"), b"state")
        harness.write_file(mount.join("staging/step-1/rank/0/rng.pth"), b"dice")
        self.hand_over(mount, "step-1")
        self.wait(mount, "--tag", "step-1")
        self.assertEqual(harness.hash_tree(mount.join("staging")),
                         {"step-1/optimizer.pt": harness.sha256(b"state"),
                          "step-1/rank/0/rng.pth": harness.sha256(b"dice")})
        self.assert_same_tree(mount.join("latest/"), self.steps[0])

    def test_what_is_not_published_comes_back_beside_a_name_that_is_taken(self):
        mount = self.writer()
        self.take_bucket_away()
        self.save(mount, self.steps[0], "last")
        harness.write_file(mount.join("staging/last/optimizer.pt"), b"state")
        self.hand_over(mount, "last", "step-1")
        self.save(mount, self.steps[1], "last")
        self.bring_bucket_back()
        self.wait(mount, "--tag", "step-1")
        self.assert_same_tree(mount.join("staging/last"), self.steps[1])
        self.assertEqual(harness.hash_tree(mount.join("staging/last.unpublished-1")),
                         {"optimizer.pt": harness.sha256(b"state")})

    def test_include_publishes_more(self):
        mount = self.writer("--include", "*.pt")
        self.save(mount, self.steps[0], "step-1")
        harness.write_file(mount.join("staging/step-1/optimizer.pt"), b"state")
        self.hand_over(mount, "step-1")
        self.wait(mount, "--tag", "step-1")
        self.assertEqual(harness.read_file(mount.join("latest/optimizer.pt")), b"state")
        self.assertEqual(os.listdir(mount.join("staging")), [])

    # ---- the queue ----

    def test_the_queue_is_shown_and_can_be_taken_back_and_removed(self):
        mount = self.writer()
        self.take_bucket_away()
        for i, step in enumerate(self.steps[:3], 1):
            self.save_and_hand_over(mount, step, f"step-{i}")
        self.assertEqual(sorted(os.listdir(mount.join("publish"))), ["step-1", "step-2", "step-3"])
        entry = self.wait_queue(mount, "step-1", "waiting")
        self.assertEqual((entry["tag"], entry["error"]["code"]), ("step-1", "unavailable"))
        self.assertEqual(mount.status()["queued"], ["step-1", "step-2", "step-3"])
        self.assertEqual(self.queue(mount)["step-3"]["state"], "queued")
        text = harness.run("status", mount.path).stdout
        self.assertIn("step-1: waiting for the bucket: ", text)
        self.assertIn("step-2: queued", text)
        self.assertIn("publish/step-3: ", text)
        self.refused_name(mount, "step-3")

        with self.assertRaises(OSError) as raised:
            open(mount.join("publish/step-1", FILE), "r+b")
        self.assertEqual(raised.exception.errno, errno.EROFS)
        self.assertEqual(harness.hash_tree(mount.join("publish/step-2")),
                         harness.hash_tree(self.steps[1]))

        os.rename(mount.join("publish/step-1"), mount.join("staging/again"))
        self.assert_same_tree(mount.join("staging/again"), self.steps[0])
        subprocess.run(["rm", "-r", mount.join("publish/step-2")], check=True)
        self.assertEqual(os.listdir(mount.join("publish")), ["step-3"])
        self.bring_bucket_back()
        self.assertEqual(self.wait(mount, "--tag", "step-3"), 1)
        self.assert_same_tree(mount.join("latest/"), self.steps[2])
        with open(mount.join("staging/again", FILE), "r+b"):
            pass  # it may be written again
        self.assertEqual(self.version_count(), 1)

    def refused_name(self, mount, name):
        """A name that is on its way is refused."""
        self.save(mount, self.steps[3], "other")
        with self.assertRaises(OSError) as raised:
            self.hand_over(mount, "other", name)
        self.assertEqual(raised.exception.errno, errno.EBUSY)
        self.assertIn("already being published", self.last_error(mount))

    def test_a_plain_mv_onto_a_name_that_is_taken_is_told_why(self):
        mount = self.writer()
        self.take_bucket_away()
        self.save_and_hand_over(mount, self.steps[0], "ck")
        self.save(mount, self.steps[1], "ck")
        self.moves_into(mount, "publish/ck is already being published")
        os.unlink(mount.join("publish/ck/config.json"))  # takes it back; the rest stays
        self.moves_into(mount, "publish/ck is what is left of a hand-over")
        with self.assertRaises(OSError) as raised:
            self.hand_over(mount, "ck")
        self.assertEqual(raised.exception.errno, errno.EBUSY)
        self.assertIn("move it back to staging/ or remove it", self.last_error(mount))
        done = harness.run("publish", mount.path, mount.join("staging/ck"), "--tag", "ck")
        self.assertEqual(done.returncode, 1)
        self.assertIn("publish/ck is what is left of a hand-over", done.stderr)
        shutil.rmtree(mount.join("publish/ck"))
        self.bring_bucket_back()
        self.hand_over(mount, "ck")
        self.assertEqual(self.wait(mount, "--tag", "ck"), 1)
        self.assert_same_tree(mount.join("latest/"), self.steps[1])

    def moves_into(self, mount, reason):
        """mv without -T tries publish/ck/ck, where publish/ck is there."""
        done = subprocess.run(["mv", mount.join("staging/ck"), mount.join("publish/ck")],
                              capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Device or resource busy", done.stderr)
        self.assertIn(reason, self.last_error(mount))
        self.assert_same_tree(mount.join("staging/ck"), self.steps[1])

    def test_a_rename_within_publish_is_told_what_to_do_and_finds_no_older_error(self):
        mount = self.writer()
        self.take_bucket_away()
        self.save_and_hand_over(mount, self.steps[0], "ck")
        for source, target in (("publish/ck", "publish/best"),
                               ("publish/ck/config.json", "publish/ck/c.json"),
                               ("publish/ck/config.json", "staging/config.json")):
            self.save(mount, self.steps[1], "other")
            with self.assertRaises(OSError) as raised:
                self.hand_over(mount, "other", "ck")
            self.assertEqual(raised.exception.errno, errno.EBUSY)
            with self.assertRaises(OSError) as raised:
                os.rename(mount.join(source), mount.join(target))
            self.assertEqual(raised.exception.errno, errno.EROFS)
            self.assertIn("mv publish/ck staging/ck", self.last_error(mount))
            self.assertNotIn("already being published", self.last_error(mount))
            shutil.rmtree(mount.join("staging/other"))
        self.assertEqual(list(self.queue(mount)), ["ck"])

    def test_status_tells_what_staging_holds(self):
        mount = self.writer()
        self.save(mount, self.steps[0], "step-1")
        staging = mount.status()["writer"]["staging"]
        self.assertEqual(staging["files"], len(os.listdir(self.steps[0])))
        self.assertEqual([(top["name"], top["handed_over"]) for top in staging["tops"]],
                         [("step-1", False)])
        self.assertGreater(staging["bytes"], 300_000)
        self.assertLess(staging["tops"][0]["age"], 600)
        self.assertIn("staging/step-1: ", harness.run("status", mount.path).stdout)


class PublishThroughAMount(writers.WriterTest):
    def setUp(self):
        self.steps = self.make_run(3)
        self.init()

    def test_a_directory_is_copied_and_published(self):
        mount = self.writer()
        source = self.steps[0]
        os.makedirs(os.path.join(source, "sub"))
        harness.write_file(os.path.join(source, "sub/notes.txt"), b"notes")
        os.symlink("sub/notes.txt", os.path.join(source, "linked.txt"))
        harness.write_file(os.path.join(source, "optimizer.pt"), b"state")
        harness.write_file(os.path.join(source, ".hidden.json"), b"{}")
        said = harness.call("publish", mount.path, source, "--tag", "step-1", "--meta", "loss=0.5")
        self.assertEqual((said["version"], said["tag"]), (1, "step-1"))
        self.assertEqual(said["path"], mount.join("versions/1"))
        self.assertEqual(said["unpublished"], ["optimizer.pt"])
        self.assertEqual(harness.call("show", self.url)["meta"], {"loss": "0.5"})
        expected = harness.hash_tree(source)
        for name in ("optimizer.pt", ".hidden.json"):
            del expected[name]
        self.assertEqual(harness.hash_tree(mount.join("latest/")), expected)
        self.assertEqual(os.listdir(mount.join("staging")), [])
        self.assertEqual(mount.status()["bytes"]["fetched"], 0)

    def test_without_a_tag_there_is_none(self):
        mount = self.writer()
        self.assertEqual(harness.call("publish", mount.path, self.steps[0])["version"], 1)
        self.assertEqual(os.listdir(mount.join("tags")), [])
        self.assertEqual(os.listdir(mount.join("publish")), [])

    def test_what_is_staged_is_handed_over_as_it_is(self):
        mount = self.writer()
        path = self.save(mount, self.steps[0], "mine")
        harness.write_file(os.path.join(path, "optimizer.pt"), b"state")
        inode = os.stat(os.path.join(path, FILE)).st_ino
        self.assertGreater(inode, 0)
        said = harness.call("publish", mount.path, path, "--tag", "step-1")
        self.assertEqual(said["left"], "mine")
        self.assertEqual(os.listdir(mount.join("staging/mine")), ["optimizer.pt"])
        self.assert_same_tree(mount.join("tags/step-1/"), self.steps[0])

    def test_refusals_have_words_and_leave_nothing(self):
        mount = self.writer()
        done = harness.run("publish", mount.path, mount.join("staging"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("staging", done.stderr)
        os.unlink(os.path.join(self.steps[0], FILE))
        done = harness.run("publish", mount.path, self.steps[0], "--tag", "step-1")
        self.assertEqual(done.returncode, 1)
        self.assertIn(FILE, done.stderr)
        done = harness.run("publish", mount.path, os.path.join(self.dir, "nothing"))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(os.listdir(mount.join("staging")), [])

    def test_a_readers_mount_takes_nothing(self):
        mount = self.mount()
        done = harness.run("publish", mount.path, self.steps[0], "--json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--writer", done.stderr)
        self.assertIn(self.url, done.stderr)
        self.assertEqual(self.version_count(), 0)

    def test_another_users_directory_is_not_handed_over(self):
        mount = self.writer("--staging-mode", "1777")
        self.save(mount, self.steps[0], "mine")
        socket = mount.status()["control"]
        asked = {"path": "mine", "name": "x", "meta": {}, "include": [], "snapshot": False,
                 "rebase": False}
        script = ("import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
                  "s.sendall(sys.argv[2].encode() + b'\\n')\nprint(s.makefile().read())")
        done = subprocess.run([sys.executable, "-c", script, socket,
                               harness.json.dumps({"hand_over": asked})],
                              capture_output=True, text=True, user=65534, group=65534,
                              extra_groups=[], check=True)
        error = harness.json.loads(done.stdout)["error"]
        self.assertEqual(error["code"], "permission")
        self.assertIn("belongs to uid 0", error["message"])
        self.assert_same_tree(mount.join("staging/mine"), self.steps[0])

    def test_options_that_are_the_mount_s_are_said_to_have_no_effect(self):
        mount = self.writer()
        done = harness.run("publish", mount.path, self.steps[0], "--snapshot-every", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--snapshot-every has no effect here", done.stderr)
        # What is set for all commands was meant for others.
        done = harness.run("publish", mount.path, self.steps[1],
                           variables={"WEIGHTFS_SNAPSHOT_EVERY": "8", "WEIGHTFS_GPU": "0"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("has no effect", done.stderr)

    def test_an_interrupted_copy_is_removed(self):
        mount = self.writer()
        with open(os.path.join(self.steps[0], "large.txt"), "wb") as file:
            file.truncate(2 << 30)
        publisher = harness.start("publish", mount.path, self.steps[0], "--json")
        self.addCleanup(publisher.kill)
        harness.wait_until(lambda: os.listdir(mount.join("staging")), "the copy to begin")
        publisher.send_signal(signal.SIGINT)
        out, err = publisher.communicate(timeout=60)
        self.assertEqual(publisher.returncode, 1, out + err)
        self.assertEqual(harness.json.loads(out)["error"]["code"], "cancelled")
        self.assertEqual(os.listdir(mount.join("staging")), [])
        self.assertEqual(os.listdir(mount.join("publish")), [])

    def test_an_interrupted_wait_leaves_the_hand_over_on_its_way(self):
        mount = self.writer()
        self.take_bucket_away()
        publisher = harness.start("publish", mount.path, self.steps[0], "--tag", "step-1")
        self.addCleanup(publisher.kill)
        harness.wait_until(lambda: os.listdir(mount.join("publish")), "the hand-over")
        publisher.send_signal(signal.SIGINT)
        _, err = publisher.communicate(timeout=60)
        self.assertEqual(publisher.returncode, 1)
        self.assertIn(f"weightfs wait {mount.path} --tag step-1", err)
        self.bring_bucket_back()
        self.assertEqual(self.wait(mount, "--tag", "step-1"), 1)
        self.assertEqual(os.listdir(mount.join("staging")), [])


class Wait(writers.WriterTest):
    def start_wait(self, mount, *condition):
        waiting = harness.start("wait", mount.path, *condition, "--json")
        self.addCleanup(waiting.kill)
        return waiting

    def ended(self, waiting):
        out, err = waiting.communicate(timeout=60)
        return waiting.returncode, harness.json.loads(out), err

    def test_every_form_on_a_readers_mount(self):
        steps = self.make_run(2)
        self.init()
        mount = self.mount()
        forms = [("--version", 1), ("--newer-than", 0), ("--tag", "first")]
        waiting = [self.start_wait(mount, *form) for form in forms]
        self.publish(steps[0], "--tag", "first")
        for one in waiting:
            code, said, err = self.ended(one)
            self.assertEqual((code, said["version"]), (0, 1), err)
            self.assertEqual(said["path"], mount.join("versions/1"))
        for form in forms:
            self.assertEqual(self.wait(mount, *form), 1)
        self.assertEqual(harness.run("wait", mount.path, "--version", 1).stdout,
                         f"version 1 is at {mount.join('versions/1')}\n")

    def test_what_does_not_come_times_out(self):
        steps = self.make_run(1)
        self.init()
        self.publish(steps[0])
        mount = self.mount()
        for form in (("--version", 2), ("--newer-than", 1), ("--tag", "nothing")):
            done = harness.run("wait", mount.path, *form, "--timeout", "0.05")
            self.assertEqual(done.returncode, 5)
            self.assertIn("version 1", done.stderr)

    def test_a_version_whose_files_are_gone_opens_by_its_name(self):
        steps = self.make_repository(3)
        mount = self.mount()  # a fresh one has only the newest
        for form in (("--version", 1), ("--tag", "step-1")):
            self.assertEqual(harness.call("wait", mount.path, *form)["version"], 1)
        self.assert_same_tree(mount.join("versions/1"), steps[0])

    def test_a_wait_can_be_stopped_in_any_way(self):
        self.init()
        mount = self.mount()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            waiting = self.start_wait(mount, "--version", 1)
            harness.wait_until(lambda: self.connections(mount) >= 2, "the wait to be connected")
            waiting.send_signal(number)
            waiting.communicate(timeout=60)
            self.assertEqual(waiting.returncode, -9 if number == signal.SIGKILL else 1)
            harness.wait_until(lambda: self.connections(mount) < 2, "the wait to be forgotten")

    def connections(self, mount):
        """Sockets of the daemon's that are bound to its control path: one listens."""
        socket = mount.status()["control"]
        with open("/proc/net/unix") as file:
            return sum(line.split()[-1].endswith(os.path.basename(socket)) for line in file)

    def test_the_end_of_the_daemon_ends_the_wait(self):
        self.init()
        mount = self.writer()
        waiting = self.start_wait(mount, "--version", 1)
        harness.wait_until(lambda: self.connections(mount) >= 2, "the wait to be connected")
        mount.process.kill()
        code, said, _ = self.ended(waiting)
        self.assertEqual((code, said["error"]["code"]), (1, "unavailable"))
        self.assertIn(f"weightfs mount --again {mount.path}", said["error"]["message"])
        mount.start()  # the stale socket is no hindrance
        self.assertEqual(harness.run("wait", mount.path, "--version", 1,
                                     "--timeout", "0.05").returncode, 5)

    def test_a_wait_for_what_is_taken_back_or_removed_ends(self):
        steps = self.make_run(1)
        self.init()
        mount = self.writer()
        self.take_bucket_away()
        for take_out in (lambda: os.rename(mount.join("publish/step-1"), mount.join("staging/x")),
                         lambda: shutil.rmtree(mount.join("publish/step-1"))):
            self.save_and_hand_over(mount, steps[0], "step-1")
            waiting = self.start_wait(mount, "--tag", "step-1")
            harness.wait_until(lambda: self.connections(mount) >= 2, "the wait to be connected")
            take_out()
            code, said, _ = self.ended(waiting)
            self.assertEqual((code, said["error"]["code"]), (1, "cancelled"))

    def test_a_wait_for_what_was_taken_back_finds_no_older_version_of_that_tag(self):
        steps = self.make_run(3)
        self.init()
        mount = self.writer()
        self.assertEqual(self.publish_through(mount, steps[0], "ck"), 1)
        self.take_bucket_away()
        self.save_and_hand_over(mount, steps[1], "ck")
        os.unlink(mount.join("publish/ck/config.json"))
        code, error = self.wait_ends(mount, "--tag", "ck")  # publish/ck is still there
        self.assertEqual((code, error["code"]), (1, "cancelled"))
        shutil.rmtree(mount.join("publish/ck"))
        code, error = self.wait_ends(mount, "--tag", "ck")
        self.assertEqual((code, error["code"]), (1, "cancelled"))
        self.bring_bucket_back()
        self.assertEqual(self.publish_through(mount, steps[2], "ck"), 2)
        self.assertEqual(self.wait(mount, "--tag", "ck"), 2)

    def test_usage(self):
        self.init()
        mount = self.mount()
        for form in ((), ("--tag", "a", "--version", 1), ("--tag", "../x"), ("--version", 0)):
            self.assertEqual(harness.run("wait", mount.path, *form).returncode, 2)


if __name__ == "__main__":
    harness.main()
