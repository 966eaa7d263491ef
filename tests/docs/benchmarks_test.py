"""docs/BENCHMARKS.md and its plot say what tests/bench/results says, and measure.py compares fairly."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmarks = load(ROOT / "scripts" / "benchmarks.py")
measure = load(ROOT / "tests" / "bench" / "measure.py")

MACHINE = {"date": "2026-11-23", "load": 0.5, "cores": 2, "kernel": "6.18"}
TEXT = """# Page

Prose.

<!-- results: fast/ways -->
| old |
|---|
<!-- end -->

<!-- results: absent/ways -->
| stays |
<!-- end -->

<!-- results: fast/measured -->
<!-- end -->
"""


def content():
    spans = {"save": [0, 0.2], "latest": [0.5, 0.5], "read": [0.5, 0.6]}
    return {"bench": "fast", "started": MACHINE, "ended": MACHINE,
            "parts": {"ways": {"columns": ["way", "ms"], "rows": [["cp", "3"]]}, "why": {"text": "Because."}},
            "data": {"timeline": spans, "parts": {"slime": [{"encode, upload": 0.1, "read": 0.1}]}}}


class PageTest(unittest.TestCase):
    def test_page_and_plot_are_what_the_results_say(self):
        done = subprocess.run([ROOT / "scripts" / "benchmarks.py", "--check"], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_parts_are_replaced_and_prose_stays(self):
        page = benchmarks.page(TEXT, {"fast": content()})
        self.assertIn("| way | ms |\n|---|---|\n| cp | 3 |\n<!-- end -->", page)
        self.assertNotIn("| old |", page)
        self.assertIn("Prose.", page)
        self.assertIn("| stays |", page)
        self.assertIn("2026-11-23, 2 cores, kernel 6.18, load average 0.5 to 0.5.", page)
        self.assertEqual(benchmarks.page(page, {"fast": content()}), page)

    def test_a_part_that_the_result_lacks_is_an_error(self):
        with self.assertRaises(KeyError):
            benchmarks.page("<!-- results: fast/other -->\n<!-- end -->", {"fast": content()})

    def test_plot_has_a_bar_for_each_step(self):
        drawing = benchmarks.plot({"end_to_end": content(), "end_to_end_before": content()})
        self.assertEqual(drawing.count("<rect x="), 3 + 3 + 2)
        self.assertIsNone(benchmarks.plot({}))


class MeasureTest(unittest.TestCase):
    def test_every_side_comes_first_equally_often(self):
        orders = []
        sides = {name: lambda name=name: orders.append(name) for name in "abc"}
        seconds = measure.alternate(sides, rounds=4, warm_up=2)
        first = orders[::3]
        self.assertEqual({name: first.count(name) for name in "abc"}, dict.fromkeys("abc", 2))
        self.assertEqual([len(values) for values in seconds.values()], [4, 4, 4])  # not the warm-up

    def test_an_action_may_measure_itself(self):
        self.assertEqual(measure.alternate({"a": lambda: 7.0}, rounds=2), {"a": [7.0, 7.0]})

    def test_steps_are_between_neighbours(self):
        self.assertEqual(measure.to_and_fro([1, 2, 3], 6), [(1, 2), (2, 3), (3, 2), (2, 1), (1, 2), (2, 3)])
        self.assertEqual(measure.to_and_fro([1, 2], 3), [(1, 2), (2, 1), (1, 2)])

    def test_ratios_are_of_the_best_and_of_the_medians(self):
        self.assertEqual(measure.ratios([1, 2, 6], [2, 2, 3]), ["0.50", "1.00"])

    def test_report_is_what_benchmarks_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.json"
            measure.Report("x", path).table("ways", ["way", "n"], [["cp", 1]])
            self.assertEqual(benchmarks.part_text(json.loads(path.read_text()), "ways"),
                             "| way | n |\n|---|---|\n| cp | 1 |\n")


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main(verbosity=1)
