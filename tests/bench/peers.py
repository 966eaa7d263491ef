"""The ways of others from a trainer's memory to an engine on another host, for end_to_end.py.

Each is as its project does it (docs of each, 2026-11), with the inner loops in C++ (peers.cpp), two
threads, and without anybody's waiting for a poll, a request or a scheduler:

    slime          new XOR old, tensor by tensor, zstd level 1, XXH3-128 of the new bytes; files as
                   NAME.tmp, fsync, rename; the receiver XORs into a local checkpoint that it maps, and
                   the engine reads that
    TRL            6 bytes for each change (int32 index, bf16 value), written into tensors in memory
    ModelExpress   XOR and zstd level 1 with adler32, applied to tensors in memory
    whole files    the checkpoint is saved into the bucket, copied from there, and read
"""

import concurrent.futures
import ctypes
import http.client
import os
import shutil
import subprocess
import time
import urllib.parse

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
THREADS = 2
PIECE = 16 << 20


class Library:
    """peers.cpp, compiled for this machine into `work`."""

    def __init__(self, work):
        path = os.path.join(work, "peers.so")
        subprocess.run(["c++", "-O3", "-march=native", "-shared", "-fPIC", os.path.join(HERE, "peers.cpp"),
                        "-o", path, "-lzstd", "-lxxhash", "-lz"], check=True)
        lib = ctypes.CDLL(path)
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

        def function(name, result, *arguments):
            found = getattr(lib, "peers_" + name)
            found.restype, found.argtypes = result, arguments
            return found

        self.step = function("step", size, pointer, size, ctypes.c_uint64, pointer)
        self.xor_encode = function("xor_encode", size, pointer, size, pointer, pointer, pointer, size,
                                   number, pointer)
        self.xor_apply = function("xor_apply", number, pointer, pointer, pointer, size, size, number,
                                  pointer)
        self.sparse_encode = function("sparse_encode", size, pointer, pointer, pointer, pointer, size)
        self.sparse_apply = function("sparse_apply", None, pointer, pointer, pointer, size)


def each(action, items):
    """action(item) of all, on two threads."""
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(action, items))


def read_files(paths):
    """Every byte of these files, by read(2), on two threads."""
    def read(path):
        buffer = bytearray(4 << 20)
        with open(path, "rb", 0) as file:
            while file.readinto(buffer):
                pass
    each(read, paths)


def write_pieces(path, data, sync=False):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for at in range(0, len(data), PIECE):
            os.write(fd, data[at:at + PIECE])
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


# ---- buckets -------------------------------------------------------------------------------------

class Directory:
    """Objects as files; `sync` as slime writes them."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder)

    def prepare(self, keys):
        pass

    def put(self, key, parts, sync=True):
        path = os.path.join(self.folder, key)
        with open(path + ".tmp", "wb", 0) as file:
            for part in parts:
                file.write(part)
            if sync:
                os.fsync(file.fileno())
        os.rename(path + ".tmp", path)

    def get(self, key):
        path = os.path.join(self.folder, key)
        data = np.empty(os.path.getsize(path), np.uint8)
        with open(path, "rb", 0) as file:
            read_fully(file, data)
        return data

    def get_file(self, key, path):
        subprocess.run(["cp", os.path.join(self.folder, key), path], check=True)


def read_fully(file, data):
    view, at = memoryview(data).cast("B"), 0
    while at < len(view):
        count = file.readinto(view[at:])
        if not count:
            raise RuntimeError("a short object")
        at += count


class Objects:
    """S3, by signed URLs that are made beforehand: nobody's client could do less."""

    def __init__(self, gateway, bucket, prefix):
        self.gateway, self.bucket, self.prefix = gateway, bucket, prefix
        self.address = urllib.parse.urlsplit(gateway.url).netloc
        self.signed = {}

    def prepare(self, keys):
        for key in keys:
            url = f"{self.gateway.url}/{self.bucket}/{self.prefix}/{key}"
            self.signed[key] = {method: sign(self.gateway, method, url) for method in ("GET", "PUT")}

    def ask(self, method, key, body=None):
        connection = http.client.HTTPConnection(self.address)
        connection.request(method, self.signed[key][method], body=body)
        return connection.getresponse()

    def put(self, key, parts, sync=True):
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        answer = self.ask("PUT", key, memoryview(body).cast("B"))
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"PUT {key}: {answer.status}")

    def get(self, key):
        answer = self.ask("GET", key)
        data = np.empty(int(answer.headers["Content-Length"]), np.uint8)
        read_fully(answer, data)
        return data

    def get_file(self, key, path):
        answer = self.ask("GET", key)
        with open(path, "wb", 0) as file:
            buffer = memoryview(bytearray(4 << 20))
            while count := answer.readinto(buffer):
                file.write(buffer[:count])


def sign(gateway, method, url):
    """Path and query of a URL that holds for an hour."""
    import botocore.auth
    import botocore.awsrequest
    import botocore.credentials
    import gateway as gateways
    request = botocore.awsrequest.AWSRequest(method, url)
    keys = botocore.credentials.Credentials(gateways.ACCESS_KEY, gateways.SECRET_KEY)
    botocore.auth.S3SigV4QueryAuth(keys, "s3", "us-east-1", expires=3600).add_auth(request)
    parts = urllib.parse.urlsplit(request.url)
    return f"{parts.path}?{parts.query}"


# ---- the ways ------------------------------------------------------------------------------------

class Laps:
    """Seconds of one part after another."""

    def __init__(self):
        self.parts, self.at = {}, time.perf_counter()

    def lap(self, name):
        now = time.perf_counter()
        self.parts[name], self.at = now - self.at, now


