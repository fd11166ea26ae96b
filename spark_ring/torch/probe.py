"""One batch through model, loss, metrics and optimizer, on the driver, before any worker starts.

Finds in a second what would otherwise fail in every worker minutes later: inputs that ``forward`` does not
take, labels that the loss does not take, sizes that do not fit, state that a checkpoint could not hold. All
of it happens on a copy; the user's model, its mode and the random generators are as before.

The label dtype is decided here, by this rule: integer labels stay ``int64`` if the loss takes them, forward
and backward (class losses do, and so do those that promote); else they become the output's floating dtype.
Floating labels always take the output's floating dtype. ``bool`` counts as an integer.

A few rows are enough. A single row is repeated, because batch norm needs two; and rows are repeated until
their number is no size of an output, because a loss that broadcasts ``(B,)`` against ``(B, C)`` shows only
then.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from spark_ring.data.batch import Batch
from spark_ring.data.schema import Contract, TensorSpec
from spark_ring.errors import ConfigError, DataError, PreflightError
from spark_ring.torch import codec
from spark_ring.torch.buffers import dtype_name
from spark_ring.torch.module import build_module, float_dtype, forward, outputs_of
from spark_ring.torch.objective import Objective
from spark_ring.torch.payload import build_optimizer, build_scheduler, check_payload, clip_norm
from spark_ring.torch.randomness import GeneratorStates

__all__ = ["ProbeResult", "probe"]


@dataclass(frozen=True)
class ProbeResult:
    """What one batch showed.

    Attributes:
        output_shapes: shape of one row of each output: ``()`` a scalar, ``(10,)`` ten values.
        output_dtypes: dtype name of each output.
        label_dtypes: dtype name of each label, for the payload's ``label_dtypes``.
        loss: the loss of the untrained model on these rows.
        parameters: number of parameters.
    """

    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    label_dtypes: tuple[str, ...]
    loss: float
    parameters: int


def probe(payload: dict[str, Any], contract: Contract, batch: Batch) -> ProbeResult:
    """Take one training step on a copy of the model.

    Args:
        payload: as :mod:`spark_ring.torch.payload` lists; ``label_dtypes`` is decided here and not read.
        contract: inputs, labels and perhaps a weight.
        batch: at least one row of real data.

    Raises:
        PreflightError: what would fail in training; says what was given and what was expected.
        ConfigError: a value in the payload cannot be used.
    """
    if not batch.rows:
        raise PreflightError("the check on the driver needs at least one row")
    check_payload(payload)
    clip_norm(payload)
    with _undisturbed():
        module = _copy_of(payload["model"])
        module.train()
        optimizer = build_optimizer(payload, module)
        scheduler = build_scheduler(payload, optimizer)
        batch, outputs = _fitting_rows(module, contract, batch)
        dtypes, loss = _decide_dtypes(payload, contract, module, batch, outputs)
        _check_state(optimizer, scheduler)
    return ProbeResult(
        output_shapes=tuple(tuple(output.shape[1:]) for output in outputs),
        output_dtypes=tuple(dtype_name(output.dtype) for output in outputs),
        label_dtypes=tuple(dtype_name(dtype) for dtype in dtypes),
        loss=loss,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    generators = GeneratorStates()
    try:
        yield
    finally:
        generators.restore()


def _copy_of(model: Any) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        try:
            return build_module(model).cpu()
        except DataError as error:
            raise ConfigError(str(error)) from error
    try:
        return copy.deepcopy(model).cpu()
    except Exception as error:
        raise PreflightError(
            f"the model {type(model).__name__} cannot be copied ({type(error).__name__}: {error}). "
            "Give model as a callable that returns a new one"
        ) from error


def _fitting_rows(
    module: torch.nn.Module, contract: Contract, batch: Batch
) -> tuple[Batch, tuple[torch.Tensor, ...]]:
    """Return the batch with a number of rows that is no size of an output, and the outputs for it."""
    batch = _with_rows(batch, max(2, batch.rows))
    outputs = _outputs(module, contract, batch)
    rows = batch.rows
    while any(rows in output.shape[1:] for output in outputs):
        rows += 1
    if rows != batch.rows:
        batch = _with_rows(batch, rows)
        outputs = _outputs(module, contract, batch)
    return batch, outputs


def _with_rows(batch: Batch, rows: int) -> Batch:
    """Repeat rows from the first on until there are as many as asked for."""
    chosen = np.arange(rows) % batch.rows
    return replace(
        batch,
        inputs={name: array[chosen] for name, array in batch.inputs.items()},
        labels={name: array[chosen] for name, array in batch.labels.items()},
        weight=None if batch.weight is None else batch.weight[chosen],
        rows=rows,
        global_rows=rows,
    )


def _outputs(module: torch.nn.Module, contract: Contract, batch: Batch) -> tuple[torch.Tensor, ...]:
    try:
        value = forward(module, contract, batch.inputs)
    except Exception as error:
        raise PreflightError(_forward_failed(module, contract, batch, error)) from error
    try:
        outputs = outputs_of(value)
    except DataError as error:
        raise PreflightError(str(error)) from error
    for number, output in enumerate(outputs):
        if output.dim() == 0 or output.shape[0] != batch.rows:
            raise PreflightError(
                f"output {number} of the model has shape {tuple(output.shape)} for {batch.rows} rows; "
                "its first dimension must be the rows"
            )
    return outputs


def _forward_failed(module: torch.nn.Module, contract: Contract, batch: Batch, error: Exception) -> str:
    given = [_described(spec, batch.inputs[spec.name], float_dtype(module)) for spec in contract.inputs]
    takes, required = _signature(module)
    text = (
        f"{type(module).__name__}.forward{takes} failed with the {len(given)} input{'s' * (len(given) != 1)} "
        f"given, {'; '.join(given)}: {type(error).__name__}: {error}."
    )
    positional = sum(spec.key is None for spec in contract.inputs)
    if positional > 1 and required == 1:
        text += (
            f" {positional} tensors were given and forward takes 1: assemble the columns into one vector "
            "column (VectorAssembler) and name it in featuresCol, or let forward take one per column."
        )
    elif positional == 1 and required > 1:
        text += (
            f" 1 tensor was given and forward takes {required}: list {required} columns in inputCols, "
            "or let forward take one tensor."
        )
    elif any(not spec.shape for spec in contract.inputs):
        text += (
            " A scalar column arrives as shape (rows,): assemble it into a vector column to get (rows, 1), "
            "or unsqueeze(-1) it in forward."
        )
    return text


def _signature(module: torch.nn.Module) -> tuple[str, int]:
    """Return forward's parameters as text, and how many positional ones it needs."""
    if isinstance(module, torch.nn.Sequential):
        return "(input)", 1
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return "(…)", 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in signature.parameters.values() if p.kind in kinds and p.default is p.empty]
    return f"({', '.join(signature.parameters)})", len(required)


