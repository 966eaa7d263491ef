"""Our search for credentials, region and endpoint ends where botocore's does.

Random environments, ~/.aws/config and ~/.aws/credentials; containers, instances and STS are played
by a server on the loopback interface whose keys tell who asked for them, and how.
"""

import http.server
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import urllib.parse

try:
    import botocore.configprovider
    import botocore.session
except ImportError:
    print("skipped: python3-botocore is not installed")
    sys.exit(77)

PROBE = os.environ["WEIGHTFS_AWS_PROBE"]
SEED = int(os.environ.get("WEIGHTFS_TEST_SEED") or random.SystemRandom().getrandbits(32))
CASES = 150
PROFILES = ["default", "dev", "other one", "third"]
EXPIRATION = "2099-01-01T00:00:00Z"
ENDPOINTS_ARE_KNOWN = hasattr(botocore.configprovider, "ConfiguredEndpointProvider")  # since 1.31


class Surroundings(http.server.BaseHTTPRequestHandler):
    """STS, a container's agent and an instance's metadata."""

    def log_message(self, *_):
        pass

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Content-Type", "text/xml")
        self.end_headers()
        self.wfile.write(text.encode())

    def keys(self, name):
        self.answer(json.dumps({
            "Code": "Success", "AccessKeyId": name, "SecretAccessKey": "s", "Token": "t-" + name,
            "Expiration": EXPIRATION}))

    def do_PUT(self):
        self.answer("session")

    def do_GET(self):
        if self.path.startswith("/container"):
            self.keys("CONTAINER-" + self.headers.get("Authorization", "none"))
        elif self.path.endswith("/security-credentials/"):
            self.answer("the-role")
        else:
            self.keys("INSTANCE-" + self.path.rsplit("/", 1)[1])

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: value[0] for name, value in urllib.parse.parse_qs(body).items()}
        by = re.search("Credential=([^/]*)/", self.headers.get("Authorization", ""))
        name = "/".join([form["Action"], form["RoleArn"], form.get("ExternalId", ""),
                         form.get("DurationSeconds", ""), form.get("WebIdentityToken", ""),
                         by.group(1) if by else "unsigned"])
        self.answer(f"""<{form['Action']}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<{form['Action']}Result><Credentials><AccessKeyId>{name}</AccessKeyId>
<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>{EXPIRATION}</Expiration></Credentials></{form['Action']}Result>
</{form['Action']}Response>""")


