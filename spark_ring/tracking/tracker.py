"""What a fit reports to, and how it gets one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Protocol

__all__ = ["NoTracker", "Tracker", "start_run"]

logger = logging.getLogger("spark_ring")
_told = {"missing": False}


class Tracker(Protocol):
    """One fit's record. No method raises; none waits, except :meth:`end`.

    As a context manager it ends as ``FINISHED``, or as ``FAILED`` (``KILLED`` after Ctrl-C) when an exception
    passes through.
    """

    @property
    def run_id(self) -> str | None:
        """The MLflow run, or ``None`` when there is none (yet: a run is opened in the background)."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log Params. Names are cleaned, values become text and are cut."""

    def log_epoch(self, record: Mapping[str, Any]) -> None:
        """Log one epoch's record: its numbers become metrics of step ``record["epoch"]``."""

    def log_dataset(self, manifest: Any, source: str) -> None:
        """Log what was trained on.

        Args:
            manifest: the :class:`~spark_ring.data.manifest.Manifest` of the materialized dataset.
            source: where it lies, for example the store's URL and the dataset's path.
        """

    def log_model(self, model: Any, input_example: Any = None) -> None:
        """Log the fitted model.

        Args:
            model: a fitted model of :mod:`spark_ring.spark`.
            input_example: a few rows, a pandas DataFrame of the source columns; ``None`` for none.
        """

    def end(self, status: str = "FINISHED") -> None:
        """Wait until everything is logged, within limits, and close the run if it is our own.

        Args:
            status: ``"FINISHED"``, ``"FAILED"`` or ``"KILLED"``. A second call does nothing.
        """

    def __enter__(self) -> Tracker: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NoTracker:
    """A tracker that keeps nothing."""

    @property
    def run_id(self) -> str | None:
        return None

    def log_params(self, params: Mapping[str, Any]) -> None:
        pass

    def log_epoch(self, record: Mapping[str, Any]) -> None:
        pass

    def log_dataset(self, manifest: Any, source: str) -> None:
        pass

    def log_model(self, model: Any, input_example: Any = None) -> None:
        pass

    def end(self, status: str = "FINISHED") -> None:
        pass

    def __enter__(self) -> NoTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def start_run(enabled: bool = True, experiment: str | None = None, run_name: str | None = None) -> Tracker:
    """Open a record for one fit.

    With an active MLflow run in this thread the fit is logged into that run, which stays open. A run that
    already holds a fit is not written into again: a further fit becomes its child run. So does a fit in a
    thread without an active run (as ``CrossValidator`` makes with ``parallelism`` above 1) while exactly one
    run is active in the process. Otherwise the fit opens a run of its own and closes it.

    Args:
        enabled: ``False`` gives a tracker that keeps nothing.
        experiment: name of the experiment, made when it does not exist; ``None`` is MLflow's current one.
            Not used inside an active run.
        run_name: name of a run of its own; ``None`` lets MLflow make one up.

    Returns:
        A tracker. Without MLflow it keeps nothing, and a warning says so once.
    """
    if not enabled:
        return NoTracker()
    if find_spec("mlflow") is None:
        if not _told["missing"]:
            _told["missing"] = True
            logger.warning(
                "MLflow is not installed: this fit is not logged (pip install 'spark-ring[mlflow]', "
                "or set logToMLflow=False)"
            )
        return NoTracker()
    try:
        from spark_ring.tracking.mlflow_tracker import MLflowTracker

        return MLflowTracker(experiment, run_name)
    except Exception as error:  # a fit must not fail for its record
        logger.warning("MLflow cannot be used, this fit is not logged: %s: %s", type(error).__name__, error)
        return NoTracker()
