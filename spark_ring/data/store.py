"""A store: a folder that the driver and every executor can reach.

Layout::

    <root>/datasets/<key>/<split>/*.parquet     written by Spark
    <root>/datasets/<key>/_manifest.json        written last: without it the dataset does not exist
    <root>/runs/<run_id>/run.json               which dataset the run reads
    <root>/runs/<run_id>/…                      payload.pkl, checkpoints/, progress/, weights/
    <root>/marks/<token>                        proof that two machines see one folder

Files are written from beginning to end under a temporary name, flushed to the disk, then renamed: a reader
sees the whole file or none, also on mounted blob stores that can only append. What Spark and pyarrow ignore
(names that begin with ``.`` or ``_``) is used for temporary names.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from typing import Any

from pyarrow import fs

from spark_ring.data.cleaning import clean
from spark_ring.data.location import Location, locate
from spark_ring.errors import StoreError

__all__ = ["Store"]

_TEMPORARY = ".writing-"
_POLL_SECONDS = 0.05
_Names = list[str]  # in the class, "list" is a method


class Store:
    """A folder shared by driver and executors, under one canonical name however it was written.

    Args:
        url: a path, ``pathlib.Path``, ``file:``, ``dbfs:``, ``/dbfs/…`` or ``/Volumes/…``; see
            :mod:`spark_ring.data.location`. Nothing is created or touched yet.

    Every method takes a path relative to the root, with ``/`` between names; ``""`` is the root itself.

    Raises:
        ConfigError: a form that cannot be used, with an example of one that can.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._location: Location = locate(url)
        self._filesystem: fs.FileSystem | None = None

    @property
    def url(self) -> str:
        """The canonical form; ``Store(store.url)`` is the same store on another machine."""
        return self._location.spark

    @property
    def local_hint(self) -> str:
        """The root as a path on this machine, for messages and for tools that want a path."""
        return self._location.path

    @property
    def filesystem(self) -> fs.FileSystem:
        """The pyarrow filesystem in which :meth:`path` is valid."""
        if self._filesystem is None:
            self._filesystem = fs.LocalFileSystem()
        return self._filesystem

    def path(self, relative: str = "") -> str:
        """Return the path that :attr:`filesystem` understands."""
        return _join(self._location.path, self._checked(relative))

    def spark_path(self, relative: str = "") -> str:
        """Return the text by which Spark reads and writes the same place; unescaped, as Hadoop wants it."""
        return _join(self._location.spark, self._checked(relative))

    def exists(self, relative: str) -> bool:
        """Whether a file or folder is there."""
        with self._doing("look for", relative):
            found = self.filesystem.get_file_info(self.path(relative))
        return bool(found.type != fs.FileType.NotFound)

    def size(self, relative: str) -> int:
        """Return the bytes of a file, or of all files below a folder."""
        with self._doing("measure", relative):
            info = self.filesystem.get_file_info(self.path(relative))
            if info.type == fs.FileType.NotFound:
                raise FileNotFoundError("no such file or folder")
            if info.type == fs.FileType.File:
                return int(info.size)
            return sum(int(entry.size) for entry in self._entries(relative, recursive=True) if entry.is_file)

    def list(self, relative: str = "") -> _Names:
        """Return the sorted names in a folder, less those being written; ``[]`` if it is not there."""
        with self._doing("list", relative):
            names = (entry.base_name for entry in self._entries(relative))
            return sorted(name for name in names if not name.startswith(_TEMPORARY))

    def files(self, relative: str = "", suffix: str = "") -> _Names:
        """Return the sorted paths, relative to ``relative``, of all files below a folder.

        Names that begin with ``.`` or ``_``, and what is below such folders, are left out, as Spark does.
        """
        with self._doing("list", relative):
            root = self.path(relative).rstrip("/") + "/"
            paths = [
                entry.path[len(root) :] for entry in self._entries(relative, recursive=True) if entry.is_file
            ]
        return sorted(p for p in paths if p.endswith(suffix) and not any(n[0] in "._" for n in p.split("/")))

    def makedirs(self, relative: str = "") -> None:
        """Make a folder and those above it; no error if it exists."""
        with self._doing("make the folder", relative):
            self.filesystem.create_dir(self.path(relative), recursive=True)

    def open_input(self, relative: str) -> Any:
        """Open a file for reading; returns a seekable ``pyarrow.NativeFile``."""
        with self._doing("open", relative):
            return self.filesystem.open_input_file(self.path(relative))

    def read_bytes(self, relative: str) -> bytes:
        """Return a whole file."""
        with self._doing("read", relative), self.filesystem.open_input_file(self.path(relative)) as source:
            return bytes(source.read())

    def write_bytes(self, relative: str, data: bytes | bytearray | memoryview) -> None:
        """Write a whole file, atomically; folders above it are made, and an older file is replaced."""
        with self._doing("write", relative):
            path = self.path(relative)
            folder = os.path.dirname(path)
            temporary = os.path.join(folder, _TEMPORARY + uuid.uuid4().hex)
            os.makedirs(folder, exist_ok=True)
            try:
                with open(temporary, "xb") as target:
                    target.write(data)
                    target.flush()
                    os.fsync(target.fileno())
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.remove(temporary)
                raise
            _sync_folder(folder)

    def delete(self, relative: str) -> None:
        """Delete a file or a folder with all below it; no error if it is not there."""
        if not self._checked(relative):
            raise StoreError(f"refusing to delete the root of the store {self.url!r}; name a path below it")
        path = self.path(relative)
        with self._doing("delete", relative), contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)

    def wait_for(self, relative: str, seconds: float) -> None:
        """Wait until a file or folder is visible here.

        Raises:
            StoreError: it is still not there after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while not self.exists(relative):
            if time.monotonic() >= deadline:
                with self._doing(f"find (waited {seconds:g} s for)", relative):
                    raise FileNotFoundError("no such file or folder")
            time.sleep(_POLL_SECONDS)

    def mark(self) -> str:
        """Leave a mark for other machines to look for; returns its token. Delete it with :meth:`unmark`."""
        token = uuid.uuid4().hex
        self.write_bytes(f"marks/{token}", token.encode())
        return token

    def check_mark(self, token: str, *, wait: float = 10.0) -> None:
        """Check that this machine sees the folder in which another one left a mark.

        Args:
            token: what :meth:`mark` returned there.
            wait: seconds to allow for the file to become visible.

        Raises:
            StoreError: the mark is not here, so the path is not shared.
        """
        relative = f"marks/{token}"
        try:
            self.wait_for(relative, wait)
        except StoreError:
            raise StoreError(
                f"the store {self.url!r} is not shared: a mark left there by the driver is not visible "
                f"on this machine as {self.path(relative)!r} after {wait:g} s. Use storage that driver and "
                "executors all mount at the same path"
            ) from None
        if self.read_bytes(relative) != token.encode():
            raise StoreError(f"the store {self.url!r} holds other bytes in {relative!r} than were written")

    def unmark(self, token: str) -> None:
        """Delete a mark; no error if it is gone."""
        self.delete(f"marks/{token}")

    def register_run(self, run_id: str, dataset: str) -> None:
        """Write down which dataset a run reads, so that :meth:`clean` keeps it.

        Call it before looking whether the dataset is there.

        Args:
            run_id: name of the run's folder below ``runs``.
            dataset: the dataset's folder, for example ``"datasets/3f2a"``.
        """
        self.write_bytes(f"runs/{run_id}/run.json", json.dumps({"dataset": dataset}).encode())

    def clean(self, older_than: float) -> _Names:
        """Delete runs, datasets and marks in which nothing was written for a time.

        Args:
            older_than: that time, seconds. It must be longer than any fit takes between two checkpoints.

        Returns:
            The relative paths that were deleted. A dataset that a younger run reads is kept.
        """
        return clean(self, older_than)

    def _checked(self, relative: str) -> str:
        parts = relative.split("/") if relative else []
        if relative.startswith("/") or any(part in ("", ".", "..") for part in parts):
            raise StoreError(
                f"{relative!r} is not a path below the store {self.url!r}; write it like 'runs/1/a.json'"
            )
        return relative

    def _entries(self, relative: str, *, recursive: bool = False) -> tuple[Any, ...]:
        selector = fs.FileSelector(self.path(relative), recursive=recursive, allow_not_found=True)
        return tuple(self.filesystem.get_file_info(selector))

    @contextlib.contextmanager
    def _doing(self, verb: str, relative: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            reason = error.strerror or str(error) or type(error).__name__
            raise StoreError(
                f"cannot {verb} {self.path(relative)!r} in the store {self.url!r}: {reason}. "
                "Is this storage shared by driver and executors?"
            ) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self._location == other._location

    def __hash__(self) -> int:
        return hash(self._location)

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def __reduce__(self) -> tuple[type[Store], tuple[str]]:
        return Store, (self.url,)


def _join(root: str, relative: str) -> str:
    return f"{root.rstrip('/')}/{relative}" if relative else root


def _sync_folder(folder: str) -> None:
    """Make a rename durable where the filesystem can; mounted blob stores often cannot."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
