"""The tour of the README, as it is printed there, on real mounts."""

import os
import re

import harness


def test_the_tour_of_the_readme_runs_as_it_is_printed(place, monkeypatch, capsys):
    with open(os.path.join(harness.ROOT, "README.md")) as file:
        part = file.read().split("\n## Five minutes in Python\n", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    assert code.count("file:///data/run-7") == 1
    # Stores of this test alone, not those of the user.
    monkeypatch.setenv("WEIGHTFS_STORE", place.path("store"))
    capsys.readouterr()
    exec(compile(code.replace("file:///data/run-7", place.url), "README.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "2 ['step-1', 'step-0']"
    assert said[1] == "2 ['config.json', 'model.safetensors']"
    assert said[2] == "layers.0.weight [1550] [2.]"
    assert said[3] == "3"
    assert "publish/step-3" in said[4] and len(said) == 5
