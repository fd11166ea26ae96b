"""What runs in Spark's Python workers when a model scores. No pyspark, no framework until the first batch.

A worker gets Arrow arrays, one for each tensor, and gives back one Arrow array. The model is made once per
worker process and kept for later tasks. Small Arrow batches are put together and large ones cut, so that a
forward pass has ``batch_size`` rows. Nothing is reshaped by guess: a last batch of one row is a batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_ring.artifact.frameworks import Predictor, framework
from spark_ring.artifact.outputs import OutputPlan
from spark_ring.data.arrow import source_names, to_tensor
from spark_ring.data.schema import Contract, TensorSpec
from spark_ring.errors import ColumnError
from spark_ring.spark.shipping import Source

__all__ = ["Scorer"]

Arrays = Sequence[pa.Array]

KEPT_MODELS = 2
_kept: OrderedDict[str, Predictor] = OrderedDict()


@dataclass(frozen=True)
class Scorer:
    """One model's scoring; travels inside the UDF.

    Attributes:
        source: where the model's files are.
        key: equal keys are equal models.
        framework: its name.
        contract: the inputs.
        plan: what to make of the outputs.
        batch_size: rows per forward pass.
        keep_invalid: whether rows with nulls get a null; else they are an error.
    """

    source: Source
    key: str
    framework: str
    contract: Contract
    plan: OutputPlan
    batch_size: int
    keep_invalid: bool

    def score(self, batches: Iterator[Arrays], threads: int) -> Iterator[pa.Array]:
        """Score Arrow batches.

        Args:
            batches: one array for each tensor, in the contract's order.
            threads: CPU threads of a forward pass.

        Yields:
            Results for the rows in order. Their batches need not be those of the input.

        Raises:
            ColumnError: nulls (without ``keep_invalid``), or values that do not fit the contract.
        """
        before = None
        try:
            for arrays in merged(batches, self.batch_size):
                predictor = self._predictor()
                if before is None:
                    before = framework(self.framework).set_threads(threads)
                yield self._score(arrays, predictor)
        finally:
            if before is not None:
                framework(self.framework).set_threads(before)

    def _predictor(self) -> Predictor:
        if self.key not in _kept:
            mine = framework(self.framework)
            _kept[self.key] = mine.predictor(mine.unpack(self.source.files()), self.contract)
            while len(_kept) > KEPT_MODELS:
                _kept.popitem(last=False)
        _kept.move_to_end(self.key)
        return _kept[self.key]

    def _score(self, arrays: Arrays, predictor: Predictor) -> pa.Array:
        specs = self.contract.inputs
        if not any(map(has_nulls, arrays)):
            return self._forward(arrays, predictor)
        invalid = np.zeros(len(arrays[0]), bool)
        for array, spec in zip(arrays, specs, strict=True):
            rows = null_rows(array)
            if rows.any() and not self.keep_invalid:
                raise null_error(array, spec, int(rows.sum()))
            invalid |= rows
        valid = pa.array(~invalid)
        result = self._forward([array.filter(valid) for array in arrays], predictor)
        return result.take(pa.array(np.cumsum(~invalid) - 1, pa.int64(), mask=invalid))

    def _forward(self, arrays: Arrays, predictor: Predictor) -> pa.Array:
        tensors = {
            spec.name: to_tensor(array, spec)
            for spec, array in zip(self.contract.inputs, arrays, strict=True)
        }
        rows = len(arrays[0])
        parts = [
            predictor({name: tensor[start : start + self.batch_size] for name, tensor in tensors.items()})
            for start in range(0, rows, self.batch_size)
        ]
        if not parts:
            return self.plan.nothing()
        return self.plan.arrays([np.concatenate(outputs) for outputs in zip(*parts, strict=True)])


def merged(batches: Iterator[Arrays], rows: int) -> Iterator[Arrays]:
    """Put small batches together until there are at least ``rows`` rows; the last may have fewer."""
    held: list[Arrays] = []
    count = 0
    for arrays in batches:
        if len(arrays[0]):
            held.append(arrays)
            count += len(arrays[0])
        if count >= rows:
            yield _joined(held)
            held, count = [], 0
    if held:
        yield _joined(held)


def has_nulls(array: pa.Array) -> bool:
    """Whether a row is null or holds a null. Cheap: Arrow carries the counts."""
    if array.null_count:
        return True
    return bool(_is_list(array) and array.flatten().null_count)


def null_rows(array: pa.Array) -> np.ndarray:
    """Return, for each row, whether it is null or holds a null."""
    rows: np.ndarray = array.is_null().to_numpy(zero_copy_only=False).copy()
    if _is_list(array):
        parents, flat = pc.list_parent_indices(array), array.flatten()
        rows[parents.to_numpy()[flat.is_null().to_numpy(zero_copy_only=False)]] = True
    return rows


def null_error(array: pa.Array, spec: TensorSpec, count: int) -> ColumnError:
    """Return the error for nulls, with the column that holds them if that can be told."""
    column = _culprit(array, spec)
    named = source_names(spec) if column is None else f"column {column!r}"
    return ColumnError(
        f"{named} is null, or holds a null, in {count} of {len(array)} rows of a batch. Fill or drop "
        "nulls before transform, or set handleInvalid='keep' for null predictions or 'skip' to leave "
        "such rows out",
        column=column or spec.columns[0].name,
    )


def _culprit(array: pa.Array, spec: TensorSpec) -> str | None:
    """The source column of the first null element; a tensor holds its columns one after the other."""
    if len(spec.columns) == 1:
        return spec.columns[0].name
    if array.null_count or not _is_list(array):
        return None
    first = int(np.flatnonzero(array.flatten().is_null().to_numpy(zero_copy_only=False))[0])
    parents = pc.list_parent_indices(array).to_numpy()
    position = first - int(np.searchsorted(parents, parents[first]))
    ends = np.cumsum([column.width for column in spec.columns])
    return (
        spec.columns[int(np.searchsorted(ends, position, side="right"))].name if position < ends[-1] else None
    )


def _joined(held: list[Arrays]) -> Arrays:
    if len(held) == 1:
        return held[0]
    return [pa.concat_arrays(list(column)) for column in zip(*held, strict=True)]


def _is_list(array: pa.Array) -> bool:
    return bool(pt.is_list(array.type) or pt.is_large_list(array.type))
