#!/usr/bin/env python3
"""Writes the seeds of the codec's fuzz targets from the golden vectors.

    tests/fuzz/make_corpus.py        writes tests/data/corpus/{decode,encode,patch}

The layout of an input is described on top of each fuzz_*.cpp and in fuzz.hpp.
"""

import json
import pathlib
import struct

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


def main():
    for target, seeds in (("decode", decode_seeds), ("encode", encode_seeds), ("patch", patch_seeds)):
        folder = DATA / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for name, seed in seeds():
            (folder / name).write_bytes(seed)


if __name__ == "__main__":
    main()
