"""Every promise in a table of docs/SEMANTICS.md names what holds it, and that exists.

What holds it: a test of GoogleTest (`Suite.Name`, with `*`), or a test file, by its name or from the root (a script too).
"""

import fnmatch
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "SEMANTICS.md"
TEST = re.compile(r"\b(TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)")
PARAMETERS = re.compile(r"\bINSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)")


def tests():
    """Names of all tests, as --gtest_filter knows them; (/*) parameters left out."""
    found, prefixes = set(), {}
    texts = [path.read_text() for path in sorted((ROOT / "tests").rglob("*.cpp"))]
    for text in texts:
        for prefix, suite in PARAMETERS.findall(text):
            prefixes.setdefault(suite, []).append(prefix)
    for text in texts:
        for _, suite, name in TEST.findall(text):
            found.add(f"{suite}.{name}")
            found.update(f"{prefix}/{suite}.{name}" for prefix in prefixes.get(suite, ()))
    return found


def promises(page):
    """(line number, cell of the promise, cell of what holds it) of every table `| ... | held by |`."""
    inside = False
    for number, line in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif cells[-1] == "held by":
            inside = True
        elif inside and set(cells[-1]) - set("-: "):
            yield number, cells[0], cells[-1]


def is_there(name, names):
    if name.endswith((".py", ".sh")):
        return (ROOT / name).exists() or any((ROOT / "tests").glob(f"*/{name}"))
    return any(fnmatch.fnmatchcase(test, name) or fnmatch.fnmatchcase(test.split("/")[-1], name)
               for test in names)


class Promises(unittest.TestCase):
    def test_tables_are_read(self):
        page = "| promise | held by |\n|---|---|\n| a | `T.x` |\n\n| other | table |\n"
        self.assertEqual(list(promises(page)), [(3, "a", "`T.x`")])

    def test_each_is_held_by_a_test_that_exists(self):
        names = tests()
        self.assertGreater(len(names), 1000)
        missing, count = [], 0
        for number, promise, held_by in promises(PAGE.read_text()):
            count += 1
            named = re.findall(r"`([^`]+)`", held_by)
            if not named:
                missing.append(f"line {number}: nothing holds: {promise[:80]}")
            missing += [f"line {number}: there is no {name}" for name in named
                        if not is_there(name, names)]
        self.assertGreater(count, 100)
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
