"""Every message that docs/OPERATIONS.md quotes is in the sources: {} in either stands for anything."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "OPERATIONS.md"
LEAST = 12  # characters of a quote outside {}: less would be found anywhere

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<char>'(?:\\.|[^'\\\n])+')"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<space>\s+)|(?P<other>.)""",
    re.DOTALL)


def literals(source: str):
    """String literals; neighbours are one, as for the compiler."""
    parts = []
    for token in TOKEN.finditer(source):
        if token.lastgroup == "string":
            parts.append(token.group()[1:-1])
        elif token.lastgroup not in ("space", "comment"):
            if parts:
                yield unescape("".join(parts))
            parts = []
    if parts:
        yield unescape("".join(parts))


def unescape(text: str) -> str:
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


def normal(text: str) -> str:
    """{0} and {:.1f} are {}."""
    return re.sub(r"\{[^{}]*\}", "{}", text)


def all_literals() -> list:
    found = []
    for folder in ("store", "fs"):
        for path in sorted((ROOT / folder).rglob("*.[ch]pp")):
            found += [normal(text) for text in literals(path.read_text())]
    return found


def quotes(page: str):
    """(line number, line) of every ```message block."""
    inside = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```message"
        elif inside and line.strip():
            yield number, line


class Messages(unittest.TestCase):
    def test_literals_are_read_as_the_compiler_does(self):
        source = '''f("a" /* "no" */ "b {0}"); // "c"
                    g('"', "d\\"e");'''
        self.assertEqual(list(literals(source)), ["ab {0}", 'd"e'])

    def test_every_quote_is_in_the_sources(self):
        sources = all_literals()
        self.assertGreater(len(sources), 1000)
        found = list(quotes(PAGE.read_text()))
        self.assertGreater(len(found), 20)
        for number, line in found:
            with self.subTest(line=number):
                quote = normal(line.strip())
                self.assertGreaterEqual(len(quote.replace("{}", "")), LEAST, line)
                self.assertTrue(any(quote in text for text in sources),
                                f"{PAGE.name}:{number}: no source says: {line}")


if __name__ == "__main__":
    sys.exit(unittest.main())
