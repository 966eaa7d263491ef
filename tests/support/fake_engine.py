#!/usr/bin/python3
"""Engines that are none: servers that speak the protocols of vLLM, SGLang, vLLM's LoRA adapters, or
of `http=`, record every call, load what they are told, and fail on demand.

    fake_engine.py PROTOCOL [--port N] [--host ADDRESS]       prints its URL; ends with its input

Loading means: every file below the directory is read and hashed, once through read(2) and the
safetensors once more through mmap, and both must agree. `engine.loads` has, in order, what was
loaded: (path, {file: sha256}).

In a test: `with FakeEngine("vllm") as engine`. `engine.fail("/collective_rpc", 500)` makes a path
fail until `engine.heal()`; `engine.restart()` is another process under the same port: it reports no
version of ours and is not paused; `stop()` leaves the port closed.
"""

import argparse
import hashlib
import json
import mmap
import os
import socket
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def hash_file(path):
    with open(path, "rb") as file:
        data = file.read()
        digest = hashlib.sha256(data).hexdigest()
        if path.endswith(".safetensors"):
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
                if hashlib.sha256(mapping).hexdigest() != digest:
                    raise OSError(f"{path} reads and maps as different bytes")
    return digest


def load(folder):
    """{relative path: sha256} of everything below the directory."""
    hashes = {}
    for parent, _, names in os.walk(folder, onerror=lambda error: raise_(error)):
        for name in names:
            path = os.path.join(parent, name)
            hashes[os.path.relpath(path, folder)] = hash_file(path)
    if not hashes:
        raise OSError(f"{folder} is empty")
    return hashes


def raise_(error):
    raise error


