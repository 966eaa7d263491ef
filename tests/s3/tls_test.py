"""https with an authority of one's own."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402


class Tls(gateway.S3Test):
    tls = True

    def test_a_bucket_behind_https(self):
        os.environ["AWS_CA_BUNDLE"] = self.gateway.ca
        self.addCleanup(os.environ.pop, "AWS_CA_BUNDLE")
        self.use(self.gateway.tls_url)
        steps = self.make_repository(2)
        mount = self.mount()
        self.assert_same_tree(mount.join("latest/"), steps[1])
        self.assert_clean()

    def test_a_certificate_that_nobody_vouches_for_is_refused(self):
        self.use(self.gateway.tls_url)
        done = harness.run("init", self.url, "--json", timeout=30)
        self.assertEqual(done.returncode, 1)
        error = harness.json.loads(done.stdout)["error"]
        self.assertEqual(error["code"], "permission")
        for word in ("certificate", "AWS_CA_BUNDLE", self.gateway.tls_url.split("//")[1]):
            self.assertIn(word, error["message"])
        self.assertEqual(self.keys(), [])

    def test_the_name_in_the_certificate_must_be_that_of_the_server(self):
        os.environ["AWS_CA_BUNDLE"] = self.gateway.ca
        self.addCleanup(os.environ.pop, "AWS_CA_BUNDLE")
        self.use(self.gateway.tls_url.replace("127.0.0.1", "127.0.0.2"))
        self.assertEqual(harness.run("init", self.url, timeout=60).returncode, 1)
        self.assertEqual(self.keys(), [])


if __name__ == "__main__":
    harness.main()
