#!/usr/bin/python3
"""Upload and download of one large file: weightfs beside rclone, aws and curl, on the same gateway.

    s3_transfer.py [--mib N] [--rounds N] [--json FILE]

The gateway is a private one on this machine (tests/support/radosgw.sh), with everything in memory:
what is measured is what the clients cost, on the cores that the server needs too. Rounds are
interleaved; medians count. `publish` is that of a first version, a snapshot; `export` reads it back.
weightfs and aws send the SHA-256 of what they upload; rclone and curl are told what is fastest.
WEIGHTFS_BIN names the program, WEIGHTFS_TESTS the folder of weightfs_s3_driver. A program that is not
installed is left out.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import gateway as gateways  # noqa: E402
import harness  # noqa: E402
import measure  # noqa: E402
import runs  # noqa: E402

BUCKET = gateways.BUCKET
MIB = 1 << 20


def timed(command, variables=None):
    """Runs a command, which must succeed; returns its seconds, and those of its processors."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **(variables or {})})
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {said}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


class Client:
    """Commands that upload a file as an object, and read it back."""

    def __init__(self, name, up, down, variables=None):
        self.name, self.up, self.down, self.variables = name, up, down, variables
        self.times = {"up": [], "down": []}


def clients(gateway, source, target, work):
    driver = gateways.program("weightfs_s3_driver")
    url = f"s3://{BUCKET}/driver"
    yield Client("weightfs, put and get",
                 [driver, "put", gateway.url, url, "large", source],
                 [driver, "get", gateway.url, url, "large", target])
    folder = os.path.dirname(source)
    store = os.path.join(work, "store")
    yield Client("weightfs, publish and export",
                 ["sh", "-c", 'rm -rf "$3"; "$0" init "$1" && "$0" publish "$1" "$2" --store "$3"',
                  harness.BINARY, f"s3://{BUCKET}/run-$ROUND", folder, store],
                 [harness.BINARY, "export", f"s3://{BUCKET}/run-$ROUND", target + ".dir"])
    if shutil.which("rclone"):
        setup = {"RCLONE_CONFIG_T_TYPE": "s3", "RCLONE_CONFIG_T_PROVIDER": "Ceph",
                 "RCLONE_CONFIG_T_ENDPOINT": gateway.url, "RCLONE_CONFIG": "/dev/null",
                 "RCLONE_CONFIG_T_ACCESS_KEY_ID": gateways.ACCESS_KEY,
                 "RCLONE_CONFIG_T_SECRET_ACCESS_KEY": gateways.SECRET_KEY}
        many = ["--s3-chunk-size", "16M", "--s3-upload-concurrency", "8", "--s3-disable-checksum",
                "--multi-thread-streams", "8", "--multi-thread-cutoff", "16M", "--s3-no-check-bucket"]
        yield Client("rclone", ["rclone", "copyto", *many, source, f"t:{BUCKET}/rclone"],
                     ["rclone", "copyto", *many, f"t:{BUCKET}/rclone", target], setup)
    if shutil.which("aws") and not subprocess.run(["aws", "--version"], capture_output=True).returncode:
        command = ["aws", "--endpoint-url", gateway.url, "s3", "cp", "--no-progress"]
        yield Client("aws s3 cp", [*command, source, f"s3://{BUCKET}/aws"],
                     [*command, f"s3://{BUCKET}/aws", target])
    if shutil.which("curl"):
        command = ["curl", "--silent", "--show-error", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3",
                   "--user", f"{gateways.ACCESS_KEY}:{gateways.SECRET_KEY}",
                   "--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        address = f"{gateway.url}/{BUCKET}/curl"
        yield Client("curl, one connection", [*command, "--upload-file", source, address],
                     [*command, "--output", target, address])


def transfer(client, number, target, wanted):
    for place in (target, target + ".dir"):
        shutil.rmtree(place, ignore_errors=True) if os.path.isdir(place) else None
        if os.path.exists(place):
            os.unlink(place)
    for way, command in (("up", client.up), ("down", client.down)):
        command = [part.replace("$ROUND", str(number)) for part in command]
        client.times[way].append(timed(command, client.variables))
    found = target if os.path.isfile(target) else os.path.join(target + ".dir", "model.safetensors")
    if runs.sha256_of(found) != wanted:
        raise RuntimeError(f"{client.name}: other bytes came back")


def remove_all(client):
    """The server keeps everything in memory."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for entry in page.get("Contents", []):
            client.delete_object(Bucket=BUCKET, Key=entry["Key"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    measure.add_options(parser)
    args = parser.parse_args()
    report = measure.Report("s3_transfer", args.json)
    work = tempfile.mkdtemp(prefix="weightfs-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        gateway = gateways.Gateway()
        os.environ.update(gateway.variables())
        client = gateway.client()
        client.create_bucket(Bucket=BUCKET)
        folder = os.path.join(work, "checkpoint")
        os.makedirs(folder)
        source, target = os.path.join(folder, "model.safetensors"), os.path.join(work, "read")
        weights = np.random.default_rng(1).integers(0, 0x3F80, args.mib * MIB // 2, "<u2")
        runs.write_safetensors(source, [("weight", "BF16", (len(weights),), weights)])
        wanted = runs.sha256_of(source)
        all_clients = list(clients(gateway, source, target, work))
        for number in range(-1, args.rounds):  # the first is not counted
            if number == 0:
                for each in all_clients:
                    each.times = {"up": [], "down": []}
            for each in measure.in_turn(all_clients, number + 1):
                measure.touch_memory(3 * args.mib * MIB)
                transfer(each, number + 1, target, wanted)
                remove_all(client)
        ours = {way: statistics.median(t for t, _ in all_clients[0].times[way])
                for way in ("up", "down")}
        report.note("circumstances", f"{args.mib} MiB, medians of {args.rounds} interleaved rounds; "
                                     "time / weightfs put or get.")
        rows = []
        for each in all_clients:
            cells = [each.name]
            for way in ("up", "down"):
                seconds, used = (statistics.median(column) for column in zip(*each.times[way]))
                cells += [f"{args.mib * MIB / 1e6 / seconds:.0f}", f"{seconds / ours[way]:.2f}",
                          f"{used:.2f}"]
            rows.append(cells)
        report.table("clients", ["client", "upload, MB/s", "time / put", "CPU s", "download, MB/s",
                                 "time / get", "CPU s"], rows)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
