"""An architecture as JSON instead of code, where that loses nothing.

A network made of ``torch.nn``'s own layers is described fully by their classes, their constructor's arguments
and how they are nested. Such a recipe can be read without running anybody's code, so a model saved that way
needs no trust to be loaded.

Whether nothing is lost is not guessed but checked: the network is built anew from its recipe and compared
with the original, attribute by attribute. Any difference (a hook, a changed attribute, a subclass, a shared
parameter) means that there is no recipe, and the architecture is saved as code.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from spark_ring.errors import DataError

__all__ = ["build", "recipe"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_PLACEMENT = {"device", "dtype"}
_TENSORS = {"_parameters", "_buffers", "_modules", "training"}


def recipe(module: nn.Module) -> dict[str, Any] | None:
    """Return JSON values from which :func:`build` makes an equal network, or ``None`` when there are none."""
    parameters = [*module.named_parameters(remove_duplicate=False)]
    if len({id(parameter) for _, parameter in parameters}) < len(parameters):
        return None  # a shared parameter: a recipe would separate it
    described = _describe(module)
    if described is None:
        return None
    try:
        again = build(described)
    except Exception:  # whatever a constructor says to arguments that were not meant for it
        return None
    return described if _equal(module, again) else None


def build(described: Mapping[str, Any]) -> nn.Module:
    """Make the network of a recipe; its tensors are on the ``meta`` device, without memory.

    Raises:
        DataError: the recipe names something that is no layer of ``torch.nn``.
    """
    with torch.device("meta"):
        return _build(described)


def _describe(module: nn.Module) -> dict[str, Any] | None:
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind:
        return None
    if kind in _CONTAINERS:
        children = {name: _describe(child) for name, child in module.named_children()}
        if len(children) < len(module._modules) or any(child is None for child in children.values()):
            return None
        return {"layer": kind.__name__, "children": children}
    if module._modules:
        return None
    arguments = _arguments(module)
    return None if arguments is None else {"layer": kind.__name__, "arguments": arguments}


def _arguments(module: nn.Module) -> dict[str, Any] | None:
    """Return the constructor's arguments, read from the attributes of the same names."""
    found: dict[str, Any] = {}
    if type(module).__init__ is nn.Module.__init__:  # nothing to say, as for Tanh
        return found
    for name, parameter in inspect.signature(type(module).__init__).parameters.items():
        if name == "self" or name in _PLACEMENT:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            return None
        if not hasattr(module, name):
            if parameter.default is parameter.empty:
                return None
            continue  # left at its default; the comparison finds out whether that was right
        value = getattr(module, name)
        if name == "bias" and not isinstance(value, bool):
            value = value is not None
        if not _is_plain(value):
            return None
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _build(described: Mapping[str, Any]) -> nn.Module:
    name = described["layer"]
    kind = getattr(nn, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise DataError(
            f"the saved architecture names {name!r}, which is no layer of torch.nn {torch.__version__}"
        )
    if kind not in _CONTAINERS:
        arguments = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in described["arguments"].items()
        }
        made: nn.Module = kind(**arguments)
        return made
    container: nn.Module = kind()
    for key, child in described["children"].items():
        container.add_module(key, _build(child))
    return container


def _equal(one: nn.Module, other: nn.Module) -> bool:
    if type(one) is not type(other) or one.__dict__.keys() != other.__dict__.keys():
        return False
    for name, value in one.__dict__.items():
        if name not in _TENSORS and not _same(value, other.__dict__[name]):
            return False
    if one._non_persistent_buffers_set:  # their values are in no weights file
        return False
    for mine, theirs in ((one._parameters, other._parameters), (one._buffers, other._buffers)):
        if _shapes(mine) != _shapes(theirs):
            return False
    return one._modules.keys() == other._modules.keys() and all(
        _equal(child, again)
        for child, again in zip(one._modules.values(), other._modules.values(), strict=True)
        if child is not None and again is not None
    )


def _shapes(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Size | None]:
    return {name: None if tensor is None else tensor.shape for name, tensor in tensors.items()}


def _same(one: Any, other: Any) -> bool:
    """Compare plain values; anything else is never the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (dict, set)):
        return not one and not other  # hooks: none on either side
    return _is_plain(one) and bool(one == other)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
