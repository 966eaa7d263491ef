"""An hf:// URL, as it is: over TLS to s3.hf.co, which redirects every read to another host.

HTTPS_PROXY leads to a gateway that answers for both hosts and behaves as HF's does; behind it is the
real server. It counts credentials that reach the second host.
"""

import collections
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402
import s3_faults  # noqa: E402
from s3_faults import Message, Request, Rule  # noqa: E402

HOST, CDN = "s3.hf.co", "cdn.hf.test"
ORG = gateway.BUCKET  # the server's bucket; HF's buckets are the first component of keys there


class HfProxy(s3_faults.Proxy):
    """Both hosts, by CONNECT and TLS."""

    def __init__(self, owner, certificate, rules):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate)
        super().__init__(owner, rules)
        self.elsewhere_url = f"https://{CDN}"
        self.connects = []
        self.uses, self.uses_max, self.expired = collections.Counter(), 1 << 30, 0

    async def serve(self, request, reader, writer):
        if request.method == "CONNECT":
            self.connects.append(request.target)
            if request.target not in (f"{HOST}:443", f"{CDN}:443"):
                return self.send(request, writer, Message("HTTP/1.1 502 Bad Gateway", []))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await writer.drain()
            await writer.start_tls(self.context)
            return True
        if request.get("host") == CDN:
            request.body = b""
            return await self.serve_elsewhere(request, reader, writer)
        return await super().serve(request, reader, writer)

    async def serve_elsewhere(self, request, reader, writer):
        self.uses[request.target] += 1
        if self.uses[request.target] <= self.uses_max:
            return await super().serve_elsewhere(request, reader, writer)
        self.expired += 1
        return self.send(request, writer, s3_faults.refusal("403 Forbidden", "AccessDenied", {}))

    async def forward(self, request):
        """HF's buckets lie below an organisation, the server's do not: what asks about a whole
        bucket is signed anew and translated, everything else goes through as it was signed."""
        _, org, bucket, *key = request.path.split("/")
        if any(key):
            return await super().forward(request)
        query = dict(request.query)
        for name in ("prefix", "start-after"):
            if query.get(name) or name == "prefix":
                query[name] = f"{bucket}/{query.get(name, '')}"
        url = self.gateway.presign(f"{self.gateway.url}/{org}?" + urllib.parse.urlencode(
            query, quote_via=urllib.parse.quote))
        reply = await super().forward(Request(
            f"GET {url[len(self.gateway.url):]} HTTP/1.1", [("Host", self.upstream.netloc)]))
        reply.body = re.sub(rf"<(Key|Prefix)>{bucket}(/|%2F)".encode(), rb"<\1>", reply.body)
        return reply


class Hf(gateway.S3Test):
    def setUp(self):
        super().setUp()
        self.pem = os.path.join(self.dir, "hf.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=weightfs tests",
                        "-addext", f"subjectAltName=DNS:{HOST},DNS:{CDN}", "-keyout", self.pem + ".key",
                        "-out", self.pem + ".crt"], check=True, capture_output=True)
        harness.write_file(self.pem, harness.read_file(self.pem + ".key") +
                           harness.read_file(self.pem + ".crt"))
        self.url = f"hf://{ORG}/{self.prefix}/run"

    def behind(self, rules):
        proxy = HfProxy(self.gateway, self.pem, rules)
        self.addCleanup(proxy.close)
        variables = {"HTTPS_PROXY": proxy.url, "AWS_CA_BUNDLE": self.pem + ".crt"}
        os.environ.update(variables)
        del os.environ["AWS_ENDPOINT_URL"]
        for name in variables:
            self.addCleanup(os.environ.pop, name)
        return proxy

    def test_reads_are_redirected_and_no_credential_leaves(self):
        proxy = self.behind([Rule("redirect")])
        steps = self.make_repository(3)
        mount = self.mount()
        self.assert_same_tree(mount.join("latest/"), steps[2])
        self.publish(steps[0])
        mount.wait_version(4)
        self.assert_same_tree(mount.join("latest/"), steps[0])
        self.assertEqual(self.version_count(), 4)
        self.assert_clean()
        self.assertGreater(proxy.landed["redirect"], 10)
        self.assertEqual(proxy.leaks, 0)
        self.assertEqual(set(proxy.connects), {f"{HOST}:443", f"{CDN}:443"})
        self.assertEqual(self.keys(), sorted(self.keys("run/")))  # all of it below ORG/BUCKET/run

    def test_a_credential_that_leaves_is_counted(self):
        proxy = self.behind([Rule("redirect")])
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({"https": proxy.url}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.pem + ".crt")))
        request = urllib.request.Request(f"https://{CDN}/{ORG}/{self.prefix}/key", headers={"X-Amz-Date": "now"})
        with self.assertRaises(urllib.error.HTTPError):
            opener.open(request, timeout=30)
        self.assertEqual(proxy.leaks, 1)

    def test_an_address_that_has_expired_is_asked_for_again(self):
        """A URL of the second host may be used again, until it answers 403."""
        proxy = self.behind([Rule("redirect")])
        proxy.uses_max = 1
        steps = self.make_repository(2, params=8_000_000)
        harness.call("export", self.url, os.path.join(self.dir, "out"))
        self.assert_same_tree(os.path.join(self.dir, "out"), steps[1])
        self.assertGreater(proxy.expired, 0)
        self.assertEqual(proxy.leaks, 0)


if __name__ == "__main__":
    harness.main()
