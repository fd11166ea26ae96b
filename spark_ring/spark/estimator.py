"""What estimators of all frameworks share: the life of one fit.

::

    Params ──► contract ──► checks on the driver: slots, objects, store
                   │
                   ▼
            materialize (one pass, or found in the store)
                   │
                   ▼
            first batch through model and loss, here
                   │
                   ▼
            objects to the store ──► barrier stage: n ranks train over the ring
                                          │   progress comes back through the store meanwhile
                                          ▼
            kept weights from the store ──► model

Everything a fit leaves in the store is deleted when it ends, well or badly, except a dataset that the next
fit can use. A fit has a run id of its own, so two fits never meet.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import cloudpickle
from pyspark.ml import Estimator
from pyspark.sql import DataFrame, SparkSession

from spark_ring.artifact import FitSummary
from spark_ring.data.store import Store
from spark_ring.errors import ConfigError
from spark_ring.spark import barrier
from spark_ring.spark.datasets import DatasetPool
from spark_ring.spark.display import Display, make_display
from spark_ring.spark.first_batch import try_first_batch
from spark_ring.spark.interpreter import check_interpreter
from spark_ring.spark.materialize import Dataset, Request
from spark_ring.spark.params import HasInputs, HasLabels, HasPrediction, HasValidation, HasWeight
from spark_ring.spark.persistence import EstimatorPersistence
from spark_ring.spark.picklable import check_picklable
from spark_ring.spark.scoring_params import HasScoring
from spark_ring.spark.slots import check_slots
from spark_ring.spark.split import Split
from spark_ring.spark.training_params import (
    HasEarlyStopping,
    HasObjects,
    HasReporting,
    HasTraining,
    HasWorkers,
)
from spark_ring.spark.watch import Watch
from spark_ring.tracking import NoTracker, Tracker, start_run
from spark_ring.train.job import TrainJob, TrainOptions, WorkerResult
from spark_ring.train.loop import RECORD_KEYS
from spark_ring.train.monitor import Monitor

__all__ = ["RingEstimator"]

_LANES = 16
# Workers of a cancelled stage may write a last file before Spark has ended them.
_AFTER_CANCEL_SECONDS = 4.0
_EXAMPLE_ROWS = 5


class RingEstimator(
    HasObjects,
    HasInputs,
    HasLabels,
    HasPrediction,
    HasWeight,
    HasValidation,
    HasTraining,
    HasEarlyStopping,
    HasWorkers,
    HasScoring,
    HasReporting,
    Estimator,
    EstimatorPersistence,
):
    """Base of the estimators; a subclass names its framework's adapter and makes its model."""

    _adapter: str  # "module:Class" of the framework's adapter, imported where it runs
    _probe: str  # "module:function" of the framework's check of one batch

    def _payload(self) -> dict[str, Any]:
        """Return the user's objects as the framework's adapter wants them."""
        raise NotImplementedError

    def _create_model(
        self, dataset: Dataset, weights: bytes, history: list[dict[str, Any]], summary: FitSummary
    ) -> Any:
        """Return the fitted Spark model."""
        raise NotImplementedError

    def fitMultiple(self, dataset: DataFrame, paramMaps: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Fit once per Param map; the data are written once for all maps that need the same of them.

        Args:
            dataset: the DataFrame.
            paramMaps: Param maps, as for ``fit``.

        Returns:
            A thread-safe iterator of (index of the Param map, model), in any order.
        """
        from pyspark.ml.base import _FitMultipleIterator

        estimator, pool = self.copy(), DatasetPool(dataset, len(paramMaps))

        def fit_one(index: int) -> Any:
            try:
                return _Fit(estimator.copy(paramMaps[index]), pool).run()
            finally:
                pool.leave()

        iterator: Iterator[tuple[int, Any]] = _FitMultipleIterator(fit_one, len(paramMaps))
        return iterator

    def _fit(self, dataset: DataFrame) -> Any:
        with DatasetPool(dataset) as pool:
            return _Fit(self, pool).run()

    def _request(self) -> Request:
        self._validates()
        return Request(
            inputs=self._inputs(),
            labels=self._labels(),
            weight=self.getWeightCol(),
            split=Split(self.getValidationFraction(), int(self.getSeed()), self.getValidationIndicatorCol()),
        )

    def _options(self, validation: bool) -> TrainOptions:
        workers = self.getNumTrainWorkers()
        return TrainOptions(
            epochs=self.getEpochs(),
            batch_size=self.getBatchSize(),
            seed=int(self.getSeed()) % 2**32,
            shuffle=self.getShuffle(),
            lanes=max(_LANES, workers),
            validation=validation,
            patience=self.getPatience(),
            min_delta=self.getMinDelta(),
            monitor=self.getMonitor(),
            monitor_mode=self.getMonitorMode(),
            threads=self.getThreadsPerWorker(),
        )

    def _check_params(self) -> None:
        """Refuse Params that are missing or contradict each other, before Spark does anything."""
        for name in ("model", "loss", "optimizer", "store"):
            if not self.isDefined(name):
                raise ConfigError(f"Param {name} must be set: {self.getParam(name).doc}")
        taken = sorted(RECORD_KEYS & set(self.getMetrics()))
        if taken:
            raise ConfigError(
                f"Param metrics: the name {taken[0]!r} is taken; call the metric something else"
            )
        Monitor(self._options(self._validates()), ("loss", *self.getMetrics()), self._validates())

    def _described(self) -> dict[str, Any]:
        """Return every Param that has a value, for the record of the fit."""
        return {param.name: self.getOrDefault(param) for param in self.params if self.isDefined(param)}


@dataclass
class _Fit:
    """One fit of one estimator."""

    estimator: RingEstimator
    pool: DatasetPool
    run_id: str = field(default_factory=lambda: f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:12]}")
    phases: dict[str, float] = field(default_factory=dict)

    def run(self) -> Any:
        estimator, df = self.estimator, self.pool.dataset
        estimator._check_params()
        request, objects = estimator._request(), estimator._payload()
        request.contract(df)  # a wrong column is an error before anything runs
        check_picklable({name: value for name, value in objects.items() if value is not None})
        check_slots(df.sparkSession, estimator.getNumTrainWorkers())
        check_interpreter(df.sparkSession)
        store = Store(estimator.getStore() or "")
        display = make_display(estimator.getVerbose())
        with self._tracked() as tracker, self._run_folder(store) as mark:
            dataset = self._materialize(store, request, display)
            tracker.log_dataset(dataset.manifest, f"{store.url}/{dataset.path}")
            payload = self._check_first_batch(store, dataset, objects)
            job = self._job(store, dataset, payload)
            results = self._train(df.sparkSession, store, job, mark, display, tracker)
            weights = store.read_bytes(results[0].weights)
            summary = self._summary(store, dataset, results)
            model = estimator._create_model(dataset, weights, results[0].history, summary)
            estimator._copyValues(model)
            model._resetUid(estimator.uid)
            self._log_model(tracker, model, dataset, df)
        # Known for sure only now: MLflow's run is opened in the background.
        fitted = model.fitted
        model._held = replace(fitted, summary=replace(fitted.summary, mlflow_run_id=tracker.run_id or ""))
        return model

    @contextlib.contextmanager
    def _tracked(self) -> Iterator[Tracker]:
        estimator = self.estimator
        with start_run(
            estimator.getLogToMLflow(), estimator.getExperimentName(), estimator.getRunName()
        ) as tracker:
            tracker.log_params(estimator._described())
            yield tracker

    @contextlib.contextmanager
    def _run_folder(self, store: Store) -> Iterator[str]:
        """Give the run a folder and a mark in the store, and leave neither behind."""
        mark = store.mark()
        cancelled = False
        try:
            store.check_mark(mark, wait=0.0)  # what is written can be read: the store works from here
            yield mark
        except BaseException as error:
            cancelled = not isinstance(error, Exception)
            raise
        finally:
            for wait in (0.0, _AFTER_CANCEL_SECONDS) if cancelled else (0.0,):
                time.sleep(wait)
                with contextlib.suppress(Exception):
                    store.delete(f"runs/{self.run_id}")
            with contextlib.suppress(Exception):
                store.unmark(mark)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.phases[name] = time.perf_counter() - began

    def _materialize(self, store: Store, request: Request, display: Display) -> Dataset:
        with self._phase("materialize"):
            dataset = self.pool.get(store, request, self.run_id)
        rows = ", ".join(f"{dataset.manifest.rows(name):,} {name}" for name in dataset.manifest.splits)
        verb = "found" if dataset.reused else "wrote"
        display.note(f"{verb} {rows} rows in {self.phases['materialize']:.1f} s")
        return dataset

    def _check_first_batch(self, store: Store, dataset: Dataset, objects: dict[str, Any]) -> dict[str, Any]:
        """Try one batch here; return the objects with what that decided."""
        module, _, name = self.estimator._probe.partition(":")
        with self._phase("check"):
            found = try_first_batch(getattr(import_module(module), name), objects, dataset, store)
        return {**objects, "label_dtypes": list(found.label_dtypes)}

    def _job(self, store: Store, dataset: Dataset, payload: dict[str, Any]) -> TrainJob:
        """Put the user's objects into the store and write the order for the workers."""
        data = cloudpickle.dumps(payload)
        path = f"runs/{self.run_id}/payload.pkl"
        store.write_bytes(path, data)
        return TrainJob(
            run_id=self.run_id,
            store=store.url,
            dataset=dataset.path,
            contract=dataset.contract,
            adapter=self.estimator._adapter,
            payload=path,
            payload_sha256=hashlib.sha256(data).hexdigest(),
            options=self.estimator._options(dataset.validates),
        )

    def _train(
        self,
        spark: SparkSession,
        store: Store,
        job: TrainJob,
        mark: str,
        display: Display,
        tracker: Tracker,
    ) -> list[WorkerResult]:
        workers = self.estimator.getNumTrainWorkers()
        display.note(f"training on {workers} worker{'s' * (workers != 1)}")
        watch = Watch(store, self.run_id, job.options.epochs, display, tracker)
        with self._phase("launch"), watch:
            results = barrier.train(spark, job, workers, mark)
        watch.catch_up(results[0].history)
        training = max(float(result.facts.get("seconds", {}).get("total", 0.0)) for result in results)
        self.phases["launch"] = max(0.0, self.phases["launch"] - training)
        self.phases["train"] = training
        return results

    def _summary(self, store: Store, dataset: Dataset, results: list[WorkerResult]) -> FitSummary:
        return FitSummary(
            run_id=self.run_id,
            store=store.url,
            dataset=dataset.path,
            rows={name: dataset.manifest.rows(name) for name in dataset.manifest.splits},
            phases=dict(self.phases),
            workers=[{"rank": r.rank, "rows": r.rows, "facts": r.facts} for r in results],
            best_epoch=results[0].best_epoch,
            resumed_epoch=results[0].resumed_epoch,
        )

    def _log_model(self, tracker: Tracker, model: Any, dataset: Dataset, df: DataFrame) -> None:
        """Log the model with a few rows of the user's columns; trouble with those is no reason to fail."""
        if isinstance(tracker, NoTracker):
            return
        example = None
        with contextlib.suppress(Exception):
            from spark_ring.spark.columns import quoted

            names = dict.fromkeys(c.name for spec in dataset.contract.inputs for c in spec.columns)
            example = df.select(*map(quoted, names)).limit(_EXAMPLE_ROWS).toPandas()
        tracker.log_model(model, example)
