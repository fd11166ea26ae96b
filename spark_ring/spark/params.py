"""How Params are declared, and those of columns: each once, with documentation, unit and default.

A mixin holds the Params that belong together, with a typed setter and getter for each. Estimators take all
mixins (those of training are in :mod:`.training_params`), models those that scoring needs. Where Spark ML
has a mixin for a Param (``HasFeaturesCol``, ``HasLabelCol``, ``HasPredictionCol``, ``HasWeightCol``,
``HasValidationIndicatorCol``, ``HasSeed``) ours derives from it, so code that asks
``isinstance(stage, HasLabelCol)`` gets the right answer.

The values of some Params are Python objects (a model, a loss): they are Params like the others, so ``copy``,
``explainParams`` and parameter grids work with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from spark_ring.errors import ConfigError
from spark_ring.spark import converters as to
from spark_ring.spark.naming import unknown_param

__all__ = [
    "HasInputs",
    "HasLabels",
    "HasPrediction",
    "HasValidation",
    "HasWeight",
    "RingParams",
    "declare",
]

Self = TypeVar("Self", bound="RingParams")


def declare(name: str, doc: str, converter: Callable[[Any], Any]) -> Any:
    """Declare a Param on a class; Spark ML copies it to each instance."""
    return Param(Params._dummy(), name, doc, converter)


class RingParams(Params):
    """What all our stages share: setting Params by name with errors that help."""

    def setParams(self: Self, **params: Any) -> Self:
        """Set several Params by name; ``None`` leaves one as it is.

        Raises:
            ConfigError: a name that is no Param (the error gives the right spelling), or an unusable value.
        """
        for name in params:
            if not self.hasParam(name):
                raise unknown_param(type(self).__name__, name, (param.name for param in self.params))
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def _set(self: Self, **params: Any) -> Self:
        for name, value in params.items():
            if value is None and getattr(self, name) not in self._defaultParamMap:
                raise ConfigError(f"Param {name} cannot be None; stage.clear(stage.{name}) unsets it")
        super()._set(**{name: value for name, value in params.items() if value is not None})
        for name, value in params.items():
            if value is None:
                self.clear(getattr(self, name))
        return self

    def _value(self, name: str) -> Any:
        """Return a Param's value or default, or ``None`` when it has neither."""
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None


class HasInputs(RingParams, HasFeaturesCol):
    """Which columns are the model's inputs: ``featuresCol``, or ``inputCols`` when that is set."""

    featuresCol = declare(
        "featuresCol",
        "the one input column: a vector, an array (nested for a matrix) or a number. The model gets one "
        "tensor (batch, ...). Not used when inputCols is set.",
        to.column_name("featuresCol"),
    )
    inputCols = declare(
        "inputCols",
        "several input columns. A list gives the model one positional argument per column. A dict gives "
        'keyword arguments: {"dense": ["a", "b"], "item": "c"} calls model(dense=(batch, 2), '
        "item=(batch,)); the columns of a list are concatenated, a single name is taken as it is. Unset: "
        "featuresCol is used.",
        to.columns_or_groups("inputCols"),
    )

    def setFeaturesCol(self: Self, value: str) -> Self:
        """Set :attr:`featuresCol`."""
        return self._set(featuresCol=value)

    def setInputCols(self: Self, value: Sequence[str] | Mapping[str, str | Sequence[str]]) -> Self:
        """Set :attr:`inputCols`."""
        return self._set(inputCols=value)

    def getInputCols(self) -> list[str] | dict[str, str | list[str]] | None:
        """Return :attr:`inputCols`, or ``None`` when ``featuresCol`` is used."""
        value: list[str] | dict[str, str | list[str]] | None = self._value("inputCols")
        return value

    def _inputs(self) -> str | list[str] | dict[str, str | list[str]]:
        """Return what the user asked for: ``inputCols`` if set, else ``featuresCol``."""
        if self.isSet("inputCols") and self.isSet("featuresCol"):
            raise ConfigError("featuresCol and inputCols are both set; set one (clear() unsets the other)")
        return self.getInputCols() or str(self.getFeaturesCol())


