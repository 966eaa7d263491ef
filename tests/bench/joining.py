#!/usr/bin/python3
"""Bytes and requests to join a run, and to catch up with it, over 1 to 1,000 versions.

    joining.py [--params P] [--versions N] [--snapshot-every N] [--bucket memory|ceph] [--program FILE]
               [--json FILE] [--svg FILE]

`--bucket ceph`: the run lies in a private gateway on this machine, the ways are gone, and a proxy before it
counts requests and the bytes of their replies, those of refused ones too. weightfs_joining_bench makes the run and plans the ways; see there. Printed are tables of some versions; all of
them are in the plot: what a host fetches that joins at version N, as a share of the snapshot, and one that is
k versions behind, as a share of the deltas between, each with skip deltas and without any.
"""

import argparse
import collections
import json
import math
import os
import subprocess
import sys

import measure

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

JOINING = (1, 2, 8, 16, 64, 100, 127, 128, 256, 512, 1000)
WITH, WITHOUT = "#1f78b4", "#e31a1c"


def measured(args):
    program = args.program or os.path.join(os.environ["WEIGHTFS_TESTS"], "bench", "weightfs_joining_bench")
    command = [program, "--params", args.params, "--versions", args.versions, "--every", args.every,
               "--snapshot-every", args.snapshot_every]
    command = [str(part) for part in command]
    if args.bucket == "ceph":
        return list(rows_of_ceph(command))
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def rows_of_ceph(command):
    import gateway as gateways
    import s3_faults
    gateway = gateways.Gateway()
    gateway.client().create_bucket(Bucket=gateways.BUCKET)
    with s3_faults.Proxy(gateway) as proxy:
        variables = {**os.environ, **gateway.variables(proxy.url)}
        with subprocess.Popen([*command, "--bucket", f"s3://{gateways.BUCKET}/run"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, env=variables) as bench:
            for line in bench.stdout:
                row = json.loads(line)
                if "begin" in row:
                    proxy.seen.clear()
                    bench.stdin.write("\n")
                    bench.stdin.flush()
                else:
                    yield {**row, **counted(list(proxy.seen))}
        if bench.returncode != 0:
            sys.exit(f"{command[0]}: exit code {bench.returncode}")


def counted(requests):
    """What came to the service for one way."""
    of_snapshot = [one for one in requests if "/snapshots/" in one.path and one.path.endswith(".safetensors")]
    snapshot_bytes = sum(one.reply_bytes for one in of_snapshot)
    return {"requests": len(requests) - len(of_snapshot), "snapshot_requests": len(of_snapshot),
            "bytes": sum(one.reply_bytes for one in requests) - snapshot_bytes,
            "snapshot_bytes": snapshot_bytes}


def by_way(rows):
    """{(version, behind): {skips: row}}"""
    ways = collections.defaultdict(dict)
    for row in rows:
        ways[row["version"], row["behind"]][row["skips"]] = row
    return ways


def share(part, whole):
    return f"{part / whole:.3f}" if whole else "-"


def joining_rows(ways):
    measured_at = [version for version, behind in ways if behind == 0]
    for version in sorted({min(measured_at, key=lambda one: abs(one - wanted)) for wanted in JOINING}):
        way = ways[version, 0]
        skips, deltas = way[True], way[False]
        snapshot = skips["snapshot_bytes"] or 1
        beside = skips["requests"] / max(skips["hops"], 1)
        yield [version, skips["hops"], skips["requests"], f"{beside:.1f}", share(skips["bytes"], snapshot),
               deltas["hops"], deltas["requests"], share(deltas["bytes"], snapshot)]


def catching_up(ways):
    """{k: [share of the deltas' bytes, of all measured versions]}, aligned to 64 and not."""
    found = collections.defaultdict(lambda: {"aligned": [], "other": [], "requests": [], "of": []})
    for (_, behind), way in ways.items():
        skips, deltas = way[True], way[False]
        if behind == 0 or skips["snapshot_bytes"] or deltas["snapshot_bytes"]:
            continue
        start = skips["version"] - behind
        kind = "aligned" if skips["version"] % 64 == 0 and start % 64 == 0 else "other"
        found[behind][kind].append(skips["bytes"] / deltas["bytes"])
        found[behind]["requests"].append(skips["requests"])
        found[behind]["of"].append(deltas["requests"])
    return found


def span(values):
    return f"{min(values):.2f} to {max(values):.2f}" if values else "-"


def catching_rows(found):
    for behind, kinds in sorted(found.items()):
        yield [behind, span(kinds["aligned"]), span(kinds["other"]), f"{max(kinds['requests'])}",
               f"{max(kinds['of'])}"]


# ---- the plot ------------------------------------------------------------------------------------

class Axes:
    """One diagram: versions from 1 to 1,000, as logarithms, and something above them."""

    def __init__(self, left, top, title, low, high, marks):
        self.left, self.top, self.width, self.height = left, top, 400, 260
        self.low, self.high = low, high
        self.parts = [f'<text x="{left}" y="{top - 10}">{title}</text>']
        for n in (1, 10, 100, 1000):
            self.parts.append(f'<line x1="{self.x(n):.0f}" y1="{top}" x2="{self.x(n):.0f}" y2="{top + self.height}" '
                              'stroke="#dddddd"/>')
            self.parts.append(f'<text x="{self.x(n):.0f}" y="{top + self.height + 16}" text-anchor="middle">{n}</text>')
        for mark in marks:
            self.parts.append(f'<line x1="{left}" y1="{self.y(mark):.0f}" x2="{left + self.width}" '
                              f'y2="{self.y(mark):.0f}" stroke="#dddddd"/>')
            self.parts.append(f'<text x="{left - 6}" y="{self.y(mark) + 4:.0f}" text-anchor="end">{mark:g}</text>')

    def x(self, version):
        return self.left + self.width * math.log10(version) / 3

    def y(self, value):
        value = min(max(value, self.low), self.high)
        return self.top + self.height * (1 - math.log(value / self.low) / math.log(self.high / self.low))

    def line(self, points, colour, label, row):
        path = " ".join(f"{self.x(n):.1f},{self.y(value):.1f}" for n, value in sorted(points))
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        self.parts.append(f'<text x="{self.left + 8}" y="{self.top + 14 + 15 * row}" fill="{colour}">{label}</text>')


def points(ways):
    """What the plot shows: [version or versions behind, bytes with skips, requests, bytes without, requests]."""
    last = max(n for n, _ in ways)
    found = {"last": last, "joining": [], "catching_up": [], "snapshot_bytes": ways[last, 0][True]["snapshot_bytes"]}
    for (version, behind), way in sorted(ways.items()):
        if behind and version != last:
            continue
        point = [behind or version]
        for skips in (True, False):
            row = way[skips]
            point += [row["bytes"] + row["snapshot_bytes"], row["requests"] + (row["snapshot_requests"] if behind else 0)]
        found["catching_up" if behind else "joining"].append(point)
    return found


def plot(found):
    last, snapshot, most = found["last"], found["snapshot_bytes"], 10000
    joining, catching_up = found["joining"], found["catching_up"]
    requests = (1, 10, 100, 1000, most)
    diagrams = [
        (Axes(60, 40, "joining at version N: bytes, of the snapshot", 1, 10, (1, 1.1, 1.2, 1.5, 2, 5, 10)), joining,
         0, lambda value: value / snapshot),
        (Axes(540, 40, "joining at version N: requests beside the snapshot's", 1, most, requests), joining, 1, float),
        (Axes(60, 380, f"catching up k versions, at {last}: MiB", 0.1, 1000, (0.1, 1, 10, 100, 1000)), catching_up,
         0, lambda value: value / (1 << 20)),
        (Axes(540, 380, f"catching up k versions, at {last}: requests", 1, most, requests), catching_up, 1, float)]
    parts = []
    for axes, rows, column, scale in diagrams:
        axes.line([(row[0], scale(row[1 + column])) for row in rows], WITH, "with skip deltas", 0)
        axes.line([(row[0], scale(row[3 + column])) for row in rows], WITHOUT, "without", 1)
        parts += axes.parts
    return ('<svg xmlns="http://www.w3.org/2000/svg" width="980" height="680" font-family="sans-serif" font-size="11">\n'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--params", type=int, default=20_000_000)
    parser.add_argument("--versions", type=int, default=1000)
    parser.add_argument("--every", type=int, default=1, help="versions at which ways are planned")
    parser.add_argument("--snapshot-every", type=int, default=0)
    parser.add_argument("--bucket", choices=("memory", "ceph"), default="memory")
    parser.add_argument("--program")
    parser.add_argument("--json")
    parser.add_argument("--svg")
    args = parser.parse_args()
    ways = by_way(measured(args))
    report = measure.Report("joining", args.json)
    report.note("run", f"{args.params:,} bf16 parameters, {args.versions} versions, of which each changes "
                f"about 1.1 %; snapshots: version 1" + (f" and each {args.snapshot_every}th" if args.snapshot_every else ""))
    report.table("joining", ["version", "hops", "requests", "requests a hop", "bytes beside the snapshot, of it",
                             "hops without skips", "requests", "bytes"], joining_rows(ways))
    report.table("catching_up", ["versions behind", "bytes, of the deltas': both divisible by 64", "otherwise",
                                 "requests, at most", "without skips"], catching_rows(catching_up(ways)))
    report.data("points", points(ways))
    if args.svg:
        with open(args.svg, "w") as file:
            file.write(plot(points(ways)))


if __name__ == "__main__":
    main()
