#!/usr/bin/env python3
"""The folders of store/, fs/ and kernels/: what each is for, and which others it may include.

  scripts/folders.py --check                    fails on a broken rule, and says what to do
  scripts/folders.py --table                    prints all folders, by level, as Markdown
  scripts/folders.py --write                    updates that table in docs/, between its two marks
  scripts/folders.py --summary [REVISION...]    counts folders, edges and cycles; `.`: working tree

It reads the #include lines and the CMakeLists.txt of each folder: the first sentence says what the
folder is for, USES names the folders it may include.  --summary reads old revisions from git, also
from when each layer was one flat folder.  A module is a stem: x.hpp, x.cpp and x-inl.hpp are one.
"""

import argparse
import collections
import fnmatch
import io
import pathlib
import re
import subprocess
import sys
import tarfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
LAYERS = ("kernels", "store", "fs")  # a layer includes itself and those before it
SOURCES = (".cpp", ".hpp", ".cu", ".cuh")
MOST_MODULES = 20
LONGEST_PURPOSE = 160  # characters: it stands in a table

# Modules of one folder that include each other, and why.
KNOWN_CYCLES = {
    ("store/handover/publish_queue", "store/handover/queue_state"):
        "the state is the inside of the class (pimpl), and uses its types",
    ("store/staging/staging", "store/staging/state"):
        "the state is the inside of the class (pimpl), and uses its types",
    ("store/sync/sync", "store/sync/sync_state"):
        "the state is the inside of the class (pimpl), and uses its types",
}

# A .cpp without a header of its own name (a pattern; `*` may stand for folders), and why.
NO_HEADER = {
    "fs/cli/spec_*.cpp": "rows of one table, command_specs.hpp",
    "fs/commands/*.cpp": "a file for each group of commands, which commands.hpp declares",
    "fs/passes/pass_rules.cpp": "members of Passes: its rules",
    "kernels/dispatch/gpu_none.cpp": "gpu.hpp is its header: one of gpu.cu and gpu_none.cpp is built",
    "kernels/scalar/*.cpp": "a file for each operation of scalar.hpp and xr.hpp",
    "kernels/simd/*.cpp": "a file for each operation of simd.hpp",
    "store/handover/queue_hand_over.cpp": "members of the state: checking and recording a hand-over",
    "store/handover/queue_part.cpp": "members of the state: a hand-over that is a part",
    "store/handover/queue_thread.cpp": "members of the state: what the thread does",
    "store/staging/hand_over.cpp": "members of the state: hand-overs",
    "store/staging/load.cpp": "members of the state: reading and repairing records",
    "store/sync/sync_bring.cpp": "members of the state: bringing versions, filling them, showing them",
    "store/sync/sync_thread.cpp": "members of the state: the thread, and its rounds",
}

MARKS = ("<!-- scripts/folders.py --write: begin -->", "<!-- scripts/folders.py --write: end -->")


# -- what is read ---------------------------------------------------------------------------------

class Folder:
    """What the CMakeLists.txt of a folder says."""

    def __init__(self, text=None):
        self.has_list = text is not None
        self.purpose = purpose(text or "")
        self.uses = {}  # folder -> line
        self.listed = set()  # names of sources
        if text:
            self._read(re.sub(r"#[^\n]*", "", text))

    def _read(self, text):
        words = re.split(r'[\s()"]+', text)
        self.listed = {word for word in words if word.endswith((".cpp", ".cu"))}
        for call in re.finditer(r"\bweightfs_folder\s*\(([^)]*)\)", text):
            section = ""
            for word in re.finditer(r"\S+", call.group(1)):
                if re.fullmatch(r"[A-Z_]+", word.group()):
                    section = word.group()
                elif section == "USES":
                    line = text.count("\n", 0, call.start(1) + word.start()) + 1
                    self.uses.setdefault(word.group(), line)


def purpose(text):
    """The first sentence of the comment that `text` begins with; empty without one."""
    comment = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("#").strip())
    sentence = re.match(r"(.+?\.)(?:\s|$)", " ".join(comment).strip())
    return sentence.group(1) if sentence else ""


Include = collections.namedtuple("Include", "path line target")


