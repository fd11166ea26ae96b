"""Saved folders: whole or not there, checked before use."""

from __future__ import annotations

import json

import pytest

from spark_ring.artifact.folder import FORMAT, Folder
from spark_ring.errors import StoreError

FILES = {"a.json": b"[1]", "b.bin": bytes(range(256))}


def write(path, overwrite=False, files=FILES):
    Folder(path).write(files, {"class": "x.Y", "uid": "Y_1"}, {"kind": "model"}, overwrite=overwrite)


@pytest.mark.parametrize("name", ["plain", "a b", "50%20#+", "größe"])
def test_what_was_written_is_read(tmp_path, name):
    """Case 152."""
    write(tmp_path / name)
    folder = Folder(tmp_path / name)
    assert {file: folder.read(file) for file in folder.names} == FILES
    assert folder.metadata["class"] == "x.Y"
    assert folder.facts["kind"] == "model"


def test_an_existing_folder_is_not_overwritten_unasked(tmp_path):
    write(tmp_path / "m")
    with pytest.raises(StoreError, match="overwrite"):
        write(tmp_path / "m")
    write(tmp_path / "m", overwrite=True, files={"c": b"3"})
    assert Folder(tmp_path / "m").names == ["c"]
    assert not (tmp_path / "m" / "a.json").exists()


def test_a_folder_that_holds_something_else_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("three years of work")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        write(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("damage", [b"", b"[2]", b"[1] "])
def test_a_changed_file_is_refused(tmp_path, damage):
    write(tmp_path / "m")
    (tmp_path / "m" / "a.json").write_bytes(damage)
    folder = Folder(tmp_path / "m")
    assert folder.read("b.bin") == FILES["b.bin"]
    with pytest.raises(StoreError, match=r"a\.json.*not the file that was saved"):
        folder.read("a.json")


def test_a_file_that_the_metadata_does_not_list_is_not_read(tmp_path):
    write(tmp_path / "m")
    (tmp_path / "m" / "extra").write_bytes(b"1")
    with pytest.raises(StoreError, match="no file 'extra'"):
        Folder(tmp_path / "m").read("extra")


def test_a_folder_without_metadata_is_no_saved_stage(tmp_path):
    """An interrupted save leaves no metadata, because that is written last."""
    write(tmp_path / "m")
    (tmp_path / "m" / "metadata" / "part-00000").unlink()
    with pytest.raises(StoreError, match=r"no saved spark_ring stage.*PipelineModel"):
        Folder(tmp_path / "m").metadata  # noqa: B018


def test_metadata_of_others_and_of_the_future_are_told_apart(tmp_path):
    write(tmp_path / "m")
    path = tmp_path / "m" / "metadata" / "part-00000"
    mine = json.loads(path.read_text())
    path.write_text(json.dumps({"class": "org.apache.spark.ml.PipelineModel"}))
    with pytest.raises(StoreError, match="not written by spark_ring"):
        Folder(tmp_path / "m").metadata  # noqa: B018
    mine["sparkRing"]["format"] = FORMAT + 1
    path.write_text(json.dumps(mine))
    with pytest.raises(StoreError, match="upgrade"):
        Folder(tmp_path / "m").metadata  # noqa: B018
