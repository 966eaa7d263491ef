"""wait, status, log, delta and open, on real mounts and without."""

import math
import os
import signal
import subprocess
import threading
import time
import warnings

import harness
import numpy
import pytest
import safetensors.numpy

import weightfs
from weightfs import binary, deltas, opening, versions


@pytest.fixture
def two(place):
    """A repository of two versions; the tensors of each."""
    versions = [place.tensors(), place.tensors(2)]
    for at, tensors in enumerate(versions, 1):
        place.publish(tensors, tag=f"step-{at}", meta={"at": at})
    return place, versions


def apply(tensors, found, *, back=False):
    result = {name: array.copy() for name, array in tensors.items()}
    for change in found:
        flat = result[change.name].reshape(-1)
        flat[change.indices] = change.old if back else change.values
    return result


def assert_same(found, wanted):
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in wanted.items()}


def test_init(place):
    url = "file://" + place.path("another")
    made = weightfs.init(url)
    assert weightfs.init(url) == made and len(made) == 32 and weightfs.log(url) == []


# ---- wait, log, status ---------------------------------------------------------------------------

def test_wait(two):
    place, _ = two
    mount = place.mount()
    for wanted in ({"tag": "step-2"}, {"version": 2}, {"newer_than": 1}, {"ready": True},
                   {"tag": "step-2", "ready": True, "timeout": 60}):
        version = weightfs.wait(mount.path, **wanted)
        assert version.number == 2 and os.path.samefile(version.path, mount.join("versions/2"))
    assert weightfs.wait(mount.path, tag="step-1").tag == "step-1"
    with pytest.raises(weightfs.TimedOutError) as late:
        weightfs.wait(mount.path, tag="nothing", timeout=0.2)
    assert (late.value.exit_code, late.value.code) == (5, "timed_out")
    assert isinstance(late.value, TimeoutError)


def test_every_timeout_is_taken(two):
    """The command takes 0.01 s to a day."""
    place, _ = two
    mount = place.mount()
    for timeout in (0, -3.5, 1e-9, -math.inf):
        with pytest.raises(weightfs.TimedOutError):
            weightfs.wait(mount.path, tag="nothing", timeout=timeout)
        with pytest.raises(weightfs.TimedOutError):
            weightfs.wait(place.url, replicas=1, version=2, timeout=timeout)
    for timeout in (86401, 1e9, math.inf):
        assert weightfs.wait(mount.path, version=2, timeout=timeout).number == 2
    with pytest.raises(weightfs.UsageError, match="nan"):
        weightfs.wait(mount.path, version=2, timeout=math.nan)


def test_a_timeout_longer_than_a_command_takes_is_several_commands(two, monkeypatch):
    place, _ = two
    mount = place.mount()
    monkeypatch.setattr(versions, "LONGEST_SECONDS", 0.1)
    begin = time.monotonic()
    with pytest.raises(weightfs.TimedOutError):
        weightfs.wait(mount.path, tag="nothing", timeout=0.305)
    assert time.monotonic() - begin >= 0.305

    # A daemon that does not answer is an error before the time is over, and not asked again.
    asked = []

    def silent(*arguments):
        asked.append(arguments)
        raise weightfs.TimedOutError("it does not answer", code="timed_out")

    monkeypatch.setattr(versions, "LONGEST_SECONDS", 86400.0)
    monkeypatch.setattr(versions, "call", silent)
    with pytest.raises(weightfs.TimedOutError):
        weightfs.wait(mount.path, tag="nothing", timeout=1e9)
    assert len(asked) == 1 and asked[0][-2:] == ("--timeout", "86400.000")


@pytest.mark.parametrize("wanted", [{}, {"tag": "a", "version": 1}, {"newer_than": 0, "tag": "a"}])
def test_wait_wants_one_thing(wanted):
    with pytest.raises(weightfs.UsageError, match="exactly one"):
        weightfs.wait("/nowhere", **wanted)


def test_an_interrupt_ends_what_waits(two, monkeypatch):
    place, _ = two
    mount, started = place.mount(), []
    from weightfs import binary

    def begin(arguments, **more):
        process = start(arguments, **more)
        started.append(process)

        def interrupt(*args, **kwargs):
            raise KeyboardInterrupt

        process.communicate = interrupt
        return process

    start = binary.start
    monkeypatch.setattr(binary, "start", begin)
    with pytest.raises(KeyboardInterrupt):
        weightfs.wait(mount.path, tag="nothing")
    assert started[0].returncode is not None