class Case:
    """One random home and environment."""

    def __init__(self, rng, home, server):
        self.rng, self.home, self.server = rng, home, server
        self.keys = 0
        # Then there are no roles: their requests would leave this host.
        self.ignores_endpoints = self.likely(0.2)
        os.mkdir(os.path.join(home, ".aws"))
        self.write("token", "WEBTOKEN")
        self.write(".aws/config", self.config())
        self.write(".aws/credentials", self.credentials())
        self.environment = self.make_environment()
        self.profile = rng.choice([None, None, None, "dev", "other one", "default"])

    def write(self, name, text):
        with open(os.path.join(self.home, name), "w", encoding="utf-8") as file:
            file.write(text)

    def likely(self, probability):
        return self.rng.random() < probability

    def new_key(self, kind):
        self.keys += 1
        return f"{kind}{self.keys}"

    def static(self, kind, indent=""):
        key = self.new_key(kind)
        equals = self.rng.choice(["=", " = ", ":", " : "])
        lines = [f"aws_access_key_id{equals}{key}", f"aws_secret_access_key{equals}sec/{key}+="]
        if self.likely(0.05):
            lines.pop()  # half a pair
        if self.likely(0.3):
            lines.append(f"aws_session_token = token-{key}")
        self.rng.shuffle(lines)
        return lines

    def process(self):
        key = self.new_key("PROCESS")
        path = os.path.join(self.home, key + " x.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"Version": 1, "AccessKeyId": key, "SecretAccessKey": "s",
                       "SessionToken": "t", "Expiration": EXPIRATION}, file)
        word = self.rng.choice(["'{}'", '"{}"']).format(path)
        return ["credential_process = cat " + (word if self.likely(0.7) else path.replace(" ", "\\ "))]

    def role(self):
        lines = [f"role_arn = arn:aws:iam::123456789012:role/{self.new_key('R')}"]
        if self.likely(0.2):
            lines.append(f"web_identity_token_file = {self.home}/token")
        elif self.likely(0.75):
            lines.append("source_profile = " + self.rng.choice(PROFILES + ["missing"]))
        else:
            lines.append("credential_source = " + self.rng.choice(
                ["Environment", "EcsContainer", "Ec2InstanceMetadata", "Nonsense"]))
        if self.likely(0.3):
            lines.append("external_id = e-1")
        if self.likely(0.3):
            lines.append("duration_seconds = 3600")
        if self.likely(0.3):
            lines.append("role_session_name = me")
        return lines

    def config(self):
        text = "# all of it is random\n"
        for name in PROFILES:
            if self.likely(0.25):
                continue
            header = name if name == "default" else f'profile "{name}"' if " " in name else f"profile {name}"
            lines = []
            if self.likely(0.4):
                lines.append(self.rng.choice(["region = eu-west-7", "REGION=ap-south-9"]))
            if self.likely(0.3):
                lines.append(f"endpoint_url = https://{self.new_key('e').lower()}.example")
            if self.likely(0.2):
                lines.append("services = mine")
            if self.likely(0.3):
                lines.append("ignore_configured_endpoint_urls = " +
                             ("True" if self.ignores_endpoints else "false"))
            if self.likely(0.3):
                lines.append("s3 =\n  addressing_style = path\n  # comment\n  x = y")
            if self.likely(0.3):
                lines += self.static("CONFIG")
            if self.likely(0.25):
                lines += self.process()
            if self.likely(0.35) and not self.ignores_endpoints:
                lines += self.role()
            self.rng.shuffle(lines)
            text += f"[{header}]\n" + "".join(
                self.rng.choice(["", "\n", "; comment\n"]) + line + "\n" for line in lines)
        return text + "[services mine]\ns3 =\n  endpoint_url = https://services.example\n[plugins]\na = b\n"

    def credentials(self):
        text = ""
        for name in PROFILES:
            if self.likely(0.3):
                lines = self.static("FILE")
                if self.likely(0.2):
                    lines.append("region = eu-north-5")
                if self.likely(0.1):
                    lines += self.process()
                text += f"[{name}]\n" + "".join(line + "\n" for line in lines)
        return text

    def make_environment(self):
        # PATH is for credential_process.
        one = {"HOME": self.home, "PATH": os.environ["PATH"]}
        optional = [
            (0.25, {"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s"}),
            (0.1, {"AWS_SESSION_TOKEN": "env-token"}),
            (0.2, {"AWS_DEFAULT_REGION": "us-west-3"}),
            (0.35, {"AWS_PROFILE": self.rng.choice(PROFILES)}),
            (0 if self.ignores_endpoints else 0.1,
             {"AWS_WEB_IDENTITY_TOKEN_FILE": self.home + "/token",
              "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/env"}),
            (0.3, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": self.server + "/container?x=1"}),
            (0.2, {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "agent-token"}),
            (0.2, {"AWS_ENDPOINT_URL_S3": "https://variable.example"}),
            (0.5 if self.ignores_endpoints else 0, {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}),
            (0.3, {"AWS_EC2_METADATA_DISABLED": "true"}),
        ]
        for probability, variables in optional:
            if self.likely(probability):
                one.update(variables)
        one["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = self.server + "/"
        one["AWS_ENDPOINT_URL_STS"] = self.server
        if self.likely(0.05):
            one["AWS_EC2_METADATA_DISABLED"] = "false"
            del one["PATH"]
        return one


def session_of(case):
    """botocore's, with STS at the server: old releases do not read AWS_ENDPOINT_URL_STS."""
    session = botocore.session.Session(profile=case.profile)
    create = session.create_client

    def create_client(name, *arguments, **options):
        options["endpoint_url"] = case.server
        options["region_name"] = "us-east-1"
        return create(name, *arguments, **options)

    session.create_client = create_client
    return session


def ask_botocore(case):
    found = {}
    try:
        session = session_of(case)
        session.get_scoped_config()
        found["region"] = session.get_config_variable("region") or "us-east-1"
        if ENDPOINTS_ARE_KNOWN:
            found["endpoint"] = ""
            if not session.get_config_variable("ignore_configured_endpoint_urls"):
                provider = botocore.configprovider.ConfiguredEndpointProvider(
                    session.full_config, session.get_scoped_config(), "s3")
                found["endpoint"] = provider.provide() or ""
        keys = session.get_credentials()
        if keys is None:
            found["failed"] = "no credentials"
            return found
        keys = keys.get_frozen_credentials()
        found.update(id=keys.access_key, secret=keys.secret_key, token=keys.token or "")
    except Exception as error:  # of any kind: the probe must fail too
        found["failed"] = repr(error)
    return found


def ask_probe(case):
    done = subprocess.run([PROBE, "credentials"] + ([case.profile] if case.profile else []),
                          env=case.environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    if "error" in found:
        found["failed"] = found["error"] + ": " + found["message"]
    return found


class CredentialsBotocoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Surroundings)
        cls.thread = threading.Thread(target=cls.server.serve_forever, daemon=True)
        cls.thread.start()

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()

    def check(self, case):
        with unittest.mock.patch.dict(os.environ, case.environment, clear=True):
            theirs = ask_botocore(case)
        ours = ask_probe(case)
        shown = f"{case.environment}\nprofile {case.profile}\n{theirs}\n{ours}\n"
        for name in (".aws/config", ".aws/credentials"):
            with open(os.path.join(case.home, name), encoding="utf-8") as file:
                shown += f"--- {name}\n{file.read()}"
        self.assertEqual("failed" in theirs, "failed" in ours, shown)
        if "region" in ours and "region" in theirs:
            self.assertEqual(ours["region"], theirs["region"], shown)
        if "endpoint" in ours and "endpoint" in theirs:
            self.assertEqual(ours["endpoint"], theirs["endpoint"], shown)
        for name in ("id", "secret", "token"):
            self.assertEqual(ours.get(name), theirs.get(name), shown)
        return ours.get("id", "failed")

    def test_random_environments(self):
        rng = random.Random(SEED)
        seen = {}
        for _ in range(CASES):
            with tempfile.TemporaryDirectory() as home:
                case = Case(rng, home, f"http://127.0.0.1:{self.server.server_port}")
                kind = re.match("[A-Za-z]+", self.check(case)).group()
                seen[kind] = seen.get(kind, 0) + 1
        print(seen, "" if ENDPOINTS_ARE_KNOWN else "(this botocore knows no configured endpoints)")
        # Each kind of source was the answer at least once.
        for kind in ("ENV", "FILE", "CONFIG", "PROCESS", "AssumeRole", "AssumeRoleWithWebIdentity",
                     "CONTAINER", "INSTANCE", "failed"):
            self.assertIn(kind, seen)


if __name__ == "__main__":
    print(f"WEIGHTFS_TEST_SEED={SEED}")
    unittest.main()
