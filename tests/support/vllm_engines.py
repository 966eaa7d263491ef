"""Real engines of vLLM on the CPU: `vllm serve`, and the offline one as the measure of what is right.

What an engine has is compared as {"tokens": of a greedy answer, "logprobs": of these tokens, "checksums":
{tensor: SHA-256}}. On a CPU vLLM keeps most weights only packed for its kernels, and their
checksum is that of nothing. So it is the log-probabilities, equal to the last bit, which all weights
have a part in.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request

import engines_python
import harness

sys.path.insert(0, engines_python.MODULES)
import plain_weights  # noqa: E402

PYTHON = engines_python.python_of("vllm")
PROMPT = [1, 2, 3, 4, 5, 6]
TOKENS = 24
NOTHING = harness.sha256(b"")
PACKAGE = os.path.join(harness.ROOT, "scripts", "python")

CACHE = os.path.join(os.path.dirname(os.path.dirname(PYTHON)), "cache")  # what it found out about classes
VARIABLES = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def variables(workspace, **more):
    """One thread, and not bound to a core: two engines side by side compute the same on every machine.
    Nothing is left outside of the workspace and the environment."""
    return {**VARIABLES, "VLLM_CACHE_ROOT": CACHE, "VLLM_RPC_BASE_PATH": workspace.path, **more}


class Offline(engines_python.Worker):
    """One process, one engine at a time: make_steps(folders), load(path, strategy), reload(path)."""

    def __init__(self, workspace, **more):
        super().__init__(workspace, "vllm_worker.py", PYTHON,
                         variables(workspace, VLLM_ENABLE_V1_MULTIPROCESSING="0", **more))

    def look(self):
        return self.call("look", PROMPT, TOKENS)

    def fresh(self, path, strategy=None):
        """What a new engine has that serves this directory."""
        self.load(path, strategy)
        return self.look()


def installed(workspace):
    """Variables with which Python finds scripts/python as if it were installed, with its entry point; and the
    plug-ins of the tests, which do nothing unless they are told to."""
    metadata = os.path.join(workspace.path, "plugins", "weightfs-0.dist-info")
    os.makedirs(metadata, exist_ok=True)
    with open(os.path.join(PACKAGE, "pyproject.toml"), "rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["vllm.general_plugins"]
    points = {**points, "plain_weights": "plain_weights:register",
              "meddling": "meddling:register"}
    with open(os.path.join(metadata, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: weightfs\nVersion: 0\n")
    with open(os.path.join(metadata, "entry_points.txt"), "w") as file:
        file.write("[vllm.general_plugins]\n")
        file.writelines(f"{name} = {value}\n" for name, value in points.items())
    return {"PYTHONPATH": os.pathsep.join([engines_python.MODULES, PACKAGE, os.path.dirname(metadata)])}


class Stream:
    """With `with`: one long answer, token by token. `times`: when each came."""

    def __init__(self, served, count, prompt=(3, 1, 2)):
        self.body = {"model": "tiny", "prompt": list(prompt), "max_tokens": count, "temperature": 0,
                     "ignore_eos": True, "stream": True, "return_token_ids": True}
        self.port, self.times, self.tokens, self.error = served.port, [], [], None
        self.finish_reason, self.ended = None, threading.Event()
        self.thread = threading.Thread(target=self.ask)

    def ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", "/v1/completions", json.dumps(self.body),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            while not self.ended.is_set():
                line = reply.readline().strip()
                if line in (b"data: [DONE]", b""):
                    if line or reply.closed or reply.isclosed():
                        break
                    continue
                choice, = json.loads(line.removeprefix(b"data: "))["choices"]
                self.times.append(time.perf_counter())
                self.tokens += choice["token_ids"] or []
                self.finish_reason = choice["finish_reason"]
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            self.error = error
        finally:
            connection.close()

    def wait_tokens(self, more):
        """Until so many more have come."""
        wanted = len(self.times) + more
        harness.wait_until(lambda: len(self.times) >= wanted or not self.thread.is_alive(), "tokens", 120)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Client:
    """With `with`: asks a server for one completion after another. Each must be whole."""

    COUNT = 50

    def __init__(self, served):
        self.served, self.answers, self.error = served, 0, None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.ask)

    def ask(self):
        try:
            while not self.ended.is_set():
                answer = self.served.complete([3, 1, 2], self.COUNT)
                assert (len(answer["token_ids"]), answer["finish_reason"]) == (self.COUNT, "length"), answer
                self.answers += 1
        except (AssertionError, OSError, http.client.HTTPException) as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


class Served:
    """`vllm serve`. The port is known before it starts, as the hook of a mount needs it."""

    SECONDS = 300  # for its start; usually 25

    def __init__(self, workspace):
        self.workspace, self.port = workspace, free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self, path, *options, **more):
        """`more`: variables."""
        log = os.path.join(self.workspace.path, f"vllm-{len(self.workspace.logs)}.log")
        self.workspace.logs.append(log)
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                [os.path.join(os.path.dirname(PYTHON), "vllm"), "serve", path, "--host", "127.0.0.1",
                 "--port", str(self.port), "--served-model-name", "tiny", "--dtype", "bfloat16",
                 "--max-model-len", "64", "--max-num-seqs", "4", "--enforce-eager",
                 "--kv-cache-memory-bytes", str(16 << 20), *options],
                stdout=output, stderr=output, start_new_session=True, cwd=self.workspace.path,
                env=harness.environment(variables(self.workspace, VLLM_SERVER_DEV_MODE="1", **more)))
        self.workspace.processes.append(self)

    def start_in_place(self, path, *options, **more):
        """It takes changes in place: with weights as they are in the checkpoint."""
        self.start(path, "--weight-transfer-config", '{"backend": "weightfs"}', "--worker-extension-cls",
                   "weightfs.vllm.backend.WorkerExtension", *options,
                   **{**installed(self.workspace), plain_weights.WANTED: "1", **more})

    def rpc(self, method, *arguments, **named):
        """Of each rank."""
        return self.call("/collective_rpc", {"method": method, "args": arguments, "kwargs": named})["results"]

    def close(self):
        """The server and its engine's process, which are a session."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def check(self):
        """Raises if it has ended."""
        if self.process.poll() is not None:
            raise AssertionError(f"vllm serve has ended: exit code {self.process.returncode}")

    def is_ready(self):
        self.check()
        try:
            self.call("/health")
            return True
        except (OSError, http.client.HTTPException):
            return False

    def wait_ready(self):
        harness.wait_until(self.is_ready, "vllm serve to start", self.SECONDS)

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.loads(reply.read() or b"null")

    def complete(self, prompt, count):
        return self.call("/v1/completions", {
            "model": "tiny", "prompt": prompt, "max_tokens": count, "temperature": 0,
            "ignore_eos": True, "logprobs": 1, "return_token_ids": True})["choices"][0]

    def look(self):
        """Nobody else may ask meanwhile: in one batch with others the last bits are not the same."""
        answer = self.complete(PROMPT, TOKENS)
        return {"tokens": answer["token_ids"], "logprobs": answer["logprobs"]["token_logprobs"],
                "checksums": self.call("/weight_checker", {"action": "checksum"})["checksums"]}
