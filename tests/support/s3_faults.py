"""An HTTP proxy before an S3 server that injects faults by a seeded schedule, and counts.

    with Proxy(gateway, [Rule("lost", is_manifest), Rule("slow-down", rate=0.1)], seed=7) as proxy:
        ... requests to proxy.url ...
    proxy.landed   {kind: how often}
    proxy.seen     the requests, and what became of each

The Host and all signed headers go through unchanged: clients sign for the proxy's address. Whole
messages are held in memory. A rule draws from the seed and from what is asked for how often, not
from the order in which requests arrive; random names in keys count as equal. The proxies of a
process share one thread.

    kind          on                   what happens
    refuse        all                  reset, and for a while no connection is accepted
    reset         all                  reset, nothing is forwarded
    silent        all                  no reply, nothing is forwarded
    error-500     all                  500 InternalError
    slow-down     all                  503 SlowDown with Retry-After
    too-many      all                  429 TooManyRequests with Retry-After
    skew          all                  403 RequestTimeTooSkewed, with the right time in Date
    conflict      PUT with a condition 409 ConditionalRequestConflict
    late-error    Complete             200 with an <Error> body
    lost          all                  done by the server; a reset in the place of its reply
    cut           replies with a body  ends in the middle of the body
    cut-reset     replies with a body  a reset in the middle of the body
    stall         replies with a body  nothing comes after the middle of the body
    slow          replies with a body  comes in small pieces, for half a second
    flip          objects              one bit of the body is another
    wrong-range   objects, by Range    Content-Range is off by one
    ignore-range  objects, by Range    200 and the whole object
    redirect      objects              302 to a signed URL at a second address, as HF answers;
                                       `leaks` counts credentials that come there
"""

import asyncio
import collections
import dataclasses
import email.utils
import hashlib
import random
import re
import socket
import struct
import threading
import time
import urllib.parse

INSTEAD = {
    "error-500": ("500 Internal Server Error", "InternalError", {}),
    "slow-down": ("503 Slow Down", "SlowDown", {"Retry-After": "1"}),
    "too-many": ("429 Too Many Requests", "TooManyRequests", {"Retry-After": "1"}),
    "skew": ("403 Forbidden", "RequestTimeTooSkewed", {}),
    "conflict": ("409 Conflict", "ConditionalRequestConflict", {}),
    "late-error": ("200 OK", "InternalError", {}),
}
ON_BODY = ("cut", "cut-reset", "stall", "slow")
ON_RANGE = ("wrong-range", "ignore-range")
ON_OBJECT = ("flip", "redirect", *ON_RANGE)
KINDS = ("refuse", "reset", "silent", "lost", *INSTEAD, *ON_BODY, *ON_OBJECT)
CREDENTIALS = {"authorization", "x-amz-security-token", "x-amz-date", "x-amz-content-sha256"}
REFUSE_S = 0.15  # how long `refuse` lasts
HEAD_BYTES_MAX = 1 << 16


# ---- messages ------------------------------------------------------------------------------------

@dataclasses.dataclass
class Message:
    first: str
    headers: list
    body: bytes = b""

    def get(self, name):
        return next((value for key, value in self.headers if key.lower() == name), "")

    def encode(self, body_bytes=None):
        """With the Content-Length of `body_bytes`, or of its own body."""
        length = len(self.body) if body_bytes is None else body_bytes
        kept = [(key, value) for key, value in self.headers
                if key.lower() not in ("content-length", "transfer-encoding", "connection", "expect")]
        lines = [self.first, *(f"{key}: {value}" for key, value in kept), f"Content-Length: {length}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclasses.dataclass
class Request(Message):
    outcome: str = ""  # the kind of fault, or the status of the reply
    reply_bytes: int = 0
    time_s: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def method(self):
        return self.first.split(" ")[0]

    @property
    def target(self):
        return self.first.split(" ")[1]

    @property
    def path(self):
        return urllib.parse.unquote(self.target.partition("?")[0])

    @property
    def query(self):
        pairs = urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True)
        return {key: value for key, value in pairs if not key.startswith("X-Amz-")}

    def is_object(self):
        """A GET of an object's bytes."""
        return self.method == "GET" and self.path.strip("/").count("/") > 0 and not self.query

    def is_list(self):
        return "list-type" in self.query

    def is_manifest(self):
        return bool(re.search(r"/versions/\d{20}\.json$", self.path))

    def is_complete(self):
        return self.method == "POST" and "uploadId" in self.query

    def is_part(self):
        return self.method == "PUT" and "partNumber" in self.query

    def identity(self):
        """What is asked for, without what is random in it."""
        query = {**self.query, "uploadId": "", "continuation-token": ""}
        path = re.sub(r"[0-9a-f]{32,64}", "*", self.path)
        return f"{self.method} {path} {sorted(query.items())} {self.get('range')}"