def _described(spec: TensorSpec, array: np.ndarray[Any, Any], dtype: torch.dtype) -> str:
    names = ", ".join(column.name for column in spec.columns[:4])
    names += ", …" if len(spec.columns) > 4 else ""
    found = dtype_name(dtype) if array.dtype.kind == "f" else array.dtype.name
    key = f" as {spec.key}=" if spec.key else ""
    return f"{names or spec.name}{key} {found} {tuple(array.shape)}"


def _decide_dtypes(
    payload: dict[str, Any],
    contract: Contract,
    module: torch.nn.Module,
    batch: Batch,
    outputs: Sequence[torch.Tensor],
) -> tuple[tuple[torch.dtype, ...], float]:
    """Return the first combination of label dtypes that the loss takes, and the loss; integers first."""
    matched = len(outputs) == len(contract.labels)
    floats = [_float_of(outputs[i if matched else 0]) for i in range(len(contract.labels))]
    candidates = [
        [torch.int64, floating] if batch.labels[spec.name].dtype.kind in "iub" else [floating]
        for spec, floating in zip(contract.labels, floats, strict=True)
    ]
    refused: dict[str, str] = {}
    for dtypes in itertools.product(*candidates):
        try:
            return dtypes, _step(payload, contract, module, batch, dtypes)
        except (ConfigError, PreflightError):
            raise
        except Exception as error:
            refused[", ".join(map(dtype_name, dtypes))] = f"{type(error).__name__}: {error}"
    raise PreflightError(_loss_failed(contract, batch, outputs, refused))


def _step(
    payload: dict[str, Any],
    contract: Contract,
    module: torch.nn.Module,
    batch: Batch,
    dtypes: Sequence[torch.dtype],
) -> float:
    """Forward, loss, backward, metrics. Returns the loss."""
    objective = Objective({**payload, "label_dtypes": [dtype_name(dtype) for dtype in dtypes]}, contract)
    output = forward(module, contract, batch.inputs)
    labels = objective.labels(batch)
    with warnings.catch_warnings():
        # torch's own losses only warn when label and output broadcast to a larger shape.
        warnings.filterwarnings("error", message="Using a target size")
        loss = objective.loss(output, labels)
        if contract.weight is not None:
            loss = objective.row_losses(output, labels).mean()
    if not loss.requires_grad:
        raise PreflightError(
            "the loss has no gradient with respect to the model: does the model or the loss detach its "
            "values, or compute them with NumPy?"
        )
    module.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    value = float(loss.detach())
    if not math.isfinite(value):
        raise PreflightError(
            f"the loss of the first {batch.rows} rows is {value} before any training; look for NaN, infinite "
            "or huge values in the features and labels"
        )
    with torch.no_grad():
        try:
            objective.metrics(output.detach() if isinstance(output, torch.Tensor) else output, labels)
        except Exception as error:
            raise PreflightError(f"a metric failed on one batch: {type(error).__name__}: {error}") from error
    return value


def _loss_failed(
    contract: Contract, batch: Batch, outputs: Sequence[torch.Tensor], refused: dict[str, str]
) -> str:
    shapes = [tuple(output.shape) for output in outputs]
    labels = [
        f"{', '.join(column.name for column in spec.columns) or spec.name} {batch.labels[spec.name].shape}"
        for spec in contract.labels
    ]
    text = (
        f"the loss does not take the model's output of shape {', '.join(map(str, shapes))} with the label "
        f"{'; '.join(labels)} ({batch.rows} rows)."
    )
    if len(shapes) == len(labels) == 1:
        per_row = math.prod(shapes[0][1:])
        expected = math.prod(batch.labels[contract.labels[0].name].shape[1:])
        text += f" The model gives {per_row} per row and the label has {expected}."
    attempts = "; ".join(f"as {dtypes}: {reason}" for dtypes, reason in refused.items())
    return f"{text} Label {attempts}"


def _check_state(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Step once and see that a checkpoint can hold the state."""
    optimizer.step()
    try:
        codec.pack(optimizer.state_dict(), f"state of the optimizer {type(optimizer).__name__}")
        if scheduler is not None:
            codec.pack(scheduler.state_dict(), f"state of the scheduler {type(scheduler).__name__}")
    except DataError as error:
        raise PreflightError(f"checkpoints cannot hold {error}") from error


def _float_of(output: torch.Tensor) -> torch.dtype:
    return output.dtype if output.dtype.is_floating_point else torch.float32
