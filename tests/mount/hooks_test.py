"""Engines are told every new version of a mount, load it from there, and are asked what they have."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
from hooked import QUICK, HookTest  # noqa: E402


class Hooks(HookTest, harness.MountTest):
    def follow(self, protocol, spec, steps):
        """Every version is told, loaded, and read back; returns mount and engine."""
        engine = self.engine(protocol)
        mount = self.mount("--hook", spec.format(engine.url) + QUICK, name=f"mnt-{protocol}",
                           store=f"store-{protocol}")
        for version, step in enumerate(steps, 1):
            if version > self.version_count():
                self.publish(step, "--tag", f"step-{version}")
            self.wait_reported(mount, self.version_count())
        self.assert_loaded(mount, engine, len(steps), steps[-1])
        self.assertEqual(engine.together_max, 1)
        return mount, engine

    def test_every_protocol_is_told_loads_and_reports(self):
        steps = self.make_run(4)
        self.init()
        self.publish(steps[0])
        mount, engine = self.follow("vllm", "vllm={}", steps[:2])
        self.assertEqual(engine.posts(), 2 * ["/pause", "/collective_rpc", "/reset_prefix_cache",
                                              "/update_weight_version", "/resume"])
        self.assertFalse(engine.is_paused)
        mount.umount()
        mount, engine = self.follow("sglang", "sglang={}", steps[:3])
        self.assertFalse(engine.is_paused)
        mount.umount()
        mount, engine = self.follow("http", "http={}/weights", steps[:4])
        body = [body for method, _, body, _ in engine.calls if method == "POST"][-1]
        self.assertEqual(body["url"], self.url)
        self.assertEqual(body["tag"], "step-4")
        mount.umount()
        mount, engine = self.follow("vllm-lora", "vllm-lora={},name=mine", steps[:4])
        self.assertEqual(engine.adapters, {"mine": mount.join("versions", 4)})

    def test_a_restarted_engine_is_brought_up(self):
        steps = self.make_repository(2)
        engine, old = self.engine("vllm"), self.engine("vllm-old")
        mount = self.mount("--hook", f"vllm={engine.url}{QUICK}", "--hook", f"vllm={old.url}{QUICK}")
        for i in range(2):
            self.wait_reported(mount, 2, i)
        for i, one in enumerate((engine, old)):
            one.stop()
            gone = self.wait_hook(mount, lambda hook: hook["state"] == "unreachable", "it to be gone", i)
            self.assertEqual(gone["reported"], None)
            one.forget()
            one.start()
            self.wait_reported(mount, 2, i)
            self.assert_loaded(mount, one, 2, steps[1])

    def test_a_failing_engine_holds_back_neither_the_mount_nor_the_other_engine(self):
        steps = self.make_run(3)
        self.init()
        self.publish(steps[0])
        bad, good = self.engine("vllm"), self.engine("sglang")
        bad.fail("/collective_rpc")
        mount = self.mount("--hook", f"vllm={bad.url}{QUICK}", "--hook", f"sglang={good.url}{QUICK}")
        for version, step in enumerate(steps[1:], 2):
            self.publish(step)
            mount.wait_version(version)
            self.wait_reported(mount, version, 1)
        self.assert_loaded(mount, good, 3, steps[2])
        failed = self.wait_hook(mount, lambda hook: hook["failures"] >= 2, "it to be tried again")
        self.assertEqual(failed["state"], "failed")
        self.assertEqual(failed["wanted"], 3)
        self.assertIn("/collective_rpc answers 500", failed["error"]["message"])
        self.assertTrue(bad.is_paused)  # it has no weights that could be computed with
        self.assertNotIn("/resume", bad.posts())
        self.assertIn("/collective_rpc answers 500",
                      harness.run("status", mount.path).stdout)
        bad.heal()
        self.wait_reported(mount, 3)
        self.assert_loaded(mount, bad, 3, steps[2])
        self.assertFalse(bad.is_paused)
        self.assertEqual(bad.died, "")

    def test_while_an_engine_loads_versions_go_on_and_its_own_stays(self):
        """It is told the newest next; what it loads is not removed, though the store has no room."""
        steps = self.make_run(5)
        self.init()
        self.publish(steps[0])
        engine = self.engine("vllm")
        engine.may_load.clear()
        mount = self.mount("--hook", f"vllm={engine.url}{QUICK}", "--store-size", "900K")
        self.wait_hook(mount, lambda hook: hook["state"] == "telling", "it to load")
        for version, step in enumerate(steps[1:], 2):
            self.publish(step)
            mount.wait_version(version)
        mount.wait_status(lambda status: status["versions"] == [1, 4, 5],
                          "the others to go: there is room for two")
        engine.may_load.set()
        self.wait_reported(mount, 5)
        self.assertEqual([path for path, _ in engine.loaded()],
                         [mount.join("versions", 1), mount.join("versions", 5)])
        self.assertEqual(engine.loaded()[0][1], harness.hash_tree(steps[0]))
        self.assert_loaded(mount, engine, 5, steps[4])
        self.publish(self.make_next(steps[4]))
        self.wait_reported(mount, 6)
        mount.wait_status(lambda status: status["versions"] == [5, 6], "the first to go")

    def test_a_telling_that_a_killed_daemon_began_is_done_again(self):
        self.make_repository(1)
        engine = self.engine("vllm")
        engine.may_load.clear()
        mount = self.mount("--hook", f"vllm={engine.url}{QUICK}")
        harness.wait_until(lambda: "/collective_rpc" in engine.posts(), "it to load")
        mount.process.kill()
        engine.may_load.set()
        engine.restart()
        engine.version, engine.is_paused = "1", True  # it had been labelled, but not resumed
        mount.start()
        self.wait_reported(mount, 1)
        self.assertFalse(engine.is_paused)

    def test_a_mount_does_not_wait_for_engines_that_are_not_there(self):
        self.make_repository(1)
        engine = self.engine("vllm")
        engine.stop()
        mount = self.mount("--hook", f"vllm={engine.url}{QUICK}")
        self.assertEqual(mount.latest(), 1)
        self.wait_hook(mount, lambda hook: hook["state"] == "unreachable", "it to be looked for")
        engine.start()
        self.wait_reported(mount, 1)

    def test_a_command_runs_once_for_each_version(self):
        steps = self.make_repository(1)
        log, script = os.path.join(self.dir, "log"), os.path.join(self.dir, "script")
        harness.write_file(script, f"""#!/bin/sh
