"""Loaders: processes that open shards through a mount, as engines do, and tiny checkpoints for them.

Every shard's bytes follow from (version, shard), so what was read tells the version it came from,
and a file that is not whole belongs to none.
"""

import hashlib
import json
import os
import subprocess
import sys

import harness

SHARDS = 3
SHARD_BYTES = 4096


def shard_name(shard):
    return f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"


def shard_data(version, shard):
    """A safetensors file with one tensor."""
    seed = hashlib.sha256(f"{version}/{shard}".encode()).digest()
    data = seed * (SHARD_BYTES // len(seed))
    header = json.dumps({f"w{shard}": {"dtype": "U8", "shape": [len(data)],
                                       "data_offsets": [0, len(data)]}}).encode()
    header = header.ljust((len(header) + 7) // 8 * 8)
    return len(header).to_bytes(8, "little") + header + data


def write_checkpoint(folder, version):
    """A checkpoint whose every file tells `version`."""
    os.makedirs(folder)
    index = {"metadata": {}, "weight_map": {f"w{s}": shard_name(s) for s in range(SHARDS)}}
    files = {shard_name(s): shard_data(version, s) for s in range(SHARDS)}
    files["config.json"] = json.dumps({"step": version}).encode()
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


def hashes_of(versions):
    """{sha256 of a shard: (version, shard)}."""
    return {hashlib.sha256(shard_data(version, shard)).hexdigest(): (version, shard)
            for version in versions for shard in range(SHARDS)}


# What a Loader runs: a line in, a line out.
SCRIPT = r"""
import json, mmap, os, sys
maps, files = {}, {}
for line in sys.stdin:
    try:
        verb, path = json.loads(line)
        said = None
        if verb == "read":
            with open(path, "rb") as file:
                said = file.read().hex()
        elif verb == "map":  # and close at once
            fd = os.open(path, os.O_RDONLY)
            maps[path] = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
            os.close(fd)
            said = maps[path][:].hex()
        elif verb == "hold":
            files[path] = os.open(path, os.O_RDONLY)
            said = os.pread(files[path], 1 << 20, 0).hex()
        elif verb == "drop":
            maps.clear()
            for fd in files.values():
                os.close(fd)
            files.clear()
        elif verb == "link":
            said = os.readlink(path)
        elif verb == "join":  # a cgroup
            with open(path, "w") as file:
                file.write(str(os.getpid()))
        print(json.dumps([0, said]), flush=True)
    except OSError as error:
        print(json.dumps([error.errno, str(error)]), flush=True)
"""


class Loader:
    """A process of a session of its own, unless `session` is False. `before`: a command line that
    runs it, such as unshare."""

    def __init__(self, test, mount, session=True, before=()):
        self.mount = mount
        self.known = {shard_data(version, shard): version
                      for version in range(1, 40) for shard in range(SHARDS)}
        self.process = subprocess.Popen([*before, sys.executable, "-c", SCRIPT], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=session)
        test.addCleanup(self.close)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def ask(self, verb, path=None):
        self.process.stdin.write(json.dumps([verb, path]) + "\n")
        self.process.stdin.flush()
        error, said = json.loads(self.process.stdout.readline())
        if error:
            raise OSError(error, said)
        return said

    def open(self, shard, how="map", through="latest"):
        """The version that the shard's bytes belong to."""
        return self.known[bytes.fromhex(self.ask(how, self.mount.join(through, shard_name(shard))))]

    def load(self, how="map"):
        """The versions of all shards, one after another."""
        return [self.open(shard, how) for shard in range(SHARDS)]

    def config(self):
        """The version that config.json belongs to."""
        return json.loads(bytes.fromhex(self.ask("read", self.mount.join("latest", "config.json"))))["step"]

    def latest(self):
        return int(self.ask("link", self.mount.join("latest")).split("/")[-1])


class LoaderTest(harness.MountTest):
    """A repository whose version N is write_checkpoint(..., N)."""

    published = 0

    def publish_next(self, count=1, mount=None):
        """Publishes versions; waits until the mount shows the last one."""
        for _ in range(count):
            self.published += 1
            folder = os.path.join(self.dir, f"checkpoint-{self.published}")
            write_checkpoint(folder, self.published)
            self.publish(folder)
        if mount is not None:
            mount.wait_version(self.published)
