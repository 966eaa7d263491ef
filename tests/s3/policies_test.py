"""Who may do what: the policies of docs/OPERATIONS.md suffice, and what is refused is told why."""

import collections
import json
import os
import re
import sys
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402
import s3_faults  # noqa: E402

OPERATIONS = os.path.join(harness.ROOT, "docs", "OPERATIONS.md")
# A command that is refused does not ask for the same thing again and again.  A publish looks at its
# number when it begins, before it codes, and before it removes what it uploaded.
TIMES_MAX = {"GET": 3, "PUT": 2, "DELETE": 2, "POST": 2}


def documented_policies():
    """{"reader" or "writer": the text}: the policies among the document's JSON."""
    with open(OPERATIONS) as file:
        blocks = re.findall(r"^```json\n(.*?)^```", file.read(), re.M | re.S)
    policies = [block for block in blocks if "Statement" in json.loads(block)]
    return {"writer" if "s3:PutObject" in text else "reader": text for text in policies}


class Policies(gateway.S3Test):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.gateway.admin("caps", "add", "--uid=weightfs", "--caps=user-policy=*")
        for user in ("reader", "writer", "nobody"):
            cls.gateway.admin("user", "create", f"--uid={user}", f"--display-name={user}",
                              f"--access-key={user}", f"--secret-key={user}-secret")
        cls.iam = gateway.make_client(cls.gateway.url, service="iam")

    def allow(self, user):
        """Gives a user the documented policy, for this test's place."""
        text = documented_policies()[user]
        bucket, prefix = re.search(r'arn:aws:s3:::([^/"]+)/([^"]+)/\*', text).groups()
        for old, new in ((f":::{bucket}", f":::{gateway.BUCKET}"), (prefix, self.prefix)):
            text = text.replace(old, new)
        self.iam.put_user_policy(UserName=user, PolicyName="weightfs", PolicyDocument=text)

    def become(self, user):
        self.use(access_key=user, secret_key=f"{user}-secret")

    def refused(self, *arguments, code="permission", words=(), exit_code=1, **variables):
        """The command must fail, without insisting, and show no secret."""
        with s3_faults.Proxy(self.gateway) as proxy:
            done = harness.run(*arguments, "--json", timeout=60,
                               variables={"AWS_ENDPOINT_URL": proxy.url, **variables})
        asked = collections.Counter(request.first for request in proxy.seen)
        for request, times in asked.items():
            self.assertLessEqual(times, TIMES_MAX[request.split()[0]], request)
        self.assertEqual(done.returncode, exit_code, done.stdout)
        error = json.loads(done.stdout)["error"]
        self.assertEqual(error["code"], code, error)
        for word in words:
            self.assertIn(word, error["message"])
        self.assertNotIn("-secret", done.stdout + done.stderr)
        return error

    def test_the_readers_policy_suffices_to_mount_and_not_to_publish(self):
        steps = self.make_repository(2)
        self.allow("reader")
        self.become("reader")
        mount = self.mount()
        self.assert_same_tree(mount.join("latest/"), steps[1])
        self.assertEqual(self.version_count(), 2)
        self.assert_clean()
        harness.call("export", self.url, os.path.join(self.dir, "out"), "--version", 1)
        self.assert_same_tree(os.path.join(self.dir, "out"), steps[0])
        self.assertEqual(self.findings()["write"]["state"], "note")
        self.refused("publish", self.url, steps[0], "--store", os.path.join(self.dir, "reader"),
                     words=("s3:PutObject", self.url))
        self.use()
        self.publish(steps[0])
        mount.wait_version(3)
        self.assert_same_tree(mount.join("latest/"), steps[0])

    def test_who_may_not_list_skips_finds_those_that_gc_left_in_its_log(self):
        steps = self.make_run(10, 20_000)
        self.init()
        for step in steps:
            self.publish(step)
        gc = ("gc", self.url, "--keep", "1", "--keep-every", "8", "--keep-tagged=", "--grace", "0s",
              "--store", os.path.join(self.dir, "publisher"), "--delete")
        self.assertEqual(harness.call(*gc)["skips_needed"], [[1, 8]])
        harness.wait_until(lambda: len(self.keys("packs/")) == 2 or not harness.call(*gc),
                           "the end of the deltas up to 8")
        place = f"arn:aws:s3:::{gateway.BUCKET}"
        self.iam.put_user_policy(UserName="reader", PolicyName="weightfs", PolicyDocument=json.dumps(
            {"Version": "2012-10-17", "Statement": [
                {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{place}/{self.prefix}/*"},
                {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": place, "Condition": {
                    "StringLikeIfExists": {"s3:prefix": [f"{self.prefix}/versions/*"]}}}]}))
        self.become("reader")
        for version in (8, 10):
            out = os.path.join(self.dir, f"out-{version}")
            with s3_faults.Proxy(self.gateway) as proxy:
                harness.call("export", self.url, out, "--version", version,
                             variables={"AWS_ENDPOINT_URL": proxy.url})
            self.assert_same_tree(out, steps[version - 1])
            self.assertEqual({one.outcome for one in proxy.seen if one.is_list()}, {"403"})
            self.assertTrue(any("/gc/" in one.path for one in proxy.seen))

    def test_the_writers_policy_suffices_for_everything(self):
        self.allow("writer")
        self.become("writer")
        steps = self.make_repository(2)
        writer = self.writer()
        harness.shutil.copytree(steps[0], writer.staging("third"))
        os.rename(writer.staging("third"), writer.join("publish", "third"))
        harness.call("wait", writer.path, "--tag", "third", "--timeout", 60)
        self.assert_same_tree(writer.join("latest/"), steps[0])
        self.assert_clean()
        large = os.path.join(self.dir, "large")  # goes up in parts
        harness.write_file(os.path.join(large, "model.safetensors"), self.make_large())
        self.assertEqual(self.publish(large, "--snapshot")["version"], 4)
        self.assertEqual(self.uploads(), [])
        self.assertEqual({what: said["state"] for what, said in self.findings().items()
                          if said["state"] != "good"}, {})

    def findings(self):
        """What doctor says of the bucket."""
        said = harness.call("doctor", self.url)["bucket"]
        self.assertTrue(said["usable"], said)
        return said["findings"]

    def make_large(self):
        header = json.dumps({"weight": {"dtype": "U8", "shape": [70_000_000],
                                        "data_offsets": [0, 70_000_000]}}).encode()
        return len(header).to_bytes(8, "little") + header + harness.RANDOM.randbytes(70_000_000)

    def test_who_has_no_right_is_told_which(self):
        self.make_repository(1)
        self.become("nobody")
        self.refused("log", self.url, words=("s3:GetObject", "403"))

    def test_wrong_keys(self):
        self.init()
        self.refused("log", self.url, words=("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
                     AWS_SECRET_ACCESS_KEY="another-secret")
        self.refused("log", self.url, words=("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
                     AWS_ACCESS_KEY_ID="somebody")
        self.refused("log", self.url, words=("no AWS credentials", "AWS_ACCESS_KEY_ID"),
                     AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
        folder = self.make_run(1)[0]
        self.refused("publish", self.url, folder, "--store", os.path.join(self.dir, "publisher"),
                     words=("SignatureDoesNotMatch",), AWS_SECRET_ACCESS_KEY="another-secret")

    def test_an_instance_whose_metadata_give_no_answer_starts_from_its_store(self):
        """Its network may not be up yet. Who has no store reads how to give keys."""
        steps = self.make_repository(1)
        mount = self.mount()
        mount.umount()
        instance = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
                    "AWS_EC2_METADATA_DISABLED": "false",
                    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}
        with unittest.mock.patch.dict(os.environ, instance):
            mount.start()
        self.assert_same_tree(mount.join("latest/"), steps[0])
        self.refused("log", self.url, code="unavailable",
                     words=("no AWS credentials found", "set AWS_ACCESS_KEY_ID"), **instance)

    def test_a_bucket_that_is_not_there(self):
        self.refused("init", "s3://no-such-bucket/run", code="invalid", exit_code=2,
                     words=("no-such-bucket", "does not exist"))
        self.refused("log", "s3://no-such-bucket/run", code="invalid", exit_code=2,
                     words=("no-such-bucket", "does not exist"))

    def test_nobody_answers(self):
        done = harness.run("log", self.url, "--json", timeout=60,
                           variables={"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
        error = json.loads(done.stdout)["error"]
        self.assertEqual((done.returncode, error["code"]), (1, "unavailable"))
        self.assertIn("127.0.0.1:1", error["message"])

    def test_a_clock_that_is_off_is_put_right(self):
        """By the service's Date; it refuses what is signed more than 15 minutes off."""
        self.init()
        folder = self.make_run(1)[0]
        for i, seconds in enumerate((-3600, 3600), 1):
            skew = {"LD_PRELOAD": gateway.program("libweightfs_skewed_clock.so"),
                    "WEIGHTFS_TEST_SKEW_S": str(seconds)}
            said = harness.call("publish", self.url, folder, "--store",
                                os.path.join(self.dir, "publisher"), variables=skew)
            self.assertEqual(said["version"], i)
            with s3_faults.Proxy(self.gateway) as proxy:
                harness.call("log", self.url, variables={**skew, "AWS_ENDPOINT_URL": proxy.url})
                refused = [request for request in proxy.seen if request.outcome == "403"]
            self.assertEqual(len(refused), 1)  # so the clock was really off


if __name__ == "__main__":
    harness.main()