class HasLabels(RingParams, HasLabelCol):
    """Which columns are labels: ``labelCol``, or ``labelCols`` when that is set."""

    labelCol = declare(
        "labelCol",
        "the label column: a number, a vector or an array. Integers stay integers (class numbers from 0); "
        "other numbers and booleans become float32. Not used when labelCols is set.",
        to.column_name("labelCol"),
    )
    labelCols = declare(
        "labelCols",
        "several label columns, for a model that returns several outputs: the first output is compared "
        "with the first column, and so on. Unset: labelCol is used.",
        to.column_names("labelCols"),
    )

    def setLabelCol(self: Self, value: str) -> Self:
        """Set :attr:`labelCol`."""
        return self._set(labelCol=value)

    def setLabelCols(self: Self, value: Sequence[str]) -> Self:
        """Set :attr:`labelCols`."""
        return self._set(labelCols=value)

    def getLabelCols(self) -> list[str] | None:
        """Return :attr:`labelCols`, or ``None`` when ``labelCol`` is used."""
        value: list[str] | None = self._value("labelCols")
        return value

    def _labels(self) -> list[str]:
        """Return the label columns, in the order of the model's outputs."""
        if self.isSet("labelCols") and self.isSet("labelCol"):
            raise ConfigError("labelCol and labelCols are both set; set one (clear() unsets the other)")
        return self.getLabelCols() or [str(self.getLabelCol())]


class HasPrediction(RingParams, HasPredictionCol):
    """Where predictions go."""

    predictionCol = declare(
        "predictionCol",
        "the column that transform adds: a double for a model with one output value per row, else a vector.",
        to.column_name("predictionCol"),
    )

    def setPredictionCol(self: Self, value: str) -> Self:
        """Set :attr:`predictionCol`."""
        return self._set(predictionCol=value)


class HasWeight(RingParams, HasWeightCol):
    """How much each row counts."""

    weightCol = declare(
        "weightCol",
        "a column of numbers >= 0 that weigh each row in the loss and in the metrics. Unset: every row "
        "weighs 1.",
        to.column_name("weightCol"),
    )

    def setWeightCol(self: Self, value: str) -> Self:
        """Set :attr:`weightCol`."""
        return self._set(weightCol=value)

    def getWeightCol(self) -> str | None:
        """Return :attr:`weightCol`, or ``None``."""
        value: str | None = self._value("weightCol")
        return value


class HasValidation(RingParams, HasValidationIndicatorCol):
    """Which rows are for validation only."""

    validationFraction = declare(
        "validationFraction",
        "the share of rows, in [0, 1), taken at random (by seed) for validation.",
        to.number("validationFraction", 0.0, 1.0),
    )
    validationIndicatorCol = declare(
        "validationIndicatorCol",
        "a column of booleans, or of 0 and 1, that marks the rows for validation. Unset: "
        "validationFraction is used.",
        to.column_name("validationIndicatorCol"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(validationFraction=0.0)

    def setValidationFraction(self: Self, value: float) -> Self:
        """Set :attr:`validationFraction`."""
        return self._set(validationFraction=value)

    def getValidationFraction(self) -> float:
        """Return :attr:`validationFraction`."""
        return float(self.getOrDefault(self.validationFraction))

    def setValidationIndicatorCol(self: Self, value: str) -> Self:
        """Set :attr:`validationIndicatorCol`."""
        return self._set(validationIndicatorCol=value)

    def getValidationIndicatorCol(self) -> str | None:
        """Return :attr:`validationIndicatorCol`, or ``None``."""
        value: str | None = self._value("validationIndicatorCol")
        return value

    def _validates(self) -> bool:
        """Return whether validation is asked for, once and not twice."""
        by_column = self.getValidationIndicatorCol() is not None
        if by_column and self.getValidationFraction() > 0:
            raise ConfigError("validationFraction and validationIndicatorCol are both set; set one of them")
        return by_column or self.getValidationFraction() > 0