def test_log(two):
    place, _ = two
    second, first = weightfs.log(place.url)
    assert (first.number, first.tag, first.meta) == (1, "step-1", {"at": "1"})
    assert (second.number, second.tag) == (2, "step-2") and second.time >= first.time > 0
    assert second.record["changed_elements"] == 15 and first.record["snapshot"]
    assert [one.number for one in weightfs.log(place.mount().path, limit=1)] == [2]


def test_status(two):
    place, _ = two
    mount = place.mount()
    found = weightfs.status(mount.path)
    assert found["version"] == found["newest"] == 2 and found["url"] == place.url
    assert mount.path in [one["mountpoint"] for one in weightfs.status()]
    with pytest.raises(weightfs.FailedError):
        weightfs.status(place.path("bucket"))


def test_what_the_command_says_is_in_the_error(place):
    with pytest.raises(weightfs.FailedError, match="create one with: weightfs init") as failed:
        weightfs.log("file:///nonexistent/x")
    assert (failed.value.code, failed.value.exit_code) == ("not_found", 1)
    with pytest.raises(weightfs.UsageError, match="--nonsense"):
        weightfs.log(place.url, options=["--nonsense"])
    place.publish(place.tensors())
    manifest = place.path("bucket", "versions", f"{1:020d}.json")
    os.chmod(manifest, 0o644)
    harness.write_file(manifest, b"{}")
    with pytest.raises(weightfs.CorruptError) as corrupt:
        weightfs.log(place.url)
    assert corrupt.value.exit_code == 4


# ---- deltas --------------------------------------------------------------------------------------

def test_delta_of_a_mount_leads_there_and_back(two):
    place, (old, new) = two
    with weightfs.delta(place.mount().path, 1, 2, with_old=True) as found:
        assert (found.old, found.new, len(found)) == (1, 2, 3)
        assert found.names == list(old) and "layers.0.weight" in found and "x" not in found
        assert_same(apply(old, found), new)
        assert_same(apply(new, found, back=True), old)
        assert found["layers.1.weight"].indices.dtype == numpy.int32
        with pytest.raises(KeyError):
            found["x"]
        kept = found["layers.1.weight"]
    assert len(kept.values) == 5  # views stay valid


def test_a_closed_delta_is_not_read(two):
    place, _ = two
    found = weightfs.delta(place.mount().path, 1, 2)
    name = found.names[0]
    kept = found[name].values.copy()
    values = found[name].values
    found.close()
    found.close()  # again
    assert (values == kept).all()  # what was taken stays
    with pytest.raises(ValueError, match="was closed"):
        found[name]


def test_delta_of_a_url(two):
    place, (old, new) = two
    assert_same(apply(old, weightfs.delta(place.url, 1, 2)), new)
    assert_same(apply(new, weightfs.delta(place.url, 2, 1)), old)
    assert next(iter(weightfs.delta(place.url, 1, 2))).old is None
    with pytest.raises(weightfs.UsageError, match="mount it"):
        weightfs.delta(place.url, 1, 2, with_old=True)
    with pytest.raises(weightfs.FailedError):
        weightfs.delta(place.url, 1, 7)


def test_a_delta_that_a_mount_does_not_have(two):
    with pytest.raises(weightfs.FailedError, match="from version 1 to 9"):
        weightfs.delta(two[0].mount().path, 1, 9)


def test_hostile_deltas_are_refused(two, tmp_path, rng):
    """Cut, or with a bit turned in the header: an error of weightfs, or arrays within the file."""
    place, _ = two
    good = harness.read_file(place.mount().join("deltas", "1-2.with-old.safetensors"))
    header = int.from_bytes(good[:8], "little")
    path = tmp_path / "d.safetensors"
    for _ in range(300):
        bad = bytearray(good)
        if rng.random() < 0.3:
            del bad[rng.randrange(len(bad)):]
        else:
            bad[rng.randrange(8 + header)] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        try:
            for change in deltas.Delta(path):
                assert len(change.indices) == len(change.values)
        except weightfs.CorruptError:
            pass
    path.write_bytes(safetensors.numpy.save({"a": numpy.zeros(3)}))
    with pytest.raises(weightfs.CorruptError, match="not a sparse delta"):
        deltas.Delta(path)
    with pytest.raises(weightfs.UsageError, match="framework"):
        deltas.Delta(path, framework="jax")


