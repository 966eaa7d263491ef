"""A private S3 server (radosgw.sh) for the tests of s3:// URLs, and botocore to look at it with.

An S3Test is a MountTest whose `self.url` lies in a bucket there, below a prefix of its own. All
tests of a file share one server. It ends with the process, also with one that is killed by -9.
"""

import atexit
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import botocore.auth  # noqa: E402
import botocore.awsrequest  # noqa: E402
import botocore.config  # noqa: E402
import botocore.credentials  # noqa: E402
import botocore.session  # noqa: E402
import harness  # noqa: E402

SCRIPT = os.path.join(HERE, "radosgw.sh")
ACCESS_KEY, SECRET_KEY = "weightfs", "weightfs-secret"
BUCKET = "weightfs-tests"
program = harness.program

# What the caller has set up for his own S3 is not for these tests.
for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
    del os.environ[name]
os.environ.update(AWS_CONFIG_FILE="/dev/null", AWS_SHARED_CREDENTIALS_FILE="/dev/null",
                  AWS_EC2_METADATA_DISABLED="true", AWS_REGION="us-east-1")


def when_dead(*command):
    """Runs a command when this process has ended, however it ended, or the returned descriptor is
    closed: a process that is nobody's child waits for the end of a pipe."""
    reader, writer = os.pipe()
    subprocess.run(["setsid", "--fork", "sh", "-c", 'read -r line; exec "$@"', "sh", *command],
                   stdin=reader, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    os.close(reader)
    return writer


def make_client(url, access_key=ACCESS_KEY, secret_key=SECRET_KEY, service="s3"):
    """botocore's."""
    config = botocore.config.Config(s3={"addressing_style": "path"}, signature_version="s3v4",
                                    retries={"max_attempts": 5})
    return botocore.session.get_session().create_client(
        service, region_name="us-east-1", endpoint_url=url, config=config if service == "s3" else None,
        aws_access_key_id=access_key, aws_secret_access_key=secret_key)


class Gateway:
    """One server. `gateways`: so many over one store. `inside`: a command that runs another one in
    the network namespace where the server shall be."""

    def __init__(self, gateways=1, tls=False, address="127.0.0.1", inside=()):
        self.dir = tempfile.mkdtemp(prefix="weightfs-s3-")
        self.inside = inside
        self.watcher = when_dead(SCRIPT, "stop", self.dir)
        atexit.register(self.close)
        self.options = [*["--port", "0"] * gateways, *["--tls-port", "0"] * tls, "--address", address]
        self.urls = self.start()
        self.url = self.urls[0]
        self.tls_url = self.urls[-1] if tls else None
        self.ca = os.path.join(self.dir, "ca.pem")

    def script(self, command, *arguments):
        done = subprocess.run([*self.inside, SCRIPT, command, self.dir, *arguments], text=True,
                              capture_output=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"radosgw.sh {command}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self):
        """Starts it, or after crash() what is down. Returns the URLs."""
        return self.script("start", *self.options).split()

    def crash(self):
        """Kills the gateways with -9; all objects stay."""
        self.script("crash")

    def admin(self, *arguments):
        return self.script("admin", *arguments)

    def close(self):
        if self.watcher is None:
            return
        self.script("stop")
        os.close(self.watcher)
        self.watcher = None

    def variables(self, url=None, access_key=ACCESS_KEY, secret_key=SECRET_KEY):
        """The environment of a client; `url`: of a proxy before it, say."""
        return {"AWS_ENDPOINT_URL": url or self.url, "AWS_ACCESS_KEY_ID": access_key,
                "AWS_SECRET_ACCESS_KEY": secret_key}

    def client(self, url=None, access_key=ACCESS_KEY, secret_key=SECRET_KEY):
        return make_client(url or self.url, access_key, secret_key)

    def presign(self, url):
        """The URL of a GET with a signature in it that holds for a minute."""
        request = botocore.awsrequest.AWSRequest("GET", url)
        keys = botocore.credentials.Credentials(ACCESS_KEY, SECRET_KEY)
        botocore.auth.S3SigV4QueryAuth(keys, "s3", "us-east-1", expires=60).add_auth(request)
        return request.url


class S3Test(harness.MountTest):
    """`self.url` is an empty place on `self.gateway`; the environment is that of its owner."""

    gateways, tls = 1, False
    gateway = client = None
    made = 0

    @classmethod
    def setUpClass(cls):
        if S3Test.gateway is None:
            S3Test.gateway = Gateway(cls.gateways, cls.tls)
            S3Test.client = S3Test.gateway.client()
            S3Test.client.create_bucket(Bucket=BUCKET)

    def make_url(self):
        S3Test.made += 1
        self.prefix = f"run-{S3Test.made}"
        self.use()
        return f"s3://{BUCKET}/{self.prefix}"

    def writer(self, *options, **names):
        self.init()
        return self.mount("--writer", *options, **names)

    def use(self, url=None, **keys):
        """From now on the commands of this test ask this endpoint, with these keys."""
        os.environ.update(self.gateway.variables(url, **keys))

    def keys(self, below=""):
        """The keys of all objects of the repository whose keys start with `below`."""
        found = []
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{self.prefix}/{below}")
        for page in pages:
            found += [entry["Key"][len(self.prefix) + 1:] for entry in page.get("Contents", [])]
        return found

    def uploads(self):
        """Unfinished multipart uploads of the repository: [(key, upload id)]."""
        said = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=self.prefix)
        return [(entry["Key"], entry["UploadId"]) for entry in said.get("Uploads", [])]
