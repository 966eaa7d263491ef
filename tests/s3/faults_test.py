"""Hundreds of small runs, each through a proxy that injects faults by a seed of its own."""

import collections
import os
import random
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import gateway  # noqa: E402
import harness  # noqa: E402
import s3_faults  # noqa: E402
from s3_faults import Rule  # noqa: E402

SEEDS = 220
AT_A_TIME = 24  # they wait most of the time
ROUNDS_MAX = 3  # a run that met no fault is made again with another seed

# A client waits for 20 s in these: one in a run, and not in every run.
LONG = ("silent", "stall")
# It waits for a second or more, or tries just once more.
FEW = ("slow-down", "too-many", "skew", "refuse")
OFTEN = ("reset", "lost", "error-500", "conflict", "cut", "cut-reset", "slow", "wrong-range",
         "ignore-range")


def has_hash(request):
    """Whoever reads such an object knows what its bytes should be. Of a manifest, the repository's
    record and a probe nobody does."""
    return bool(re.search("/(packs|snapshots|layouts|blobs)/", request.path))


def is_commit(request):
    return request.method == "PUT" and request.is_manifest()


def schedule(seed):
    """What a run with this seed meets."""
    choose = random.Random(seed)
    rules = [Rule(kind, rate=0.15) for kind in choose.sample(OFTEN, 4)]
    if choose.random() < 0.4:
        rules.append(Rule("flip", has_hash, rate=0.15, limit=2))  # each one ends a command
    rules += [Rule(kind, rate=0.1, limit=2) for kind in choose.sample(FEW, 1)]
    if choose.random() < 0.1:
        rules.append(Rule(choose.choice(LONG), rate=0.1, limit=1))
    if choose.random() < 0.3:
        rules.insert(0, Rule("lost", is_commit, skip=choose.randrange(2), limit=1))
    return rules


class Faults(gateway.S3Test):
    def run_seeds(self, seeds):
        """Makes the runs; returns {seed: Proxy}, closed."""
        proxies = {seed: s3_faults.Proxy(self.gateway, schedule(seed), seed) for seed in seeds}
        urls = {seed: f"{self.url}/{seed:x}" for seed in seeds}
        jobs = "".join(f"{proxies[seed].url} {self.gateway.url} {urls[seed]}\n" for seed in seeds)
        folder = self.tmpfs(f"seeds-{seeds[0]:x}", "2g")  # where syncing costs nothing
        done = subprocess.run([gateway.program("weightfs_s3_driver"), "seeds", folder, str(AT_A_TIME)],
                              input=jobs, text=True, capture_output=True, timeout=1000,
                              env=harness.environment({"TMPDIR": folder}))
        for proxy in proxies.values():
            proxy.close()
        said = {line.split()[1]: line for line in done.stdout.splitlines()
                if line.startswith(("ok ", "wrong "))}
        wrong = [f"seed {seed} {dict(proxies[seed].landed)}: {said.get(urls[seed], 'nothing said')}"
                 for seed in seeds if said.get(urls[seed]) != f"ok {urls[seed]}"]
        self.assertEqual(wrong, [], done.stderr)
        return proxies

    def test_small_runs(self):
        seeds = [harness.RANDOM.randrange(1 << 40) for _ in range(SEEDS)]
        landed, commits = collections.Counter(), 0
        for _ in range(ROUNDS_MAX):
            proxies = self.run_seeds(seeds)
            for proxy in proxies.values():
                landed += proxy.landed
                commits += sum(request.outcome == "lost" and is_commit(request)
                               for request in proxy.seen)
            seeds = [seed + (1 << 40) for seed in seeds if not proxies[seed].landed]
            if not seeds:
                break
        print(f"{landed.total()} faults: {dict(landed)}; of these {commits} lost manifests",
              file=sys.stderr)
        self.assertEqual(seeds, [], "runs that met no fault")
        self.assertEqual(set(landed), {*LONG, *FEW, *OFTEN, "flip"})
        self.assertGreater(landed.total(), 5 * SEEDS)
        self.assertGreater(commits, SEEDS / 10)


if __name__ == "__main__":
    harness.main()
