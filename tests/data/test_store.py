"""Reading and writing below a store's root."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from pathlib import Path

import pytest

from spark_ring.data import store as module
from spark_ring.data.store import Store
from spark_ring.errors import StoreError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "root")


def test_write_and_read_back(store: Store, tmp_path: Path) -> None:
    store.write_bytes("runs/1/a.json", b"{}")
    assert (tmp_path / "root" / "runs" / "1" / "a.json").read_bytes() == b"{}"
    assert store.read_bytes("runs/1/a.json") == b"{}"
    with store.open_input("runs/1/a.json") as source:
        source.seek(1)
        assert source.read() == b"}"
    store.write_bytes("runs/1/a.json", memoryview(b"[1]"))
    assert store.read_bytes("runs/1/a.json") == b"[1]"


@pytest.mark.parametrize("name", ["with space", "a%20b", "a#b", "a+b", "Überschall", "数据"])
def test_names_are_one_folder_for_everybody(tmp_path: Path, name: str) -> None:
    """Case 152: what is written through one spelling is read through another, and by plain file calls."""
    Store(f"file:///{tmp_path}/{name}").write_bytes("runs/x", b"1")
    assert (tmp_path / name / "runs" / "x").read_bytes() == b"1"
    assert Store(tmp_path / name).read_bytes("runs/x") == b"1"
    assert Store(tmp_path / name).spark_path("runs/x") == f"file://{tmp_path}/{name}/runs/x"
    assert Store(tmp_path).list() == [name]


def test_paths(tmp_path: Path) -> None:
    store = Store("dbfs:/ml")
    assert store.path() == "/dbfs/ml"
    assert store.path("runs/1") == "/dbfs/ml/runs/1"
    assert store.spark_path("runs/1") == "dbfs:/ml/runs/1"
    assert Store("dbfs:/").spark_path("a") == "dbfs:/a"
    assert Store("/").path("a") == "/a"
    assert store.local_hint == "/dbfs/ml"


def test_equal_however_written_and_picklable() -> None:
    store = Store("file:/dbfs/x")
    assert store == Store("dbfs:/x")
    assert hash(store) == hash(Store("dbfs:///x"))
    assert store != Store("/x")
    assert pickle.loads(pickle.dumps(store)) == store
    assert repr(store) == "Store('dbfs:/x')"


@pytest.mark.parametrize("relative", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/"])
def test_paths_that_leave_the_root_are_refused(store: Store, relative: str) -> None:
    with pytest.raises(StoreError, match="is not a path below the store"):
        store.write_bytes(relative, b"")


def test_list_files_and_size(store: Store) -> None:
    for name in (
        "d/b.parquet",
        "d/a.parquet",
        "d/_SUCCESS",
        "d/.a.parquet.crc",
        "d/sub/c.parquet",
        "d/_tmp/x.parquet",
    ):
        store.write_bytes(name, b"12345")
    assert store.list("d") == [".a.parquet.crc", "_SUCCESS", "_tmp", "a.parquet", "b.parquet", "sub"]
    assert store.files("d", ".parquet") == ["a.parquet", "b.parquet", "sub/c.parquet"]
    assert store.list("nothing") == []
    assert store.files("nothing") == []
    assert store.size("d/b.parquet") == 5
    assert store.size("d") == 30
    assert store.exists("d")
    assert store.exists("d/b.parquet")
    assert not store.exists("d/c")


def test_delete(store: Store) -> None:
    store.write_bytes("a/b/c", b"1")
    store.write_bytes("a/d", b"1")
    store.delete("a/d")
    store.delete("a/d")
    assert store.list("a") == ["b"]
    store.delete("a")
    assert not store.exists("a")
    with pytest.raises(StoreError, match="refusing to delete the root"):
        store.delete("")


def test_delete_does_not_follow_links(store: Store, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "x").touch()
    store.makedirs("a")
    os.symlink(keep, store.path("a/link"))
    store.delete("a/link")
    store.makedirs("b")
    os.symlink(keep, store.path("b/link"))
    store.delete("b")
    assert (keep / "x").exists()


def test_errors_say_what_was_tried_and_where(store: Store) -> None:
    for action, verb in (
        (lambda: store.read_bytes("runs/none"), "read"),
        (lambda: store.open_input("runs/none"), "open"),
        (lambda: store.size("runs/none"), "measure"),
    ):
        with pytest.raises(
            StoreError, match=rf"cannot {verb} '.*/root/runs/none' in the store 'file://.*shared by driver"
        ):
            action()


def test_a_failed_write_leaves_the_old_file_and_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 155: a temporary file, then one rename; a failure in between is invisible."""
    store.write_bytes("runs/a", b"old")

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", no_space)
    with pytest.raises(StoreError, match=r"cannot write .*No space left on device"):
        store.write_bytes("runs/a", b"new")
    assert store.read_bytes("runs/a") == b"old"
    assert os.listdir(store.path("runs")) == ["a"]


def test_a_writer_killed_in_the_middle_leaves_nothing_visible(store: Store) -> None:
    """Case 155: killed between writing and renaming."""
    store.write_bytes("runs/a", b"old")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_write_and_die, args=(store,))
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    assert store.read_bytes("runs/a") == b"old"
    assert store.list("runs") == ["a"]
    assert len(os.listdir(store.path("runs"))) == 2  # the remains are there, under a name that nobody reads
    assert store.files("runs") == ["a"]


def _write_and_die(store: Store) -> None:
    module.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    store.write_bytes("runs/a", b"new")


def test_readers_see_whole_files_only(store: Store) -> None:
    """Case 155: while one thread replaces a file again and again, every read is one of the versions."""
    versions = [bytes([digit]) * 200_000 for digit in range(4)]
    store.write_bytes("a", versions[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for version in versions:
                store.write_bytes("a", version)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {store.read_bytes("a") for _ in range(200)}
    finally:
        stop.set()
        writer.join()
    assert seen <= set(versions)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a filesystem that takes no files")
def test_a_folder_that_takes_no_files_is_a_store_error() -> None:
    with pytest.raises(StoreError, match="cannot write '/proc/nothing/a'"):
        Store("/proc/nothing").write_bytes("a", b"")


def test_a_file_where_a_folder_should_be_is_a_store_error(store: Store) -> None:
    store.write_bytes("a", b"")
    with pytest.raises(StoreError, match="cannot write"):
        store.write_bytes("a/b", b"")
    with pytest.raises(StoreError, match="cannot make the folder"):
        store.makedirs("a/b")


def test_waiting_for_a_file(store: Store) -> None:
    """Case 53: it appears while somebody waits."""
    timer = threading.Timer(0.15, lambda: store.write_bytes("late", b""))
    timer.start()
    store.wait_for("late", 30)
    timer.join()
    with pytest.raises(
        StoreError, match=r"find \(waited 0.05 s for\) .*never.* shared by driver and executors"
    ):
        store.wait_for("never", 0.05)


def test_marks_tell_whether_a_path_is_shared(tmp_path: Path) -> None:
    """Case 154: a worker that sees another folder under the same path does not find the driver's mark."""
    driver, worker, stranger = Store(tmp_path / "a"), Store(tmp_path / "a"), Store(tmp_path / "b")
    token = driver.mark()
    worker.check_mark(token)
    with pytest.raises(StoreError, match=r"is not shared: .*after 0.05 s"):
        stranger.check_mark(token, wait=0.05)
    driver.unmark(token)
    driver.unmark(token)
    with pytest.raises(StoreError, match="is not shared"):
        worker.check_mark(token, wait=0)
