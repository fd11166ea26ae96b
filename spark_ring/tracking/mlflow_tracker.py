"""One fit's record in MLflow. All calls to MLflow run in the tracker's background thread."""

from __future__ import annotations

import logging
import math
import numbers
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import islice
from types import TracebackType
from typing import Any

from spark_ring.tracking.background import Background
from spark_ring.tracking.dataset import describe_dataset
from spark_ring.tracking.names import Names, describe
from spark_ring.tracking.runs import find_place, open_run, release

__all__ = ["MLflowTracker"]

logger = logging.getLogger("spark_ring")

# A storey above this one, so named by text.
FLAVOR = "spark_ring.mlflow"

# Seconds one call may take before a fit stops waiting for it.
OPEN_LIMIT = 60.0  # imports MLflow, perhaps makes a database
CALL_LIMIT = 30.0
MODEL_LIMIT = 600.0  # uploads the model
PARAMS_PER_CALL = 100  # MLflow's own limit


class MLflowTracker:
    """Implements :class:`~spark_ring.tracking.tracker.Tracker`; see there.

    Args:
        experiment: name of the experiment, or ``None``.
        run_name: name of the run, or ``None``.
    """

    def __init__(self, experiment: str | None = None, run_name: str | None = None) -> None:
        self._run_id: str | None = None
        self._is_own = False
        self._ended = False
        self._metric_names = Names()
        self._param_names = Names()
        self._history: list[dict[str, Any]] = []
        place = find_place()
        self._background = Background("spark_ring-mlflow")

        def open_it() -> None:
            self._run_id, self._is_own = open_run(place, experiment, run_name)

        self._background.submit("this run", open_it, limit=OPEN_LIMIT)

    @property
    def run_id(self) -> str | None:
        return self._run_id

    def log_params(self, params: Mapping[str, Any]) -> None:
        # Described now: the objects may change before the thread comes to it.
        texts = {self._param_names(name): describe(value) for name, value in params.items()}
        self._submit("Params", lambda client, run_id: _log_params(client, run_id, texts))

    def log_epoch(self, record: Mapping[str, Any]) -> None:
        self._history.append(dict(record))
        step, now = int(record["epoch"]), int(time.time() * 1000)
        values = {
            self._metric_names(name): float(value)
            for name, value in record.items()
            if name != "epoch" and isinstance(value, numbers.Real) and not isinstance(value, bool)
        }

        def log(client: Any, run_id: str) -> None:
            from mlflow.entities import Metric

            client.log_batch(
                run_id, metrics=[Metric(name, value, now, step) for name, value in values.items()]
            )

        self._submit("metrics", log)

    def log_dataset(self, manifest: Any, source: str) -> None:
        def log(client: Any, run_id: str) -> None:
            client.log_inputs(run_id, datasets=[describe_dataset(manifest, source)])

        self._submit("the dataset", log)

    def log_model(self, model: Any, input_example: Any = None) -> None:
        def log(client: Any, run_id: str) -> None:
            import_module(FLAVOR).log_model(model, name="model", input_example=input_example, run_id=run_id)

        self._submit("the model", log, limit=MODEL_LIMIT)

    def end(self, status: str = "FINISHED") -> None:
        if self._ended:
            return
        self._ended = True
        history = [_jsonable(record) for record in self._history]
        if history:
            self._submit(
                "the history", lambda client, run_id: client.log_dict(run_id, history, "history.json")
            )
        self._background.submit("the end of this run", lambda: self._close(status), limit=CALL_LIMIT)
        self._background.finish()

    def __enter__(self) -> MLflowTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.end("FINISHED")
        else:
            self.end("FAILED" if issubclass(kind, Exception) else "KILLED")

    def _submit(self, what: str, log: Callable[[Any, str], object], *, limit: float = CALL_LIMIT) -> None:
        def call() -> None:
            if self._run_id is None:  # the run could not be opened; that was said once
                return
            import mlflow

            log(mlflow.MlflowClient(), self._run_id)

        self._background.submit(what, call, limit=limit)

    def _close(self, status: str) -> None:
        if self._run_id is not None and self._is_own:
            import mlflow

            mlflow.end_run(status)  # the top of this thread's own stack
            release(self._run_id)


def _log_params(client: Any, run_id: str, texts: dict[str, str]) -> None:
    from mlflow.entities import Param
    from mlflow.exceptions import MlflowException

    remaining = iter(texts.items())
    while batch := [Param(name, text) for name, text in islice(remaining, PARAMS_PER_CALL)]:
        try:
            client.log_batch(run_id, params=batch)
        except MlflowException:
            _log_one_by_one(client, run_id, batch)


def _log_one_by_one(client: Any, run_id: str, params: list[Any]) -> None:
    """In a user's run a Param of the same name may hold another value, which MLflow refuses to change."""
    from mlflow.exceptions import MlflowException

    for param in params:
        try:
            client.log_batch(run_id, params=[param])
        except MlflowException as error:
            logger.debug("MLflow did not take Param %s: %s", param.key, error)


def _jsonable(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
