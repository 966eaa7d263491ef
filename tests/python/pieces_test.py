"""What several ranks have written of a tensor is no checkpoint, whichever way it is published."""

import json
import os

import pytest

import weightfs
from weightfs.safetensors_file import INDEX, Entry, header_bytes


def write(folder, name, tensors, offsets):
    """A file of tensors of 8 elements of one byte; `offsets` as torch notes them."""
    entries = [Entry(one, "U8", (8,), 8 * at, 8 * at + 8) for at, one in enumerate(tensors)]
    note = json.dumps({one: {"saved_offsets": begin} for one, begin in offsets.items()})
    (folder / name).write_bytes(
        header_bytes(entries, {"DCP_SHARDING_INFO": note}) + bytes(8 * len(tensors)))


def test_whole_tensors_of_the_same_writer_are_a_checkpoint(place, tmp_path):
    write(tmp_path, "model-00001-of-00002.safetensors", ["a"], {"a": [0]})
    write(tmp_path, "model-00002-of-00002.safetensors", ["b"], {"b": [0]})
    (tmp_path / INDEX).write_text(json.dumps({
        "metadata": {"total_size": 16},
        "weight_map": {"a": "model-00001-of-00002.safetensors",
                       "b": "model-00002-of-00002.safetensors"}}))
    assert weightfs.publish(place.url, tmp_path, options=place.options).number == 1


def test_a_tensor_in_two_files_is_named_and_nothing_is_left_behind(place, tmp_path):
    write(tmp_path, "shard-00001-model.safetensors", ["a", "b"], {"a": [0], "b": [0]})
    write(tmp_path, "shard-00002-model.safetensors", ["b"], {"b": [0]})
    writer = place.writer()
    for target, options in ((place.url, place.options), (writer.path, ())):
        with pytest.raises(weightfs.CorruptError, match="'b': both 'shard-00001.*enable_consol"):
            weightfs.publish(target, tmp_path, tag="x", options=options)
    assert weightfs.log(place.url) == []
    assert os.listdir(os.path.join(writer.path, "staging")) == []
    assert len(os.listdir(tmp_path)) == 2
