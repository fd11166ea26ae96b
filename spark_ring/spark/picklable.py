"""Pickle the user's objects one by one, so that an error names the Param and the part that cannot travel."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from spark_ring.errors import PreflightError

__all__ = ["check_picklable"]

_DEEPEST = 6


def check_picklable(objects: Mapping[str, Any]) -> None:
    """Raise if one of the objects cannot be sent to the workers.

    Args:
        objects: Param name → value.

    Raises:
        PreflightError: names the Param, the offending object and where in the value it is.
    """
    for name, value in objects.items():
        error = _failure(value)
        if error is None:
            continue
        path, culprit = _culprit(name, value)
        raise PreflightError(
            f"Param {name} cannot be sent to the workers: {path} is {_article(culprit)}, which cannot be "
            f"pickled ({type(error).__name__}: {error}). Make it inside the function that uses it"
        ) from error


def _failure(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # whatever an object's own reduce raises
        return error
    return None


def _culprit(path: str, value: Any) -> tuple[str, Any]:
    """Return the deepest part that still cannot be pickled, with the way to it."""
    seen = {id(value)}
    for _ in range(_DEEPEST):
        for step, part in _parts(value):
            if id(part) not in seen and _failure(part) is not None:
                seen.add(id(part))
                path, value = f"{path}{step}", part
                break
        else:
            break
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickling an object would pickle along, each with how it is reached."""
    if isinstance(value, functools.partial):
        yield " → its function", value.func
        yield from ((f" → argument {i}", part) for i, part in enumerate(value.args))
        yield from ((f" → argument {key!r}", part) for key, part in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield f" → its object {type(value.__self__).__name__}", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif type(value).__module__.startswith("pyspark."):
        return  # a session or a DataFrame: its inside says nothing to the user
    elif not isinstance(value, type) and hasattr(value, "__dict__"):
        yield from ((f".{key}", part) for key, part in vars(value).items())


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield f" → variable {name!r}", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" → global {name!r}", function.__globals__[name]
    yield from ((f" → default {i}", part) for i, part in enumerate(function.__defaults__ or ()))
    yield from ((f" → default {key!r}", part) for key, part in (function.__kwdefaults__ or {}).items())


def _article(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a {name}"
