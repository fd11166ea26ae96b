"""Which rows are for training and which for validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ring.errors import ColumnError
from spark_ring.spark.columns import quoted, require_column

__all__ = ["TRAIN", "VALIDATION", "Split"]

TRAIN, VALIDATION = "train", "val"


@dataclass(frozen=True)
class Split:
    """How rows are divided. Without fraction and indicator every row is for training.

    Attributes:
        fraction: share of rows for validation, drawn at random.
        seed: of the draw.
        indicator: name of a column of booleans, or of 0 and 1, that marks the rows for validation.
    """

    fraction: float = 0.0
    seed: int = 0
    indicator: str | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is anything to divide."""
        return self.fraction > 0 or self.indicator is not None

    def check(self, schema: T.StructType) -> None:
        """Refuse an indicator column that is missing, or neither boolean nor a number."""
        if self.indicator is None:
            return
        kind = require_column(schema, self.indicator)
        if not isinstance(kind, (T.BooleanType, T.NumericType)):
            raise ColumnError(
                f"validation indicator column {self.indicator!r} is {kind.simpleString()}; it must be "
                "boolean, or a number that is 0 (training) or 1 (validation)",
                column=self.indicator,
            )

    def column(self) -> Column:
        """Return the column that names each row's split."""
        if self.indicator is not None:
            marked = F.col(quoted(self.indicator)).cast("double") == F.lit(1.0)
        else:
            marked = F.rand(self.seed) < F.lit(self.fraction)
        return F.when(marked, F.lit(VALIDATION)).otherwise(F.lit(TRAIN))

    def misfit(self) -> Column:
        """Return a column that is true where the indicator is neither 0 nor 1."""
        if self.indicator is None:
            return F.lit(False)
        value = F.col(quoted(self.indicator)).cast("double")
        return value.isNull() | ~value.isin(0.0, 1.0)

    def key(self) -> list[Any]:
        """Return what decides the division, as JSON values."""
        return [self.fraction, self.seed if self.fraction > 0 else None, self.indicator]
