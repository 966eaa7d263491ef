"""Metrics (docs/METRICS.md): what a mount and a sync give out, to whom, and what Prometheus makes of it.

Needs promtool and prometheus of Debian's package: in $WEIGHTFS_PROMETHEUS, else in the PATH.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "support"))

import harness  # noqa: E402
from fake_engine import FakeEngine  # noqa: E402
from harness import MountTest, read_file, run, wait_until  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
MONITORING = DOCS / "monitoring"
SAMPLE = re.compile(r'^(\w+?)(_bucket|_sum|_count)?(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        return reply.read().decode()


def families(text):
    """{name: (type, set of label names, {labels as text: value})}, of the text format."""
    found, name = {}, None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            found[name] = (kind, set(), {})
        elif not line.startswith("#"):
            match = SAMPLE.match(line)
            kind, labels, values = found[name]
            suffix = match[2] if kind == "histogram" else ""
            shown = match[1] + (match[2] or "") if kind != "histogram" else match[1]
            assert shown == name, f"{line} stands below {name}"
            pairs = LABEL.findall(match[3] or "")
            labels.update(label for label, _ in pairs if label != "le")
            values[(suffix or "") + ",".join(f"{a}={b}" for a, b in pairs)] = float(match[4])
    return found


def page():
    """{name: (type, set of labels)}, of docs/METRICS.md."""
    rows = re.findall(r"^\| `(weightfs_\w+)` \| (\w+) \|([^|]*)\|", (DOCS / "METRICS.md").read_text(), re.M)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def tool(name):
    folder = os.environ.get("WEIGHTFS_PROMETHEUS")
    path = shutil.which(name, path=folder) or shutil.which(name)
    if not path:
        raise AssertionError(f"no {name}: install Debian's prometheus, or unpack it and name the folder "
                             "of its programs in WEIGHTFS_PROMETHEUS")
    return path


def promtool(*arguments, **more):
    done = subprocess.run([tool("promtool"), *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **more)
    if done.returncode != 0:
        raise AssertionError(f"promtool {arguments}: {done.stdout}{done.stderr}")
    return done.stdout


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Scraped(MountTest):
    def value(self, address, name, labels=""):
        return families(scrape(address))[name][2].get(labels)

    def wait_value(self, address, name, labels, condition):
        def seen():
            value = self.value(address, name, labels)
            return value is not None and condition(value)
        wait_until(seen, f"{name}{{{labels}}}")


class Metrics(Scraped):
    def test_the_page_lists_what_is_given_out(self):
        steps = self.make_repository(2)
        engine = self.enterContext(FakeEngine("http"))
        mount = self.writer("--metrics", "127.0.0.1:0", "--gc", "--hook", f"http={engine.url}/weights")
        address = mount.status()["metrics"]
        shutil.copytree(steps[1], mount.staging("step-9"))
        os.rename(mount.staging("step-9"), mount.join("publish/step-9"))
        mount.wait_version(3)
        self.wait_value(address, "weightfs_hook_updates_total", f"type=http,engine={engine.url}/weights",
                        lambda value: value > 0)
        os.rename(self.bucket, self.bucket + ".away")  # for a failure
        self.wait_value(address, "weightfs_errors_total", "source=sync,code=unavailable",
                        lambda value: value > 0)
        found = families(scrape(address))
        os.rename(self.bucket + ".away", self.bucket)
        listed = page()
        self.assertEqual(set(found), set(listed))
        for name, (kind, labels, values) in found.items():
            self.assertEqual(kind, listed[name][0], name)
            if values:
                self.assertEqual(labels, listed[name][1], name)
            self.assertEqual(name.endswith("_total"), kind == "counter", name)
        empty = {name for name, (_, _, values) in found.items() if not values}
        self.assertLessEqual(empty, {"weightfs_max_lag_seconds", "weightfs_queue_oldest_timestamp_seconds",
                                     "weightfs_hook_pause_seconds"})
        promtool("check", "metrics", input=scrape(address))

    def test_numbers_say_what_happened(self):
        steps = self.make_repository(2)
        mount = self.writer("--metrics", "127.0.0.1:0", "--serve", "daemon", "--max-lag", "77")
        address = mount.status()["metrics"]
        shutil.copytree(steps[1], mount.staging("step-9"))
        os.rename(mount.staging("step-9"), mount.join("publish/step-9"))
        mount.wait_version(3)
        self.wait_value(address, "weightfs_version", "which=latest", lambda value: value == 3)
        self.wait_value(address, "weightfs_hand_over_seconds", "_count", lambda value: value == 1)
        sizes = sum(len(read_file(os.path.join(parent, name)))
                    for parent, _, names in os.walk(mount.join("versions/3")) for name in names)
        self.wait_value(address, "weightfs_served_bytes_total", "", lambda value: value >= sizes)
        self.assertFalse(os.path.exists(mount.join("latest/not-there")))
        self.wait_value(address, "weightfs_requests_total", "op=lookup,code=ENOENT",
                        lambda value: value > 0)
        found = {name: values for name, (_, _, values) in families(scrape(address)).items()}
        self.assertEqual(found["weightfs_health"], {"state=healthy": 1, "state=degraded": 0, "state=failed": 0})
        self.assertEqual(found["weightfs_published_versions_total"], {"": 1})
        self.assertGreater(found["weightfs_uploaded_bytes_total"][""], 0)
        self.assertGreater(found["weightfs_fetched_bytes_total"][""], 0)
        self.assertGreater(found["weightfs_written_bytes_total"][""], 0)
        self.assertGreater(found["weightfs_requests_total"]["op=read,code=ok"], 0)
        for op in ("read", "open"):  # an alert sees an increase only of what was there before
            for code in ("EIO", "ETIMEDOUT", "ENODEV"):
                self.assertEqual(found["weightfs_requests_total"][f"op={op},code={code}"], 0)
        self.assertEqual(found["weightfs_max_lag_seconds"], {"": 77})
        self.assertEqual(found["weightfs_version_seconds"]["_count"], 1)
        self.assertGreater(found["weightfs_rocksdb_memtable_bytes"][""], 0)
        self.assertEqual(found["weightfs_rocksdb_writable"], {"": 1})
        for phase in ("seal", "wait", "code", "upload", "commit", "adopt"):
            self.assertEqual(found["weightfs_hand_over_phase_seconds"][f"_countphase={phase}"], 1)

    def test_counters_never_go_back(self):
        self.make_repository(1)
        mount = self.mount("--metrics", "127.0.0.1:0", "--serve", "daemon")
        address = mount.status()["metrics"]
        before = {}
        for step in range(20):
            if step == 8:
                os.rename(self.bucket, self.bucket + ".away")
            if step == 14:
                os.rename(self.bucket + ".away", self.bucket)
            os.listdir(mount.join("latest/"))
            for name, (kind, _, values) in families(scrape(address)).items():
                for labels, value in values.items() if kind != "gauge" else ():
                    self.assertGreaterEqual(value, before.get((name, labels), 0), (name, labels))
                    before[name, labels] = value
        self.assertGreater(len(before), 100)

    def test_a_sync_has_them_too(self):
        self.make_repository(1)
        folder = os.path.join(self.dir, "folder")
        path = os.path.join(self.dir, "sync-metrics")
        sync = harness.start("sync", self.url, folder, "--poll", "0.05", "--metrics", f"unix:{path}",
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.workspace.processes.append(harness.Process(sync.pid))
        wait_until(lambda: os.path.islink(os.path.join(folder, "latest")), "a version")
        found = wait_until(lambda: self.with_versions(path, 1), "it to be counted")
        self.assertEqual(set(found), set(page()))
        self.assertEqual(found["weightfs_version"][2]["which=latest"], 1)
        sync.terminate()
        sync.wait(timeout=30)
        self.assertFalse(os.path.exists(path))

    def with_versions(self, path, count):
        """The families once there are so many versions; else None."""
        found = families(self.ask_socket(path))
        return found if found["weightfs_versions"][2][""] == count else None

    def ask_socket(self, path):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(path)
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = b"".join(iter(lambda: client.recv(65536), b"")).decode()
        head, body = text.split("\r\n\r\n", 1)
        self.assertTrue(head.startswith("HTTP/1.1 200 "), head)
        return body


class Addresses(Scraped):
    def test_one_that_cannot_be_had_is_an_error_before_the_mount(self):
        self.make_repository(1)
        folder = os.path.join(self.dir, "mnt")
        os.makedirs(folder)
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = f"127.0.0.1:{other.getsockname()[1]}"
            for address, said in ((taken, "another process listens there"), ("192.0.2.1:9", "192.0.2.1:9"),
                                  ("localhost:1", "is not an address for metrics"),
                                  (f"unix:{__file__}", "exists and is not a socket"),
                                  (f"unix:{self.dir}/typo/x", "does not exist")):
                done = run("mount", self.url, folder, "--store", os.path.join(self.dir, "s"),
                           "--metrics", address)
                self.assertNotEqual(done.returncode, 0, address)
                self.assertIn(said, done.stderr)
                self.assertIn(address.split(":")[1] if "unix" in address else address, done.stderr)
                self.assertFalse(os.path.ismount(folder))
        self.assertTrue(os.path.exists(__file__))
        self.assertFalse(os.path.exists(os.path.join(self.dir, "typo")))

    def test_a_socket_of_a_killed_daemon_is_taken_over(self):
        self.make_repository(1)
        path = os.path.join(self.dir, "metrics")
        mount = self.mount("--metrics", f"unix:{path}")
        self.assertEqual(mount.status()["metrics"], f"unix:{path}")
        mount.process.kill(signal.SIGKILL)
        run("umount", mount.path)
        self.assertTrue(os.path.exists(path))
        mount.start()
        self.assertIn("weightfs_version", Metrics.ask_socket(self, path))

    def test_clients_that_do_harm_disturb_nobody(self):
        self.make_repository(1)
        mount = self.mount("--metrics", "127.0.0.1:0", "--serve", "daemon")
        address = mount.status()["metrics"]
        host, port = address.split(":")
        silent = []
        for number in range(300):
            client = socket.create_connection((host, int(port)), timeout=30)
            self.addCleanup(client.close)
            silent.append(client)
            try:
                client.sendall((b"GET /metrics HTTP/1.1\r\nX: ", b"\0\xff\r\n", b"", b"GET / HTTP/1.1\r\n\r\n")
                               [number % 4])
            except OSError:
                pass  # closed for a newer one
        self.assertIn("weightfs_version", scrape(address))
        harness.hash_tree(mount.join("latest/"))
        self.assertEqual(run("status", mount.path, "--check").returncode, 0)
        for target in ("/x", "/metrics/"):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://{address}{target}", timeout=30)
            self.assertEqual(caught.exception.code, 404)
            caught.exception.close()


class Prometheus(Scraped):
    def query(self, port, expression):
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
                return {tuple(sorted((key, value) for key, value in one["metric"].items()
                                     if key not in ("__name__", "instance", "job"))): float(one["value"][1])
                        for one in json.load(reply)["data"]["result"]}
        except (urllib.error.URLError, ConnectionError):
            return {}  # it starts

    def test_it_scrapes_a_mount(self):
        steps = self.make_repository(2)
        mount = self.writer("--metrics", "127.0.0.1:0")
        config, port = os.path.join(self.dir, "prometheus.yml"), free_port()
        with open(config, "w") as file:
            file.write("global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
                       f"rule_files: ['{MONITORING}/weightfs.rules.yml']\n"
                       "scrape_configs:\n"
                       f"- {{job_name: weightfs, static_configs: [{{targets: ['{mount.status()['metrics']}']}}]}}\n")
        promtool("check", "config", config)
        log = open(os.path.join(self.dir, "prometheus.log"), "w")
        self.addCleanup(log.close)
        server = subprocess.Popen(
            [tool("prometheus"), f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}",
             f"--storage.tsdb.path={self.dir}/tsdb"], stdout=log, stderr=log)
        self.workspace.processes.append(harness.Process(server.pid))
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        wait_until(lambda: self.query(port, 'up{job="weightfs"}') == {(): 1}, "a scrape")
        self.assertEqual(self.query(port, 'weightfs_version{which="latest"}'), {(("which", "latest"),): 2})
        shutil.copytree(steps[1], mount.staging("step-9"))
        os.rename(mount.staging("step-9"), mount.join("publish/step-9"))
        wait_until(lambda: self.query(port, 'weightfs_version{which="latest"}') == {(("which", "latest"),): 3},
                   "the next version in Prometheus")
        self.assertEqual(self.query(port, 'ALERTS{alertstate="firing"}'), {})
        mount.umount()
        wait_until(lambda: self.query(port, 'up{job="weightfs"}') == {(): 0}, "the end of the scrapes")

    def test_alerts_are_right(self):
        promtool("check", "rules", MONITORING / "weightfs.rules.yml")
        promtool("test", "rules", MONITORING / "weightfs.test.yml")
        rules = (MONITORING / "weightfs.rules.yml").read_text()
        self.assertLessEqual(set(re.findall(r"\bweightfs_\w+", rules)), self.names())
        tested = (MONITORING / "weightfs.test.yml").read_text()
        alerts = re.findall(r"alert: (\w+)", rules)
        self.assertIn(f"value: {len(alerts)}\n", tested)  # all of them fire there

    def test_the_dashboard_asks_for_what_there_is(self):
        dashboard = json.loads((MONITORING / "dashboard.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        self.assertGreater(len(expressions), 20)
        self.assertLessEqual(set(re.findall(r"\bweightfs_\w+", "\n".join(expressions))), self.names())
        for variable, value in (("$instance", ".*"), ("$__rate_interval", "5m")):
            expressions = [one.replace(variable, value) for one in expressions]
        rules = {"groups": [{"name": "dashboard", "rules": [
            {"record": f"dashboard:{number}", "expr": one} for number, one in enumerate(expressions)]}]}
        path = os.path.join(self.dir, "dashboard.yml")
        with open(path, "w") as file:
            json.dump(rules, file)  # JSON is YAML
        promtool("check", "rules", path)

    def names(self):
        """As PromQL has them."""
        return {name + suffix for name, (kind, _) in page().items()
                for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))}


class Log(MountTest):
    def test_json_has_an_object_for_each_line(self):
        self.make_repository(1)
        mount = self.mount("--log-format", "json")
        lines = read_file(os.path.join(mount.store, "weightfs.log")).decode().splitlines()
        messages = [json.loads(line) for line in lines]
        self.assertTrue(messages)
        for one in messages:
            self.assertEqual(list(one), ["time", "level", "pid", "message"])
            self.assertRegex(one["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertEqual(one["pid"], mount.process.pid)
        self.assertIn("mounts", messages[0]["message"])

    def test_a_level_leaves_out_what_is_not_as_bad(self):
        self.make_repository(1)
        mount = self.mount("--log-level", "error")
        self.assertEqual(read_file(os.path.join(mount.store, "weightfs.log")), b"")
        for option, value in (("--log-level", "all"), ("--log-format", "xml")):
            done = run("mount", self.url, mount.path, option, value)
            self.assertIn(f"'{value}' is not ", done.stderr)

    def test_journald_gets_levels(self):
        self.make_repository(1)
        for options, first in (((), "<6>weightfs "), (("--log-format", "json"), '<6>{"time":"')):
            path = os.path.join(self.dir, "journal")
            with open(path, "w") as journal:
                stream = os.fstat(journal.fileno())
                sync = harness.start(
                    "sync", self.url, os.path.join(self.dir, "folder"), "--poll", "0.05", *options,
                    stdout=subprocess.DEVNULL, stderr=journal,
                    variables={"JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}"})
            self.workspace.processes.append(harness.Process(sync.pid))
            wait_until(lambda: b"\n" in read_file(path), "a line")
            sync.terminate()
            sync.wait(timeout=30)
            self.assertTrue(read_file(path).decode().startswith(first), read_file(path))


if __name__ == "__main__":
    harness.main()