# ---- open ----------------------------------------------------------------------------------------

def mounted(path):
    return os.path.ismount(path)


def test_open_mounts_and_ends_the_mount(two):
    place, (_, new) = two
    with weightfs.open(place.url, store=place.path("store")) as run:
        assert isinstance(run, weightfs.Repository)
        assert run.how == "mount" and run.is_ours and run.why == "" and mounted(run.path)
        assert run.version() == 2 and run.status()["version"] == 2
        found = safetensors.numpy.load_file(os.path.join(run.latest, "model.safetensors"))
        assert_same(found, new)
    assert not os.path.exists(run.path)
    run.close()  # again


def test_open_syncs_where_it_cannot_mount(two, monkeypatch):
    place, (_, new) = two
    monkeypatch.setattr(opening, "reason_against_mount", lambda: "this host has no /dev/fuse")
    with weightfs.open(place.url) as run:
        assert run.how == "sync" and run.why == "this host has no /dev/fuse"
        assert not mounted(run.path) and run.version() == 2
        place.publish(place.tensors(3), tag="step-3")
        assert run.wait(tag="step-3", timeout=60).number == 3
        process = run._process
    assert process.returncode is not None and not os.path.exists(run.path)
    with pytest.raises(weightfs.FailedError, match="weightfs init"):
        weightfs.open("file:///nonexistent/x")


MUCH = "yes 'what sync logs at a version' | head -n 40000 >&2"


def be_program(monkeypatch, tmp_path, script):
    path = tmp_path / "fake"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(binary, "find_binary", lambda: str(path))


def test_what_a_sync_logs_never_stops_it(tmp_path, monkeypatch):
    """A pipe that nobody reads is full after 64 KiB; then all that logs would wait for ever."""
    said = tmp_path / "said"
    be_program(monkeypatch, tmp_path, f"echo '{{'; echo '}}'; {MUCH}; touch {said}; exec sleep 99")
    with weightfs.open("file:///x", tmp_path / "files", how="sync") as run:
        harness.wait_until(said.exists, "the end of what it says", timeout=20)
        process = run._process
    assert process.returncode == -signal.SIGTERM


def test_a_sync_that_fails_is_an_error_with_its_last_words(tmp_path, monkeypatch):
    """Only the last of them: they are kept in memory."""
    be_program(monkeypatch, tmp_path, f"exec timeout 20 sh -c \"{MUCH}; echo broken >&2; exit 1\"")
    with pytest.raises(weightfs.FailedError) as failed:
        weightfs.open("file:///x", tmp_path / "files", how="sync")
    assert failed.value.message[-16:] == "a version\nbroken"
    assert len(failed.value.message) <= binary.LAST_WORDS_BYTES
    be_program(monkeypatch, tmp_path, "printf 'no name: \\377' >&2; exit 1")
    with pytest.raises(weightfs.FailedError, match="no name: \N{REPLACEMENT CHARACTER}"):
        weightfs.open("file:///x", tmp_path / "files", how="sync")


