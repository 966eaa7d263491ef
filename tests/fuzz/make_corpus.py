#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: those of the codec from the golden vectors, those of records
from the golden repositories and the bad headers.

    tests/fuzz/make_corpus.py        writes tests/data/corpus/TARGET

The layout of an input is described on top of each fuzz_*.cpp and in fuzz.hpp.
"""

import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import hostile  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
WIDTHS = {0: 1, 1: 2, 2: 2, 3: 4, 4: 1, 5: 1}
OLD_BYTES_MAX = 3100  # blocks that hold a larger old block are left out
U8, BF16, F16, F32, F8_E4M3, F8_E5M2 = range(6)
ANY, NARROW, CONSTANT = range(3)
UNIT, FEW, SPREAD, ALL_BITS = range(4)
AS_IT_IS, MADE = range(2)


def element_count(elements):
    """What fuzz::element_count reads as that; None if nothing does."""
    if elements < 4096:
        return elements
    return 0xF000 + 65536 - elements if elements > 65536 - 4096 else None


def block(kind, elements, pattern, seed=1, first=b""):
    """fuzz::take_block"""
    return struct.pack("<BHBBH", kind, element_count(elements), pattern, seed, len(first)) + first


def change(density, how, seed=1):
    """fuzz::take_changed"""
    return bytes([density, how, seed])


def damage(*flips):
    """fuzz::take_damage"""
    return bytes([len(flips)]) + b"".join(struct.pack("<HB", *flip) for flip in flips)


def golden_blocks():
    """name, kind, old block, coded block, whether its decoder reads the old block"""
    folder = DATA / "codec"
    vectors = json.loads((folder / "vectors.json").read_text())
    for vector in vectors["cases"] + vectors["refuse"]:
        old = (folder / vector["old"]).read_bytes()
        coded = (folder / vector["block"]).read_bytes()
        reads_old = coded[:1] in (b"\x03", b"\x05")
        if element_count(len(old) // WIDTHS[vector["kind"]]) is not None:
            yield vector["name"], vector["kind"], old, coded, reads_old


def decode_seeds():
    refused_xr = 0
    for name, kind, old, coded, reads_old in golden_blocks():
        refused_xr += reads_old and name.startswith("refuse")
        if not coded or len(coded) > OLD_BYTES_MAX or (reads_old and len(old) > OLD_BYTES_MAX):
            continue
        if reads_old and name.startswith("refuse") and refused_xr > 3:
            continue  # each holds its old block; the vectors' own test has all of them
        elements = len(old) // WIDTHS[kind]
        first = old if reads_old else b""
        yield name, block(kind, elements, ANY, first=first) + bytes([AS_IT_IS]) + coded
    for kind in WIDTHS:
        old = block(kind, 1000, NARROW)
        yield f"made_{kind}_sparse", old + bytes([MADE]) + change(165, FEW) + damage()
        yield f"made_{kind}_dense", old + bytes([MADE]) + change(225, UNIT) + damage()
    old = block(BF16, 65536, NARROW)
    yield "made_full", old + bytes([MADE]) + change(150, FEW) + damage()
    yield "made_full_damaged", old + bytes([MADE]) + change(120, SPREAD) + damage((40, 1))


def encode_seeds():
    for kind in WIDTHS:
        for elements in (1, 65, 3000):
            yield f"{kind}_{elements}", block(kind, elements, NARROW) + change(165, FEW)
    for name, density, how in (
        ("one", 0, UNIT),
        ("sparse", 100, FEW),
        ("half", 225, UNIT),
        ("inverted", 239, SPREAD),
        ("all", 255, ALL_BITS),
    ):
        yield f"full_{name}", block(BF16, 65536, NARROW) + change(density, how)
    yield "constant", block(F16, 4095, CONSTANT) + change(180, FEW)
    yield "nothing", block(F32, 0, ANY) + change(255, ALL_BITS)


def patch_seeds():
    for name, kind, old, coded, _ in golden_blocks():
        if coded[:1] != b"\x02" or len(coded) > OLD_BYTES_MAX:
            continue
        one = bytes([AS_IT_IS]) + struct.pack("<H", len(coded)) + coded
        yield name, block(kind, len(old) // WIDTHS[kind], ANY) + b"\x02" + one + one
    for kind in WIDTHS:
        patches = [
            bytes([MADE]) + change(density, how, seed) + damage() + b"\0"
            for seed, (density, how) in enumerate(((165, UNIT), (180, FEW), (255, SPREAD), (90, ALL_BITS)))
        ]
        yield f"made_{kind}", block(kind, 1000, ANY) + bytes([4]) + b"".join(patches)
    diff = b"\x04" + bytes(range(64)) * 2
    one = bytes([AS_IT_IS]) + struct.pack("<H", len(diff)) + diff
    yield "diff", block(BF16, 64, ANY) + b"\x03" + one + one + bytes([MADE]) + change(150, UNIT) + damage()
    yield "nothing", block(BF16, 0, ANY) + b"\x01" + bytes([AS_IT_IS, 1, 0, 0])


# ---- records -------------------------------------------------------------------------------------

def manifest_seeds():
    yield "format_1", (DATA / "format-1" / "manifest.json").read_bytes()
    for name in ("format-1-xr", "format-1-sha256"):
        for path in sorted((DATA / name / "versions").iterdir()):
            yield f"{name}_{int(path.stem)}", path.read_bytes()
    yield "arrays", b"[" * 40
    yield "twice", b'{"format":1,"format":1}'


def part_seeds():
    """The target makes the hash right."""
    def record(**more):
        sizes = {"sha256": "ab" * 32, "size": 8}
        fields = {"blobs": [], "format": 1, "hashes": sizes, "key_id": "", "layout": sizes, "meta": {},
                  "parent_sha256": "0" * 64, "part": 1, "parts": 2, "repository": "0" * 32,
                  "required_features": [], "set": "a" * 32, "sha256": "", "signature": "",
                  "snapshot": True, "tag": "step-1", "version": 1, **more}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    pack = {"head": 10, "head_sha256": "cd" * 32, "name": "b" * 32 + "-0", "size": 20}
    yield "snapshot", record()
    yield "delta", record(snapshot=False, version=2, delta={"changed": 3, "packs": [pack]},
                          required_features=["xr"], meta={"reward": "0.7"},
                          blobs=[{"path": "config.json", "sha256": "ef" * 32, "size": 2}])
    yield "twice", record(delta={"changed": 3, "packs": [pack, pack]})
    yield "no_part", record(part=3)
    yield "no_object", b"[]"


def early_record_seeds():
    """The target makes the hash right."""
    def record(files, **more):
        fields = {"files": files, "format": 1, "parent_sha256": "0" * 64, "repository": "0" * 32,
                  "required_features": [], "sha256": "", "version": 2, **more}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    pack = {"head": 10, "head_sha256": "cd" * 32, "name": "b" * 32 + "-0", "size": 20}
    coded = {"delta": {"changed": 3, "packs": [pack]}, "path": "a.safetensors"}
    equal = {"delta": {"changed": 0, "packs": []}, "path": "b.safetensors"}
    yield "two", record([coded, equal], required_features=["xr"])
    yield "twice", record([coded, coded])
    yield "hostile", record([{**coded, "path": "../a"}])
    yield "nothing", record([])
    yield "first", record([equal], version=1)


def skip_record_seeds():
    """The target makes the hash right."""
    def record(packs, **more):
        fields = {"delta": {"changed": 7, "packs": packs}, "format": 1, "from": 56, "from_sha256": "ab" * 32,
                  "key_id": "", "nonce": "1" * 32, "repository": "0" * 32, "required_features": [], "sha256": "",
                  "signature": "", "to": 64, "to_sha256": "cd" * 32, **more}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    pack = {"head": 10, "head_sha256": "cd" * 32, "name": "b" * 32 + "-0", "size": 20}
    yield "one", record([pack], required_features=["xr"])
    yield "twice", record([pack, pack])
    yield "nothing", record([])
    yield "short", record([], to=57)


def gc_record_seeds():
    """The target makes the hash right."""
    def record(**more):
        fields = {"deltas": [[2, 64], [66, 128]], "format": 1, "grace": 86400, "head": 200,
                  "needs": [[1, 64, "ab" * 32]], "nonce": "1" * 32, "number": 3,
                  "objects": [f"packs/2/{'a' * 32}-0.safetensors", f"skips/{16:020}-{1:020}.json"],
                  "previous_sha256": "1" * 64, "repository": "0" * 32, "required_features": [], "sha256": "",
                  "skips": [[1, 16]], "snapshots": [[65, 65]], "time": 1800000000, "versions": [[2, 63]], **more}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    yield "one", record()
    yield "nothing", record(deltas=[], needs=[], objects=[], skips=[], snapshots=[], versions=[])
    yield "touching", record(deltas=[[2, 64], [65, 128]])
    yield "above", record(skips=[[1, 2**64 - 1]])
    yield "hostile", record(objects=["versions/1.json"])


def layout_seeds():
    yield "format_1", (DATA / "format-1" / "layout.bin").read_bytes()
    head = hostile.safetensors_head(b'{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}')
    yield "small", hostile.layout_of([("a.bin", b"", 5), ("b.safetensors", head, len(head) + 12)])
    yield "nothing", hostile.layout_of([])
    yield "huge", hostile.layout_of([("a.bin", b"", (1 << 46) - 1)])


def pack_seeds():
    """A head, or an index, of fuzz_pack's layout: a chunk of 1 block, and 3 chunks of 16."""
    one = hostile.unchanged_index(1, blocks=1)
    yield "one", b"\1\0\0" + one
    yield "all", b"\1\0\0" + hostile.varint(2) + bytes([0, 0, 1, 1, 0, 3]) + bytes(3 * 49 + 4 * 9)
    raw = bytes([1, 0, 0, 1]) + bytes([101, 0, 0]) + bytes(8) + b"\x64" + bytes(32)
    yield "raw", b"\1" + struct.pack("<H", 101) + raw
    yield "head", b"\0\0\0" + hostile.pack_of(one)
    yield "golden", b"\0\0\0" + (DATA / "format-1" / "pack_head.bin").read_bytes()