class Tree:
    """All sources of the layers, from {path: text}."""

    def __init__(self, files):
        self.files = files
        self.sources = sorted(path for path in files if path.endswith(SOURCES))
        self.folders = {folder_of(path): None for path in self.sources}
        for path, text in files.items():
            if path.endswith("/CMakeLists.txt"):
                # A layer's own file may only name its folders, and have no source.
                self.folders[folder_of(path)] = Folder(text)
        for folder, known in self.folders.items():
            self.folders[folder] = known or Folder()
        self.includes = [include for path in self.sources
                         for include in includes_of(path, files[path])]

    def modules(self):
        found = collections.defaultdict(set)
        for path in self.sources:
            found[folder_of(path)].add(module_of(path))
        return found

    def folder_edges(self):
        """{folder: folders that it includes}"""
        edges = {folder: set() for folder in self.modules()}
        for include in self.includes:
            user, used = folder_of(include.path), folder_of(include.target)
            if user != used:
                edges[user].add(used)
        return edges

    def module_edges(self):
        edges = {module_of(path): set() for path in self.sources}
        for include in self.includes:
            user, used = module_of(include.path), module_of(include.target)
            if user != used:
                edges[user].add(used)
        return edges


def includes_of(path, text):
    """The includes of our own layers; the others are libraries."""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if found and found.group(1).split("/")[0] in LAYERS:
            yield Include(path, number, found.group(1))


def folder_of(path):
    return path.rpartition("/")[0]


def module_of(path):
    return re.sub(r"(-inl)?\.\w+$", "", path)


def layer_of(folder):
    return LAYERS.index(folder.split("/")[0])


def files_on_disk(root):
    return {path.relative_to(root).as_posix(): path.read_text()
            for layer in LAYERS for path in sorted((root / layer).rglob("*"))
            if path.name == "CMakeLists.txt" or path.suffix in SOURCES}


def files_of(root, revision):
    command = ["git", "-C", root, "archive", revision, *LAYERS]
    packed = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive
                if member.isfile() and member.name.endswith(SOURCES + ("/CMakeLists.txt",))}


# -- graphs ---------------------------------------------------------------------------------------

