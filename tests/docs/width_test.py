#!/usr/bin/env python3
"""Documents: lines are at most 100 characters wide.

Not of tables, code, and lines of nothing but a link, which cannot be broken."""
import glob
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH_MAX = 100


def prose(text):
    """Yields (number, line) of what is neither a table nor code."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("|", "    ")):
            yield number, line


def wide_lines(text):
    return [number for number, line in prose(text)
            if len(line) > WIDTH_MAX and not re.fullmatch(r"\s*\S+", line)]


class Width(unittest.TestCase):
    def test_no_line_of_prose_is_wider(self):
        wide = []
        for path in ["README.md", *glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)]:
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                wide += [f"{path}:{number}" for number in wide_lines(file.read())]
        self.assertEqual(wide, [], f"more than {WIDTH_MAX} characters")

    def test_it_would_be_found(self):
        wide = "word " * 21
        self.assertEqual(wide_lines(f"{wide}\n"), [1])
        self.assertEqual(wide_lines(f"- {wide}\n"), [1])
        self.assertEqual(wide_lines(f"| {wide}\n    {wide}\n```\n{wide}\n```\n"), [])


if __name__ == "__main__":
    unittest.main()