class Failure(Exception):
    """An answer that is none of success."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status, self.text = status, text


# ---- protocols: {(method, path): handler(engine, query, body) -> JSON} ------------------------------

def pause(engine, query, body):
    engine.is_paused = True
    return {"status": "paused"}


def resume(engine, query, body):
    if engine.is_broken:
        engine.died = "it was resumed between two versions"
    engine.is_paused = False
    return {"status": "resumed"}


def collective_rpc(engine, query, body):
    if body["method"] != "reload_weights":
        raise Failure(400, f"no method {body['method']}")
    engine.load(body["kwargs"]["weights_path"])
    return {"results": [None]}


def update_weight_version(engine, query, body):
    engine.version = body["new_version"]
    return {"success": True, "new_version": engine.version}


def update_from_disk(engine, query, body):
    engine.load(body["model_path"])
    engine.version = body["weight_version"]
    return {"success": True, "message": "loaded", "num_paused_requests": 0}


def tell_http(engine, query, body):
    engine.load(body["path"])
    engine.version = body["version"]
    return {"version": engine.version}


def load_adapter(engine, query, body):
    if body["lora_name"] in engine.adapters and not body.get("load_inplace"):
        raise Failure(400, "has already been loaded")
    engine.load(body["lora_path"])
    engine.adapters[body["lora_name"]] = body["lora_path"]
    return {}


def unload_adapter(engine, query, body):
    if engine.adapters.pop(body["lora_name"], None) is None:
        raise Failure(404, "cannot be found")
    return {}


def models(engine, query, body):
    cards = [{"id": name, "root": path} for name, path in engine.adapters.items()]
    return {"object": "list", "data": [{"id": "base", "root": "/base"}, *cards]}


def success(engine, query, body):
    return {"success": True}


VLLM = {
    ("POST", "/pause"): pause,
    ("POST", "/collective_rpc"): collective_rpc,
    ("POST", "/reset_prefix_cache"): success,
    ("POST", "/update_weight_version"): update_weight_version,
    ("POST", "/resume"): resume,
    ("GET", "/is_paused"): lambda engine, query, body: {"is_paused": engine.is_paused},
    ("GET", "/weight_info"): lambda engine, query, body: {"weight_version": engine.version},
    ("GET", "/v1/models"): models,
    ("POST", "/v1/load_lora_adapter"): load_adapter,
    ("POST", "/v1/unload_lora_adapter"): unload_adapter,
}

PROTOCOLS = {
    "vllm": VLLM,
    "vllm-lora": VLLM,
    # A release before labels: what it has cannot be asked.
    "vllm-old": {key: handler for key, handler in VLLM.items()
                 if key[1] not in ("/update_weight_version", "/weight_info")},
    "sglang": {
        ("POST", "/pause_generation"): pause,
        ("POST", "/update_weights_from_disk"): update_from_disk,
        ("POST", "/continue_generation"): resume,
        ("GET", "/model_info"):
            lambda engine, query, body: {"model_path": "/m", "weight_version": engine.version},
    },
    "http": {
        ("POST", "/weights"): tell_http,
        ("GET", "/weights"): lambda engine, query, body: {"version": engine.version},
    },
}


# ---- the server ----------------------------------------------------------------------------------

class Server(ThreadingHTTPServer):
    """Its connections end with it, as those of a process do."""

    daemon_threads = True

    def __init__(self, address, engine):
        self.engine, self.connections = engine, set()
        super().__init__(address, Handler)

    def process_request(self, request, client_address):
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.connections.discard(request)
        super().shutdown_request(request)

    def end(self):
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has just ended

    def handle_error(self, request, client_address):
        pass  # the other side may go away at any time


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer("GET")

    def do_POST(self):
        self.answer("POST")

    def answer(self, method):
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        status, reply = self.server.engine.handle(method, self.path, body)
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class FakeEngine:
    """One engine. Everything it remembers may be read at any time."""

    def __init__(self, protocol, port=0, host="127.0.0.1"):
        self.handlers = PROTOCOLS[protocol]
        self.host, self.port = host, port
        self.lock = threading.Lock()  # guards calls, failures and busy
        self.calls = []  # (method, path with query, body, time.time()), oldest first
        self.failures = {}  # path: HTTP status
        self.busy, self.together_max = 0, 0  # tellings at the same time
        self.may_load = threading.Event()  # cleared: loading waits
        self.may_load.set()
        self.forget()
        self.start()

    def forget(self):
        """As after a start."""
        self.version, self.is_paused, self.is_broken, self.died = "default", False, False, ""
        self.adapters, self.loads = {}, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.may_load.set()
        self.stop()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        self.server = Server((self.host, self.port), self)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        if self.server:
            self.server.end()
            self.server = None

    def restart(self):
        self.stop()
        self.forget()
        self.start()

    def fail(self, path, status=500):
        with self.lock:
            self.failures[path] = status

    def heal(self):
        with self.lock:
            self.failures.clear()

    def posts(self):
        """Paths of what was posted, without queries."""
        with self.lock:
            return [path.split("?")[0] for method, path, _, _ in self.calls if method == "POST"]

    def loaded(self):
        return list(self.loads)

    def load(self, folder):
        """A reload is not transactional: until it is done there are no weights."""
        self.is_broken = True
        self.may_load.wait(60)
        self.loads.append((folder, load(folder)))
        self.is_broken = False

    def handle(self, method, target, body):
        url = urllib.parse.urlsplit(target)
        with self.lock:
            self.calls.append((method, target, body, time.time()))
            status = self.failures.get(url.path)
            self.busy += method == "POST"
            self.together_max = max(self.together_max, self.busy)
        try:
            handler = self.handlers.get((method, url.path))
            if handler is None:
                return 404, {"detail": "Not Found"}
            if status:
                raise Failure(status, "it was told to fail")
            return 200, handler(self, urllib.parse.parse_qs(url.query), body)
        except Failure as failure:
            return failure.status, {"error": failure.text}
        except (OSError, KeyError, ValueError) as error:
            return 500, {"error": repr(error)}
        finally:
            with self.lock:
                self.busy -= method == "POST"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("protocol", choices=PROTOCOLS)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    args = parser.parse_args()
    with FakeEngine(args.protocol, args.port, args.host) as engine:
        print(engine.url, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
