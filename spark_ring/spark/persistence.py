"""Spark ML persistence of our stages: ``save``, ``write().overwrite().save()``, ``load``, alone and in
pipelines.

Spark's own writers keep JSON Params only, and overwrite through the JVM, which Spark Connect does not have.
Ours write all files through the store's filesystem, the same way on every kind of session: see
:mod:`spark_ring.artifact` for the layout. ``PipelineModel.load`` reads ``metadata`` of each stage through
Spark, finds the class by its module path, and calls its ``load``.

A path without a scheme means what it means to Spark: on a cluster whose default filesystem is ``dbfs:``,
``/x`` is ``dbfs:/x``. (A Spark Connect client cannot ask; there ``/x`` is a path of the client. Name shared
storage.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import cloudpickle
import pyspark
from pyspark.ml.param import Params
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import SparkSession

from spark_ring.artifact.folder import Folder
from spark_ring.artifact.trust import require_trust
from spark_ring.errors import ConfigError, DataError

__all__ = ["EstimatorPersistence", "ModelPersistence", "StageReader", "StageWriter"]

Stage = TypeVar("Stage", bound="_Persistent")
OBJECTS = "objects.pkl"


class _Persistent(Params, MLWritable, MLReadable):
    """What the writer and the reader ask of a stage."""

    def _saved_files(self) -> dict[str, bytes]:
        """Return the files of the artifact."""
        raise NotImplementedError

    def _saved_facts(self) -> dict[str, Any]:
        """Return what its metadata must know; ``kind`` at least."""
        raise NotImplementedError

    def _restore(self, folder: Folder, trusted: bool) -> None:
        """Take back from the artifact all but Params with JSON values."""
        raise NotImplementedError

    def write(self) -> StageWriter:
        """Return a writer: ``write().save(path)``, ``write().overwrite().save(path)``."""
        return StageWriter(self)

    @classmethod
    def read(cls: type[Stage]) -> StageReader[Stage]:
        """Return a reader: ``read().load(path)``, ``read().trusted().load(path)``."""
        return StageReader(cls)

    @classmethod
    def load(cls: type[Stage], path: str, *, trusted: bool = False) -> Stage:
        """Load a stage that was saved.

        Args:
            path: the folder it was saved to.
            trusted: whether pickled code in it may run; see :mod:`spark_ring.artifact.trust`.

        Raises:
            UntrustedArtifactError: it holds pickled code, and nobody vouches for it.
            StoreError: it is missing or damaged.
        """
        return cls.read().trusted(trusted).load(path)


class ModelPersistence(_Persistent):
    """Persistence of a fitted model."""


class EstimatorPersistence(_Persistent):
    """Persistence of an estimator. Params whose values are Python objects are kept in one file of pickled
    code.
    """

    def _saved_files(self) -> dict[str, bytes]:
        objects = {param.name: value for param, value in self._paramMap.items() if not _is_json(value)}
        if not objects:
            return {}
        try:
            return {OBJECTS: cloudpickle.dumps(objects)}
        except Exception as error:
            raise DataError(
                f"{self} cannot be saved: one of {', '.join(objects)} cannot be pickled: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _saved_facts(self) -> dict[str, Any]:
        return {"kind": "estimator"}

    def _restore(self, folder: Folder, trusted: bool) -> None:
        if OBJECTS not in folder.names:
            return
        require_trust(folder.place, OBJECTS, trusted)
        content = folder.read(OBJECTS)
        for name, value in cloudpickle.loads(content).items():
            self._set(**{name: value})


class StageWriter(MLWriter):
    """Writes one stage.

    Args:
        stage: the stage.
    """

    def __init__(self, stage: _Persistent) -> None:
        super().__init__()
        self._stage = stage

    def save(self, path: str) -> None:
        """Save to a folder, which must not exist or be empty unless :meth:`overwrite` was called.

        Raises:
            StoreError: something is there, or the folder cannot be written.
        """
        Folder(_as_spark_reads(path, self._sparkSession)).write(
            self._stage._saved_files(),
            _metadata(self._stage),
            {**self._stage._saved_facts(), "versions": {"pyspark": pyspark.__version__}},
            overwrite=self.shouldOverwrite,
        )

    def saveImpl(self, path: str) -> None:
        self.save(path)


class StageReader(MLReader[Stage], Generic[Stage]):
    """Reads one stage.

    Args:
        stage_class: the class it must be of.
    """

    def __init__(self, stage_class: type[Stage]) -> None:
        super().__init__()
        self._class = stage_class
        self._trusted = False

    def trusted(self, trusted: bool = True) -> StageReader[Stage]:
        """Say whether pickled code in the artifact may run."""
        self._trusted = trusted
        return self

    def load(self, path: str) -> Stage:
        """Load the stage; see ``load`` of its class."""
        folder = Folder(_as_spark_reads(path, self._sparkSession))
        found, expected = folder.metadata["class"], _class_name(self._class)
        if found != expected:
            raise DataError(
                f"{folder.place!r} holds a {found}; load it with {found}.load(path), not {expected}.load"
            )
        stage = self._class()
        stage._resetUid(folder.metadata["uid"])
        _set_params(stage, folder.metadata)
        stage._restore(folder, self._trusted)
        return stage


def _metadata(stage: Params) -> dict[str, Any]:
    """What Spark ML keeps of a stage, under its names."""
    return {
        "class": _class_name(type(stage)),
        "timestamp": int(time.time() * 1000),
        "sparkVersion": pyspark.__version__,
        "uid": stage.uid,
        "paramMap": _json_values(stage._paramMap),
        "defaultParamMap": _json_values(stage._defaultParamMap),
    }


def _set_params(stage: Params, metadata: Mapping[str, Any]) -> None:
    unknown = [name for name in metadata["paramMap"] if not stage.hasParam(name)]
    if unknown:
        raise ConfigError(
            f"the saved {metadata['class']} has a Param {unknown[0]!r} that this version of "
            "spark_ring does not know; a newer version saved it"
        )
    defaults = {name: value for name, value in metadata["defaultParamMap"].items() if stage.hasParam(name)}
    stage._setDefault(**defaults)
    stage._set(**metadata["paramMap"])


def _json_values(params: Mapping[Any, Any]) -> dict[str, Any]:
    return {param.name: value for param, value in params.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def _as_spark_reads(path: str, session: SparkSession | None) -> str:
    """Return the path with the scheme of Spark's default filesystem, where that is not the local one."""
    if not isinstance(path, str):
        path = str(path)
    if ":" in path.split("/")[0]:
        return path
    default = _default_filesystem(session or SparkSession.getActiveSession())
    if not path.startswith("/") or default in ("", "file"):
        return path
    return f"{default}:{path}"


def _default_filesystem(session: Any) -> str:
    """Return the scheme, or ``""`` where nobody can be asked (no session, or Spark Connect)."""
    if session is None or type(session).__module__.startswith("pyspark.sql.connect"):
        return ""
    url = session.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS") or ""
    return str(url).split(":", maxsplit=1)[0]
