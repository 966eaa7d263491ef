"""weightfs.publish: what becomes a version, byte for byte, and what becomes of what does not."""

import errno
import json
import os
import threading
import types

import harness
import numpy
import pytest
import safetensors.numpy
from safetensors import safe_open

import weightfs
from weightfs import publishing


def load(folder):
    """{name: array}, by the real safetensors package, through the index if there is one."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            found.update(safetensors.numpy.load_file(os.path.join(folder, name)))
    return found


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def staged(mount):
    return os.listdir(mount.join("staging"))


def test_tensors_into_a_mount(place):
    writer, tensors = place.writer(), place.tensors()
    version = weightfs.publish(writer.path, tensors, tag="step-1")
    assert isinstance(version, weightfs.Version)
    assert (version.number, version.tag) == (1, "step-1")
    assert os.path.samefile(version.path, writer.join("versions", 1))
    assert_equal(load(version.path), tensors)
    assert os.listdir(version.path) == ["model.safetensors"]
    with safe_open(os.path.join(version.path, "model.safetensors"), "np") as file:
        assert file.metadata() == {"format": "pt"}  # without it transformers refuses the file
    assert staged(writer) == []


def test_tensors_to_a_url(place, tmp_path):
    tensors = place.tensors()
    version = place.publish(tensors, tag="a", meta={"reward": 0.5, "note": "x=y"}, scratch=tmp_path)
    assert (version.number, version.tag) == (1, "a")
    assert list(tmp_path.iterdir()) == []
    (logged,) = weightfs.log(place.url)
    assert logged.meta == {"reward": "0.5", "note": "x=y"}
    assert_equal(load(place.mount().join("latest")), tensors)


def test_a_directory_to_a_url_and_into_a_mount(place):
    folder = place.path("checkpoint")
    os.mkdir(folder)
    safetensors.numpy.save_file(place.tensors(), os.path.join(folder, "model.safetensors"))
    assert weightfs.publish(place.url, folder, options=place.options).number == 1
    writer = place.writer()
    before = harness.hash_tree(folder)
    safetensors.numpy.save_file(place.tensors(2), os.path.join(folder, "model.safetensors"))
    assert harness.hash_tree(folder) != before
    version = weightfs.publish(writer.path, folder, tag="copied")
    assert version.number == 2 and harness.hash_tree(version.path) == harness.hash_tree(folder)


def test_a_directory_in_staging_is_handed_over_and_not_copied(place):
    writer = place.writer()
    folder = writer.join("staging", "x")
    os.mkdir(folder)
    path = os.path.join(folder, "model.safetensors")
    safetensors.numpy.save_file(place.tensors(), path)
    inode = os.stat(path).st_ino
    version = weightfs.publish(writer.path, folder, tag="moved")
    assert not os.path.exists(folder)
    assert_equal(load(version.path), place.tensors())
    # Its bytes are the staged file's: nothing was copied, on the mount's own account.
    assert inode and writer.status()["bytes"]["fetched"] == 0


def test_shards_have_the_size_and_the_index_that_loaders_expect(place):
    tensors = place.tensors(count=5)
    size = next(iter(tensors.values())).nbytes
    version = weightfs.publish(place.writer().path, tensors, tag="s", shard_bytes=2 * size)
    names = [f"model-{at:05d}-of-00003.safetensors" for at in (1, 2, 3)]
    assert sorted(os.listdir(version.path)) == [*names, "model.safetensors.index.json"]
    with open(os.path.join(version.path, "model.safetensors.index.json")) as file:
        index = json.load(file)
    assert index["metadata"] == {"total_size": 5 * size}
    assert index["weight_map"] == {
        name: names[at // 2] for at, name in enumerate(tensors)}
    assert_equal(load(version.path), tensors)


def test_every_type_of_numpy_bit_for_bit(place):
    types = ["f8", "f4", "f2", "c8", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]
    random = numpy.random.default_rng(harness.SEED)
    tensors = {kind: numpy.frombuffer(random.bytes(8 * 24), f"<{kind}") for kind in types}
    tensors["bool"] = numpy.array([True, False, True])
    tensors["scalar"] = numpy.array(3.5, "f4")
    tensors["empty"] = numpy.zeros((0, 4), "f2")
    tensors["columns"] = numpy.asfortranarray(numpy.arange(12, dtype="i4").reshape(3, 4))
    tensors["every second"] = numpy.arange(10, dtype="i2")[::2]
    tensors["big"] = numpy.arange(5, dtype=">i4")
    version = weightfs.publish(place.writer().path, tensors, tag="types")
    wanted = {**tensors, "big": numpy.arange(5, dtype="<i4")}
    found = {}
    with safe_open(os.path.join(version.path, "model.safetensors"), "np") as file:
        for name in file.keys():  # noqa: SIM118
            if name != "c8":  # the package has no such type in numpy
                found[name] = file.get_tensor(name)
    del wanted["c8"]
    for name, array in wanted.items():
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == numpy.ascontiguousarray(array).tobytes(), name


def test_files_beside_tensors(place):
    base = place.path("base")
    for path, text in (("config.json", "{}"), ("tok/vocab.txt", "a"), (".hidden", "x"),
                       ("model.safetensors", "weights"), ("model.safetensors.index.json", "{}"),
                       ("pytorch_model.bin", "weights")):
        harness.write_file(os.path.join(base, path), text.encode())
    version = weightfs.publish(place.writer().path, place.tensors(), tag="a", files=base)
    assert harness.hash_tree(version.path).keys() == {
        "config.json", "tok/vocab.txt", "model.safetensors"}
    version = place.publish(place.tensors(), rebase=True, files={
        "config.json": b'{"a": 1}',
        "sub/generation_config.json": os.path.join(base, "config.json")})
    with weightfs.open(place.path("mnt")) as run:
        run.wait(version=version.number)
        path = os.path.join(run.path, "versions", str(version.number))
        assert harness.read_file(os.path.join(path, "config.json")) == b'{"a": 1}'
        assert harness.read_file(os.path.join(path, "sub", "generation_config.json")) == b"{}"
    for name in ("../x", "/x", "a//b", "model.safetensors"):
        with pytest.raises(weightfs.UsageError, match="cannot be written beside"):
            place.publish(place.tensors(), files={name: b""})


@pytest.mark.parametrize("tensors, message", [
    ({}, "no tensor"),
    ({"a": numpy.zeros(2, "S3")}, "'a' has the type bytes"),
    ({"a": numpy.zeros(2, object)}, "'a' has the type object"),
    ({"a": [1, 2]}, "'a' is a list"),
    ({"": numpy.zeros(2)}, "'' cannot be the name"),
    ({"__metadata__": numpy.zeros(2)}, "cannot be the name"),
])
def test_what_is_no_tensor_is_refused_before_anything_is_written(place, tensors, message):
    writer = place.writer()
    with pytest.raises(weightfs.UsageError, match=message):
        weightfs.publish(writer.path, tensors, tag="a")
    assert staged(writer) == []


def test_other_ranks_publish_nothing(place):
    writer = place.writer()
    assert weightfs.publish(writer.path, place.tensors(), tag="a", rank=1) is None
    assert weightfs.publish(writer.path, place.path("not there"), tag="a", rank=3) is None
    assert weightfs.log(writer.path) == []
    assert weightfs.publish(writer.path, place.tensors(), tag="a", rank=0).number == 1


def test_progress_ends_with_everything(place):
    seen = []
    tensors = place.tensors()
    weightfs.publish(place.writer().path, tensors, tag="a",
                     progress=lambda done, total, what: seen.append((done, total, what)))
    total = sum(array.nbytes for array in tensors.values())
    written = [one for one in seen if one[2] == "writing"]
    assert written[-1][:2] == (total, total)
    assert [one[0] for one in written] == sorted(one[0] for one in written)
    assert seen[-1][0] == seen[-1][1] and seen[-1][2] == "publishing"


def test_progress_by_tqdm_where_it_is_installed(place, monkeypatch):
    made = []

    class Bar:
        def __init__(self, total, desc, unit, unit_scale):
            self.n, self.total, self.desc, self.closed = 0, total, desc, False
            made.append(self)

        def update(self, more):
            self.n += more

        def close(self):
            self.closed = True

    module = type(os)("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", module)
    monkeypatch.setitem(__import__("sys").modules, "tqdm", type(os)("tqdm"))
    place.publish(place.tensors(), progress=True)
    assert [bar.desc for bar in made] == ["writing", "publishing"]
    assert all(bar.closed and bar.n == bar.total for bar in made)
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    assert place.publish(place.tensors(2), progress=True).number == 2


def test_asynchronously(place):
    writer, tensors = place.writer(), place.tensors()
    publication = weightfs.publish(writer.path, tensors, tag="a", asynchronous=True)
    assert isinstance(publication, weightfs.Publication)
    for array in tensors.values():
        array[:] = 0  # training goes on
    version = publication.wait(60)
    assert publication.done() and publication.exception is None and publication.tag == "a"
    assert version.number == 1
    assert_equal(load(version.path), place.tensors())
    publication = place.publish(place.tensors(2), rebase=True, tag="b", asynchronous=True)
    assert publication.wait().number == 2


def test_what_was_handed_over_survives_this_process(place):
    """Also when the bucket is not there: nothing holds up the trainer, and nothing is lost."""
    writer = place.writer()
    os.rename(place.path("bucket"), place.path("away"))
    publication = weightfs.publish(writer.path, place.tensors(), tag="a", asynchronous=True)
    with pytest.raises(weightfs.TimedOutError, match="goes on"):
        publication.wait(0.05)
    assert not publication.done() and publication.exception is None
    assert os.listdir(writer.join("publish")) == ["a"]
    os.rename(place.path("away"), place.path("bucket"))
    assert publication.wait(60).number == 1


def test_nothing_is_handed_over_without_the_program(place, monkeypatch):
    writer = place.writer()
    monkeypatch.setenv("WEIGHTFS_BIN", "/nowhere")
    with pytest.raises(weightfs.NoBinaryError):
        weightfs.publish(writer.path, place.tensors(), tag="a")
    assert staged(writer) == [] and os.listdir(writer.join("publish")) == []


def test_an_interrupted_hand_over_is_over_before_its_tensors_go(place, monkeypatch):
    writer, started = place.writer(), []

    def begin(arguments, **more):
        started.append(start(arguments, **more))
        return started[0]

    def interrupt(seconds):
        raise KeyboardInterrupt

    start = publishing.start
    monkeypatch.setattr(publishing, "start", begin)
    monkeypatch.setattr(publishing, "time", types.SimpleNamespace(sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        weightfs.publish(writer.path, place.tensors(), tag="a", meta={"at": 1})
    assert started[0].returncode is not None
    assert staged(writer) == [] and os.listdir(writer.join("publish")) == []


def test_an_asynchronous_failure_is_kept_and_logged(place, caplog):
    publication = weightfs.publish(place.url, place.path("not there"), asynchronous=True)
    with pytest.raises(weightfs.FailedError, match="not there"):
        publication.wait(60)
    assert isinstance(publication.exception, weightfs.FailedError)
    assert "was not published" in caplog.text


# ---- refusals ------------------------------------------------------------------------------------

def stage(mount, name, files):
    for path, data in files.items():
        harness.write_file(mount.join("staging", name, path), data)
    return mount.join("staging", name)


def valid(place):
    return safetensors.numpy.save(place.tensors())


def test_a_damaged_file_is_refused_with_the_reason(place):
    writer = place.writer()
    folder = stage(writer, "x", {"model.safetensors": valid(place)[:-1]})
    for more in ({}, {"meta": {"a": 1}}):  # by a rename, and by the command
        with pytest.raises(weightfs.InvalidError, match="EBADMSG") as refused:
            weightfs.publish(writer.path, folder, tag="a", **more)
        assert refused.value.errno == errno.EBADMSG
        assert "model.safetensors" in refused.value.last_error
        assert refused.value.last_error in harness.read_file(
            writer.join(".weightfs", "last_error")).decode()
        assert os.listdir(folder) == ["model.safetensors"]  # as it was


def test_an_incomplete_checkpoint_is_refused(place):
    writer = place.writer()
    index = {"metadata": {}, "weight_map": {
        **dict.fromkeys(place.tensors(), "model-00001-of-00002.safetensors"),
        "more": "model-00002-of-00002.safetensors"}}
    folder = stage(writer, "x", {"model.safetensors.index.json": json.dumps(index).encode(),
                                 "model-00001-of-00002.safetensors": valid(place)})
    with pytest.raises(weightfs.IncompleteError, match="00002-of-00002") as refused:
        weightfs.publish(writer.path, folder, tag="a")
    assert refused.value.errno == errno.ENODATA and refused.value.exit_code == 1


def test_what_is_still_written_is_refused(place):
    writer = place.writer()
    folder = stage(writer, "x", {"model.safetensors": valid(place)})
    with open(os.path.join(folder, "model.safetensors"), "ab"), pytest.raises(
            weightfs.BusyError, match="EBUSY"):
        weightfs.publish(writer.path, folder, tag="a")


def test_a_tag_that_is_queued_is_refused_and_its_tensors_leave_staging(place):
    writer = place.writer()
    os.rename(place.path("bucket"), place.path("away"))
    first = weightfs.publish(writer.path, place.tensors(), tag="a", asynchronous=True)
    with pytest.raises(weightfs.BusyError):
        weightfs.publish(writer.path, place.tensors(2), tag="a")
    assert staged(writer) == []
    os.rename(place.path("away"), place.path("bucket"))
    assert first.wait(60).number == 1


def test_another_user_s_files_are_refused(place):
    writer = place.mount("--writer", "--staging-mode", "1777")
    folder = stage(writer, "x", {"model.safetensors": valid(place)})  # root's
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        with pytest.raises(weightfs.NotAllowedError, match="only their own files") as refused:
            weightfs.publish(writer.path, folder, tag="a")
    finally:
        os.seteuid(0)
    assert refused.value.errno == errno.EACCES


def test_readers_mounts_take_nothing(place):
    place.publish(place.tensors())
    reader = place.mount()
    for what in (place.tensors(), place.path("bucket")):
        with pytest.raises(weightfs.ReadOnlyError, match="--writer") as refused:
            weightfs.publish(reader.path, what, tag="a")
        assert refused.value.errno == errno.EROFS


@pytest.mark.parametrize("tag", ["a/b", ".hidden", "..", "-x", "step\n1", "x" * 300])
def test_a_tag_that_cannot_be_is_refused_in_words_and_leaves_nothing(place, tag):
    writer = place.writer()
    folder = stage(writer, "x", {"model.safetensors": valid(place)[:-1]})
    with pytest.raises(weightfs.InvalidError):
        weightfs.publish(writer.path, folder, tag="earlier")  # of which nobody else is told
    with pytest.raises((weightfs.FailedError, weightfs.UsageError)) as refused:
        weightfs.publish(writer.path, place.tensors(), tag=tag)
    assert "earlier" not in str(refused.value) and len(str(refused.value)) > 20
    assert staged(writer) == ["x"] and weightfs.log(writer.path) == []


def test_each_refusal_has_its_class():
    from weightfs.errors import OF_ERRNO, of_refusal

    assert {number: kind.__name__ for number, kind in OF_ERRNO.items()} == {
        errno.EBADMSG: "InvalidError", errno.ENODATA: "IncompleteError", errno.EBUSY: "BusyError",
        errno.EACCES: "NotAllowedError", errno.EROFS: "ReadOnlyError"}
    for number, kind in OF_ERRNO.items():
        error = of_refusal(OSError(number, os.strerror(number)), "/m/publish/a", "the reason")
        assert type(error) is kind and error.errno == number and error.last_error == "the reason"
        assert "the reason" in str(error) and errno.errorcode[number] in str(error)
    other = of_refusal(OSError(errno.ENOSPC, "No space left"), "/m/publish/a", "")
    assert type(other) is weightfs.RefusedError and other.errno == errno.ENOSPC


def test_another_writer_is_a_conflict(place):
    writer = place.writer()
    weightfs.publish(writer.path, place.tensors(), tag="a")
    place.publish(place.tensors(2), rebase=True)
    with pytest.raises(weightfs.ConflictError, match="another writer") as conflict:
        weightfs.publish(writer.path, place.tensors(3), tag="b")
    assert conflict.value.exit_code == 3


def test_a_command_that_is_refused_has_the_class_of_its_errno():
    error = weightfs.FailedError("x is not there", code="not_found")
    refused = publishing.refusal_of(error, "2026 UTC publish/t: x is not there")
    assert isinstance(refused, weightfs.IncompleteError) and "ENODATA" in str(refused)
    assert publishing.refusal_of(error, "something else") is error
    assert publishing.refusal_of(weightfs.ConflictError("c", code="conflict"), "c").exit_code == 3


def test_a_full_disk_leaves_nothing_behind(place, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    harness.subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "weightfs-test", small],
                           check=True)
    place.workspace.mount_points.append(str(small))
    with pytest.raises(OSError, match="No space left"):
        place.publish({"a": numpy.zeros(1 << 20)}, scratch=small)
    assert os.listdir(small) == []


def test_threads_publish_at_once(place):
    writer, found = place.writer(), {}

    def run(name):
        found[name] = weightfs.publish(writer.path, place.tensors(hash(name) % 50 + 2), tag=name)

    threads = [threading.Thread(target=run, args=(f"t{at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.number for one in found.values()) == [1, 2, 3, 4]
    assert {one.tag for one in weightfs.log(writer.path)} == set(found)
