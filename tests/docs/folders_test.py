"""The folders of the repository keep the rules of scripts/folders.py, and each rule can be broken."""

import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "folders.py"

spec = importlib.util.spec_from_file_location("folders", SCRIPT)
folders = importlib.util.module_from_spec(spec)
spec.loader.exec_module(folders)


def cmake(folder, sources, uses=(), purpose="# What it is for."):
    used = f"\n  USES {' '.join(uses)}" if uses else ""
    return f"{purpose}\nweightfs_folder({folder}\n  SOURCES {' '.join(sources)}{used}\n  LINKS fmt::fmt)\n"


def include(*targets):
    return "".join(f'#include "{target}"\n' for target in targets)


def good_tree():
    """One folder in each layer, and two in store."""
    return {
        "kernels/block/CMakeLists.txt": cmake("kernels/block", ["block.cpp"]),
        "kernels/block/block.hpp": "",
        "kernels/block/block.cpp": include("kernels/block/block.hpp"),
        "store/CMakeLists.txt": "# Between a bucket and local files.\nadd_subdirectory(base)\n",
        "store/base/CMakeLists.txt": cmake("store/base", ["bytes.cpp"], ["kernels/block"]),
        "store/base/bytes.hpp": "#include <string>\n" + include("kernels/block/block.hpp"),
        "store/base/bytes.cpp": include("store/base/bytes.hpp"),
        "store/http/CMakeLists.txt": cmake("store/http", ["http.cpp"], ["store/base"]),
        "store/http/http.hpp": include("store/base/bytes.hpp"),
        "store/http/http.cpp": include("store/http/http.hpp"),
        "fs/cli/CMakeLists.txt": cmake("fs/cli", ["main.cpp"], ["store/http"]),
        "fs/cli/main.cpp": include("store/http/http.hpp"),
    }


def broken(files, known_cycles=(), no_header=("fs/*main.cpp",)):
    return list(folders.check(folders.Tree(files), known_cycles, no_header))