class Way:
    """`step` brings one version from model.after to the receiver, and returns the parts' seconds."""

    in_memory = False

    def __init__(self, model, bucket, work):
        self.model, self.bucket, self.sent = model, bucket, 0
        self.folder = os.path.join(work, "receiver-" + type(self).__name__)
        self.keys = [shard.name for shard in model.shards]

    def paths(self):
        return [os.path.join(self.folder, key) for key in self.keys]

    def step(self):
        self.bucket.prepare(self.keys)
        laps = Laps()
        self.sent = sum(each(self.send, self.model.shards))
        laps.lap("encode, upload")
        each(self.receive, self.model.shards)
        laps.lap("fetch, apply")
        if not self.in_memory:
            read_files(self.paths())
            laps.lap("read")
        return laps.parts

    def check(self):
        for shard, path in zip(self.model.shards, self.paths()):
            got = shard.engine if self.in_memory else np.memmap(path, np.uint8, "r")
            if not np.array_equal(got, shard.after):
                raise RuntimeError(f"{self.name}: {shard.name} has other bytes")
        if self.in_memory:  # the next way finds it as it was
            for shard in self.model.shards:
                np.copyto(shard.engine, shard.before)


class Xor(Way):
    adler = False

    def __init__(self, model, bucket, work):
        super().__init__(model, bucket, work)
        largest = max(t.bytes for shard in model.shards for t in shard.tensors)
        self.scratch = [(np.ones(largest, np.uint8), np.ones(2 * largest, np.uint8))
                        for _ in model.shards]
        self.sums = [np.zeros((len(shard.tensors), 16), np.uint8) for shard in model.shards]
        self.sizes = [[] for _ in model.shards]

    def send(self, shard):
        frames, (scratch, room), lib = [], self.scratch[shard.number], self.model.library
        for i, tensor in enumerate(shard.tensors):
            size = lib.xor_encode(room.ctypes.data, room.nbytes, scratch.ctypes.data,
                                  tensor.at(shard.after), tensor.at(shard.before), tensor.bytes, self.adler,
                                  self.sums[shard.number][i].ctypes.data)
            frames.append(room[:size].tobytes())
        self.sizes[shard.number] = [len(frame) for frame in frames]
        self.bucket.put(shard.name, frames)
        return sum(self.sizes[shard.number])

    def target(self, shard):
        raise NotImplementedError

    def receive(self, shard):
        data, at, lib = self.bucket.get(shard.name), 0, self.model.library
        scratch, target = self.scratch[shard.number][0], self.target(shard)
        for i, (tensor, size) in enumerate(zip(shard.tensors, self.sizes[shard.number])):
            if lib.xor_apply(tensor.at(target), scratch.ctypes.data, data[at:].ctypes.data, size, tensor.bytes,
                             self.adler, self.sums[shard.number][i].ctypes.data):
                raise RuntimeError(f"{self.name}: a wrong sum")
            at += size


class Slime(Xor):
    name = "slime"

    def __init__(self, model, bucket, work):
        super().__init__(model, bucket, work)
        os.makedirs(self.folder)
        for shard, path in zip(model.shards, self.paths()):
            write_pieces(path, memoryview(shard.before))

    def target(self, shard):
        return np.memmap(self.paths()[shard.number], np.uint8, "r+")


class ModelExpress(Xor):
    name, in_memory, adler = "ModelExpress", True, True

    def target(self, shard):
        return shard.engine


class Trl(Way):
    name, in_memory = "TRL", True

    def __init__(self, model, bucket, work):
        super().__init__(model, bucket, work)
        largest = max(t.bytes // 2 for shard in model.shards for t in shard.tensors)
        self.room = [(np.ones(largest + 1, np.int32), np.ones(largest + 1, np.uint16)) for _ in model.shards]
        self.counts = [[] for _ in model.shards]

    def send(self, shard):
        parts, counts, (index, value) = [], [], self.room[shard.number]
        for tensor in shard.tensors:
            count = self.model.library.sparse_encode(index.ctypes.data, value.ctypes.data,
                                                     tensor.at(shard.after), tensor.at(shard.before),
                                                     tensor.bytes // 2)
            parts += [index[:count].tobytes(), value[:count].tobytes()]
            counts.append(count)
        self.counts[shard.number] = counts
        self.bucket.put(shard.name, parts)
        return 6 * sum(counts)

    def receive(self, shard):
        data, at = self.bucket.get(shard.name), 0
        for tensor, count in zip(shard.tensors, self.counts[shard.number]):
            self.model.library.sparse_apply(tensor.at(shard.engine), data[at:].ctypes.data,
                                            data[at + 4 * count:].ctypes.data, count)
            at += 6 * count


class Whole(Way):
    name = "whole files"

    def __init__(self, model, bucket, work):
        super().__init__(model, bucket, work)
        os.makedirs(self.folder)

    def send(self, shard):
        self.bucket.put(shard.name, [memoryview(shard.after)], sync=False)
        return len(shard.after)

    def receive(self, shard):
        self.bucket.get_file(shard.name, self.paths()[shard.number])


class Copy(Way):
    """What `cp` takes for the model on the host."""

    name = "cp"

    def __init__(self, model, bucket, work):
        super().__init__(model, bucket, work)
        self.source = self.folder + ".source"
        os.makedirs(self.folder), os.makedirs(self.source)

    def step(self):
        for shard in self.model.shards:
            write_pieces(os.path.join(self.source, shard.name), memoryview(shard.after))
        laps = Laps()
        subprocess.run(["cp", "-r", self.source + "/.", self.folder], check=True)
        laps.lap("cp")
        return laps.parts


ALL = {"slime": Slime, "trl": Trl, "modelexpress": ModelExpress, "whole": Whole, "cp": Copy}
__all__ = ["ALL", "Directory", "Laps", "Library", "Objects", "read_files", "shutil"]
