#!/usr/bin/python3
"""Makes a golden repository: make_golden.py WEIGHTFS OUT [retired].  See tests/store/format/golden_test.cpp.

Three versions of a small checkpoint, whose tensors change so that every block mode occurs. `retired`: 18
versions, of which gc leaves 16 and what follows, by a skip delta. Run once for each release that writes
something new; what is committed never changes.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

RANDOM = random.Random(5)


def weights(count):
    """Bits of bf16 numbers as a model has them."""
    values = struct.pack(f"<{count}f", *(RANDOM.gauss(0, 0.02) for _ in range(count)))
    return bytearray(b"".join(values[i + 2:i + 4] for i in range(0, 4 * count, 4)))


def nudge(data, width, share, smallest=1.0):
    """Moves a share of the elements by a unit in the last place: of that share with the smallest ones."""
    def magnitude(i):
        return int.from_bytes(data[i * width:(i + 1) * width], "little") & 0x7FFF

    count = len(data) // width
    ordered = sorted(range(count), key=magnitude)[:int(smallest * count)]
    for i in RANDOM.sample(ordered, int(share * count)):
        data[i * width] = (data[i * width] + RANDOM.choice((1, 255))) % 256


def write(folder, tensors, note):
    os.makedirs(folder)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, width, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [len(data) // width],
                        "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(b"".join(data for _, _, data in tensors.values()))
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"note": note}, file)


def main(weightfs, out, what=""):
    versions = 18 if what == "retired" else 3
    tensors = {"many": ("F8_E4M3", 1, weights(2000)), "few": ("BF16", 2, weights(1500)),
               "bytes": ("U8", 1, bytearray(RANDOM.randbytes(1500))),
               "other": ("U8", 1, bytearray(RANDOM.randbytes(200))),
               "same": ("BF16", 2, weights(20))}
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([weightfs, "init", out], check=True)
        for version in range(1, versions + 1):
            folder = os.path.join(work, str(version))
            write(folder, tensors, f"version {min(version, 3)}")
            subprocess.run([weightfs, "publish", out, folder, "--tag", f"v{version}", "--store",
                            os.path.join(work, "store")], check=True)
            nudge(tensors["many"][2], 1, 0.35)
            nudge(tensors["few"][2], 2, 0.02, smallest=0.05)
            nudge(tensors["bytes"][2], 1, 0.02)
            tensors["other"][2][:] = RANDOM.randbytes(200)
        if what == "retired":
            store = ["--store", os.path.join(work, "store")]
            subprocess.run([weightfs, "skip", out, *store], check=True)
            subprocess.run([weightfs, "gc", out, *store, "--keep", "2", "--keep-every", "16", "--keep-tagged=",
                            "--grace", "0s", "--delete"], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
