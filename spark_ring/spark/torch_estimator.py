"""``TorchEstimator``: a Spark ML estimator that trains an ``nn.Module`` on the ring."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from spark_ring.artifact import FitSummary
from spark_ring.errors import ConfigError
from spark_ring.spark.estimator import RingEstimator
from spark_ring.spark.materialize import Dataset
from spark_ring.spark.model import TorchModel

__all__ = ["TorchEstimator"]


class TorchEstimator(RingEstimator):
    """Trains a torch model from a Spark DataFrame, on workers joined by a ring.

    All Params are keyword arguments; ``explainParams()`` documents each, and each has a setter and a getter.
    ``model``, ``loss``, ``optimizer`` and ``store`` must be set before ``fit``::

        estimator = TorchEstimator(
            model=net,
            loss=torch.nn.functional.mse_loss,
            optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
            featuresCol="features", labelCol="arr_delay",
            batchSize=256, epochs=5, numTrainWorkers=2,
            validationFraction=0.1,
            store="/Volumes/main/ml/ring-store",
        )
        model = estimator.fit(train_df)      # a TorchModel
        scored = model.transform(test_df)    # adds "prediction"

    Raises:
        ConfigError: a name that is no Param (with the right spelling), or a value that cannot be used.
    """

    _adapter = "spark_ring.torch.adapter:TorchAdapter"
    _probe = "spark_ring.torch.probe:probe"

    def __init__(
        self,
        *,
        model: Any = None,
        loss: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        lossWeights: Sequence[float] | None = None,
        optimizer: Callable[..., Any] | None = None,
        learningRate: float | None = None,
        scheduler: Callable[..., Any] | None = None,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        gradientClipNorm: float | None = None,
        featuresCol: str | None = None,
        inputCols: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        labelCol: str | None = None,
        labelCols: Sequence[str] | None = None,
        weightCol: str | None = None,
        predictionCol: str | None = None,
        probabilityCol: str | None = None,
        rawPredictionCol: str | None = None,
        outputKind: str | None = None,
        handleInvalid: str | None = None,
        inferenceBatchSize: int | None = None,
        validationFraction: float | None = None,
        validationIndicatorCol: str | None = None,
        batchSize: int | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        shuffle: bool | None = None,
        threadsPerWorker: int | None = None,
        monitor: str | None = None,
        monitorMode: str | None = None,
        patience: int | None = None,
        minDelta: float | None = None,
        numTrainWorkers: int | None = None,
        store: str | None = None,
        verbose: int | None = None,
        logToMLflow: bool | None = None,
        experimentName: str | None = None,
        runName: str | None = None,
        **unknown: NoReturn,
    ) -> None:
        given = {
            name: value for name, value in locals().items() if name not in ("self", "unknown", "__class__")
        }
        super().__init__()
        self.setParams(**given, **unknown)

    def _payload(self) -> dict[str, Any]:
        payload = {
            "model": self.getModel(),
            "loss": self.getLoss(),
            "optimizer": self._optimizer_maker(),
            "metrics": self.getMetrics(),
            "scheduler": self.getScheduler(),
            "loss_weights": self.getLossWeights(),
            "clip_norm": self.getGradientClipNorm(),
        }
        return {key: value for key, value in payload.items() if value is not None}

    def _optimizer_maker(self) -> Callable[..., Any]:
        """Return the optimizer's callable, with the learning rate if that is set."""
        make: Callable[..., Any] = self.getOptimizer()
        rate = self.getLearningRate()
        if rate is None:
            return make
        parameters = inspect.signature(make).parameters.values()
        if not any(p.name == "lr" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            raise ConfigError(
                f"learningRate={rate:g} is set and the optimizer takes no argument lr; use an optimizer "
                "class, or a callable like lambda params, lr: torch.optim.AdamW(params, lr=lr)"
            )
        return functools.partial(make, lr=rate)

    def _create_model(
        self, dataset: Dataset, weights: bytes, history: list[dict[str, Any]], summary: FitSummary
    ) -> TorchModel:
        return TorchModel(
            self.getModel(), dataset.contract, weights=weights, history=history, summary=summary
        )