class MadeUpTrees(unittest.TestCase):
    def setUp(self):
        self.files = good_tree()
        self.assertEqual(broken(self.files), [])

    def append(self, path, text):
        self.files[path] += text

    def expect(self, *messages, **tables):
        """Exactly these are said; each begins with what is given."""
        found = [line for line in broken(self.files, **tables) if not line.startswith("    ")]
        self.assertEqual(len(found), len(messages), "\n".join(found))
        for line, message in zip(found, messages):
            self.assertTrue(line.startswith(message), f"{line}\nis not\n{message}")

    def test_an_include_of_a_folder_that_is_not_in_uses(self):
        # Not by way of another either: fs/cli uses store/http, which uses store/base.
        self.append("fs/cli/main.cpp", "\n" + include("store/base/bytes.hpp"))
        self.expect("fs/cli/main.cpp:3: includes store/base/bytes.hpp, but store/base is not in USES "
                    "of fs/cli/CMakeLists.txt: ")

    def test_an_include_of_a_file_that_does_not_exist(self):
        self.append("fs/cli/main.cpp", include("store/http/https.hpp"))
        self.expect("fs/cli/main.cpp:2: includes store/http/https.hpp, which does not exist: ")

    def test_an_include_of_a_layer_above(self):
        self.files["fs/cli/main.hpp"] = ""
        self.append("store/http/http.cpp", include("fs/cli/main.hpp"))
        self.files["fs/cli/CMakeLists.txt"] = cmake("fs/cli", ["main.cpp"])
        self.files["fs/cli/main.cpp"] = ""
        self.expect("store/http/http.cpp:2: includes fs/cli/main.hpp, a layer above", no_header=())

    def test_a_layer_above_in_uses(self):
        self.files["fs/cli/CMakeLists.txt"] = cmake("fs/cli", ["main.cpp"])
        self.files["fs/cli/main.cpp"] = ""
        self.files["store/http/CMakeLists.txt"] = cmake(
            "store/http", ["http.cpp"], ["store/base", "fs/cli"])
        self.expect("store/http/CMakeLists.txt:4: USES fs/cli, a layer above")

    def test_uses_that_no_file_needs(self):
        self.files["fs/cli/CMakeLists.txt"] = cmake("fs/cli", ["main.cpp"], ["store/http", "store/base"])
        self.expect("fs/cli/CMakeLists.txt:4: USES store/base, but no file of fs/cli includes it any more: ")

    def test_uses_of_what_is_not_a_folder(self):
        self.files["fs/cli/CMakeLists.txt"] = cmake("fs/cli", ["main.cpp"], ["store/http", "store/htpp"])
        self.expect("fs/cli/CMakeLists.txt:4: USES store/htpp, which is not a folder: ")

    def test_a_comment_in_uses_is_none(self):
        self.files["fs/cli/CMakeLists.txt"] = cmake(
            "fs/cli", ["main.cpp"], ["store/http  # not store/base"])
        self.expect()

    def test_a_cycle_of_folders(self):
        self.append("store/base/bytes.cpp", include("store/http/http.hpp"))
        self.files["store/base/CMakeLists.txt"] = cmake(
            "store/base", ["bytes.cpp"], ["kernels/block", "store/http"])
        self.expect("store/base/CMakeLists.txt:1: a cycle of 2 folders, store/base, store/http: ")
        self.assertIn("    store/base/bytes.cpp:2: includes store/http/http.hpp", broken(self.files))

    def test_a_cycle_of_folders_by_uses_alone(self):
        self.files["store/base/CMakeLists.txt"] = cmake(
            "store/base", ["bytes.cpp"], ["kernels/block", "store/http"])
        self.expect("store/base/CMakeLists.txt:4: USES store/http, but no file",
                    "store/base/CMakeLists.txt:1: a cycle of 2 folders")

    def add_cycle_of_modules(self):
        for name, other in (("one", "two"), ("two", "three"), ("three", "one")):
            self.files[f"store/base/{name}.hpp"] = ""
            self.files[f"store/base/{name}.cpp"] = include(f"store/base/{other}.hpp")
        self.files["store/base/CMakeLists.txt"] = cmake(
            "store/base", ["bytes.cpp", "one.cpp", "two.cpp", "three.cpp"], ["kernels/block"])
        return ("store/base/two", "store/base/one", "store/base/three")

    def test_a_cycle_of_modules(self):
        self.add_cycle_of_modules()
        self.expect("store/base/one: a cycle of 3 modules, store/base/one, store/base/three, store/base/two: ")
        self.assertIn("    store/base/two.cpp:1: includes store/base/three.hpp", broken(self.files))

    def test_a_known_cycle_of_modules(self):
        known = self.add_cycle_of_modules()
        self.expect(known_cycles={known: "a reason"})

    def test_a_part_of_a_known_cycle_is_another(self):
        known = (*self.add_cycle_of_modules(), "store/base/bytes")
        self.expect("store/base/one: a cycle of 3 modules",
                    "scripts/folders.py: KNOWN_CYCLES has store/base/two, store/base/one",
                    known_cycles={known: "a reason"})

    def test_a_known_cycle_that_is_none_any_more(self):
        self.expect("scripts/folders.py: KNOWN_CYCLES has store/base/bytes, store/base/x, which is not",
                    known_cycles={("store/base/bytes", "store/base/x"): "a reason"})

    def test_too_many_modules(self):
        for number in range(folders.MOST_MODULES - 1):
            self.files[f"store/base/m{number}.hpp"] = ""
            self.files[f"store/base/m{number}-inl.hpp"] = ""
        self.expect()
        self.files["store/base/last.hpp"] = ""
        self.expect(f"store/base: has {folders.MOST_MODULES + 1} modules, more than {folders.MOST_MODULES}: ")

    def test_a_folder_without_a_list(self):
        del self.files["store/base/CMakeLists.txt"]
        self.expect("store/base/bytes.hpp:2: includes kernels/block/block.hpp, but",
                    "store/base: has no CMakeLists.txt: ")

    def test_a_list_without_a_purpose(self):
        for purpose in ("", "cmake_policy(VERSION 3.25)\n# Too late.", "# It does not end", "#"):
            with self.subTest(purpose=purpose):
                self.files["fs/cli/CMakeLists.txt"] = cmake(
                    "fs/cli", ["main.cpp"], ["store/http"], purpose)
                self.expect("fs/cli/CMakeLists.txt:1: does not say what the folder is for: ")
        self.files["fs/cli/CMakeLists.txt"] = cmake(
            "fs/cli", ["main.cpp"], ["store/http"], f"# {'long ' * 40}.")
        self.expect("fs/cli/CMakeLists.txt:1: its first sentence has 2")

    def test_a_layer_needs_a_purpose_too(self):
        self.files["store/CMakeLists.txt"] = "add_subdirectory(base)\n"
        self.expect("store/CMakeLists.txt:1: does not say what the folder is for: ")

    def test_a_purpose_may_take_two_lines_and_be_explained(self):
        self.files["fs/cli/CMakeLists.txt"] = cmake(
            "fs/cli", ["main.cpp"], ["store/http"], "# One sentence of\n# two lines.  Then more.")
        self.expect()
        self.assertIn("| `fs/cli` | One sentence of two lines. | 1 | `store/http` |",
                      folders.table(folders.Tree(self.files)))

    def test_a_source_that_is_not_in_the_list(self):
        self.files["store/base/words.hpp"] = self.files["store/base/words.cpp"] = ""
        self.files["store/base/words.cu"] = ""
        # In a comment it is not in the list.
        self.append("store/base/CMakeLists.txt", "# words.cpp, words.cu\n")
        self.expect("store/base/words.cpp: is not in store/base/CMakeLists.txt: ",
                    "store/base/words.cu: is not in store/base/CMakeLists.txt: ")

    def test_a_source_without_a_header(self):
        self.files["store/base/bytes.cpp"] = self.files.pop("store/base/bytes.hpp")
        self.files["store/http/http.hpp"] = ""
        self.files["store/http/CMakeLists.txt"] = cmake("store/http", ["http.cpp"])
        self.expect("store/base/bytes.cpp: there is no store/base/bytes.hpp: ")
        self.expect(no_header=("fs/*main.cpp", "store/*bytes.cpp"))

    def test_an_exception_that_is_not_needed(self):
        self.expect("scripts/folders.py: NO_HEADER has store/*bytes.cpp, which matches no file: ",
                    no_header=("fs/*main.cpp", "store/*bytes.cpp"))

    def test_levels_count_within_a_layer(self):
        tree = folders.Tree(self.files)
        self.assertEqual(folders.levels(tree.folder_edges()),
                         {"kernels/block": 0, "store/base": 0, "store/http": 1, "fs/cli": 0})

    def test_summary(self):
        self.append("store/base/bytes.cpp", include("store/http/http.hpp"))
        self.assertEqual(list(folders.summary(folders.Tree(self.files)).values()),
                         [4, 4, 1, 1, 4, 0, 1, 2, 1, 2])
        self.append("store/base/bytes.cpp", include("fs/cli/main.hpp"))
        self.assertEqual(folders.summary(folders.Tree(self.files))["edges from a layer to one above"], 1)


