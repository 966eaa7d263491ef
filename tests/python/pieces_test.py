"""weightfs.pieces: what several ranks have written of a tensor is no checkpoint."""

import json
import os

import pytest

import weightfs
from weightfs.pieces import NOTE, check_whole
from weightfs.safetensors_file import INDEX, Entry, header_bytes


def write(folder, name, tensors, offsets=None):
    """A file of tensors of 8 elements of one byte; `offsets` as torch notes them."""
    entries = [Entry(one, "U8", (8,), 8 * at, 8 * at + 8) for at, one in enumerate(tensors)]
    metadata = {} if offsets is None else {
        NOTE: json.dumps({one: {"saved_offsets": begin} for one, begin in offsets.items()})}
    (folder / name).write_bytes(header_bytes(entries, metadata) + bytes(8 * len(tensors)))


def write_index(folder, where, total):
    (folder / INDEX).write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": where}))


def test_whole_tensors_of_the_same_writer_are_a_checkpoint(place, tmp_path):
    write(tmp_path, "model-00001-of-00002.safetensors", ["a"], {"a": [0]})
    write(tmp_path, "model-00002-of-00002.safetensors", ["b"], {"b": [0]})
    write_index(tmp_path, {"a": "model-00001-of-00002.safetensors",
                           "b": "model-00002-of-00002.safetensors"}, 16)
    assert weightfs.publish(place.url, tmp_path, options=place.options).number == 1


def test_a_tensor_in_two_files_is_named(place, tmp_path):
    write(tmp_path, "shard-00001-model.safetensors", ["a", "b"], {"a": [0], "b": [0]})
    write(tmp_path, "shard-00002-model.safetensors", ["b"], {"b": [0]})
    for target in (place.url, place.writer().path):
        with pytest.raises(weightfs.InvalidError, match="'b': both 'shard-00001.*enable_consol"):
            weightfs.publish(target, tmp_path, tag="x")
    assert weightfs.log(place.url) == []


def test_a_part_that_begins_later_is_named(tmp_path):
    write(tmp_path, "model.safetensors", ["a", "b"], {"a": [0, 0], "b": [4, 0]})
    with pytest.raises(weightfs.InvalidError, match=r"whole tensor 'b'.*begins at \[4, 0\]"):
        check_whole(str(tmp_path))


def test_fewer_bytes_than_the_index_tells_of(tmp_path):
    """Two ranks under one name: that of rank 0 stayed, and nothing in it begins later."""
    write(tmp_path, "model.safetensors", ["a"], {"a": [0]})
    write_index(tmp_path, {"a": "model.safetensors"}, 16)
    with pytest.raises(weightfs.InvalidError, match="16 bytes, in the files 8"):
        check_whole(str(tmp_path))


def test_files_of_others_are_not_looked_at(tmp_path):
    write(tmp_path, "model-1.safetensors", ["a"])
    write(tmp_path, "model-2.safetensors", ["a"])  # the program's business
    check_whole(str(tmp_path))


@pytest.mark.parametrize("name, content", [
    ("model.safetensors", b"no safetensors"), (INDEX, b"{"), (INDEX, b"[]"), (INDEX, b"{}"),
    (INDEX, b'{"weight_map": {"a": "missing.safetensors"}}')])
def test_what_cannot_be_read_is_left_to_the_program(tmp_path, name, content):
    write(tmp_path, "other.safetensors", ["a"], {"a": [0]})
    (tmp_path / name).write_bytes(content)
    check_whole(str(tmp_path))
    assert os.listdir(tmp_path)


def test_a_note_that_cannot_be_read_is_no_note(tmp_path):
    for note in ("{", "[]", '{"a": {}}', '{"a": {"saved_offsets": 3}}'):
        entry = Entry("a", "U8", (8,), 0, 8)
        (tmp_path / "model.safetensors").write_bytes(header_bytes([entry], {NOTE: note}) + bytes(8))
        check_whole(str(tmp_path))
