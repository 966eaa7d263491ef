"""Eight publishers race for the numbers of one repository, through two gateways over one store."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402

WRITERS, VERSIONS = 8, 100


class Writers(gateway.S3Test):
    gateways = 2

    def test_each_number_has_one_winner_and_each_loser_is_told(self):
        self.init()
        writers = []
        for i in range(WRITERS):
            folder = os.path.join(self.dir, f"writer-{i}")
            os.makedirs(folder)
            writers.append(subprocess.Popen(
                [gateway.program("weightfs_s3_driver"), "race", self.gateway.urls[i % 2], self.url,
                 folder, f"writer-{i}", str(VERSIONS)], text=True, env=harness.environment(),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            self.addCleanup(writers[-1].kill)
        won, conflicts, said = {}, 0, ""
        for writer in writers:
            out, err = writer.communicate(timeout=300)
            self.assertEqual(writer.returncode, 0, err)
            said += out
            for word, *rest in map(str.split, out.splitlines()):
                if word == "won":
                    self.assertNotIn(int(rest[0]), won, said)
                    won[int(rest[0])] = rest[1]
                elif word == "conflict":
                    conflicts += 1
        log = harness.call("log", self.url)
        # A writer that took up a version before the last one was won may win one more.
        versions = len(log)
        self.assertIn(versions, range(VERSIONS, VERSIONS + WRITERS))
        self.assertEqual([entry["version"] for entry in log], list(range(versions, 0, -1)))
        self.assertEqual({entry["version"]: entry["tag"] for entry in log}, won)
        self.assertEqual(len(set(won.values())), versions)  # nobody's checkpoint is there twice
        self.assertGreater(conflicts, 0)
        self.assertGreater(len({tag.rsplit("-", 1)[0] for tag in won.values()}), 1)
        print(f"{versions} versions, {conflicts} conflicts", file=sys.stderr)
        self.assert_clean()
        for version in {versions, *harness.RANDOM.sample(range(1, versions), 5)}:
            out = os.path.join(self.dir, f"out-{version}")
            harness.call("export", self.url, out, "--version", version)
            data = harness.read_file(os.path.join(out, "model.safetensors"))
            self.assertTrue(data.endswith((f"{won[version]}." * 4096)[:4096].encode()), version)


if __name__ == "__main__":
    harness.main()
