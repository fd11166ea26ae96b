"""What may be written for a store's root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_ring.data.location import locate
from spark_ring.errors import ConfigError


@pytest.mark.parametrize(
    "url", ["/data/x", "file:/data/x", "file:///data/x", "/data/x/", "/data//y/../x", Path("/data/x")]
)
def test_spellings_of_a_local_folder(url: str | Path) -> None:
    place = locate(url)
    assert (place.path, place.spark) == ("/data/x", "file:///data/x")


@pytest.mark.parametrize(
    "url",
    ["dbfs:/ml/x", "dbfs:///ml/x", "/dbfs/ml/x", "file:/dbfs/ml/x", "file:///dbfs/ml/x", Path("/dbfs/ml/x")],
)
def test_spellings_of_a_dbfs_folder(url: str | Path) -> None:
    """Case 151: one place for Spark and for local readers."""
    place = locate(url)
    assert (place.path, place.spark) == ("/dbfs/ml/x", "dbfs:/ml/x")


@pytest.mark.parametrize(
    "url",
    [
        "/Volumes/a/b/c",
        "dbfs:/Volumes/a/b/c",
        "file:/Volumes/a/b/c",
        "file:///Volumes/a/b/c",
        "/dbfs/Volumes/a/b/c",
    ],
)
def test_spellings_of_a_volume(url: str) -> None:
    """Case 151."""
    place = locate(url)
    assert (place.path, place.spark) == ("/Volumes/a/b/c", "/Volumes/a/b/c")


def test_dbfs_root() -> None:
    assert (locate("dbfs:/").path, locate("dbfs:/").spark) == ("/dbfs", "dbfs:/")


def test_folders_that_only_look_like_dbfs() -> None:
    assert locate("/dbfs2/x").spark == "file:///dbfs2/x"
    assert locate("/VolumesOfMine/x").spark == "file:///VolumesOfMine/x"
    assert locate("/data/dbfs/x").spark == "file:///data/dbfs/x"


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("store").path == str(tmp_path / "store")
    assert locate("./a/../store").path == str(tmp_path / "store")
    assert locate("~/store").path == os.path.join(os.path.expanduser("~"), "store")


@pytest.mark.parametrize(
    "name", ["a b", "a%20b", "a#b", "a+b", "Überschall", "数据", "a&b=c;d,e", "a'b", "@(x)!$~"]
)
def test_names_are_taken_literally(name: str) -> None:
    """Case 152: as Hadoop takes them, which unescapes nothing either."""
    for url in (f"/data/{name}", f"file:/data/{name}", f"file:///data/{name}"):
        assert locate(url).path == f"/data/{name}"
        assert locate(url).spark == f"file:///data/{name}"
    assert locate(f"dbfs:/{name}").spark == f"dbfs:/{name}"


def test_the_spark_form_reads_back_as_the_same_place() -> None:
    for url in ("/a b%20#", "dbfs:/x", "/Volumes/a/b/c", "/"):
        assert locate(locate(url).spark) == locate(url)


@pytest.mark.parametrize(
    ("url", "example"),
    [
        ("dbfs://ml/x", "dbfs:/ml/x"),
        ("file://data/x", "file:/data/x"),
        ("dbfs:ml/x", "dbfs:/ml/x"),
        ("file:data", "file:/data"),
    ],
)
def test_a_host_where_none_can_be_is_refused_with_an_example(url: str, example: str) -> None:
    """Case 151: the bad form."""
    with pytest.raises(ConfigError, match=f"write '{example}'"):
        locate(url)


@pytest.mark.parametrize(
    "url", ["s3://bucket/x", "abfss://c@a.dfs.core.windows.net/x", "gs://b/x", "hdfs://n/x", "ftp:/x"]
)
def test_other_schemes_are_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigError, match=r"scheme '\w+' is not supported.*'/data/store'"):
        locate(url)


@pytest.mark.parametrize("name", ["a*b", "a?b", "a[1]", "{a,b}", "a\\b", "x/a:b", "a\nb"])
def test_characters_that_spark_takes_for_patterns_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot use the character"):
        locate(f"/data/{name}")


@pytest.mark.parametrize("url", ["", "  "])
def test_nothing_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must be a folder"):
        locate(url)
