"""A Hugging Face Hub over a directory, and the host that it redirects to, each on a port of its own.

    hub = FakeHub(folder)          # FOLDER/org/model/<commit>/path
    hub.variables()                # the environment of a client
    hub.token = "hf_x"             # required from now on
    hub.hold(name)                 # reads of such a file wait ...
    hub.release()                  # ... until now
    hub.fail(503)                  # every request gets this status, until release()
    hub.damage(name, 5000)         # a bit of that byte is another one
    hub.cut = True                 # bodies end in their middle
    hub.reads                      # (path, begin, end) of what the other host was asked for
    hub.asked                      # what the Hub itself was asked for: "HEAD /org/..."

`.safetensors` are in large file storage: HEAD and GET are redirected to a signed URL. The other host
must never see an Authorization: `leaks` has those that it saw. Ends with close().
"""

import hashlib
import http.server
import os
import re
import threading
import urllib.parse

from slow_bucket import QuietServer

MODEL = "org/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BASE = f"hub:{MODEL}@{COMMIT}"


class FakeHub:
    """Threads: all calls may run in parallel with the servers'."""

    def __init__(self, folder):
        self.folder = folder
        self.token = None
        self.reads, self.asked, self.leaks = [], [], []
        self.damages = {}  # (name of a file, byte)
        self.held = set()
        self.status = None  # of every answer; None: the right one
        self.cut = False
        self.is_closed = False
        self.changed = threading.Condition()
        self.links = self.serve(Link)
        self.hub = self.serve(Hub)

    def serve(self, kind):
        class Handler(kind):
            fake = self

        server = QuietServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def close(self):
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        for server in (self.hub, self.links):
            server.shutdown()
            server.server_close()

    def variables(self):
        return {"HF_ENDPOINT": f"http://127.0.0.1:{self.hub.server_port}", "AWS_MAX_ATTEMPTS": "2",
                "HF_HOME": os.path.join(self.folder, "no-home"),
                **({"HF_TOKEN": self.token} if self.token else {})}

    def path(self, name):
        return os.path.join(self.folder, MODEL, COMMIT, name)

    def hold(self, name):
        with self.changed:
            self.held.add(name)

    def fail(self, status):
        with self.changed:
            self.status = status

    def damage(self, name, at):
        with self.changed:
            self.damages[name] = at

    def release(self):
        with self.changed:
            self.held.clear()
            self.damages.clear()
            self.status = None
            self.cut = False
            self.changed.notify_all()

    def arrive(self, name):
        """Waits as long as the file is held."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_closed or name not in self.held)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake = None

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        try:
            self.answer(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path))
        except ConnectionError:
            self.close_connection = True  # a client that was stopped

    def send(self, status, headers=(), body=b""):
        self.send_response(status)
        names = [name for name, _ in headers]
        for name, value in headers:
            self.send_header(name, value)
        if "Content-Length" not in names:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fake.cut and status == 206 and len(body) > 1:
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def send_range(self, path, name):
        size = os.path.getsize(path)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        if asked and begin >= size:
            return self.send(416, [("Content-Range", f"bytes */{size}")])
        with open(path, "rb") as file:
            file.seek(begin)
            body = bytearray(file.read(end - begin))
        at = self.fake.damages.get(name, -1)
        if begin <= at < end:
            body[at - begin] ^= 1
        headers = [("Content-Range", f"bytes {begin}-{end - 1}/{size}")] if asked else []
        self.send(206 if asked else 200, headers, body)

    def file_of(self, url_path):
        """(path, name), or None."""
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url_path)
        if match is None:
            return None
        path = os.path.join(self.fake.folder, match[1], match[2], match[3])
        return (path, match[3]) if os.path.isfile(path) else None


class Hub(Answer):
    def answer(self, url_path):
        self.fake.asked.append(f"{self.command} {url_path}")
        if self.fake.status:
            return self.send(self.fake.status)
        if self.fake.token and self.headers.get("Authorization") != f"Bearer {self.fake.token}":
            return self.send(401, [("X-Error-Code", "GatedRepo"), ("X-Error-Message", "gated")])
        found = self.file_of(url_path)
        if found is None:
            return self.send(404, [("X-Error-Code", "EntryNotFound")])
        path, name = found
        if not name.endswith(".safetensors"):
            return self.send_range(path, name)
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        link = f"http://127.0.0.1:{self.fake.links.server_port}{self.path}?signature=1"
        self.send(302, [("Location", link), ("X-Repo-Commit", COMMIT),
                        ("X-Linked-Size", str(os.path.getsize(path))),
                        ("X-Linked-Etag", f'"{digest}"')])


class Link(Answer):
    def answer(self, url_path):
        if "Authorization" in self.headers:
            self.fake.leaks.append(self.path)
            return self.send(400)
        found = self.file_of(url_path)
        if found is None or "signature=1" not in self.path:
            return self.send(403)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.fake.reads.append((found[1], int(asked[1]), int(asked[2]) + 1))
        self.fake.arrive(found[1])
        if self.fake.status:
            return self.send(self.fake.status)
        self.send_range(*found)
