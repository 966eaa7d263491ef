"""Our signatures are botocore's, for thousands of random requests."""

import hashlib
import json
import os
import random
import subprocess
import sys
import unittest
import urllib.parse

try:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
except ImportError:
    print("skipped: python3-botocore is not installed")
    sys.exit(77)

import datetime

PROBE = os.environ["WEIGHTFS_AWS_PROBE"]
SEED = int(os.environ.get("WEIGHTFS_TEST_SEED") or random.SystemRandom().getrandbits(32))
REQUESTS = 6000
CHARACTERS = "abcXYZ0189-._~+=/ %&?#:;,@!$'()*[]{}|\\^`\"<>\t\x01\x7f" + "äßÑ漢字🤗é"


def text(rng, most, alphabet=CHARACTERS):
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(most + 1)))


def header_value(rng):
    return text(rng, 30, "abcXYZ0189 \t  ,;=/\"'()é")


def random_request(rng):
    """A request as the probe reads it."""
    names = ["Range", "If-None-Match", "x-amz-meta-a", "X-Amz-Meta-B", "Content-Type", "Date2",
             "x-amz-copy-source", "User-Agent", "Expect", "content-md5", "x-amz-meta-a-b"]
    port = rng.choice(["", "", ":443", ":80", ":9000"])
    host = rng.choice(["bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1", "S3.Example.org"])
    return {
        "method": rng.choice(["GET", "PUT", "POST", "HEAD", "DELETE"]),
        "scheme_and_host": rng.choice(["https://", "http://"]) + host + port,
        "path": "/" + text(rng, 40),
        "query": [[text(rng, 12), rng.choice(["", text(rng, 20)])]
                  for _ in range(rng.choice([0, 0, 1, 2, 5]))],
        "headers": [[name, header_value(rng)]
                    for name in rng.sample(names, rng.randrange(len(names)))],
        "body": text(rng, 50) if rng.random() < 0.5 else "",
        "region": rng.choice(["us-east-1", "eu-central-1", "auto"]),
        "service": rng.choice(["s3", "s3", "sts"]),
        "id": "AKIA" + text(rng, 16, "ABCDEFGH234567"),
        "secret": text(rng, 40, "abcXYZ019/+") + "x",
        "token": rng.choice(["", text(rng, 300, "abcXYZ019/+=") + "y"]),
        "time": rng.randrange(0, 4_000_000_000),
    }


def quoted(text_):
    return urllib.parse.quote(text_, safe="-_.~")


def sign_by_botocore(one):
    """Authorization and URL."""
    url = one["scheme_and_host"] + urllib.parse.quote(one["path"], safe="/-_.~")
    if one["query"]:
        url += "?" + "&".join(f"{quoted(name)}={quoted(value)}" for name, value in one["query"])
    request = AWSRequest(method=one["method"], url=url, data=one["body"].encode())
    for name, value in one["headers"]:
        request.headers.add_header(name, value)
    keys = Credentials(one["id"], one["secret"], one["token"] or None)
    auth = S3SigV4Auth(keys, one["service"], one["region"])
    # What add_auth does, at a time of ours.
    time = datetime.datetime.fromtimestamp(one["time"], datetime.timezone.utc)
    request.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ")
    request.context["client_config"] = None
    auth._modify_request_before_signing(request)
    request.headers.replace_header("X-Amz-Content-SHA256", one["body_sha256"])
    to_sign = auth.string_to_sign(request, auth.canonical_request(request))
    auth._inject_signature_to_request(request, auth.signature(to_sign, request))
    path, _, _ = url.partition("?")
    query = auth.canonical_query_string(request)
    return request.headers["Authorization"], path + ("?" + query if query else "")


class Sigv4BotocoreTest(unittest.TestCase):
    def test_random_requests(self):
        rng = random.Random(SEED)
        requests = [random_request(rng) for _ in range(REQUESTS)]
        for one in requests:
            one["body_sha256"] = hashlib.sha256(one["body"].encode()).hexdigest()
        lines = "".join(json.dumps(one) + "\n" for one in requests)
        done = subprocess.run([PROBE, "sign"], input=lines, capture_output=True, text=True,
                              encoding="utf-8", check=True)
        replies = done.stdout.splitlines()
        self.assertEqual(len(replies), REQUESTS)
        for one, reply in zip(requests, map(json.loads, replies)):
            authorization, url = sign_by_botocore(one)
            self.assertEqual(reply["url"], url, one)
            self.assertEqual(reply["authorization"], authorization, one)


if __name__ == "__main__":
    print(f"WEIGHTFS_TEST_SEED={SEED}")
    unittest.main()
