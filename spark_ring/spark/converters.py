"""Param converters: each checks one kind of value and says what it expected.

Spark ML calls a Param's converter with every value that is set. Ours raise :class:`ConfigError`, which
names the Param, the value found and what would be right.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

from spark_ring.errors import ConfigError

__all__ = [
    "boolean",
    "callable_object",
    "choice",
    "column_name",
    "column_names",
    "columns_or_groups",
    "functions_by_name",
    "integer",
    "number",
    "one_or_more_callables",
    "positive_numbers",
    "text",
]

Converter = Callable[[Any], Any]


def integer(param: str, low: int) -> Converter:
    """Accept a whole number of at least ``low`` (NumPy's too; ``True`` is not one)."""

    def convert(value: Any) -> int:
        whole = isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise _wrong(param, value, "an integer")
        if value < low:
            raise _wrong(param, value, f"at least {low}")
        return int(value)

    return convert


def number(param: str, low: float, below: float = float("inf"), *, open_low: bool = False) -> Converter:
    """Accept a number in ``[low, below)``, or in ``(low, below)`` with ``open_low``."""

    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise _wrong(param, value, "a number")
        found = float(value)
        if not (low < found if open_low else low <= found):
            raise _wrong(param, value, f"{'greater than' if open_low else 'at least'} {low:g}")
        if not found < below:
            raise _wrong(param, value, f"below {below:g}" if below != float("inf") else "finite")
        return found

    return convert


def positive_numbers(param: str) -> Converter:
    """Accept a list of numbers, each above zero."""
    one = number(param, 0.0, open_low=True)

    def convert(value: Any) -> list[float]:
        if not isinstance(value, (list, tuple)) or not value:
            raise _wrong(param, value, "a list of numbers, each above 0")
        return [one(element) for element in value]

    return convert


def boolean(param: str) -> Converter:
    """Accept ``True`` or ``False`` only: the string ``"false"`` would count as true."""

    def convert(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _wrong(param, value, "True or False")
        return value

    return convert


def text(param: str) -> Converter:
    """Accept a string that is not empty, or a path object."""

    def convert(value: Any) -> str:
        found = value.__fspath__() if hasattr(value, "__fspath__") else value
        if not isinstance(found, str) or not found:
            raise _wrong(param, value, "a string that is not empty")
        return found

    return convert


def choice(param: str, *choices: str) -> Converter:
    """Accept one of a few words."""

    def convert(value: Any) -> str:
        if value not in choices:
            raise _wrong(param, value, "one of " + ", ".join(map(repr, choices)))
        return str(value)

    return convert


def column_name(param: str) -> Converter:
    """Accept the name of one column."""

    def convert(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            raise _wrong(param, value, "the name of one column; for several there is " + _plural(param))
        if not isinstance(value, str) or not value:
            raise _wrong(param, value, "the name of a column")
        return value

    return convert


def column_names(param: str) -> Converter:
    """Accept a list of column names, at least one, none twice."""

    def convert(value: Any) -> list[str]:
        return _names(param, value, f"{param}=")

    return convert


def columns_or_groups(param: str) -> Converter:
    """Accept a list of column names, or a dict from argument name to a column name or a list of them."""

    def convert(value: Any) -> list[str] | dict[str, str | list[str]]:
        if not isinstance(value, Mapping):
            return _names(param, value, f"{param}=")
        if not value:
            raise _wrong(param, value, "at least one argument of the model")
        return {_identifier(param, key): _group(param, key, names) for key, names in value.items()}

    return convert


def callable_object(param: str, what: str) -> Converter:
    """Accept anything that can be called."""

    def convert(value: Any) -> Any:
        if not callable(value):
            raise _wrong(param, value, what)
        return value

    return convert


def one_or_more_callables(param: str, what: str) -> Converter:
    """Accept something that can be called, or a list of such things."""

    def convert(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            if not value or not all(map(callable, value)):
                raise _wrong(param, value, f"{what}, or a list of those, one for each label")
            return list(value)
        if not callable(value):
            raise _wrong(param, value, what)
        return value

    return convert


def functions_by_name(param: str) -> Converter:
    """Accept a dict from a metric's name to its function."""

    def convert(value: Any) -> dict[str, Any]:
        example = 'a dict from name to function, for example {"mae": mean_absolute_error}'
        if not isinstance(value, Mapping):
            raise _wrong(param, value, example)
        for name, function in value.items():
            if not isinstance(name, str) or not name or not callable(function):
                raise _wrong(param, value, example)
            if name == "loss" or name.startswith("val_"):
                raise _wrong(param, value, f"without {name!r}: 'loss' and 'val_...' are taken")
        return dict(value)

    return convert


def _names(param: str, value: Any, where: str) -> list[str]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise _wrong(param, value, f'a list of column names, for example {where}["a", "b"]')
    if not value or not all(isinstance(name, str) and name for name in value):
        raise _wrong(param, value, "a list of at least one column name")
    twice = sorted({name for name in value if value.count(name) > 1})
    if twice:
        raise _wrong(param, value, f"each column once; {twice[0]!r} is there {value.count(twice[0])} times")
    return list(value)


def _group(param: str, key: str, names: Any) -> str | list[str]:
    if isinstance(names, str) and names:
        return names
    return _names(param, names, f"{key}: ")


def _identifier(param: str, key: Any) -> str:
    if not isinstance(key, str) or not key.isidentifier():
        raise ConfigError(
            f"Param {param}: {key!r} cannot be a keyword argument of the model; use a Python name"
        )
    return key


def _plural(param: str) -> str:
    return {"featuresCol": "inputCols", "labelCol": "labelCols"}.get(param, "no Param here")


def _wrong(param: str, value: Any, expected: str) -> ConfigError:
    shown = repr(value)
    if len(shown) > 120:
        shown = shown[:117] + "..."
    return ConfigError(f"Param {param} is {shown} ({type(value).__name__}); it must be {expected}")
