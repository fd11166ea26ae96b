"""What is minimised: losses, label dtypes, row weights and metrics of a payload.

* ``loss`` is one callable, given what the model returned and the label (a tuple of labels if there are
  several); or a list of callables, one per label, each given the output of the same place.
* A loss returns the mean over the rows it was given. That is what makes N workers equal one worker. A loss
  that normalises by something else than its rows (class weights, ``ignore_index``) is averaged by rows all
  the same.
* With row weights the loss is sum(weight · loss of the row) / sum(weight), over all ranks. The losses of the
  rows are had by ``reduction="none"``, so the loss must know that argument.
* A metric gets what a single loss gets and returns the mean over the rows. Rows of weight 0 are left out;
  else row weights do not change metrics.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spark_ring.data.batch import Batch
from spark_ring.data.schema import Contract
from spark_ring.errors import ConfigError, DataError
from spark_ring.torch.buffers import dtype_name, dtype_named
from spark_ring.torch.module import align_label, outputs_of, tensor_of

__all__ = ["Objective"]

Loss = Callable[[Any, Any], torch.Tensor]


class Objective:
    """Loss and metrics of one payload under one contract.

    Args:
        payload: ``loss``, ``loss_weights``, ``metrics`` and ``label_dtypes`` are used.
        contract: its labels, and whether rows have weights.

    Raises:
        ConfigError: numbers of losses, weights and labels do not fit, or a loss cannot do what is asked.
    """

    def __init__(self, payload: dict[str, Any], contract: Contract) -> None:
        self._specs = contract.labels
        if not self._specs:
            raise ConfigError("training needs at least one label column")
        losses = payload["loss"]
        self._listed = isinstance(losses, (list, tuple))
        self._losses: list[Loss] = list(losses) if self._listed else [losses]
        self._weights = self._checked_weights(payload.get("loss_weights"))
        self._metrics: dict[str, Callable[[Any, Any], Any]] = dict(payload.get("metrics") or {})
        dtypes = payload.get("label_dtypes") or [None] * len(self._specs)
        self._dtypes = [dtype_named(name) if name else None for name in dtypes]
        self._check()
        self._by_row = [_by_row(loss) for loss in self._losses] if contract.weight else []

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The user's metrics, in order."""
        return tuple(self._metrics)

    def labels(self, batch: Batch) -> list[torch.Tensor]:
        """Return the batch's labels in the dtypes that were decided; bool becomes int64 where none was."""
        labels = [tensor_of(batch.labels[spec.name]) for spec in self._specs]
        return [_as_dtype(label, dtype) for label, dtype in zip(labels, self._dtypes, strict=True)]

    def loss(self, output: Any, labels: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mean loss over the rows, a scalar with gradient."""
        values = [loss(*pair) for loss, pair in zip(self._losses, self._pairs(output, labels), strict=True)]
        for loss, value in zip(self._losses, values, strict=True):
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                found = (
                    f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
                )
                raise DataError(
                    f"the loss {_name(loss)} returned {found}; it must return the mean over the rows"
                )
        return _weighted([value.reshape(()) for value in values], self._weights)

    def row_losses(self, output: Any, labels: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the loss of each row, ``(rows,)``, with gradient."""
        rows = len(labels[0])
        pairs = self._pairs(output, labels)
        values = [by_row(*pair, rows) for by_row, pair in zip(self._by_row, pairs, strict=True)]
        return _weighted(values, self._weights)

    def metrics(self, output: Any, labels: Sequence[torch.Tensor]) -> dict[str, float]:
        """Return the mean of each of the user's metrics over the rows."""
        if not self._metrics:
            return {}
        given = self._whole(output, labels)
        return {name: _number(name, metric(*given)) for name, metric in self._metrics.items()}

    def _pairs(self, output: Any, labels: Sequence[torch.Tensor]) -> list[tuple[Any, Any]]:
        if not self._listed:
            return [self._whole(output, labels)]
        outputs = outputs_of(output)
        if len(outputs) != len(labels):
            raise DataError(
                f"the model returned {len(outputs)} tensors and loss is a list for {len(labels)} labels"
            )
        return [(out, align_label(out, label)) for out, label in zip(outputs, labels, strict=True)]

    def _whole(self, output: Any, labels: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        if len(labels) == 1:
            if isinstance(output, (tuple, list)) and len(output) == 1:
                output = output[0]
            return output, align_label(output, labels[0])
        outputs = output if isinstance(output, (tuple, list)) else (None,) * len(labels)
        if len(outputs) != len(labels):
            return output, tuple(labels)
        return output, tuple(align_label(out, label) for out, label in zip(outputs, labels, strict=True))

    def _checked_weights(self, weights: Sequence[float] | None) -> list[float]:
        if weights is None:
            return [1.0] * len(self._losses)
        if len(weights) != len(self._losses):
            raise ConfigError(
                f"there are {len(self._losses)} losses and {len(weights)} loss weights; give one each"
            )
        return [float(weight) for weight in weights]

    def _check(self) -> None:
        if self._listed and len(self._losses) != len(self._specs):
            raise ConfigError(
                f"loss is a list of {len(self._losses)} and there are {len(self._specs)} label columns; "
                "give one loss per label, or one callable that gets all labels"
            )
        if len(self._dtypes) != len(self._specs):
            raise ConfigError(
                f"{len(self._dtypes)} label dtypes for {len(self._specs)} labels; give one each"
            )
        for what, value in [*(("loss", loss) for loss in self._losses), *self._metrics.items()]:
            if not callable(value):
                raise ConfigError(
                    f"{what} is a {type(value).__name__}; it must be a callable (output, label)"
                )
        for loss in self._losses:
            if getattr(loss, "reduction", "mean") not in ("mean", "batchmean"):
                raise ConfigError(
                    f"the loss {_name(loss)} has reduction={loss.reduction!r}; "  # type: ignore[attr-defined]
                    "it must return the mean over the rows: reduction='mean'"
                )
            if isinstance(loss, torch.nn.Module) and any(p.requires_grad for p in loss.parameters()):
                raise ConfigError(
                    f"the loss {_name(loss)} has parameters of its own, which no optimizer would train; "
                    "make it a part of the model"
                )


def _by_row(loss: Loss) -> Callable[[Any, Any, int], torch.Tensor]:
    """Return a function that gives the loss of each row.

    Raises:
        ConfigError: the loss does not know ``reduction="none"``.
    """
    each: Callable[[Any, Any], Any]
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        module: Any = copy.copy(loss)
        module.reduction = "none"
        each = module
    elif _takes_reduction(loss):
        each = functools.partial(loss, reduction="none")  # type: ignore[call-arg]
    else:
        raise ConfigError(
            f"weightCol needs the loss of each row, and the loss {_name(loss)} has no argument or attribute "
            "'reduction'. Use a torch loss such as torch.nn.functional.mse_loss or torch.nn.MSELoss(), or "
            "give your function an argument reduction='mean' that also takes 'none'"
        )
    total = getattr(loss, "reduction", "mean") == "batchmean"

    def by_row(output: Any, label: Any, rows: int) -> torch.Tensor:
        values = each(output, label)
        if not isinstance(values, torch.Tensor) or values.dim() == 0 or len(values) != rows:
            found = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise DataError(f"the loss {_name(loss)} with reduction='none' returned {found} for {rows} rows")
        flat = values.reshape(rows, -1)
        return flat.sum(1) if total else flat.mean(1)

    return by_row


def _takes_reduction(loss: Loss) -> bool:
    try:
        return "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return False


def _weighted(values: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    total = values[0] if weights[0] == 1.0 else values[0] * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + value * weight
    return total


def _as_dtype(label: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    if dtype is None and label.dtype == torch.bool:
        dtype = torch.int64
    return label if dtype is None else label.to(dtype)


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise DataError(f"the metric {name!r} returned shape {tuple(value.shape)}; it must return one number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(
            f"the metric {name!r} returned a {type(value).__name__}; it must return one number"
        ) from None


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def label_dtype_names(dtypes: Sequence[torch.dtype]) -> list[str]:
    """Return the names that a payload keeps as ``label_dtypes``."""
    return [dtype_name(dtype) for dtype in dtypes]
