"""A small S3 store over a directory, whose reads a test can hold, let fail, damage, and count.

    bucket = SlowBucket(folder)          # what a file:// repository is, under s3://slow/run
    bucket.hold(of_file("model-3.safetensors"))  # such reads wait ...
    bucket.release()                     # ... until now
    bucket.damage(of_file("model-1.safetensors"), 5000)   # a bit of that byte is another one
    bucket.fail(is_data)                 # 503, which clients repeat
    bucket.latency = 0.02                # seconds before each answer
    bucket.takes = "readers/"            # such objects may be written, which is a read for the rules
    bucket.requests                      # all reads so far, in the order in which they came

All other objects are read only (GET with Range, HEAD, LIST): others publish into the folder. Any
credentials will do. Rules act on what comes after them; the last one that matches counts. On
127.0.0.1, on a port of its own; ends with close().
"""

import dataclasses
import http.server
import os
import re
import sys
import threading
import time
import urllib.parse
import xml.sax.saxutils

PLACE = "/slow/run/"
URL = "s3://slow/run"


@dataclasses.dataclass(frozen=True)
class Read:
    """A GET of an object; `end` is behind the last byte that was asked for."""

    key: str
    begin: int
    end: int


# ---- what a rule is about ------------------------------------------------------------------------

def is_data(read):
    """Bytes of files: not what tells which versions there are, and what is in them."""
    return read.key.startswith("blobs/") or is_weights(read)


def is_weights(read):
    return read.key.startswith("snapshots/") and read.key.endswith(".safetensors")


def of_file(name, begin=0, end=1 << 60):
    """Reads of a file of a snapshot that touch [begin, end)."""
    return lambda read: (is_weights(read) and os.path.basename(read.key) == name and
                         read.begin < end and read.end > begin)


# ---- the server ----------------------------------------------------------------------------------

class QuietServer(http.server.ThreadingHTTPServer):
    request_queue_size = 256  # else clients that come together wait a second for their second SYN

    def handle_error(self, request, client_address):
        """A client that has gone, as a killed daemon does, is nothing to tell."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class SlowBucket:
    """Threads: all calls may run in parallel with the server's."""

    def __init__(self, folder):
        self.folder = folder
        self.requests = []
        self.latency = 0
        self.takes = None
        self.rules = []  # (matches, "hold" | "fail" | "serve" | a byte to damage), guarded by `changed`
        self.changed = threading.Condition()
        self.waiting = 0  # reads that are held now
        self.is_closed = False
        bucket = self

        class Handler(Answer):
            pass

        Handler.bucket = bucket
        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        with self.changed:
            self.is_closed = True
            self.rules = []
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()

    def variables(self):
        """The environment of a client."""
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": "any",
                "AWS_SECRET_ACCESS_KEY": "any"}

    def add_rule(self, on, what):
        with self.changed:
            self.rules.append((on, what))
            self.changed.notify_all()

    def hold(self, on=is_data):
        self.add_rule(on, "hold")

    def fail(self, on=is_data):
        self.add_rule(on, "fail")

    def damage(self, on, at):
        """The byte `at` of these objects."""
        self.add_rule(lambda read: on(read) and read.begin <= at < read.end, at)

    def release(self, on=lambda read: True):
        """No rule so far is about such reads any more; those that are held go on."""
        self.add_rule(on, "serve")

    def seen(self, on=is_data):
        with self.changed:
            return [read for read in self.requests if on(read)]

    def rule_for(self, read):
        for on, what in reversed(self.rules):
            if on(read):
                return what
        return "serve"

    def arrive(self, read):
        """Waits as long as the read is held. Returns what is to become of it."""
        with self.changed:
            self.requests.append(read)
            self.waiting += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_closed or self.rule_for(read) != "hold")
            self.waiting -= 1
            return "fail" if self.is_closed else self.rule_for(read)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: the second is not to wait for the first
    bucket = None

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        address = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))
        time.sleep(self.bucket.latency)
        try:
            if "list-type" in query:
                return self.list(query)
            path = urllib.parse.unquote(address.path)
            if path.startswith(PLACE):
                return self.read(path[len(PLACE):])
            self.refuse(404, "NoSuchBucket")
        except ConnectionError:
            self.close_connection = True  # a client that was stopped

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        try:
            if self.bucket.takes and path.startswith(PLACE + self.bucket.takes):
                return self.write(path[len(PLACE):], body)
            self.refuse(403, "AccessDenied")
        except ConnectionError:
            self.close_connection = True

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.refuse(403, "AccessDenied")

    do_DELETE = do_POST

    def send(self, status, body, headers=(), length=None):
        """`length`: of the reply, if its body is sent by the caller."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.send(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode(),
                  [("Content-Type", "application/xml")])

    def write(self, key, body):
        if self.bucket.arrive(Read(key, 0, len(body))) == "fail":
            return self.refuse(503, "SlowDown")
        path = os.path.join(self.bucket.folder, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(body)
        self.send(200, b"", [("ETag", '"any"')])

    def read(self, key):
        try:
            with open(os.path.join(self.bucket.folder, key), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                begin, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, size)
                what = self.bucket.arrive(Read(key, begin, end))
                if what == "fail":
                    return self.refuse(503, "SlowDown")
                if begin >= size and asked:
                    return self.refuse(416, "InvalidRange")
                end = min(end, size)
                status = 206 if asked else 200
                headers = [("Content-Range", f"bytes {begin}-{end - 1}/{size}")] if asked else []
                if isinstance(what, int):  # the damaged byte
                    file.seek(begin)
                    body = bytearray(file.read(end - begin))
                    body[what - begin] ^= 1
                    return self.send(status, body, headers)
                return self.send_file(status, file, begin, end, headers)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return self.refuse(404, "NoSuchKey")

    def send_file(self, status, file, begin, end, headers):
        """By the kernel: a benchmark's server is not to take the processor from what is measured."""
        self.send(status, b"", headers, end - begin)
        while begin < end and self.command != "HEAD":
            sent = os.sendfile(self.connection.fileno(), file.fileno(), begin, end - begin)
            if sent == 0:  # the object became shorter: so does the reply
                raise ConnectionAbortedError
            begin += sent

    def list(self, query):
        root = PLACE.split("/", 2)[2]
        keys = []
        for folder, _, names in os.walk(self.bucket.folder):
            for name in names:
                key = root + os.path.relpath(os.path.join(folder, name), self.bucket.folder)
                if key.startswith(query.get("prefix", "")) and key > query.get("start-after", ""):
                    keys.append(key)
        contents = "".join(f"<Contents><Key>{xml.sax.saxutils.escape(urllib.parse.quote(key))}</Key>"
                           "</Contents>" for key in sorted(keys)[:1000])
        self.send(200, (f'<ListBucketResult><IsTruncated>false</IsTruncated>{contents}'
                        "</ListBucketResult>").encode(), [("Content-Type", "application/xml")])
