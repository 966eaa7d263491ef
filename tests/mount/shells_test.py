"""Man pages and completions, by the programs that read them. No mount, and no root, is needed."""

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402


def run(*command, **more):
    return subprocess.run(command, text=True, capture_output=True, timeout=60, **more)


class ManPages(unittest.TestCase):
    def test_they_render_without_a_warning(self):
        with tempfile.TemporaryDirectory() as folder:
            said = harness.call("help", "--man", folder)
            pages = sorted(glob.glob(folder + "/*"))
            self.assertEqual(sorted(said["pages"]), [os.path.basename(page) for page in pages])
            self.assertIn(folder + "/mount.weightfs.8", pages)
            for page in pages:
                shown = run("man", "-l", "--warnings", page, env={
                    **os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "PAGER": "cat"})
                self.assertEqual((shown.returncode, shown.stderr), (0, ""), page)
                self.assertIn("EXAMPLE", shown.stdout)
            self.assertIn("--store-size", run("man", "-l", folder + "/weightfs-mount.1").stdout)

    def test_a_folder_that_is_absent_is_an_error(self):
        self.assertIn("/absent", harness.run("help", "--man", "/absent").stderr)


class Completions(unittest.TestCase):
    def bash(self, line):
        """What bash offers at the end of a line."""
        words = line.split(" ")
        script = (f"source <({harness.BINARY} completion bash)\n"
                  f"compopt() {{ :; }}\n"
                  f"COMP_WORDS=({' '.join(repr(word) for word in words)})\n"
                  f"COMP_CWORD={len(words) - 1}\n_weightfs\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
        done = run("bash", "-euc", script)
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        return done.stdout.split()

    def test_bash_offers_commands_options_values_and_folders(self):
        self.assertIn("publish", self.bash("weightfs pu"))
        self.assertEqual(self.bash("weightfs mou"), ["mount"])
        self.assertEqual(self.bash("weightfs mount --store-s"), ["--store-size"])
        self.assertEqual(self.bash("weightfs mount --skips "), ["yes", "no"])
        self.assertEqual(self.bash("weightfs mount --skips = n"), ["no"])
        self.assertEqual(self.bash("weightfs --json help mou"), ["mount"])
        self.assertEqual(self.bash("weightfs completion z"), ["zsh"])
        self.assertEqual(self.bash("weightfs mount --store /us"), ["/usr"])
        self.assertEqual(self.bash("weightfs umount /us"), ["/usr"])

    def test_every_shell_takes_its_script(self):
        for shell in ("bash", "zsh", "fish"):
            script = harness.run("completion", shell).stdout
            done = run(shell, "-n", input=script)
            self.assertEqual((done.returncode, done.stderr), (0, ""), shell)
            self.assertIn("store-size", script)

    def test_zsh_loads_it(self):
        done = run("zsh", "-fc", "autoload -Uz compinit && compinit -D -u && "
                   f"source <({harness.BINARY} completion zsh) && print $_comps[weightfs]")
        self.assertEqual((done.stdout, done.stderr), ("_weightfs\n", ""))

    def test_fish_offers_commands_and_options(self):
        with tempfile.TemporaryDirectory() as home:
            def offered(line):
                script = f"{harness.BINARY} completion fish | source; complete -C '{line}'"
                done = run("fish", "-c", script, env={**os.environ, "HOME": home})
                self.assertEqual(done.stderr, "", line)
                return [row.split("\t")[0] for row in done.stdout.splitlines()]
            self.assertEqual(offered("weightfs mou"), ["mount"])
            self.assertEqual(offered("weightfs mount --store-s"), ["--store-size"])
            self.assertEqual(sorted(offered("weightfs mount --skips ")), ["no", "yes"])

    def test_another_shell_is_an_error(self):
        done = harness.run("completion", "tcsh", "--json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("not bash, zsh or fish", json.loads(done.stdout)["error"]["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