[ -e {self.dir}/broken ] && {{ echo "it is broken"; exit 7; }}
sha256sum "$WEIGHTFS_PATH/config.json" | cut -c1-64 > {self.dir}/hash
echo "$1 $WEIGHTFS_VERSION $WEIGHTFS_TAG $WEIGHTFS_PATH" >> {log}
""".encode())
        os.chmod(script, 0o755)
        spec = f"exec={script} 'a b'"
        mount = self.mount(variables={"WEIGHTFS_HOOK": spec})
        self.wait_reported(mount, 1)
        mount.umount()
        mount.start()
        self.wait_reported(mount, 1)  # and does not run again
        harness.write_file(os.path.join(self.dir, "broken"), b"")
        self.publish(self.make_next(steps[0]))
        failed = self.wait_hook(mount, lambda hook: hook["state"] == "failed", "it to fail")
        self.assertEqual(failed["target"], script)
        self.assertEqual(failed["error"]["message"],
                         f"{script} ended with exit code 7: it is broken")
        os.unlink(os.path.join(self.dir, "broken"))
        self.wait_reported(mount, 2)
        self.assertEqual(harness.read_file(log).decode(),
                         f"a b 1 step-1 {mount.join('versions', 1)}\n"
                         f"a b 2  {mount.join('versions', 2)}\n")
        self.assertEqual(harness.read_file(os.path.join(self.dir, "hash")).decode().strip(),
                         harness.sha256(harness.read_file(mount.join("latest/config.json"))))

    def make_next(self, step):
        """The same checkpoint with other bytes."""
        folder = os.path.join(self.dir, "next")
        for name in os.listdir(step):
            data = harness.read_file(os.path.join(step, name))
            if name.endswith(".safetensors"):
                data = data[:-1] + bytes([data[-1] ^ 1])
            harness.write_file(os.path.join(folder, name), data)
        return folder

    def test_doctor_warns_of_an_engine_that_others_can_reach(self):
        self.make_repository(1)
        local, exposed = self.engine("vllm"), self.engine("vllm", host="0.0.0.0")
        mount = self.mount("--hook", f"vllm={local.url}{QUICK}", "--hook",
                           f"vllm={exposed.url}{QUICK}")
        self.wait_reported(mount, 1, 1)
        warnings = [warning for warning in harness.call("doctor")["warnings"]
                    if warning.startswith(mount.path)]
        self.assertEqual(len(warnings), 1, warnings)
        self.assertIn(f"the vllm engine http://127.0.0.1:{exposed.port} listens on port {exposed.port} ",
                      warnings[0])
        self.assertIn("--host 127.0.0.1", warnings[0])


if __name__ == "__main__":
    harness.main()
