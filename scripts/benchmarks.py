#!/usr/bin/env python3
"""Runs the benchmarks, and prints docs/BENCHMARKS.md and its plots from what they measured.

  scripts/benchmarks.py                    the page and the plot, from tests/bench/results/*.json
  scripts/benchmarks.py --run NAME...      first runs these (all: every one), into that folder
  scripts/benchmarks.py --list             the names, and their commands
  scripts/benchmarks.py --check            ends with 1 if page or plot are not what the results say

The page keeps its prose.  What stands between `<!-- results: NAME/PART -->` and `<!-- end -->` is
replaced by that part of NAME.json: a table, a sentence, or (PART is `measured`) when and under which
load it was measured.  Parts without a result stay as they are.  --run needs WEIGHTFS_BIN, and for
some WEIGHTFS_TESTS and WEIGHTFS_VENV_PYTHON; scripts/bench.sh builds and sets them.
"""

import argparse
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "bench" / "results"
PAGE = ROOT / "docs" / "BENCHMARKS.md"
PLOT = ROOT / "docs" / "version_timeline.svg"
REACH = ROOT / "docs" / "history_reach.svg"
JOINING = ROOT / "docs" / "joining.svg"
PART = re.compile(r"(<!-- results: (\S+)/(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

# {name: command}.  A .py is run by this machine's Python, and writes its own JSON.
RUNS = {
    "end_to_end": "end_to_end.py",
    "end_to_end_memory": "end_to_end.py --ways slime,cp --reader-options '--images memory'",
    "end_to_end_paced": "end_to_end.py --save-rate 1 --ways slime",
    "end_to_end_closed": "end_to_end.py --save-rate 1 --ways slime --temporary tmp",
    "end_to_end_ranks": "end_to_end.py --save-rate 1 --ranks 4 --ways slime",
    "end_to_end_irregular": "end_to_end.py --save-rate 0.25 --pause 6 --poll auto --ways slime",
    "end_to_end_slow": "end_to_end.py --save-rate 0.25 --ways slime",
    "end_to_end_slow_closed": "end_to_end.py --save-rate 0.25 --ways slime --temporary tmp",
    "end_to_end_2GiB": "end_to_end.py --size 2GiB --ways slime,whole,cp",
    "end_to_end_ceph_paced": "end_to_end.py --bucket ceph --save-rate 1 --ways slime",
    "end_to_end_ceph": "end_to_end.py --bucket ceph",
    "size_bench": "size_bench.py",
    "publish_speed": "publish_speed.py --mib 512",
    "read_speed": "read_speed.py --mib 1024",
    "cold_start": "cold_start.py --mib 512",
    "cold_read": "cold_read.py --mib 512",
    "growth": "growth.py",
    "save_speed": "save_speed.py --mib 512",
    "staging_latency": "staging_latency.py",
    "hook_latency": "hook_latency.py",
    "delta_latency": "delta_latency.py",
    "delta_latency_memory": "delta_latency.py --memory",
    "load_speed": "load_speed.py --mib 256",
    "pause": "pause.py",
    "s3_transfer": "s3_transfer.py --mib 256",
    "s3_publish": "s3_publish.py --mib 256",
    "codec_bench": "weightfs_codec_bench",
    "patch_bench": "weightfs_patch_bench",
    "history": "history.py",
    "scale": "scale.py --sizes 1GiB,2GiB",
    "joining": "joining.py --every 7",
}
NEEDS_SAFETENSORS = ("save_speed", "load_speed")


# ---- running -------------------------------------------------------------------------------------

def run(name):
    program, *arguments = shlex.split(RUNS[name])
    target = RESULTS / f"{name}.json"
    if not program.endswith(".py"):
        built = pathlib.Path(os.environ.get("WEIGHTFS_TESTS", ROOT / "build" / "tests"))
        printed([built / "bench" / program, *arguments], name, target)
        return
    python = "/usr/bin/python3"
    if name in NEEDS_SAFETENSORS:
        python = os.environ.get("WEIGHTFS_VENV_PYTHON", python)
    command = [python, ROOT / "tests" / "bench" / program, *arguments]
    if "--json" in (ROOT / "tests" / "bench" / program).read_text() or "add_options" in (
            ROOT / "tests" / "bench" / program).read_text():
        subprocess.run([*command, "--json", target], check=True)
    else:
        printed(command, name, target)


def printed(command, name, target):
    """The tables that a program prints: parts table1, table2, ..."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    import measure
    started = measure.machine()
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(output, flush=True)
    parts, rows = {}, []
    for text in [*output.splitlines(), ""]:
        if text.startswith("|"):
            rows.append([cell.strip() for cell in text.strip("|").split("|")])
        elif rows:
            parts[f"table{len(parts) + 1}"] = {"columns": rows[0], "rows": rows[2:]}
            rows = []
    content = {"bench": name, "started": started, "parts": parts, "data": {}, "ended": measure.machine()}
    target.write_text(json.dumps(content, indent=1))


# ---- the page ------------------------------------------------------------------------------------

def results():
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def measured(content):
    started, ended = content["started"], content["ended"]
    return (f"{ended['date']}, {ended['cores']} cores, kernel {ended['kernel']}, load average "
            f"{started['load']} to {ended['load']}.\n")


def part_text(content, part):
    if part == "measured":
        return measured(content)
    found = content["parts"][part]
    if "text" in found:
        return found["text"] + "\n"
    rows = [found["columns"], *found["rows"]]
    lines = ["| " + " | ".join(row) + " |\n" for row in rows]
    lines.insert(1, "|" + "---|" * len(found["columns"]) + "\n")
    return "".join(lines)


def page(text, found):
    """The page with every part that has a result."""
    def replace(match):
        begin, name, part, end = match.groups()
        if name not in found:
            return match.group(0)
        body = part_text(found[name], part)
        if not body.startswith("|"):
            body = wrapped(body)
        return f"{begin}{body}{end}"
    return PART.sub(replace, text)


def wrapped(text, width=98):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line]) + "\n"


# ---- the plot ------------------------------------------------------------------------------------

STEPS = {  # what the plot calls them, and their colours
    "save": ("save", "#8da0cb"),
    "seal": ("seal", "#444444"),
    "packs": ("packs in the bucket", "#fc8d62"),
    "manifest": ("manifest", "#e41a1c"),
    "images": ("images on the other host", "#66c2a5"),
    "latest": ("latest", "#1b7837"),
    "read": ("read whole", "#a6d854"),
}
PEER_COLOURS = {"encode, upload": "#fdbf6f", "fetch, apply": "#b2df8a", "read": "#a6d854"}
WIDTH, LEFT, ROW = 860, 150, 15


class Drawing:
    """Bars over a scale of milliseconds, in groups."""

    def __init__(self, longest):
        self.scale = (WIDTH - LEFT - 60) / longest
        self.longest, self.y, self.parts = longest, 24, []

    def text(self, x, y, what, anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{what}</text>')

    def group(self, title):
        self.y += 8
        self.text(4, self.y + 11, title, weight="bold")
        self.y += ROW + 3

    def bar(self, label, begin, end, colour):
        x, width = LEFT + begin * self.scale, max(2.0, (end - begin) * self.scale)
        self.text(LEFT - 6, self.y + 11, label, "end")
        self.parts.append(f'<rect x="{x:.1f}" y="{self.y + 2}" width="{width:.1f}" height="{ROW - 4}" fill="{colour}"/>')
        self.text(x + width + 4, self.y + 11, f"{end:.0f} ms")
        self.y += ROW

    def axis(self):
        step = next(s for s in (50, 100, 200, 500, 1000, 2000, 5000) if self.longest / s <= 10)
        for at in range(0, int(self.longest) + 1, step):
            x = LEFT + at * self.scale
            self.parts.insert(0, f'<line x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{self.y}" stroke="#dddddd"/>')
            self.text(x, 14, f"{at}", "middle")
        self.text(LEFT - 6, 14, "ms", "end")

    def svg(self):
        self.axis()
        body = "\n".join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.y + 8}" '
                f'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
                f"{body}\n</svg>\n")


def median(values):
    return sorted(values)[len(values) // 2]


def peer_line(content, way):
    """Its parts one after another: {part: (begin, end)} in seconds."""
    line, at = {}, 0.0
    for part in content["data"]["parts"][way][0]:
        taken = median([each[part] for each in content["data"]["parts"][way]])
        line[part], at = (at, at + taken), at + taken
    return line


def plot(found):
    """The time line of a version, before and after, and slime's in the same run."""
    groups = [(title, found[name]) for title, name in (("before", "end_to_end_before"), ("after", "end_to_end"))
              if name in found]
    if not groups:
        return None
    lines = [content["data"]["timeline"] for _, content in groups]
    drawing = Drawing(1e3 * max(end for line in lines for _, end in line.values()) * 1.02)
    for (title, content), line in zip(groups, lines):
        drawing.group(f"weightfs, {title}")
        for name, (label, colour) in STEPS.items():
            if name in line:
                drawing.bar(label, *(1e3 * at for at in line[name]), colour)
    drawing.group("slime, in the same run")
    for name, span in peer_line(groups[-1][1], "slime").items():
        drawing.bar(name, *(1e3 * at for at in span), PEER_COLOURS[name])
    return drawing.svg()


def plot_reach(content):
    """Bytes, as shares of the model, to reach version N-k: both axes are logarithms."""
    left, top, width, height, low, high = 70, 30, 640, 300, 1e-3, 100.0

    def x(k):
        return left + width * math.log10(k) / 3

    def y(share):
        return top + height * (1 - math.log(max(share, low) / low) / math.log(high / low))

    parts = []
    for k in (1, 10, 100, 1000):
        parts.append(f'<line x1="{x(k):.0f}" y1="{top}" x2="{x(k):.0f}" y2="{top + height}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x(k):.0f}" y="{top + height + 16}" text-anchor="middle">{k}</text>')
    for share in (0.001, 0.01, 0.1, 1, 10, 100):
        parts.append(f'<line x1="{left}" y1="{y(share):.0f}" x2="{left + width}" y2="{y(share):.0f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(share) + 4:.0f}" text-anchor="end">{share:g}</text>')
    lines = (("patched", "patches of the store", "#1f78b4"), ("fetched", "from the bucket, without history", "#e31a1c"))
    for row, (name, label, colour) in enumerate(lines):
        found = sorted((int(k), value[0]) for k, value in content["data"]["reach"][name].items() if value)
        points = " ".join(f"{x(k):.1f},{y(share):.1f}" for k, share in found)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 10}" y="{top + 14 + 16 * row}" fill="{colour}">{label}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">k: versions back</text>')
    parts.append(f'<text x="{left}" y="{top - 10}">bytes, of the model</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 30}" height="{top + height + 46}" '
            'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(parts) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(f"{name:20} {command}" for name, command in RUNS.items()))
        return 0
    RESULTS.mkdir(exist_ok=True)
    for name in RUNS if args.run == ["all"] else args.run:
        run(name)
    found = results()
    wanted = {PAGE: page(PAGE.read_text(), found)}
    drawing = plot(found)
    if drawing:
        wanted[PLOT] = drawing
    if "history" in found:
        wanted[REACH] = plot_reach(found["history"])
    if "joining" in found:
        sys.path.insert(0, str(ROOT / "tests" / "bench"))
        import joining
        wanted[JOINING] = joining.plot(found["joining"]["data"]["points"])
    differ = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in differ:
        if args.check:
            print(f"{path.relative_to(ROOT)} is not what tests/bench/results says: run scripts/benchmarks.py")
        else:
            path.write_text(wanted[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if args.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
