"""Contracts and batches for the tests of the torch adapter."""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_ring.data.batch import Batch
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec


def spec(name: str, array: np.ndarray, *, column: str | None = None, key: str | None = None) -> TensorSpec:
    """Describe one tensor by an array of it."""
    return TensorSpec(name, (SourceColumn(column or name, "any"),), array.dtype.name, array.shape[1:], key)


def contract_of(
    inputs: dict[str, np.ndarray],
    labels: dict[str, np.ndarray],
    weight: np.ndarray | None = None,
    keys: dict[str, str] | None = None,
) -> Contract:
    """Return the contract that these arrays follow."""
    return Contract(
        inputs=tuple(spec(name, array, key=(keys or {}).get(name)) for name, array in inputs.items()),
        labels=tuple(spec(name, array) for name, array in labels.items()),
        weight=None if weight is None else spec("w", weight, column="importance"),
    )


def batch_of(
    inputs: dict[str, np.ndarray],
    labels: dict[str, np.ndarray],
    weight: np.ndarray | None = None,
    *,
    global_rows: int | None = None,
    step: int = 0,
) -> Batch:
    """Return all rows of the arrays as one rank's batch."""
    rows = len(next(iter(inputs.values())))
    return Batch(inputs, labels, weight, rows=rows, global_rows=global_rows or rows, step=step)


def one(x: Any, y: Any, weight: Any = None, **kwargs: Any) -> tuple[Contract, Batch]:
    """Return contract and batch of one input and one label."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    w = None if weight is None else np.asarray(weight, np.float32)
    return contract_of({"x0": x}, {"y0": y}, w), batch_of({"x0": x}, {"y0": y}, w, **kwargs)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return float32 normal numbers, the same every time."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
