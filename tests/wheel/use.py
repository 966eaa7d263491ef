"""Run in an empty system by empty.sh, with the wheel in a virtual environment: everything that a
first user does. Nothing but the wheel and Python's own library is there."""

import os
import shutil
import struct
import subprocess
import sys

import weightfs
from weightfs.safetensors_file import Entry, header_bytes

URL = "file:///root/data/bucket"
STORE = "/root/data/store"
COUNT = 300_000


def save(folder, values):
    """A checkpoint of one tensor of F32."""
    os.makedirs(folder)
    data = struct.pack(f"<{COUNT}f", *values)
    entry = Entry("w", "F32", (COUNT,), 0, len(data))
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(header_bytes([entry], {"format": "pt"}) + data)
    with open(os.path.join(folder, "config.json"), "w") as file:
        file.write("{}")


def read(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        return file.read()


def main():
    print(open("/etc/os-release").readline().strip(), os.confstr("CS_GNU_LIBC_VERSION"))
    for name in ("weightfs", "fusermount3"):
        assert shutil.which(name) is None, f"{name} is here already: this system is not empty"
    program = weightfs.find_binary()
    assert program.startswith(sys.prefix), program
    script = os.path.join(sys.prefix, "bin", "weightfs")
    said = subprocess.run([script, "--version"], text=True, capture_output=True, check=True).stdout
    assert said == f"weightfs {weightfs.__version__}\n", said
    loaded = subprocess.run(["ldd", program], text=True, capture_output=True, check=True).stdout
    assert "not found" not in loaded, loaded
    assert os.path.join(os.path.dirname(program), "../lib/libfuse3.so.3") in loaded, loaded

    values = [0.25 * at for at in range(COUNT)]
    save("/root/data/step-0", values)
    values[7] += 1
    save("/root/data/step-1", values)
    weightfs.init(URL)
    options = ("--store", "/root/data/publisher")
    assert weightfs.publish(URL, "/root/data/step-0", tag="step-0", options=options).number == 1

    with weightfs.open(URL, writer=True, store=STORE) as run:
        assert run.how == "mount", run.why
        assert read(run.latest) == read("/root/data/step-0")
        shutil.copytree("/root/data/step-1", f"{run.path}/staging/x")
        version = weightfs.publish(run.path, f"{run.path}/staging/x", tag="step-1")
        assert version.number == 2 and read(version.path) == read("/root/data/step-1")
        print("served by", run.status()["serve"]["mode"], "kernels",
              run.status()["kernels"]["variant"])
        os.mkdir(f"{run.path}/staging/empty")
        try:
            weightfs.publish(run.path, f"{run.path}/staging/empty", tag="step-2")
        except weightfs.InvalidError as refused:
            assert refused.last_error
        else:
            raise AssertionError("an empty directory was published")
    with weightfs.open(URL, how="sync", path="/root/data/files") as run:
        assert read(run.latest) == read("/root/data/step-1")
    try:  # https: TLS and name resolution are there; nothing answers
        weightfs.log("s3://bucket/prefix", options=(
            "--endpoint-url", "https://127.0.0.1:9", "--no-sign-request", "--region", "us-east-1"))
    except weightfs.FailedError as failed:
        assert failed.code == "unavailable", (failed.code, failed.message)
    print("the wheel works")


main()