def cycles(edges):
    """Sets of nodes that reach each other (Tarjan), each sorted."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            cut = stack.index(node)
            if len(stack) - cut > 1:
                found.append(sorted(stack[cut:]))
            del stack[cut:]

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return sorted(found)


def shortest_cycle(edges, nodes):
    """A way [a, b, ..., a] inside `nodes`, which reach each other."""
    ways = []
    for start in nodes:
        seen, queue = {start}, collections.deque([[start]])
        while queue:
            way = queue.popleft()
            following = sorted(edges[way[-1]] & set(nodes))
            if start in following:
                ways.append(way + [start])
                break
            queue.extend(way + [node] for node in following if node not in seen)
            seen.update(following)
    return min(ways, key=len)


def levels(edges):
    """{folder: 0 if it uses no other of its layer, else one more than the highest it uses}

    Folders that use each other have one level; --check refuses them.
    """
    circles = {folder: circle for circle in cycles(edges) for folder in circle}
    known = {}

    def level(folder):
        circle = circles.get(folder, [folder])
        if folder not in known:
            below = [level(used) for user in circle for used in edges.get(user, ())
                     if layer_of(used) == layer_of(folder) and used not in circle]
            known.update(dict.fromkeys(circle, 1 + max(below, default=-1)))
        return known[folder]

    return {folder: level(folder) for folder in sorted(edges)}


# -- the rules ------------------------------------------------------------------------------------

def check(tree, known_cycles, no_header):
    """Every broken rule: lines `file:line: what is wrong: what to do`."""
    return [*check_includes(tree), *check_uses(tree), *check_folder_cycles(tree),
            *check_module_cycles(tree, known_cycles), *check_lists(tree),
            *check_headers(tree, no_header)]


def check_includes(tree):
    for path, line, target in tree.includes:
        user, used = folder_of(path), folder_of(target)
        place = f"{path}:{line}: includes {target}"
        if target not in tree.files:
            yield f"{place}, which does not exist: use its present name"
        elif layer_of(used) > layer_of(user):
            yield (f"{place}, a layer above (fs -> store -> kernels): "
                   f"move what is needed down, or have the caller pass it in")
        elif used != user and used not in tree.folders[user].uses:
            yield (f"{place}, but {used} is not in USES of {user}/CMakeLists.txt: "
                   f"do without it, or add it there if {user} is meant to be above {used}")


def check_uses(tree):
    edges = tree.folder_edges()
    for folder, known in sorted(tree.folders.items()):
        for used, line in known.uses.items():
            place = f"{folder}/CMakeLists.txt:{line}: USES {used}"
            if used not in tree.folders:
                yield f"{place}, which is not a folder: remove it, or correct the name"
            elif layer_of(used) > layer_of(folder):
                yield f"{place}, a layer above (fs -> store -> kernels): remove it"
            elif used not in edges.get(folder, ()):
                yield f"{place}, but no file of {folder} includes it any more: remove it"


def check_folder_cycles(tree):
    edges = tree.folder_edges()
    for folder, known in tree.folders.items():
        edges.setdefault(folder, set()).update(known.uses)
    for cycle in cycles(edges):
        yield (f"{cycle[0]}/CMakeLists.txt:1: a cycle of {len(cycle)} folders, {', '.join(cycle)}: "
               f"cut one of these edges, the shortest way round:")
        yield from describe_way(tree, shortest_cycle(edges, cycle), folder_of)


def check_module_cycles(tree, known):
    edges = {module: {used for used in uses if folder_of(used) == folder_of(module)}
             for module, uses in tree.module_edges().items()}
    found = cycles(edges)
    for cycle in found:
        if cycle in [sorted(names) for names in known]:
            continue
        yield (f"{cycle[0]}: a cycle of {len(cycle)} modules, {', '.join(cycle)}: move what they "
               f"share into a file of its own, or name the cycle and its reason in KNOWN_CYCLES of "
               f"scripts/folders.py; the shortest way round:")
        yield from describe_way(tree, shortest_cycle(edges, cycle), module_of)
    for names in known:
        if sorted(names) not in found:
            yield (f"scripts/folders.py: KNOWN_CYCLES has {', '.join(names)}, "
                   f"which is not a cycle any more: remove it")


def describe_way(tree, way, place_of):
    """The first include of each step, and how many more there are."""
    for user, used in zip(way, way[1:]):
        steps = [include for include in tree.includes
                 if place_of(include.path) == user and place_of(include.target) == used]
        if not steps:
            yield f"    {user}/CMakeLists.txt:{tree.folders[user].uses[used]}: USES {used}"
            continue
        more = f", and {len(steps) - 1} more from {user} to {used}" if len(steps) > 1 else ""
        yield f"    {steps[0].path}:{steps[0].line}: includes {steps[0].target}{more}"


def check_lists(tree):
    for folder, modules in sorted(tree.modules().items()):
        known = tree.folders[folder]
        if not known.has_list:
            yield f"{folder}: has no CMakeLists.txt: write one, like that of store/base"
            continue
        if len(modules) > MOST_MODULES:
            yield (f"{folder}: has {len(modules)} modules, more than {MOST_MODULES}: "
                   f"give the second subject in it a folder of its own")
        for path in tree.sources:
            is_compiled = folder_of(path) == folder and path.endswith((".cpp", ".cu"))
            if is_compiled and path.rpartition("/")[2] not in known.listed:
                yield f"{path}: is not in {folder}/CMakeLists.txt: add it to SOURCES, or delete it"
    for folder, known in sorted(tree.folders.items()):
        place = f"{folder}/CMakeLists.txt:1"
        if known.has_list and not known.purpose:
            yield (f"{place}: does not say what the folder is for: "
                   f"begin it with a comment of one sentence that ends with a full stop")
        elif len(known.purpose) > LONGEST_PURPOSE:
            yield (f"{place}: its first sentence has {len(known.purpose)} characters: "
                   f"{LONGEST_PURPOSE} at most")


def check_headers(tree, no_header):
    alone = [path for path in tree.sources
             if path.endswith(".cpp") and path.removesuffix(".cpp") + ".hpp" not in tree.files]
    for path in alone:
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in no_header):
            header = path.removesuffix(".cpp") + ".hpp"
            yield (f"{path}: there is no {header}: declare there what others use of it, "
                   f"or name the file and the reason in NO_HEADER of scripts/folders.py")
    for pattern in no_header:
        if not fnmatch.filter(alone, pattern):
            yield f"scripts/folders.py: NO_HEADER has {pattern}, which matches no file: remove it"


# -- what is printed ------------------------------------------------------------------------------

def table(tree):
    edges, modules = tree.folder_edges(), tree.modules()
    level = levels(edges)
    lines = ["| level | folder | what it is for | modules | uses |", "|---|---|---|---|---|"]
    for folder in sorted(edges, key=lambda name: (layer_of(name), level[name], name)):
        uses = " ".join(f"`{used}`" for used in sorted(edges[folder]))
        lines.append(f"| {level[folder]} | `{folder}` | {tree.folders[folder].purpose} "
                     f"| {len(modules[folder])} | {uses} |")
    if KNOWN_CYCLES:
        lines += ["", "Modules that include each other, and why:", ""]
        for names, why in sorted(KNOWN_CYCLES.items()):
            item = f"- {', '.join(f'`{name}`' for name in names)}: {why}."
            lines += textwrap.wrap(item, 100, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def marked_pages(root):
    """(path, text before the table, table, text after it) of each page that has the two marks."""
    for path in sorted((root / "docs").rglob("*.md")):
        before, begin, rest = path.read_text().partition(MARKS[0])
        inside, end, after = rest.partition(MARKS[1])
        if begin and end:
            yield path, before + begin, inside.strip("\n"), end + after


def check_pages(root, tree):
    for path, _, written, _ in marked_pages(root):
        if written != table(tree):
            yield (f"{path.relative_to(root)}: its table of folders is out of date: "
                   f"run scripts/folders.py --write")


def summary(tree):
    """{what: number}"""
    edges, modules = tree.folder_edges(), tree.modules()
    of_folders, of_modules = cycles(edges), cycles(tree.module_edges())
    upward = sum(layer_of(used) > layer_of(folder) for folder in edges for used in edges[folder])
    return {
        "folders": len(edges),
        "modules": sum(map(len, modules.values())),
        "modules in the largest folder": max(map(len, modules.values()), default=0),
        "levels of folders within a layer": 1 + max(levels(edges).values(), default=-1),
        "edges between folders": sum(map(len, edges.values())),
        "edges from a layer to one above": upward,
        "cycles of folders": len(of_folders),
        "folders in the largest cycle": max(map(len, of_folders), default=0),
        "cycles of modules": len(of_modules),
        "modules in the largest cycle": max(map(len, of_modules), default=0),
    }


def print_summary(root, revisions):
    found = [summary(Tree(files_on_disk(root) if revision == "." else files_of(root, revision)))
             for revision in revisions]
    names = ["working tree" if revision == "." else revision[:12] for revision in revisions]
    print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for what in found[0]:
        print(f"| {what} | " + " | ".join(str(numbers[what]) for numbers in found) + " |")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT,
                        help="another repository, to which no exception applies")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true")
    what.add_argument("--table", action="store_true")
    what.add_argument("--write", action="store_true")
    what.add_argument("--summary", nargs="*", metavar="REVISION")
    return parser.parse_args()


def main():
    options = arguments()
    if options.summary is not None:
        print_summary(options.root, options.summary or ["."])
        return 0
    tree = Tree(files_on_disk(options.root))
    if options.table:
        print(table(tree))
    elif options.write:
        for path, before, _, after in marked_pages(options.root):
            path.write_text(f"{before}\n{table(tree)}\n{after}")
    else:
        exceptions = (KNOWN_CYCLES, NO_HEADER) if options.root == ROOT else ((), ())
        wrong = [*check(tree, *exceptions), *check_pages(options.root, tree)]
        print("\n".join(wrong or [f"{len(tree.modules())} folders, {len(tree.includes)} includes: "
                                  f"no rule is broken"]))
        return 1 if wrong else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
