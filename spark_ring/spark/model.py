"""The fitted model as a Spark ML Transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.ml import Model
from pyspark.sql import DataFrame

from spark_ring.artifact import FitSummary, FittedModel, OutputSpec
from spark_ring.artifact.folder import Folder
from spark_ring.artifact.outputs import OutputPlan, plan_for
from spark_ring.data.schema import Contract
from spark_ring.errors import ConfigError
from spark_ring.spark.params import HasInputs, HasPrediction
from spark_ring.spark.persistence import ModelPersistence
from spark_ring.spark.scoring import add_predictions
from spark_ring.spark.scoring_params import HasScoring

__all__ = ["RingModel", "TorchModel"]


class RingModel(HasInputs, HasPrediction, HasScoring, Model, ModelPersistence):
    """What fitted models of all frameworks have in common.

    ``transform`` adds ``predictionCol``: a double for a model with one number per row, a vector for several,
    nested arrays beyond that; a model with several outputs adds one column each,
    ``<predictionCol>_<labelCol>``. For a classifier see Param ``outputKind``.
    """

    def __init__(self, fitted: FittedModel | None = None) -> None:
        super().__init__()
        self._held = fitted
        if fitted is not None:
            self._setDefault(**_input_params(fitted.contract))

    @property
    def fitted(self) -> FittedModel:
        """The model as a value, which needs no Spark.

        Raises:
            ConfigError: this object was made without one; it is only good for ``load``.
        """
        if self._held is None:
            raise ConfigError(
                f"{type(self).__name__}() is empty; a model comes from an estimator's fit or from load"
            )
        return self._held

    @property
    def contract(self) -> Contract:
        """Which columns became which tensors in the fit."""
        return self.fitted.contract

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per epoch: ``{"epoch": 1, "loss": 0.9, "val_loss": 0.8, …}``."""
        return [dict(record) for record in self.fitted.history]

    @property
    def summary(self) -> FitSummary:
        """How the fit went: phases, workers, rows. ``print`` shows it."""
        return self.fitted.summary

    def predict(self, *arrays: Any, **named: Any) -> Any:
        """Score arrays in memory, without Spark; see :meth:`spark_ring.artifact.FittedModel.predict`."""
        return self.fitted.predict(*arrays, **named)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return add_predictions(
            dataset,
            self.fitted,
            self._inputs(),
            self._plan(),
            batch_size=self.getInferenceBatchSize(),
            handle_invalid=str(self.getHandleInvalid()),
        )

    def _plan(self) -> OutputPlan:
        return plan_for(self.fitted, {param.name: value for param, value in self.extractParamMap().items()})

    def _saved_files(self) -> dict[str, bytes]:
        return self.fitted.to_files()

    def _saved_facts(self) -> dict[str, Any]:
        return self.fitted.facts()

    def _restore(self, folder: Folder, trusted: bool) -> None:
        self._held = FittedModel.read(folder, trusted=trusted)


class TorchModel(RingModel):
    """A fitted torch model as a Spark ML Transformer. ``TorchEstimator.fit`` makes it; so can you.

    Args:
        module: an ``nn.Module``, or a callable that returns one. It is copied.
        contract: which columns become which tensors; every dimension known.
        weights: safetensors of a state dict that take the place of the module's own.
        outputs: what the module returns; ``None`` finds out with two rows of zeros.
        history: records of epochs.
        summary: how the fit went.
    """

    def __init__(
        self,
        module: Any = None,
        contract: Contract | None = None,
        *,
        weights: bytes | None = None,
        outputs: Sequence[OutputSpec] | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        summary: FitSummary | None = None,
    ) -> None:
        if (module is None) != (contract is None):
            raise ConfigError("TorchModel needs a module and a contract, or neither (for load)")
        fitted = None
        if contract is not None:
            fitted = FittedModel.of(
                "torch",
                module,
                Contract.from_dict(contract.to_dict()),
                weights=weights,
                outputs=outputs,
                history=history,
                summary=summary,
            )
        super().__init__(fitted)

    @property
    def module(self) -> Any:
        """A new ``nn.Module``: final weights, on the CPU, in evaluation mode. Yours to change."""
        return self.fitted.module

    def getModel(self) -> Any:
        """Return :attr:`module`."""
        return self.module


def _input_params(contract: Contract) -> dict[str, Any]:
    """Return the Params by which a user would ask for a contract's inputs."""
    specs = contract.inputs
    if len(specs) == 1 and specs[0].key is None:
        return {"featuresCol": specs[0].columns[0].name}
    if all(spec.key is None for spec in specs):
        return {"inputCols": [spec.columns[0].name for spec in specs]}
    return {
        "inputCols": {
            str(spec.key): [column.name for column in spec.columns]
            if len(spec.columns) > 1
            else spec.columns[0].name
            for spec in specs
        }
    }