class TheScript(unittest.TestCase):
    """As it is called, on a repository in a temporary directory."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for path, text in good_tree().items():
            self.write(path, text)
        self.write("fs/cli/main.hpp", "")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run_script(self, *options):
        return subprocess.run([sys.executable, SCRIPT, "--root", self.root, *options],
                              capture_output=True, text=True, timeout=60)

    def expect_check(self, code, part):
        done = self.run_script("--check")
        self.assertIn(part, done.stdout + done.stderr)
        self.assertEqual(done.returncode, code, done.stdout)

    def test_check_fails_and_names_the_place(self):
        self.expect_check(0, "no rule is broken")
        self.write("store/base/more.hpp", include("store/http/http.hpp"))
        self.expect_check(1, "store/base/more.hpp:1: includes store/http/http.hpp, but")

    def test_an_old_table_in_the_documents(self):
        page = "# Folders\n\n" + "\nold\n".join(folders.MARKS) + "\n\nAfter.\n"
        self.write("docs/architecture/folders.md", page)
        self.expect_check(1, "docs/architecture/folders.md: its table of folders is out of date: ")
        self.assertEqual(self.run_script("--write").returncode, 0)
        self.expect_check(0, "no rule is broken")
        written = (self.root / "docs/architecture/folders.md").read_text()
        self.assertIn("\n| 1 | `store/http` | What it is for. | 1 | `store/base` |\n", written)
        self.assertTrue(written.startswith("# Folders\n\n") and written.endswith("\n\nAfter.\n"))

    def test_summary_of_a_revision_and_of_the_working_tree(self):
        def git(*command):
            subprocess.run(["git", "-C", self.root, "-c", "user.name=x", "-c", "user.email=x@localhost",
                            *command], check=True, capture_output=True)
        git("init")
        git("add", ".")
        git("commit", "--message", "first")
        self.write("store/base/more.hpp", "")
        done = self.run_script("--summary", "HEAD", ".")
        self.assertIn("| modules | 4 | 5 |", done.stdout, done.stderr)


class TheRepository(unittest.TestCase):
    def test_no_rule_is_broken(self):
        done = subprocess.run([SCRIPT, "--check"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, f"\n{done.stdout}{done.stderr}")

    def test_the_page_names_modules_where_they_are(self):
        page = (ROOT / "docs" / "architecture" / "folders.md").read_text()
        rows = re.findall(r"^\| `([a-z]+/[a-z]+)` \| (.*) \|$", page, re.MULTILINE)
        self.assertGreater(len(rows), 30)
        for folder, modules in rows:
            for module in re.findall(r"`([a-z_0-9]+)`", modules):
                with self.subTest(folder=folder, module=module):
                    self.assertTrue(list((ROOT / folder).glob(f"{module}.*")))


if __name__ == "__main__":
    unittest.main()