async def read_head(reader):
    """The first line and the headers of a message; None at the end of the connection."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = raw.decode("latin-1")[:-4].split("\r\n")
    return first, [tuple(part.strip() for part in line.split(":", 1)) for line in lines]


async def read_body(reader, message):
    if "chunked" in message.get("transfer-encoding").lower():
        pieces = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return b"".join(pieces)
    return await reader.readexactly(int(message.get("content-length") or 0))


def refusal(status, code, headers):
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>injected</Message></Error>'
    now = email.utils.formatdate(usegmt=True)
    return Message(f"HTTP/1.1 {status}", [("Content-Type", "application/xml"), ("Date", now),
                                          *headers.items()], body.encode())


def reset(writer):
    """Ends a connection so that the peer sees a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# ---- the schedule --------------------------------------------------------------------------------

@dataclasses.dataclass
class Rule:
    """Acts on requests for which `on` is true: lets `skip` of them pass, then acts on the share
    `rate`, at most `limit` times."""

    kind: str
    on: callable = lambda request: True
    rate: float = 1.0
    skip: int = 0
    limit: int = 1 << 30
    matched: int = 0

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"there is no kind of fault '{self.kind}'")

    def matches(self, request):
        if self.kind == "conflict" and not request.get("if-none-match"):
            return False
        if self.kind == "late-error" and not request.is_complete():
            return False
        if self.kind in ON_OBJECT and not request.is_object():
            return False
        if self.kind in ON_RANGE and not request.get("range"):
            return False
        return self.on(request)


