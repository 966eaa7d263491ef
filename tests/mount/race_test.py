"""Publishers that race for the same number, and with somebody who writes to the checkpoint."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402


class Race(harness.MountTest):
    def test_of_two_publishers_one_wins_and_the_other_conflicts(self):
        steps = self.make_run(3)
        self.init()
        self.publish(steps[0])
        conflicts, newest = 0, 1
        for _ in range(30):
            racers = [self.start_publish(steps[1 + i], f"racer-{i}") for i in range(2)]
            said = [racer.communicate(timeout=60)[0] for racer in racers]
            codes = [racer.returncode for racer in racers]
            self.assertIn(0, codes)
            self.assertLessEqual(set(codes), {0, 3}, said)
            newest += codes.count(0)
            self.assertEqual(self.version_count(), newest)
            if 3 in codes:
                conflicts += 1
                error = harness.json.loads(said[codes.index(3)])["error"]
                self.assertEqual(error["code"], "conflict")
            if conflicts == 3:
                break
        self.assertGreater(conflicts, 0)
        self.assert_clean()
        said = self.publish(steps[2])
        self.assertEqual(said["version"], newest + 1)

    def test_publishers_with_rebase_all_win(self):
        steps = self.make_run(5)
        self.init()
        self.publish(steps[0])
        racers = [self.start_publish(steps[1 + i], f"racer-{i}", "--rebase") for i in range(4)]
        versions = []
        for racer in racers:
            out, err = racer.communicate(timeout=120)
            self.assertEqual(racer.returncode, 0, out + err)
            versions.append(harness.json.loads(out)["version"])
        self.assertEqual(sorted(versions), [2, 3, 4, 5])
        self.assert_clean()

    def test_publishers_may_share_a_store(self):
        steps = self.make_run(3)
        self.init()
        self.publish(steps[0])
        racers = [self.start_publish(step, "publisher") for step in steps[1:]]
        for racer in racers:
            out, err = racer.communicate(timeout=60)
            self.assertIn(racer.returncode, (0, 3), out + err)
        self.assert_clean()

    def test_a_directory_that_is_written_to_meanwhile_is_refused_or_whole(self):
        steps = self.make_run(2, params=2_000_000)
        self.init()
        self.publish(steps[0])
        name = "model-00001-of-00002.safetensors"
        path = os.path.join(steps[1], name)
        data = harness.read_file(path)
        publisher = self.start_publish(steps[1])
        with open(path, "r+b") as file:
            while publisher.poll() is None:
                file.seek(len(data) - 2)
                file.write(bytes([harness.RANDOM.randrange(256)]))
                file.flush()
        out, err = publisher.communicate()
        self.assertEqual(publisher.returncode, 1, out + err)
        self.assertIn(name, err)
        self.assert_clean()
        self.assertEqual(self.version_count(), 1)


if __name__ == "__main__":
    harness.main()
