"""The staging of a writer's mount behaves as the directory beneath it, call by call.

The cases and the differences that are allowed are those of tests/support/posix_compare.py."""

import io
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
import posix_compare  # noqa: E402


class StagingPosix(harness.MountTest):
    def folder(self, path):
        """A directory of root's that others may pass."""
        os.mkdir(path)
        os.chmod(path, 0o755)
        return path

    def test_staging_behaves_as_an_ordinary_directory(self):
        cases = posix_compare.find_cases()
        usual = posix_compare.run(self.folder(os.path.join(self.dir, "usual")), cases)
        for serve in ("passthrough", "daemon"):
            with self.subTest(serve=serve):
                mount = self.writer("--serve", serve, name=serve, store=f"store-{serve}")
                found = posix_compare.run(self.folder(mount.staging("suite")), cases)
                words = io.StringIO()
                allowed = posix_compare.allowed_for(serve)
                self.assertEqual(posix_compare.judge(usual, found, allowed, words), [],
                                 f"\n{words.getvalue()}")
                self.assertEqual(os.listdir(mount.staging("suite")), [])

    def test_a_difference_does_not_pass_unseen(self):
        """The same cases, with bugs planted in the calls: each bug is found, by the case for it."""
        usual, other = (self.folder(os.path.join(self.dir, name)) for name in ("usual", "other"))
        for bug, case in (("truncate-leaves-bytes", "ftruncate_both_ways"),
                          ("rename-forgets", "rename_a_file"),
                          ("rmdir-errno", "rmdir_refused"),
                          ("mkdir-mode", "mkdir_modes_and_umask"),
                          ("pwrite-short", "reads_and_writes_at_odd_offsets")):
            cases = posix_compare.find_cases(f"^{case}$")
            wrong = posix_compare.judge(posix_compare.run(usual, cases),
                                        posix_compare.run(other, cases, bug), [], io.StringIO())
            self.assertEqual(wrong, [case], bug)

    def test_an_allowed_difference_that_is_none_any_more_is_told(self):
        usual, other = (self.folder(os.path.join(self.dir, name)) for name in ("usual", "other"))
        cases = posix_compare.find_cases("^hard_link$")
        words = io.StringIO()
        wrong = posix_compare.judge(posix_compare.run(usual, cases),
                                    posix_compare.run(other, cases),
                                    posix_compare.allowed_for("passthrough"), words)
        self.assertEqual(wrong, ["hard_link"])
        self.assertIn("does not any more", words.getvalue())


if __name__ == "__main__":
    harness.main()
