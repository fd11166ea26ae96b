"""How a model's files come to Spark's Python workers: once, not with every task, and on every kind of
session.

* Up to :data:`INLINE_BYTES` they travel inside the UDF itself.
* On a classic session, beyond that, in a broadcast variable. A worker that has the model already never reads
  it.
* On Spark Connect, where there is no broadcast, as an artifact of the session: uploaded in pieces, so gRPC's
  limit on the size of a message does not matter.

The same model is shipped once to a session, however often it scores.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from spark_ring.artifact import FittedModel

__all__ = ["INLINE_BYTES", "Source", "ship"]

INLINE_BYTES = 1 << 20
"""Spark itself puts a function into a broadcast variable beyond this size, anew for every query."""


class Source(Protocol):
    """Where a worker finds a model's files."""

    def files(self) -> Mapping[str, bytes]:
        """Return the files; called in a worker that does not have the model yet."""


@dataclass(frozen=True)
class Inline:
    """In the UDF."""

    content: Mapping[str, bytes]

    def files(self) -> Mapping[str, bytes]:
        return self.content


@dataclass(frozen=True)
class Broadcasted:
    """In a broadcast variable."""

    variable: Any

    def files(self) -> Mapping[str, bytes]:
        content: Mapping[str, bytes] = self.variable.value
        return content


@dataclass(frozen=True)
class Artifact:
    """In a file that Spark Connect gave to every worker."""

    name: str

    def files(self) -> Mapping[str, bytes]:
        from pyspark import SparkFiles

        with zipfile.ZipFile(SparkFiles.get(self.name)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


_shipped: WeakKeyDictionary[FittedModel, dict[str, Source]] = WeakKeyDictionary()


def ship(model: FittedModel, spark: Any, *, connect: bool) -> Source:
    """Make a model's files available to the workers of a session.

    Args:
        model: the model.
        spark: the session that will score.
        connect: whether it is a Spark Connect session.
    """
    if sum(map(len, model.files.values())) <= INLINE_BYTES:
        return Inline(dict(model.files))
    session = str(spark.session_id) if connect else str(spark.sparkContext.applicationId)
    known = _shipped.setdefault(model, {})
    if session not in known:
        known[session] = (
            _upload(model, spark) if connect else Broadcasted(spark.sparkContext.broadcast(dict(model.files)))
        )
    return known[session]


def _upload(model: FittedModel, spark: Any) -> Artifact:
    name = f"spark-ring-{model.digest[:32]}.zip"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # stored, not compressed: weights do not shrink
        for file, data in model.files.items():
            archive.writestr(zipfile.ZipInfo(file), data)
    with tempfile.TemporaryDirectory(prefix="spark-ring-") as folder:
        path = Path(folder, name)
        path.write_bytes(content.getvalue())
        spark.addArtifact(str(path), file=True)
    return Artifact(name)