def test_an_interrupted_open_ends_its_sync(tmp_path, monkeypatch):
    """Before the directory goes: what still runs would write to it."""
    processes = []

    def interrupted(process):
        processes.append(process)
        raise KeyboardInterrupt

    be_program(monkeypatch, tmp_path, "exec sleep 99")
    monkeypatch.setattr(opening, "LastWords", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weightfs.open("file:///x", how="sync")
    assert processes[0].returncode == -signal.SIGTERM


def test_an_interrupt_is_for_the_caller_and_not_for_its_sync(tmp_path, monkeypatch):
    """A notebook interrupts all processes of its group, and goes on."""
    be_program(monkeypatch, tmp_path, "echo '{'; echo '}'; exec sleep 99")
    with weightfs.open("file:///x", tmp_path / "files", how="sync") as run:
        process = run._process
        status = harness.read_file(f"/proc/{process.pid}/status").decode()
        ignored = int(status.split("SigIgn:")[1].split()[0], 16)
        assert ignored >> (signal.SIGINT - 1) & 1
    assert process.returncode == -signal.SIGTERM


def test_what_speaks_against_a_mount(monkeypatch):
    assert opening.reason_against_mount() == ""
    monkeypatch.setattr(os, "access", lambda *args: False)
    assert "may not open /dev/fuse" in opening.reason_against_mount()
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert "no /dev/fuse" in opening.reason_against_mount()


def test_open_of_an_empty_repository(place):
    with weightfs.open(place.url, store=place.path("store"), writer=True) as run:
        assert run.version() == 0
        weightfs.publish(run.path, place.tensors(), tag="a")
        assert run.version() == 1
    with weightfs.open(place.url, how="sync", path=place.path("files")) as run:
        assert run.version() == 1
    assert os.path.exists(place.path("files", "latest"))  # only a temporary one goes


def test_open_uses_the_mount_that_is_there(two):
    place, _ = two
    mount = place.mount()
    for run in (weightfs.open(mount.path), weightfs.open(place.url, mount.path),
                weightfs.open(place.path("bucket"), mount.path)):
        with run:
            assert run.path == mount.path and not run.is_ours and run.version() == 2
        assert mounted(mount.path)
    with pytest.raises(weightfs.UsageError, match="reader's mount"):
        weightfs.open(place.url, mount.path, writer=True)
    with pytest.raises(weightfs.UsageError, match="shows"):
        weightfs.open("file:///other", mount.path)
    with pytest.raises(weightfs.UsageError, match="'auto'"):
        weightfs.open(place.url, writer=True, how="sync")


def test_open_replaces_a_dead_mount(two):
    place, _ = two
    mount = place.mount()
    mount.process.kill()
    with weightfs.open(place.url, mount.path, store=mount.store) as run:
        assert run.how == "mount" and run.is_ours and run.version() == 2
    assert not mounted(mount.path)


def test_open_fails_without_leaving_a_directory(place, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for how in ("mount", "sync", "auto"):
        with pytest.raises(weightfs.FailedError):
            weightfs.open("file:///nonexistent/x", how=how)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_open_enters_no_mount(place, monkeypatch):
    """The mount came up although its maker was interrupted: what is saved there must stay."""
    mounts = []

    def interrupted(command, url, path, *options, ended_at_exit=True):
        call(command, url, path, *options, ended_at_exit=ended_at_exit)
        mounts.append(path)
        os.mkdir(os.path.join(path, "staging", "step-1"))
        raise KeyboardInterrupt

    call = opening.call
    monkeypatch.setattr(opening, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weightfs.open(place.url, store=place.path("store"), writer=True)
    assert os.path.isdir(os.path.join(mounts[0], "staging", "step-1"))
    call("umount", mounts[0])


def test_leaving_waits_for_what_is_queued(place):
    with weightfs.open(place.url, store=place.path("store"), writer=True) as run:
        os.rename(place.path("bucket"), place.path("away"))
        publication = weightfs.publish(run.path, place.tensors(), tag="a", asynchronous=True)
        assert not publication.done()
        back = threading.Timer(0.3, os.rename, (place.path("away"), place.path("bucket")))
        back.start()
    back.join()
    assert publication.wait(60).number == 1
    assert [one.tag for one in weightfs.log(place.url)] == ["a"]
    assert not os.path.exists(run.path)


@pytest.mark.parametrize("why", ["the time is over", "the block raises"])
def test_leaving_never_ends_a_mount_with_queued_publishes(place, why):
    mount = place.path("mnt")
    place.workspace.mount_points.append(mount)
    with pytest.warns(RuntimeWarning, match="stays mounted: a in publish/"):  # noqa: SIM117
        with warnings.catch_warnings(), weightfs.open(
                place.url, mount, store=place.path("store"), writer=True,
                leave_timeout=0.05 if why == "the time is over" else None) as run:
            try:
                os.rename(place.path("bucket"), place.path("away"))
                weightfs.publish(run.path, place.tensors(), tag="a", asynchronous=True)
                if why == "the block raises":
                    run.__exit__(ValueError, ValueError(), None)
            finally:
                run.is_ours = why == "the time is over"
    assert mounted(mount) and os.listdir(os.path.join(mount, "publish")) == ["a"]
    os.rename(place.path("away"), place.path("bucket"))
    assert weightfs.wait(mount, tag="a", timeout=60).number == 1
    subprocess.run([harness.BINARY, "umount", mount], check=True)


def test_mapped_weights_stay_readable(two):
    place, (_, new) = two
    with weightfs.open(place.url, store=place.path("store")) as run:
        mapped = numpy.memmap(os.path.join(run.latest, "model.safetensors"), "u1", "r")
    name = "layers.0.weight"
    assert new[name].tobytes() in mapped.tobytes()
    assert not os.path.exists(run.path)