def safetensors_seeds():
    for path in sorted((DATA / "bad" / "safetensors").iterdir()):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        if 0 < length <= 1000:
            yield path.stem, data[8:8 + length]
    yield "good", (b'{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},'
                   b'"b":{"dtype":"F4","shape":[4],"data_offsets":[12,14]}} ')


def s3_xml_seeds():
    yield "listing", (b"<?xml version='1.0'?><ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%2Fb+c"
                      b"</Key></Contents><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
                      b"</ListBucketResult>")
    yield "error", b"<Error><Code>NoSuchKey</Code><Message>&lt;no&gt;</Message><Region>eu</Region></Error>"
    yield "begun", b"<InitiateMultipartUploadResult><UploadId>7</UploadId></InitiateMultipartUploadResult>"
    yield "uploads", (b"<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>7</UploadId><Initiated>"
                      b"2026-09-30T12:00:00.000Z</Initiated></Upload></ListMultipartUploadsResult>")
    yield "parts", (b"<ListPartsResult><Part><PartNumber>1</PartNumber><Size>5</Size><ETag>&quot;e&quot;</ETag></Part>"
                    b"<IsTruncated>true</IsTruncated><NextPartNumberMarker>1</NextPartNumberMarker></ListPartsResult>")
    yield "deep", b"<a>" * 1000
    yield "entities", b"<!DOCTYPE a [<!ENTITY b '&b;&b;'>]><Error><Code>&b;</Code></Error>"


TARGETS = {"decode": decode_seeds, "encode": encode_seeds, "patch": patch_seeds,
           "manifest": manifest_seeds, "part": part_seeds, "early_record": early_record_seeds,
           "skip_record": skip_record_seeds, "gc_record": gc_record_seeds, "layout": layout_seeds,
           "pack": pack_seeds, "safetensors": safetensors_seeds, "s3_xml": s3_xml_seeds}


def main():
    for target, seeds in TARGETS.items():
        folder = DATA / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for name, seed in seeds():
            (folder / name).write_bytes(seed)


if __name__ == "__main__":
    main()
