"""The reductions, under the field's names."""

from __future__ import annotations

from enum import Enum

from spark_ring.errors import ConfigError

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"]


class ReduceOp(str, Enum):
    """How values of the ranks become one. Each member is also its own text: ``ReduceOp.Sum == "sum"``."""

    Sum = "sum"
    Average = "average"
    Min = "min"
    Max = "max"
    Product = "product"
    Adasum = "adasum"

    # Equal to its text, so of the same hash; Enum would hash the member's name (and do so slowly).
    __hash__ = str.__hash__

    @classmethod
    def of(cls, op: ReduceOp | str) -> str:
        """Return the text of an op that was given as a member or as text in any case.

        Raises:
            ConfigError: there is no such op.
        """
        text = _TEXTS.get(op) if isinstance(op, str) else None
        if text is None:
            text = _TEXTS.get(str(op).lower())
        if text is None:
            raise ConfigError(f"no reduction named {op!r}; the reductions are {', '.join(sorted(_TEXTS))}")
        return text


_TEXTS = {op.value: op.value for op in ReduceOp}

Adasum = ReduceOp.Adasum
Sum = ReduceOp.Sum
Average = ReduceOp.Average
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
