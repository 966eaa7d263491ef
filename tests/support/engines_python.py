"""The interpreters that scripts/engines.sh made, for tests of real engines.

That of vllm has all that hf has, so where both are there the tests of hf run in it too.
"""

import json
import os
import select
import subprocess
import sys

import harness
import savers

MODULES = os.path.join(harness.HERE, "engines")
PACKAGE = os.path.join(harness.ROOT, "scripts", "python")


def python_of(engine):
    """The interpreter that has this engine, "hf" or "vllm", whether it is there or not."""
    made = [os.path.join(harness.ROOT, "build", f"engines-{name}", "bin", "python")
            for name in (("vllm", "hf") if engine == "hf" else ("vllm",))]
    default = next(filter(os.path.exists, made), made[-1])
    return os.environ.get("WEIGHTFS_ENGINES_PYTHON", default)


PYTHON = python_of("hf")


def variables_with(more=()):
    """The binary is in the PATH as `weightfs`; tests/support/engines and the package can be
    imported. A thread for each process: beside other tests threads that wait for each other spin."""
    return {"PYTHONPATH": f"{MODULES}:{PACKAGE}", "OMP_NUM_THREADS": "1",
            "PATH": os.path.dirname(harness.BINARY) + ":" + os.environ["PATH"], **dict(more)}


def run(code, *arguments):
    """Runs code there; returns what it printed."""
    return savers.run_python(PYTHON, code, *arguments, variables=variables_with())


class Worker:
    """A process there that answers calls of a script's functions (engines/answers.py); it is of a session
    of its own, as an engine is, and ends with the workspace. `worker.load("x", path)` calls load."""

    SECONDS = 300  # for one answer; a machine may be busy

    def __init__(self, workspace, script, python=PYTHON, more=()):
        self.script = script
        log = os.path.join(workspace.path, script + ".log")
        workspace.logs.append(log)
        with open(log, "w") as errors:
            self.process = subprocess.Popen(
                [python, os.path.join(MODULES, script)], text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, start_new_session=True, cwd=workspace.path,
                env=harness.environment(variables_with(more)))
        workspace.processes.append(self)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def __getattr__(self, name):
        return lambda *arguments: self.call(name, *arguments)

    def call(self, name, *arguments):
        print(json.dumps([name, arguments]), file=self.process.stdin, flush=True)
        ready, _, _ = select.select([self.process.stdout], [], [], self.SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise AssertionError(f"{self.script}: {name}() has not answered: exit code "
                                 f"{self.process.poll()}, {self.SECONDS} s at most")
        reply = json.loads(line)
        if "error" in reply:
            raise AssertionError(f"{self.script}: {name}(): {reply['error']}")
        return reply["result"]


def main(engine="hf"):
    python = python_of(engine)
    if not os.path.exists(python):
        if os.environ.get("WEIGHTFS_ENGINES_REQUIRED") == "1":
            sys.exit(f"{python} does not exist: scripts/engines.sh {engine} makes it")
        print(f"skipped: {python} does not exist; scripts/engines.sh {engine} makes it")
        sys.exit(harness.SKIPPED)
    harness.main()
