"""Params of scoring: what transform adds, and how. Estimators take them too and hand them to their models."""

from __future__ import annotations

from typing import Any

from pyspark.ml.param.shared import HasHandleInvalid, HasProbabilityCol, HasRawPredictionCol

from spark_ring.errors import ConfigError
from spark_ring.spark import converters as to
from spark_ring.spark.params import RingParams, Self, declare

__all__ = ["HasScoring"]


def _column_or_nothing(param: str) -> to.Converter:
    """Accept a column name, or ``""`` for no column (as Spark's classifiers do)."""

    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise ConfigError(
                f"Param {param} is {value!r}; it must be the name of a column, or '' for no such column"
            )
        return value

    return convert


class HasScoring(RingParams, HasHandleInvalid, HasProbabilityCol, HasRawPredictionCol):
    """How a fitted model scores."""

    outputKind = declare(
        "outputKind",
        "what the model's output means. 'value': predictionCol is the output itself. 'logits' "
        "(unnormalised or log probabilities) and 'probabilities': the output is one number per class "
        "(or one, for class 1 of two), and transform adds rawPredictionCol, probabilityCol and the "
        "best class as predictionCol. 'auto': logits when the label is an integer and the output "
        "several numbers per row, else value.",
        to.choice("outputKind", "auto", "value", "logits", "probabilities"),
    )
    probabilityCol = declare(
        "probabilityCol",
        "column of class probabilities, a vector, added for a classifier; '' adds none.",
        _column_or_nothing("probabilityCol"),
    )
    rawPredictionCol = declare(
        "rawPredictionCol",
        "column of class scores, a vector, added for a classifier; '' adds none.",
        _column_or_nothing("rawPredictionCol"),
    )
    handleInvalid = declare(
        "handleInvalid",
        "what transform does with a row whose input is null or holds a null: 'error' fails the job "
        "and names the column, 'keep' gives a null prediction, 'skip' leaves the row out. NaN is a "
        "number and goes through the model.",
        to.choice("handleInvalid", "error", "keep", "skip"),
    )
    inferenceBatchSize = declare(
        "inferenceBatchSize",
        "rows per forward pass when scoring; it changes speed and memory, not predictions beyond rounding.",
        to.integer("inferenceBatchSize", 1),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            outputKind="auto",
            probabilityCol="probability",
            rawPredictionCol="rawPrediction",
            handleInvalid="error",
            inferenceBatchSize=4096,
        )

    def setOutputKind(self: Self, value: str) -> Self:
        """Set :attr:`outputKind`."""
        return self._set(outputKind=value)

    def getOutputKind(self) -> str:
        """Return :attr:`outputKind`."""
        return str(self.getOrDefault(self.outputKind))

    def setProbabilityCol(self: Self, value: str) -> Self:
        """Set :attr:`probabilityCol`."""
        return self._set(probabilityCol=value)

    def setRawPredictionCol(self: Self, value: str) -> Self:
        """Set :attr:`rawPredictionCol`."""
        return self._set(rawPredictionCol=value)

    def setHandleInvalid(self: Self, value: str) -> Self:
        """Set :attr:`handleInvalid`."""
        return self._set(handleInvalid=value)

    def setInferenceBatchSize(self: Self, value: int) -> Self:
        """Set :attr:`inferenceBatchSize`."""
        return self._set(inferenceBatchSize=value)

    def getInferenceBatchSize(self) -> int:
        """Return :attr:`inferenceBatchSize`."""
        return int(self.getOrDefault(self.inferenceBatchSize))
