"""Torch models as files, and a saved model's answers. See :mod:`spark_ring.artifact.frameworks`.

The architecture is kept apart from the weights: as JSON where :mod:`.recipe` finds that this loses nothing,
else as pickled code in which every tensor of the state dict is an empty one. Classes of a notebook or script
are pickled by value, so the model loads in a process that never saw them.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import nn

from spark_ring.data.schema import Contract
from spark_ring.errors import DataError
from spark_ring.torch.module import build_module, forward, load_weights, outputs_of, weights_bytes
from spark_ring.torch.recipe import build, recipe

__all__ = ["CODE_FILES", "pack", "predictor", "set_threads", "unpack"]

WEIGHTS = "weights.safetensors"
CODE = "module.pkl"
RECIPE = "module.json"
CODE_FILES = frozenset({CODE})


def pack(model: Any, weights: bytes | None = None) -> dict[str, bytes]:
    """Return a model as files.

    Args:
        model: an ``nn.Module``, or a callable that returns one. It is not changed.
        weights: safetensors of a state dict, to take the place of the module's own.

    Raises:
        DataError: the module cannot be pickled, or the weights do not fit it.
    """
    module = build_module(model)
    files = {WEIGHTS: weights_bytes(module) if weights is None else weights}
    described = recipe(module)
    if described is None:
        files[CODE] = _code(module)
    else:
        files[RECIPE] = json.dumps(described).encode()
    return files


def unpack(files: Mapping[str, bytes]) -> nn.Module:
    """Return a new module: the saved weights, on the CPU, in evaluation mode.

    ``module.pkl`` is unpickled: the caller has made sure that it is trusted.
    """
    module = build(json.loads(files[RECIPE])) if RECIPE in files else _unpickle(files[CODE])
    _give_memory(module)
    load_weights(module, files[WEIGHTS])
    return module.eval()


def set_threads(threads: int) -> int:
    """Set torch's CPU threads of one operation; returns the number before."""
    before = torch.get_num_threads()
    if threads != before:
        torch.set_num_threads(threads)
    return before


def predictor(model: nn.Module, contract: Contract) -> Predictor:
    """Return a predictor over a module of :func:`unpack`."""
    return Predictor(model, contract)


class Predictor:
    """Forward passes in evaluation mode, without gradients."""

    def __init__(self, module: nn.Module, contract: Contract) -> None:
        self._module = module.eval()
        self._contract = contract

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return one array ``(rows, …)`` for each output.

        See :class:`spark_ring.artifact.frameworks.Predictor`.

        Raises:
            DataError: an output does not have one entry per row, or is no tensor.
        """
        rows = len(next(iter(inputs.values())))
        with torch.inference_mode():
            outputs = outputs_of(forward(self._module, self._contract, inputs))
        return tuple(_output(output, rows) for output in outputs)


def _output(output: torch.Tensor, rows: int) -> np.ndarray:
    if rows == 1 and (output.ndim == 0 or len(output) != 1):
        output = output.unsqueeze(0)  # the model squeezed its only row away
    if output.ndim == 0 or len(output) != rows:
        raise DataError(
            f"the model returned an output of shape {tuple(output.shape)} for {rows} rows; expected "
            f"({rows}, …)"
        )
    if output.ndim == 2 and output.shape[1] == 1:
        output = output.reshape(rows)
    if output.dtype == torch.bfloat16:  # NumPy has no such type
        output = output.float()
    return np.ascontiguousarray(output.detach().cpu().numpy())


def _code(module: nn.Module) -> bytes:
    """Pickle the module with empty tensors where its state dict has values."""
    state = module.state_dict(keep_vars=True).values()
    empty = {id(tensor): _emptied(tensor) for tensor in state if isinstance(tensor, torch.Tensor)}
    try:
        hollow = copy.deepcopy(module, dict(empty))
        return bytes(cloudpickle.dumps(hollow))
    except Exception as error:
        raise DataError(
            f"the model ({type(module).__qualname__}) cannot be pickled: {type(error).__name__}: {error}"
        ) from error


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _unpickle(code: bytes) -> nn.Module:
    try:
        module = pickle.load(io.BytesIO(code))
    except ModuleNotFoundError as error:
        raise DataError(
            f"the model's code needs the module {error.name!r}, which cannot be imported here. "
            "Install it, or put it on the path of the driver and of the executors "
            "(spark.addArtifact(path, pyfile=True)); a class defined in a notebook or in the main "
            "script is saved with the model"
        ) from error
    if not isinstance(module, nn.Module):
        raise DataError(f"{CODE} holds a {type(module).__qualname__}, not an nn.Module")
    return module


def _give_memory(module: nn.Module) -> None:
    """Put uninitialised tensors where empty ones stand; a tensor that is shared stays shared."""
    made: dict[int, torch.Tensor] = {}
    for owner in module.modules():
        groups: tuple[dict[str, Any], ...] = (owner._parameters, owner._buffers)
        for group in groups:
            for name, old in group.items():
                if old is None or not old.is_meta:
                    continue
                if id(old) not in made:
                    made[id(old)] = _with_memory(old)
                group[name] = made[id(old)]


def _with_memory(empty: torch.Tensor) -> torch.Tensor:
    tensor = torch.empty_like(empty, device="cpu")
    return nn.Parameter(tensor, empty.requires_grad) if isinstance(empty, nn.Parameter) else tensor