def draw(*parts):
    """A number from 0 to 1 that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") / 2**64


# ---- the proxy -----------------------------------------------------------------------------------

class Loop:
    """The thread of all proxies."""

    lock, loop = threading.Lock(), None

    @classmethod
    def run(cls, coroutine):
        """Runs it there, and returns what it returns."""
        with cls.lock:
            if cls.loop is None:
                cls.loop = asyncio.new_event_loop()
                threading.Thread(target=cls.loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, cls.loop).result(60)


class Proxy:
    """`gateway`: a gateway.Gateway. Threads: `rules` may be replaced, and counts read, at any time."""

    def __init__(self, gateway, rules=(), seed=0):
        self.gateway, self.rules, self.seed = gateway, list(rules), seed
        self.upstream = urllib.parse.urlsplit(gateway.url)
        self.landed, self.seen, self.leaks = collections.Counter(), [], 0
        self.asked = collections.Counter()  # by identity
        self.writers, self.is_closed = set(), False
        self.server, self.port = Loop.run(self.listen(self.serve))
        self.url = f"http://127.0.0.1:{self.port}"
        self.elsewhere = None  # the second address
        if any(rule.kind == "redirect" for rule in self.rules):
            self.elsewhere, port = Loop.run(self.listen(self.serve_elsewhere))
            self.elsewhere_url = f"http://127.0.0.1:{port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        async def close():
            self.is_closed = True
            for server in filter(None, (self.server, self.elsewhere)):
                server.close()
            for writer in list(self.writers):
                writer.transport.abort()
        Loop.run(close())

    async def listen(self, serve, port=None):
        while True:
            wanted = port or random.randrange(20000, 32000)  # below those the kernel gives to clients
            try:
                return await asyncio.start_server(self.guarded(serve), "127.0.0.1", wanted,
                                                  limit=HEAD_BYTES_MAX), wanted
            except OSError:
                await asyncio.sleep(0.01)

    def guarded(self, serve):
        async def connection(reader, writer):
            self.writers.add(writer)
            try:
                while head := await read_head(reader):
                    request = Request(*head)
                    if not await serve(request, reader, writer):
                        return
                    await writer.drain()
            except (ConnectionError, asyncio.IncompleteReadError):
                reset(writer)
            except asyncio.CancelledError:
                pass
            finally:
                self.writers.discard(writer)
                writer.close()
        return connection

    # ---- one request; all return whether the connection goes on ----

    async def serve(self, request, reader, writer):
        self.seen.append(request)
        rule, bits = self.choose(request)
        kind = rule.kind if rule else ""
        if kind in ("refuse", "reset"):
            self.land(request, kind)
            reset(writer)
            if kind == "refuse":
                await self.refuse()
            return False
        if request.get("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.body = await read_body(reader, request)
        if kind == "silent":
            self.land(request, kind)
            return await self.wait_gone(reader)
        if kind in INSTEAD:
            self.land(request, kind)
            return self.send(request, writer, refusal(*INSTEAD[kind]))
        if kind == "ignore-range":
            reply = await self.whole_object(request)
            self.land(request, kind)
            return self.send(request, writer, reply)
        reply = await self.forward(request)
        if kind == "lost":
            self.land(request, kind)
            reset(writer)
            return False
        if kind == "redirect" and reply.first.split(" ")[1].startswith("2"):
            self.land(request, kind)
            return self.send(request, writer, self.redirection(request))
        if kind and reply.body and request.method != "HEAD":
            return await self.spoil(kind, bits, request, reply, reader, writer)
        return self.send(request, writer, reply)

    async def serve_elsewhere(self, request, reader, writer):
        """The second address: like a CDN, it takes what is signed in the URL."""
        if CREDENTIALS & {name.lower() for name, _ in request.headers}:
            self.leaks += 1
        return self.send(request, writer, await self.forward(request))

    def choose(self, request):
        identity = request.identity()
        nth = self.asked[identity]
        self.asked[identity] += 1
        for number, rule in enumerate(self.rules):
            if not rule.matches(request):
                continue
            rule.matched += 1
            bits = draw(self.seed, number, identity, nth)
            if rule.matched > rule.skip and rule.limit > 0 and bits < rule.rate:
                rule.limit -= 1
                return rule, bits / rule.rate
        return None, 0

    def land(self, request, kind):
        request.outcome = kind
        self.landed[kind] += 1

    def send(self, request, writer, reply):
        if not request.outcome:
            request.outcome = reply.first.split(" ")[1]
        request.reply_bytes = len(reply.body)
        request.body = b""  # kept in `seen`
        if request.method == "HEAD":
            writer.write(reply.encode(int(reply.get("content-length") or 0)))
        else:
            writer.write(reply.encode() + reply.body)
        return True

    async def forward(self, request):
        """Sends a request to the server; returns its reply."""
        reader, writer = await asyncio.open_connection(self.upstream.hostname, self.upstream.port,
                                                       limit=HEAD_BYTES_MAX)
        try:
            writer.write(request.encode() + request.body)
            while True:
                head = await read_head(reader)
                if head is None:
                    raise ConnectionError("the server has left")
                reply = Message(*head)
                if not reply.first.split(" ")[1].startswith("1"):
                    break
            if request.method != "HEAD" and reply.first.split(" ")[1] not in ("204", "304"):
                reply.body = await read_body(reader, reply)
            return reply
        finally:
            writer.close()

    async def refuse(self):
        if self.server is None:
            return
        self.server.close()
        self.server = None
        await asyncio.sleep(REFUSE_S)
        if not self.is_closed:
            self.server, _ = await self.listen(self.serve, self.port)

    async def wait_gone(self, reader):
        await reader.read()
        return False

    def redirection(self, request):
        path = request.target.partition("?")[0]
        url = self.gateway.presign(self.elsewhere_url + path)
        return Message("HTTP/1.1 302 Found", [("Location", url)])

    async def whole_object(self, request):
        """The reply to the same request without its Range, which cannot be taken out of what was
        signed."""
        url = self.gateway.presign(self.gateway.url + request.target.partition("?")[0])
        target = url[len(self.gateway.url):]
        return await self.forward(Request(f"GET {target} HTTP/1.1",
                                          [("Host", self.upstream.netloc)]))

    async def spoil(self, kind, bits, request, reply, reader, writer):
        """Sends the reply with a fault in it."""
        body = reply.body
        if kind in ON_OBJECT and not reply.first.split(" ")[1].startswith("2"):
            return self.send(request, writer, reply)  # there is no object
        self.land(request, kind)
        if kind == "flip":
            changed = bytearray(body)
            changed[int(bits * len(body))] ^= 1 << int(bits * 8e6) % 8
            reply.body = bytes(changed)
        elif kind == "wrong-range":
            reply.headers = [(name, re.sub(r"\d+", lambda found: str(int(found[0]) + 1), value, 2)
                              if name.lower() == "content-range" else value)
                             for name, value in reply.headers]
        elif kind == "slow":
            return await self.send_slowly(reply, writer)
        elif kind in ON_BODY:
            writer.write(reply.encode() + body[:int(bits * len(body))])
            await writer.drain()
            if kind == "stall":
                return await self.wait_gone(reader)
            if kind == "cut-reset":
                reset(writer)
            return False
        return self.send(request, writer, reply)

    async def send_slowly(self, reply, writer):
        writer.write(reply.encode())
        step = len(reply.body) // 10 + 1
        for at in range(0, len(reply.body), step):
            writer.write(reply.body[at:at + step])
            await writer.drain()
            await asyncio.sleep(0.05)
        return True
