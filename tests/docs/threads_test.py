"""The tables of docs/architecture/threads.md are those of the sources: the lock order, which a build can
check, and the kinds of requests.  ThreadSanitizer's suppressions name files that exist.

The order is enum LockRank in store/base/ranked_mutex.hpp; each RankedMutex has a rank of it and its own
name.  The page has them in that order, with all locks of each rank.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture" / "threads.md"
HEADER = ROOT / "store" / "base" / "ranked_mutex.hpp"

# Mutexes without a rank: local ones, to wait until a moment or a stop; nothing else locks them.
PLAIN = {"store/base/context.cpp": 1, "fs/commands/commands.cpp": 2}

PLAIN_MUTEX = re.compile(r"std::(?:recursive_|shared_|timed_)*mutex\b")
# A mutex that is made, or check_lock_order().
RANKED = re.compile(r'LockRank::(\w+),\s*"([^"]+)"')
MEMBER = re.compile(r'Ranked\w*Mutex\s+(\w+)\{LockRank::\w+,\s*"([^"]+)"')
# A row of the table; the last rank has too many locks for one, and is a paragraph.
ROW = re.compile(r"^\| `(\w+)` \|([^|]*)\||^`(leaf)`:(.*?)\n\n", re.M | re.S)


def without_comments(text):
    return re.sub(r"//.*", "", text)


def sources():
    """(path from the root, text without comments) of store/ and fs/, but what defines a RankedMutex."""
    for folder in ("store", "fs"):
        for path in sorted((ROOT / folder).rglob("*.[ch]pp")):
            if path.stem != "ranked_mutex":
                yield str(path.relative_to(ROOT)), without_comments(path.read_text())


def ranks():
    """The ranks of the enum, outermost first."""
    body = re.search(r"enum class LockRank[^{]*\{(.*?)\};", HEADER.read_text(), re.S)[1]
    return re.findall(r"\w+", without_comments(body))


def locks_of_sources():
    """rank -> names of its locks."""
    found = {}
    for _, text in sources():
        for rank, name in RANKED.findall(text):
            found.setdefault(rank, set()).add(name)
    return found


def rows():
    """[(rank, names of its locks)] of the page, in its order."""
    section = PAGE.read_text().split("\n## Lock order\n")[1]
    return [(rank or last, re.findall(r"`([^`]+)`", locks or paragraph))
            for rank, locks, last, paragraph in ROW.findall(section)]


class LockOrder(unittest.TestCase):
    maxDiff = None

    def test_the_page_has_the_ranks_in_their_order(self):
        self.assertEqual([rank for rank, _ in rows()], ranks())

    def test_the_page_has_all_locks_of_each_rank(self):
        found = locks_of_sources()
        for rank, named in rows():
            with self.subTest(rank=rank):
                self.assertEqual(sorted(named), sorted(found.get(rank, ())))

    def test_each_rank_has_a_lock(self):
        self.assertEqual(sorted(locks_of_sources()), sorted(ranks()))

    def test_each_lock_has_its_own_name(self):
        made = [(name, member, path) for path, text in sources() for member, name in MEMBER.findall(text)]
        self.assertGreater(len(made), 80)
        for name, member, path in made:
            self.assertEqual(name.rpartition("::")[2], member, path)
        names = [name for name, _, _ in made]
        self.assertEqual(sorted(names), sorted(set(names)))

    def test_no_mutex_is_without_a_rank(self):
        plain = {path: len(PLAIN_MUTEX.findall(text)) for path, text in sources() if PLAIN_MUTEX.search(text)}
        self.assertEqual(plain, PLAIN, "use RankedMutex, store/base/ranked_mutex.hpp")


SUPPRESSIONS = ROOT / "tests" / "support" / "tsan.supp"


class Suppressions(unittest.TestCase):
    def test_the_files_that_thread_sanitizer_passes_over_exist(self):
        files = re.findall(r"^race:(\S+\.[ch]pp)$", SUPPRESSIONS.read_text(), re.M)
        self.assertGreater(len(files), 0)
        for file in files:
            self.assertTrue((ROOT / file).is_file(), f"{file} has moved: its races are reported again")


KINDS = ROOT / "fs" / "fuse" / "request_kinds.cpp"
# {RequestKind::read, WaitClass::local, 4, seconds(30), ETIMEDOUT, ...}
POLICY = re.compile(r"\{RequestKind::(\w+),\s*WaitClass::(\w+),\s*(\d+),\s*(?:(\w+)\((\d+)\)|kReadTimeout),"
                    r"\s*(E\w+)")
UNITS = {"seconds": "s", "minutes": "min", "hours": "h"}


class RequestPools(unittest.TestCase):
    maxDiff = None

    def test_the_page_has_the_kinds_of_requests_as_they_are(self):
        found = [(pool, kind, workers, f"{count} {UNITS[unit]}" if unit else "`--read-timeout`", late)
                 for kind, pool, workers, unit, count, late in POLICY.findall(KINDS.read_text())]
        self.assertGreater(len(found), 10)
        section = PAGE.read_text().split("\n## Request pools\n")[1].split("\n## ")[0]
        cells = [[cell.strip() for cell in line.strip("|").split("|")]
                 for line in section.splitlines() if line.startswith("| `")]
        self.assertEqual([(pool.strip("`"), kind.strip("`"), workers, deadline, late)
                          for pool, kind, _, workers, deadline, late in cells], found)


if __name__ == "__main__":
    unittest.main()
