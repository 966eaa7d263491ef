"""Readers that announce themselves on a real service: what it refuses, its clock, the gate."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402

OPERATIONS = os.path.join(harness.ROOT, "docs", "OPERATIONS.md")


def documented_statements():
    """The reader's, and the one that it needs to announce itself as well."""
    with open(OPERATIONS) as file:
        blocks = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", file.read(),
                                                            re.M | re.S)]
    reader = next(block["Statement"] for block in blocks if "s3:PutObject" not in str(block))
    return reader, next(block for block in blocks if "readers/" in block.get("Resource", ""))


class Fleet(gateway.S3Test):
    def allow(self, statements):
        text = json.dumps({"Version": "2012-10-17", "Statement": statements})
        text = text.replace(":::my-runs", f":::{gateway.BUCKET}").replace("run-7", self.prefix)
        self.iam.put_user_policy(UserName="announcer", PolicyName="weightfs", PolicyDocument=text)

    def test_a_reader_with_the_documented_policy(self):
        self.gateway.admin("caps", "add", "--uid=weightfs", "--caps=user-policy=*")
        self.gateway.admin("user", "create", "--uid=announcer", "--display-name=announcer",
                           "--access-key=announcer", "--secret-key=announcer-secret")
        self.iam = gateway.make_client(self.gateway.url, service="iam")
        steps = self.make_run(2)
        self.init()
        self.publish(steps[0])
        reader, announcing = documented_statements()
        self.allow(reader)
        self.use(access_key="announcer", secret_key="announcer-secret")
        mount = self.mount("--announce", "--announce-every", "1")
        status = mount.wait_status(lambda status: status["announce"]["error"], "its refusal")
        self.assertNotIn("announcer-secret", json.dumps(status))
        self.assertEqual(harness.call("fleet", self.url)["readers"], [])

        self.allow([*reader, announcing])
        gate = ("wait", self.url, "--replicas", "1", "--timeout", "60", "--version")
        self.assertEqual(harness.call(*gate, "1")["ready"], 1)
        mount.wait_status(lambda status: status["health"] == "healthy", "its health")
        fleet = harness.call("fleet", self.url)
        self.assertEqual((fleet["clock"], fleet["readers"][0]["presence"]), ("bucket", "live"))
        self.use()
        self.publish(steps[1])
        # Ceph gives an object to the account that wrote it: others may not read it, and are told.
        fleet = harness.call("fleet", self.url)
        self.assertEqual((fleet["readers"], len(fleet["unreadable"])), ([], 1))
        self.use(access_key="announcer", secret_key="announcer-secret")
        self.assertEqual(harness.call(*gate, "2")["ready"], 1)
        mount.umount()
        self.assertEqual(harness.call("fleet", self.url)["readers"][0]["presence"], "left")


if __name__ == "__main__":
    harness.main()
