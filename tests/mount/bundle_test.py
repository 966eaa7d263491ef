"""`weightfs doctor --bundle`: an archive for whoever helps, without a secret of this host."""

import os
import signal
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402

CANARY = "canary0d1"
SECRETS = {"AWS_SECRET_ACCESS_KEY": f"{CANARY}-key/with+signs", "AWS_SESSION_TOKEN": f"{CANARY}-session",
           "HF_TOKEN": f"hf_{CANARY}", "https_proxy": f"http://user:{CANARY}-proxy@127.0.0.1:1"}


class Bundle(harness.MountTest):
    def setUp(self):
        self.make_repository(1)
        home = os.path.join(self.dir, "home")
        harness.write_file(os.path.join(home, ".aws/credentials"),
                           f"[default]\naws_access_key_id = AKIA{CANARY}\n"
                           f"aws_secret_access_key = {CANARY}-file\n".encode())
        harness.write_file(os.path.join(home, ".cache/huggingface/token"), f"hf_{CANARY}-file\n".encode())
        harness.write_file(os.path.join(home, ".config/weightfs/config.toml"),
                           f'[mount]\nhook = "http=http://127.0.0.1:9/x?key={CANARY}-config,every=600"\n'.encode())
        self.token = os.path.join(self.dir, "token")
        harness.write_file(self.token, f"{CANARY}-bearer\n".encode())
        self.variables = {"HOME": home, "XDG_CACHE_HOME": os.path.join(home, ".cache"), **SECRETS}

    def mount_with_secrets(self):
        return self.mount("--hook", f"http=http://127.0.0.1:9/y?t={CANARY}-query,"
                          f"token-file={self.token},every=600",
                          "--hook", f"exec=/bin/true --password={CANARY}-argument", variables=self.variables)

    def bundle(self, *target, code=0):
        path = os.path.join(self.dir, "help.tar.gz")
        done = harness.run("doctor", *target, "--bundle", path, variables=self.variables)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(path, done.stdout)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        with tarfile.open(path) as archive:
            texts = {os.path.basename(one.name): archive.extractfile(one).read().decode()
                     for one in archive.getmembers()}
        for name, text in texts.items():
            self.assertNotIn(CANARY, text, name)
        return texts

    def test_it_has_what_one_needs_and_no_secret(self):
        mount = self.mount_with_secrets()
        log = mount.status()["log"]
        with open(log, "a", encoding="utf-8") as file:  # as if something had leaked
            file.write(f"GET /x?sig={CANARY}-a Authorization: Bearer {CANARY}-b {SECRETS['HF_TOKEN']}\n")
        texts = self.bundle(mount.path)
        self.assertEqual(sorted(texts), ["README", "command.txt", "config-1.txt", "doctor.json", "doctor.txt",
                                         "environment.txt", "health.txt", "host.txt", "log.txt", "status.json"])
        self.assertIn(self.url, texts["status.json"])
        self.assertIn("mount.hook = http=http://127.0.0.1:9/x", texts["config-1.txt"])
        self.assertIn("exec=", texts["command.txt"])
        self.assertIn("AWS_SECRET_ACCESS_KEY=[removed]", texts["environment.txt"])
        self.assertIn("GET /x?[removed]", texts["log.txt"])
        self.assertIn("passthrough", texts["doctor.txt"])
        self.assertIn("MemAvailable", texts["host.txt"])

    def test_of_a_mount_whose_daemon_is_dead_or_hangs(self):
        mount = self.mount_with_secrets()
        os.kill(mount.process.pid, signal.SIGSTOP)
        try:
            texts = self.bundle(mount.path)
        finally:
            os.kill(mount.process.pid, signal.SIGCONT)
        self.assertIn("cannot be read", texts["status.json"])
        mount.process.kill()
        texts = self.bundle(mount.path)
        self.assertIn("cannot be read", texts["status.json"])
        self.assertIn("BAD: ", texts["doctor.txt"])
        self.assertIn("--hook", texts["command.txt"])

    def test_of_the_host_alone(self):
        texts = self.bundle()
        self.assertNotIn("status.json", texts)
        self.assertIn("weightfs", texts["doctor.txt"])


if __name__ == "__main__":
    harness.main()
