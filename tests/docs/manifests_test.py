"""The manifests for Kubernetes: YAML, the propagation that restarts need, and commands that exist.

No cluster takes them here: that is not tested.
"""

import pathlib
import re
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "docs/engines/manifests"
TABLE = "".join(path.read_text() for path in sorted((ROOT / "fs/cli").glob("*.cpp")))
# What they use of the API (core/v1, apps/v1), by the object that has it.
CONTAINER = {"name", "image", "command", "env", "securityContext", "readinessProbe",
             "livenessProbe", "startupProbe", "volumeMounts", "restartPolicy"}
POD = {"hostPID", "containers", "initContainers", "volumes", "securityContext"}
PROBE = {"exec", "timeoutSeconds", "failureThreshold", "initialDelaySeconds", "periodSeconds"}
VOLUME_MOUNT = {"name", "mountPath", "mountPropagation", "readOnly"}


def objects(name):
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def pod_spec(thing):
    return thing["spec"]["template"]["spec"] if thing["kind"] == "DaemonSet" else thing["spec"]


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


class Manifests(unittest.TestCase):
    def every(self):
        names = sorted(path.name for path in MANIFESTS.glob("*.yaml"))
        self.assertEqual(names, ["daemonset.yaml", "sidecar.yaml"])
        return [pod_spec(thing) for name in names for thing in objects(name)]

    def test_fields_are_those_of_the_api(self):
        for spec in self.every():
            self.assertLessEqual(set(spec), POD)
            volumes = {volume["name"] for volume in spec["volumes"]}
            for container in containers(spec):
                self.assertLessEqual(set(container), CONTAINER)
                for key in container:
                    if key.endswith("Probe"):
                        self.assertLessEqual(set(container[key]), PROBE)
                for mount in container["volumeMounts"]:
                    self.assertLessEqual(set(mount), VOLUME_MOUNT)
                    self.assertIn(mount["name"], volumes)

    def test_commands_and_options_exist(self):
        for spec in self.every():
            for container in containers(spec):
                lines = [container["command"]]
                lines += [container[key]["exec"]["command"] for key in container
                          if key.endswith("Probe")]
                for words in (" ".join(line).split() for line in lines):
                    if "weightfs" not in words:
                        continue
                    words = words[words.index("weightfs"):]
                    self.assertIn(f'.name = "{words[1]}"', TABLE)
                    for option in (word[2:] for word in words if word.startswith("--")):
                        self.assertIn(f'.name = "{option}"', TABLE)

    def test_a_restarted_daemon_is_seen_by_engines(self):
        """Both have the directory above the mount: one shares it, the other takes what comes."""
        daemon, engine = (pod_spec(thing)["containers"][0] for thing in objects("daemonset.yaml"))
        place = re.search(r"weightfs mount \S+ (\S+)", " ".join(daemon["command"])).group(1)
        self.assertTrue(daemon["securityContext"]["privileged"])
        for container, propagation in ((daemon, "Bidirectional"), (engine, "HostToContainer")):
            mount = container["volumeMounts"][0]
            self.assertEqual(mount["mountPropagation"], propagation)
            self.assertEqual(mount["mountPath"], str(pathlib.PurePath(place).parent))

    def test_the_sidecar_has_no_privileges(self):
        [spec] = [pod_spec(thing) for thing in objects("sidecar.yaml")]
        self.assertTrue(spec["securityContext"]["runAsNonRoot"])
        context = spec["initContainers"][0]["securityContext"]
        self.assertEqual((context["allowPrivilegeEscalation"], context["capabilities"]),
                         (False, {"drop": ["ALL"]}))

    def test_the_page_names_them(self):
        page = (ROOT / "docs/engines/kubernetes.md").read_text()
        for path in MANIFESTS.glob("*.yaml"):
            self.assertIn(f"manifests/{path.name}", page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
