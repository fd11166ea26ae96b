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
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle
import numpy as np
import safetensors.torch
import torch
from torch import nn

from spark_ring.data.schema import Contract, TensorSpec
from spark_ring.errors import DataError
from spark_ring.torch.recipe import build, recipe

__all__ = ["CODE_FILES", "as_module", "pack", "predictor", "set_threads", "unpack"]

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
    module = as_module(model)
    files = {WEIGHTS: _weights(module) if weights is None else weights}
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
    _fill(module, safetensors.torch.load(files[WEIGHTS]))
    return module.eval()


def as_module(model: Any) -> nn.Module:
    """Return the module itself, or what the callable returns."""
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise DataError(
            f"the model is a {type(module).__qualname__}; expected an nn.Module or a callable returning one"
        )
    return module


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
        self._inputs = contract.inputs

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return one array ``(rows, …)`` for each output; see
        :class:`spark_ring.artifact.frameworks.Predictor`.

        Raises:
            DataError: an output does not have one entry per row.
        """
        rows = len(inputs[self._inputs[0].name])
        arguments, keywords = [], {}
        for spec in self._inputs:
            tensor = _tensor(inputs[spec.name], spec)
            if spec.key is None:
                arguments.append(tensor)
            else:
                keywords[spec.key] = tensor
        with torch.inference_mode():
            result = self._module(*arguments, **keywords)
        return tuple(_output(output, rows) for output in _outputs(result))


def _tensor(array: np.ndarray, spec: TensorSpec) -> torch.Tensor:
    # A copy: Arrow's memory is read-only and a caller's array is his own, but a module may work in place.
    return torch.from_numpy(np.array(array, spec.dtype))


def _outputs(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)) and all(isinstance(one, torch.Tensor) for one in result):
        yield from result
    elif isinstance(result, Mapping) and all(isinstance(one, torch.Tensor) for one in result.values()):
        yield from result.values()
    else:
        raise DataError(
            f"the model returned a {type(result).__qualname__}; expected a tensor, or a tuple, list "
            "or dict of tensors"
        )


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


def _weights(module: nn.Module) -> bytes:
    """Return the state dict as safetensors; a tensor that has several names is kept under the first."""
    seen: set[int] = set()
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in _state(module):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kept[name] = tensor.detach().cpu().contiguous().clone()
    return bytes(safetensors.torch.save(kept))


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise DataError(
                f"the module's state {name!r} is a {type(tensor).__qualname__}; only tensors can be saved"
            )
        yield name, tensor


def _code(module: nn.Module) -> bytes:
    """Pickle the module with empty tensors where its state dict has values."""
    empty = {id(tensor): _emptied(tensor) for _, tensor in _state(module)}
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


def _fill(module: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Put saved tensors where empty ones stand; a tensor that is shared stays shared."""
    made: dict[int, torch.Tensor] = {}
    missing = []
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for group in (owner._parameters, owner._buffers):
            for name, old in group.items():
                if old is None or name in owner._non_persistent_buffers_set:
                    continue
                full = f"{prefix}.{name}" if prefix else name
                if full in weights and id(old) not in made:
                    made[id(old)] = _filled(full, old, weights[full])
                if id(old) in made:
                    group[name] = made[id(old)]
                else:
                    missing.append((group, name, full, old))
    for group, name, full, old in missing:  # a shared tensor may be kept under a later name
        if id(old) not in made:
            raise DataError(f"the weights have no tensor {full!r}; they do not belong to this architecture")
        group[name] = made[id(old)]


def _filled(name: str, old: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if old.shape != value.shape:
        raise DataError(
            f"weight {name!r} has shape {tuple(value.shape)} and the architecture wants {tuple(old.shape)}"
        )
    if isinstance(old, nn.Parameter):
        return nn.Parameter(value, requires_grad=old.requires_grad)
    return value
