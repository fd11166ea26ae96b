"""A saved stage's folder: named files, and metadata that Spark ML can read too.

The files are written first and the metadata last, so a folder with metadata is whole. The metadata is one
line of JSON in ``metadata/part-00000``, where ``PipelineModel.load`` looks for the class by which to load a
stage. Nothing here needs a Spark session.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from spark_ring.data.store import Store
from spark_ring.errors import StoreError

__all__ = ["FORMAT", "Folder"]

FORMAT = 1
METADATA = "metadata/part-00000"
OURS = "sparkRing"


class Folder:
    """One saved stage.

    Args:
        path: of the folder; every form that :class:`~spark_ring.data.store.Store` takes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._store = Store(path)
        self._metadata: dict[str, Any] | None = None

    @property
    def place(self) -> str:
        """The folder, for messages."""
        return self._store.local_hint

    def write(
        self,
        files: Mapping[str, bytes],
        metadata: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        overwrite: bool,
    ) -> None:
        """Write everything.

        Args:
            files: name → content.
            metadata: Spark ML's: ``class``, ``uid``, ``paramMap``, …
            facts: ours; kept with the files' digests under ``"sparkRing"``.
            overwrite: replace what an earlier save left there.

        Raises:
            StoreError: something is there already (with ``overwrite``: something that is no saved stage), or
                the folder cannot be written.
        """
        self._make_room(overwrite)
        for name, content in files.items():
            self._store.write_bytes(name, content)
        digests = {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for name, content in files.items()
        }
        whole = {**metadata, OURS: {"format": FORMAT, **facts, "files": digests}}
        self._store.write_bytes(METADATA, json.dumps(whole).encode() + b"\n")
        self._store.write_bytes("metadata/_SUCCESS", b"")
        self._metadata = whole

    @property
    def metadata(self) -> dict[str, Any]:
        """Spark ML's metadata.

        Raises:
            StoreError: there is no saved stage of ours here, or its metadata cannot be read.
        """
        if self._metadata is None:
            self._metadata = self._read_metadata()
        return self._metadata

    @property
    def facts(self) -> dict[str, Any]:
        """Our part of the metadata."""
        facts: dict[str, Any] = self.metadata[OURS]
        return facts

    @property
    def names(self) -> list[str]:
        """Names of the files."""
        return list(self.facts["files"])

    def read(self, name: str) -> bytes:
        """Return a file's content, after its length and digest were checked.

        Raises:
            StoreError: the file is missing, or is not what was saved.
        """
        expected = self.facts["files"].get(name)
        if expected is None:
            raise StoreError(f"{self.place!r} has no file {name!r}; it has {', '.join(self.names)}")
        content = self._store.read_bytes(name)
        if len(content) != expected["bytes"] or hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise StoreError(
                f"{self._store.path(name)!r} is not the file that was saved: {len(content)} bytes found, "
                f"{expected['bytes']} expected, or another content. The artifact is damaged or was "
                "changed; save it again"
            )
        return content

    def _make_room(self, overwrite: bool) -> None:
        names = self._store.list()
        if not names:
            return
        if not overwrite:
            raise StoreError(
                f"{self.place!r} is not empty; save elsewhere or use write().overwrite().save(path)"
            )
        if "metadata" not in names:
            raise StoreError(
                f"{self.place!r} holds {', '.join(names[:5])} and no saved stage; refusing to overwrite it"
            )
        # The metadata goes first: what is left of an interrupted delete is no saved stage.
        for name in sorted(names, key=lambda name: name != "metadata"):
            self._store.delete(name)

    def _read_metadata(self) -> dict[str, Any]:
        if not self._store.exists(METADATA):
            raise StoreError(
                f"there is no saved spark_ring stage at {self.place!r} (no {METADATA}). Is the path "
                "visible from this process? A whole pipeline is loaded with PipelineModel.load(path)"
            )
        try:
            value = json.loads(self._store.read_bytes(METADATA))
            ours = value[OURS]
            version = int(ours["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._store.path(METADATA)!r} was not written by spark_ring or is damaged: "
                f"{type(error).__name__}: {error}"
            ) from error
        if version > FORMAT:
            raise StoreError(
                f"{self.place!r} has format {version} and this version of spark_ring reads up to "
                f"{FORMAT}; upgrade it"
            )
        metadata: dict[str, Any] = value
        return metadata
