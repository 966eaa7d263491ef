"""fleet and wait(replicas=): a trainer waits for its readers."""

import pytest

import weightfs

ANNOUNCE = ("--announce", "--announce-every", "1")


@pytest.fixture
def readers(place):
    place.publish(place.tensors(), tag="step-1")
    return place, [place.mount(*ANNOUNCE, "--hook", "exec=/bin/true", name=f"mnt-{at}",
                               store=f"store-{at}") for at in range(2)]


def test_a_gate(readers):
    place, mounts = readers
    version = weightfs.wait(place.url, replicas=2, version="step-1", timeout=60)
    assert version.number == 1 and version.path == ""
    assert len(version.record["readers"]) == 2
    place.publish(place.tensors(2), tag="step-2")
    assert weightfs.wait(mounts[0].path, replicas=2, version=2, timeout=60).number == 2
    assert weightfs.wait(place.url, replicas=2, version=3, max_lag=1, timeout=60).number == 3
    with pytest.raises(weightfs.TimedOutError, match="0 of 2 readers have version 3"):
        weightfs.wait(place.url, replicas=2, version=3, timeout=0.5)


def test_fleet(readers):
    place, mounts = readers
    weightfs.wait(place.url, replicas=2, version=1, timeout=60)
    found: list[weightfs.Reader] = weightfs.fleet(place.url)
    assert [one.place for one in found] == [mount.path for mount in mounts]
    assert found[0].presence == "live" and found[0].version == 1 and found[0].whole
    assert found[0].health == "healthy" and found[0].lag_versions == found[0].lag_seconds == 0
    assert found[0].engines == (weightfs.Engine("exec /bin/true", "current", 1),)
    assert len(weightfs.fleet(mounts[0].path, limit=1)) == 1


def test_nobody_announces_himself(place):
    assert weightfs.fleet(place.url) == []


@pytest.mark.parametrize("wanted", [
    {"replicas": 2}, {"replicas": 2, "tag": "a"}, {"replicas": 2, "version": 1, "ready": True},
    {"replicas": 2, "version": 1, "newer_than": 0}, {"version": 1, "max_lag": 1},
    {"version": 1, "options": ("--region", "x")}])
def test_what_a_gate_does_not_take(wanted):
    with pytest.raises(weightfs.UsageError, match="wait"):
        weightfs.wait("file:///b", **wanted)
