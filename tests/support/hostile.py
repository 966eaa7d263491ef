"""Hostile repositories: manifests with any content and a right hash, zstd bombs, layouts and packs that
hold what no publisher writes.  docs/FORMAT.md has what their bytes mean."""

import ctypes
import ctypes.util
import hashlib
import json
import os
import struct

zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
zstd.ZSTD_compressBound.restype = zstd.ZSTD_compress.restype = ctypes.c_size_t
zstd.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
zstd.ZSTD_compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t,
                               ctypes.c_int]

NONCE = "00112233445566778899aabbccddeeff"


def compress(data):
    """One frame that says its size."""
    room = ctypes.create_string_buffer(zstd.ZSTD_compressBound(len(data)))
    size = zstd.ZSTD_compress(room, len(room), data, len(data), 1)
    return room.raw[:size]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def varint(value):
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(data + bytes([value]))


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def manifest_bytes(fields):
    """Canonical, with the hash that the fields give."""
    fields = {**fields, "signature": "", "required_features": ["manifest-sha256", "xr"]}
    hashed = {key: value for key, value in fields.items() if key not in ("sha256", "signature")}
    return canonical({**fields, "sha256": sha256(canonical(hashed))})


def object_ref(data):
    return {"sha256": sha256(data), "size": len(data)}


# ---- layouts -------------------------------------------------------------------------------------

def layout_of(files):
    """`files`: (path, head, size) by path; without a head the file is opaque."""
    data = b"WFLAYOUT" + struct.pack("<II", 1, len(files))
    for path, head, size in files:
        data += struct.pack("<BH", 0 if head else 1, len(path)) + path.encode()
        data += struct.pack("<Q", len(head)) + head + struct.pack("<Q", size)
    return data


def safetensors_head(text):
    return struct.pack("<Q", len(text)) + text


def hashes_size(file_bytes):
    """Of the object of hashes for one opaque file."""
    return 8 + 8 * -(-file_bytes // (1 << 20)) + 32 * -(-file_bytes // (1 << 20))


# ---- packs ---------------------------------------------------------------------------------------

def pack_of(index, index_size=None, extra=b""):
    """A pack without data around an index.  `extra`: more text for its header."""
    frame = compress(index)
    size = len(index) if index_size is None else index_size
    text = (b'{"__metadata__":{"format":"weightfs pack","index_size":"%d"%s},"index":{"dtype":"U8",'
            b'"shape":[%d],"data_offsets":[0,%d]},"data":{"dtype":"U8","shape":[0],'
            b'"data_offsets":[%d,%d]}}' % (size, extra, len(frame), len(frame), len(frame), len(frame)))
    return safetensors_head(text + b" " * (-len(text) % 8)) + frame


def unchanged_index(chunks, ranges=None, blocks=16):
    """Chunks of tensor 0 that hold no changed block."""
    ranges = ranges or [(0, 0, chunks)]
    head = varint(len(ranges)) + b"".join(varint(n) for entry in ranges for n in entry)
    return head + bytes(chunks * (3 * blocks + 8 + 1))


def pack_ref(name, pack):
    return {"head": len(pack), "head_sha256": sha256(pack), "name": name, "size": len(pack)}


# ---- repositories --------------------------------------------------------------------------------

class Chain:
    """Goes on from version 1 of a directory's repository, which has a snapshot."""

    def __init__(self, bucket):
        self.bucket = bucket
        self.first = json.loads(self.read(self.key(1)))
        self.number = 1
        self.parent_sha256 = sha256(self.read(self.key(1)))

    @staticmethod
    def key(version):
        return f"versions/{version:020d}.json"

    def read(self, key):
        with open(os.path.join(self.bucket, key), "rb") as file:
            return file.read()

    def put(self, key, data):
        """Whole or not at all."""
        path = os.path.join(self.bucket, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".new", "wb") as file:
            file.write(data)
        os.rename(path + ".new", path)

    def fields(self, **changed):
        """Of the next version, which is version 1 again; None leaves a field out."""
        version = self.number + 1
        fields = {**self.first, "version": version, "parent": self.number, "nonce": NONCE,
                  "parent_sha256": self.parent_sha256, **changed}
        return {key: value for key, value in fields.items() if value is not None}

    def add(self, data):
        """Takes a legal manifest for the next version."""
        self.put(self.key(self.number + 1), data)
        self.number += 1
        self.parent_sha256 = sha256(data)

    def add_good(self):
        """The files of version 1 once more, as a snapshot of their own."""
        version, nonce = self.number + 1, self.first["snapshot"]["nonce"]
        folder = os.path.join(self.bucket, "snapshots", str(version))
        os.makedirs(folder, exist_ok=True)
        source = os.path.join(self.bucket, "snapshots", "1", nonce)
        for parent, _, names in os.walk(source):
            there = os.path.join(folder, nonce, os.path.relpath(parent, source))
            os.makedirs(there, exist_ok=True)
            for name in names:
                os.link(os.path.join(parent, name), os.path.join(there, name))
        self.add(manifest_bytes(self.fields()))
