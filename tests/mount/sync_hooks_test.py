"""Engines follow a directory of ordinary files, told by a sync without privileges."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
from hooked import QUICK, HookTest  # noqa: E402
from synced import USER, Service, SyncTest, run  # noqa: E402

PARAMS = 20_000


class SyncHooks(HookTest, SyncTest):
    def sync(self, *specs, options=()):
        """A running sync with these hooks, that is ready."""
        hooks = [word for spec in specs for word in ("--hook", spec)]
        service = Service(self, *hooks, *options)
        service.ready()
        return service

    def begin(self, versions, published=1):
        """The checkpoints of a run, of which the first ones are published."""
        steps = self.make_run(versions, PARAMS)
        self.init()
        for step in steps[:published]:
            self.publish(step)
        return steps

    def test_engines_load_each_version_from_the_directory(self):
        steps = self.begin(3, published=0)
        log, script = os.path.join(self.home, "log"), os.path.join(self.home, "script")
        harness.write_file(script, f"""#!/bin/sh
echo "$(id -u) $WEIGHTFS_VERSION $WEIGHTFS_TAG $WEIGHTFS_PATH $WEIGHTFS_MOUNTPOINT" >> {log}
[ -f "$WEIGHTFS_PATH/config.json" ]
""".encode())
        os.chmod(script, 0o755)
        engine = self.engine("vllm")
        service = self.sync(f"vllm={engine.url}{QUICK}", f"exec={script}")
        self.assertEqual({hook["state"] for hook in service.status()["hooks"]}, {"idle"})
        for version, step in enumerate(steps, 1):
            self.publish(step, "--tag", f"step-{version}")
            for i in range(2):
                self.wait_reported(service, version, i)
        self.assertEqual([path for path, _ in engine.loaded()],
                         [self.join("versions", version) for version in (1, 2, 3)])
        self.assert_loaded(service, engine, 3, steps[2])
        self.assertEqual(engine.together_max, 1)
        text = harness.run("status", self.path).stdout
        self.assertIn(f"vllm {engine.url}: current, version 3", text)

        self.assertEqual(service.stop(), 0)
        engine.restart()
        service = self.sync(f"vllm={engine.url}{QUICK}", f"exec={script}")
        for i in range(2):
            self.wait_reported(service, 3, i)
        self.assert_loaded(service, engine, 3, steps[2])
        self.assertEqual(harness.read_file(log).decode().splitlines(),  # once for each version
                         [f"{USER} {version} step-{version} {self.join('versions', version)} "
                          f"{self.path}" for version in (1, 2, 3)])

    def test_a_failing_engine_holds_back_neither_the_directory_nor_the_other_engine(self):
        steps = self.begin(3)
        bad, good = self.engine("sglang"), self.engine("http")
        bad.fail("/update_weights_from_disk")
        service = self.sync(f"sglang={bad.url}{QUICK}", f"http={good.url}/weights{QUICK}")
        for version, step in enumerate(steps[1:], 2):
            self.publish(step)
            self.wait_reported(service, version, 1)
            self.assertEqual(self.latest(), version)
        self.assert_loaded(service, good, 3, steps[2])
        failed = self.wait_hook(service, lambda hook: hook["failures"] >= 2, "it to be tried again")
        self.assertEqual((failed["state"], failed["wanted"]), ("failed", 3))
        self.assertIn("answers 500", failed["error"]["message"])
        bad.heal()
        self.wait_reported(service, 3)
        self.assert_loaded(service, bad, 3, steps[2])

        bad.stop()
        self.wait_hook(service, lambda hook: hook["state"] == "unreachable", "it to be gone")
        bad.forget()
        bad.start()
        self.wait_reported(service, 3)
        self.assert_loaded(service, bad, 3, steps[2])

    def test_what_an_engine_loads_and_has_stays(self):
        """It is told the newest next; what was removed meanwhile is what nobody had."""
        steps = self.begin(6)
        engine = self.engine("vllm")
        engine.may_load.clear()
        service = self.sync(f"vllm={engine.url}{QUICK}", options=self.room_for_two(steps[0]))
        self.wait_hook(service, lambda hook: hook["state"] == "telling", "it to load")
        for version, step in enumerate(steps[1:5], 2):
            self.publish(step)
            self.wait_latest(version)
        service.wait_status(lambda status: status["versions"] == [1, 4, 5], "the others to go")
        engine.may_load.set()
        self.wait_reported(service, 5)
        self.assertEqual([(path, hashes) for path, hashes in engine.loaded()],
                         [(self.join("versions", version), harness.hash_tree(steps[version - 1]))
                          for version in (1, 5)])
        self.publish(steps[5])
        self.wait_reported(service, 6)
        service.wait_status(lambda status: status["versions"] == [5, 6], "the first to go")
        self.assertEqual(sorted(os.listdir(self.join("versions"))), ["5", "6"])

    def test_a_sync_that_ends_while_an_engine_loads(self):
        """SIGTERM does not wait for the engine; the next sync tells it again."""
        steps = self.begin(1)
        engine = self.engine("vllm")
        engine.may_load.clear()
        service = self.sync(f"vllm={engine.url}{QUICK}")
        harness.wait_until(lambda: "/collective_rpc" in engine.posts(), "it to load")
        self.assertEqual(service.stop(), 0)
        engine.may_load.set()
        engine.restart()
        engine.version, engine.is_paused = "1", True  # it had been labelled, but not resumed
        service = self.sync(f"vllm={engine.url}{QUICK}")
        self.wait_reported(service, 1)
        self.assertFalse(engine.is_paused)
        self.assert_loaded(service, engine, 1, steps[0])

    def script(self, body):
        path = os.path.join(self.home, "script")
        harness.write_file(path, f"#!/bin/sh\n{body}".encode())
        os.chmod(path, 0o755)
        return path

    def test_a_command_that_a_killed_sync_left_is_ended_before_the_next_one_runs(self):
        """It has a process group of its own, so it does not end with what was killed."""
        self.begin(1)
        runs, go = os.path.join(self.home, "runs"), os.path.join(self.home, "go")
        # It begins with a moment in which the sync records it; a kill before that nobody can see from here.
        script = self.script(f"sleep 0.5\necho $$ >> {runs}\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")

        def pids():
            return harness.read_file(runs).decode().split() if os.path.exists(runs) else []

        def is_running(pid):
            try:
                stat = harness.read_file(f"/proc/{pid}/stat").decode()
            except OSError:
                return False
            return stat.rpartition(")")[2].split()[0] not in "ZX"

        service = self.sync(f"exec={script}")
        harness.wait_until(lambda: len(pids()) == 1, "it to run")
        service.kill()
        self.assertTrue(is_running(pids()[0]))
        service = self.sync(f"exec={script}")
        harness.wait_until(lambda: len(pids()) == 2, "it to run again")
        self.assertEqual([is_running(pid) for pid in pids()], [False, True])
        harness.write_file(go, b"")
        self.wait_reported(service, 1)
        self.assertEqual(len(pids()), 2)

    def test_a_command_that_fails_is_seen_where_children_are_ignored(self):
        """SIG_IGN of SIGCHLD is inherited, and makes the kernel throw exit codes away."""
        self.begin(1)
        script = self.script("echo it is broken; exit 7\n")
        service = Service(self, "--hook", f"exec={script}", under=("/usr/bin/env", "--ignore-signal=CHLD"))
        service.ready()
        failed = self.wait_hook(service, lambda hook: hook["state"] == "failed", "it to fail")
        self.assertEqual(failed["error"]["message"], f"{script} ended with exit code 7: it is broken")

    def test_an_engine_with_the_weights_of_another_run_is_told_though_the_number_is_the_same(self):
        steps = self.begin(1)
        engine = self.engine("vllm")
        engine.version = "1"  # as another store left it
        service = self.sync(f"vllm={engine.url}{QUICK}")
        self.wait_reported(service, 1)
        self.assert_loaded(service, engine, 1, steps[0])
        service.stop()
        service = self.sync(f"vllm={engine.url}{QUICK},timeout=60,inplace=no")
        self.wait_reported(service, 1)
        self.assertEqual(len(engine.loaded()), 1)  # other options are no reason to

    def test_doctor_of_the_directory_warns_of_an_engine_that_others_can_reach(self):
        self.begin(1)
        exposed = self.engine("vllm", host="0.0.0.0")
        service = self.sync(f"vllm={exposed.url}{QUICK}")
        self.wait_reported(service, 1)

        def warnings():
            found = harness.json.loads(run("doctor", self.path, "--json").stdout)["warnings"]
            return [warning for warning in found if warning.startswith(self.path)]

        self.assertEqual(len(warnings()), 1)
        self.assertIn(f"the vllm engine http://127.0.0.1:{exposed.port} listens on port {exposed.port} ",
                      warnings()[0])
        service.stop()
        self.assertEqual(warnings(), [])


if __name__ == "__main__":
    if not os.path.exists(harness.BINARY):
        sys.exit(f"{harness.BINARY} does not exist; WEIGHTFS_BIN names the binary")
    print(f"seed: WEIGHTFS_TEST_SEED={harness.SEED}", flush=True)
    unittest.main(verbosity=2)
