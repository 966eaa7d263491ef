"""Small objects that become large: a daemon with 512 MiB of memory serves on, whatever lies in the bucket.

The limit is that of a cgroup, else RLIMIT_DATA.  After each bomb a good version is published, which
must arrive with its right bytes: so the daemon has met the bomb, and got over it."""

import errno
import os
import resource
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import cgroups  # noqa: E402
import harness  # noqa: E402
import hostile  # noqa: E402

MEMORY = 512 << 20
MIB = 1 << 20
ZEROS = {}  # size -> frame


def zeros(size):
    """The frame of so many zeros."""
    if size not in ZEROS:
        ZEROS[size] = hostile.compress(bytes(size))
    return ZEROS[size]


def limit_this_process():
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


class Bombs(harness.MountTest):
    def setUp(self):
        self.steps = self.make_repository(1, params=10_000_000)
        self.cgroup = cgroups.Cgroup(MEMORY)
        self.addCleanup(self.end)
        self.mounted = harness.Mount(self, self.url)
        enter = self.cgroup.enter if self.cgroup.path else limit_this_process
        self.mounted.adopt(harness.call(*self.mounted.arguments(), preexec_fn=enter))
        self.chain = hostile.Chain(self.bucket)

    def end(self):
        """The daemon leaves the cgroup first."""
        if self.mounted.process:
            self.mounted.process.kill()
        harness.wait_until(lambda: not self.cgroup.path or self.cgroup.try_close(), "an empty cgroup")

    # ---- what happens with each ----

    def peak_mib(self):
        with open(f"/proc/{self.mounted.process.pid}/status") as file:
            return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))

    def meets(self, what, words):
        """The daemon names one of the words, and is alive."""
        def is_met(status):
            return status["error"] and any(word in status["error"]["message"] for word in words)

        self.mounted.wait_status(is_met, f"{what}: an error with one of {words}")
        self.assertFalse(self.mounted.process.has_ended(), what)

    def recovers(self, what):
        """The next version is good; it arrives."""
        self.chain.add_good()
        self.mounted.wait_version(self.chain.number)
        self.assertEqual(self.mounted.latest(), self.chain.number)
        self.assert_same_tree(self.mounted.join("versions", self.chain.number), self.steps[0])
        print(f"{what}: {self.peak_mib()} MiB at most so far", flush=True)

    def survives(self, what, *words, **changed):
        """A legal manifest with these fields."""
        self.chain.add(hostile.manifest_bytes(self.chain.fields(**changed)))
        self.meets(what, words or [f"version {self.chain.number}"])
        self.recovers(what)

    def refuses(self, what, data):
        """No manifest at all: it is replaced by the good one."""
        key = self.chain.key(self.chain.number + 1)
        self.chain.put(key, data)
        self.meets(what, [key])
        self.recovers(what)

    # ---- the corpus ----

    def put_layout(self, data, frame=None):
        ref = hostile.object_ref(data)
        self.chain.put(f"layouts/{ref['sha256']}", frame or hostile.compress(data))
        return ref

    def test_layouts(self):
        gib = {"sha256": "00" * 32, "size": 1 << 30}
        self.chain.put(f"layouts/{gib['sha256']}", zeros(1 << 30))
        self.survives("a layout of 1 GiB of zeros", layout=gib)
        self.chain.put(f"layouts/{gib['sha256']}", zeros(1 << 30)[:-1])
        self.survives("the same, cut", layout=gib)

        # As large as this memory lets in, and of what takes most of it when it is read.
        size = 5 * MIB
        tensors = b",".join(b'"%x":{"dtype":"U8","shape":[],"data_offsets":[0,0]}' % i
                            for i in range(size // 52))
        for what, text in (
                ("short names in __metadata__",
                 b'{"__metadata__":{' + b",".join(b'"%x":""' % i for i in range(size // 11)) + b"}}"),
                ("tensors without bytes", b"{" + tensors.replace(b"[],", b"[0],") + b"}"),
                ("a shape of very many extents",
                 b'{"a":{"dtype":"U8","shape":[0' + b",1" * (size // 2 - 50) +
                 b'],"data_offsets":[0,0]}}'),
                ("unknown fields",
                 b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],' +
                 b",".join(b'"%x":0' % i for i in range(size // 11)) + b"}}"),
                ("arrays in arrays", b'{"a":' + b"[" * size + b"}"),
                ("objects in an unknown field", b'{"a":{"x":[' + b"{}," * (size // 3) + b"{}]}}")):
            head = hostile.safetensors_head(text)
            layout = self.put_layout(hostile.layout_of([("model.safetensors", head, len(head))]))
            self.survives(what, layout=layout)
        files = [(f"{i:06d}", b"", 0) for i in range(100_000)]
        layout = self.put_layout(hostile.layout_of(files))
        self.survives("very many files", layout=layout)

    def test_hashes(self):
        for file_bytes in (10 << 40, (1 << 46) - 1):
            layout = self.put_layout(hostile.layout_of([("model.bin", b"", file_bytes)]))
            size = hostile.hashes_size(file_bytes)
            version = self.chain.number + 1
            self.chain.put(f"snapshots/{version}/{hostile.NONCE}/.hashes", zeros(min(size, 1 << 30)))
            hashes = {"sha256": "00" * 32, "size": size}
            self.survives(f"hashes of {size} bytes", layout=layout,
                          snapshot={"hashes": hashes, "nonce": hostile.NONCE}, blobs=[])

    def delta_of(self, packs):
        """Puts packs of the next version; returns the field."""
        refs = []
        for k, pack in enumerate(packs):
            name = f"{hostile.NONCE}-{k}"
            self.chain.put(f"packs/{self.chain.number + 1}/{name}.safetensors", pack)
            refs.append(hostile.pack_ref(name, pack))
        return {"changed": 0, "packs": refs}

    def test_indexes(self):
        chunks = 4 << 20
        layout = self.put_layout(hostile.layout_of([("model.bin", b"", chunks << 20)]))
        changed = {"layout": layout, "snapshot": None, "blobs": []}
        large = hostile.pack_of(hostile.unchanged_index(chunks))
        self.assertLess(len(large), 64 << 10)
        self.survives("eight indexes of 228 MiB", delta=self.delta_of([large] * 8), **changed)
        lies = hostile.pack_of(b"\0" * 100, index_size=200 * MIB)
        self.survives("an index that is not as large as it says", delta=self.delta_of([lies]),
                      **changed)
        many = hostile.pack_of(hostile.varint(30 * MIB) + bytes(90 * MIB))
        self.survives("an index of nothing but ranges", delta=self.delta_of([many]), **changed)
        header = hostile.pack_of(hostile.unchanged_index(16),
                                 extra=b',"x":"' + b"x" * (90 * MIB) + b'"')
        self.survives("a header of 90 MiB", delta=self.delta_of([header]), **changed)
        # As many chunks as this memory lets in, each in every pack.
        chunks = 100_000
        layout = self.put_layout(hostile.layout_of([("model.bin", b"", chunks << 20)]))
        same = hostile.pack_of(hostile.unchanged_index(chunks))
        self.survives("chunks that are in all of 64 packs", delta=self.delta_of([same] * 64),
                      **{**changed, "layout": layout})
        self.survives("very many packs that are not there", layout=layout, snapshot=None, blobs=[],
                      delta={"changed": 0, "packs": [
                          {"head": 100, "head_sha256": "00" * 32, "name": f"{hostile.NONCE}-{k}",
                           "size": 1 << 29} for k in range(5000)]})

    def gets_eio(self, path, words):
        """A reader, and the log says why."""
        with self.assertRaises(OSError) as raised:
            os.close(os.open(path, os.O_RDONLY))
        self.assertEqual(raised.exception.errno, errno.EIO)
        log = harness.read_file(os.path.join(self.mounted.store, "weightfs.log")).decode()
        said = [line for line in log.splitlines() if words in line]
        self.assertTrue(said, log)
        self.assertIn("give weightfs more memory", said[-1])

    def test_who_opens_by_name_what_takes_too_much_memory_gets_eio(self):
        gib = {"sha256": "00" * 32, "size": 1 << 30}
        self.chain.put(f"layouts/{gib['sha256']}", zeros(1 << 30))
        self.survives("a layout of 1 GiB of zeros", layout=gib)
        layout = self.chain.number - 1
        file_bytes = 10 << 40
        hashes = {"sha256": "00" * 32, "size": hostile.hashes_size(file_bytes)}
        self.survives("hashes of a file of 10 TiB", blobs=[],
                      layout=self.put_layout(hostile.layout_of([("model.bin", b"", file_bytes)])),
                      snapshot={"hashes": hashes, "nonce": hostile.NONCE})
        version = self.chain.number - 1
        self.gets_eio(self.mounted.join("versions", layout, "model.bin"),
                      f"request: version {layout}: ")
        self.gets_eio(self.mounted.join("versions", version, "model.bin"),
                      f"request: version {version}: ")
        [partial] = self.mounted.status()["partial"]
        self.assertEqual((partial["version"], partial["error"]["code"]), (version, "unsupported"))
        self.assertIn("give weightfs more memory", partial["error"]["message"])

    def test_blobs(self):
        said = {"path": "config.json", "sha256": "11" * 32, "size": 16 * MIB}
        self.chain.put(f"blobs/{said['sha256']}", zeros(1 << 30))
        self.survives("a blob of 1 GiB of zeros", blobs=[said])
        many = [{**said, "path": f"{i:05d}.json"} for i in range(6000)]
        self.survives("very many blobs", blobs=many)

    def test_manifests(self):
        good = hostile.manifest_bytes(self.chain.fields())
        room = MIB - len(good) - 100
        inside = lambda text: good[:-1] + b',"zz":' + text + b"}"  # noqa: E731
        for what, data in (
                ("an array of empty objects", inside(b"[" + b"{}," * (room // 3) + b"{}]")),
                ("an array of empty arrays", inside(b"[" + b"[]," * (room // 3) + b"[]]")),
                ("an object of short names",
                 inside(b"{" + b",".join(b'"%x":0' % i for i in range(room // 10)) + b"}")),
                ("blobs that are empty objects",
                 good.replace(b'"blobs":[', b'"blobs":[' + b"{}," * (room // 3))),
                ("arrays in arrays", b"[" * MIB),
                ("objects in objects", b'{"a":' * (MIB // 5)),
                ("a number of very many digits", inside(b"1" * room)),
                ("a number with a huge exponent", inside(b"1e999999999")),
                ("the same key very often", inside(b"{" + b'"a":0,' * (room // 6) + b'"a":0}')),
                ("a text of escapes", inside(b'"' + b"\\u0041" * (room // 6) + b'"')),
                ("64 MiB", inside(b"[" + b"{}," * (21 * MIB) + b"{}]")),
                ("no UTF-8", inside(b'"\xff"')),
                ("a cut one", good[:-10]),
                ("nothing", b""),
                ("zeros", bytes(MIB))):
            self.refuses(what, data)


if __name__ == "__main__":
    harness.main()
