"""Names and values as MLflow accepts them.

MLflow allows letters, digits and ``_ - . / : space`` in the name of a metric or Param, reads the name as a
path, and limits lengths. A name of another kind is cleaned; two names that would become one stay two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["Names", "clean", "describe"]

NAME_LIMIT = 250
# Older tracking servers refuse longer Param values; nobody reads more in a table.
VALUE_LIMIT = 500


def clean(name: str) -> str:
    """Return a name that MLflow accepts: ``"acc@top,5"`` becomes ``"acc_top_5"``."""
    allowed = re.sub(r"[^\w\-./: ]", "_", name)
    parts = [part.strip() for part in allowed.split("/")]
    path = "/".join(part for part in parts if part not in ("", ".", ".."))
    return path[:NAME_LIMIT].rstrip("/") or "_"


class Names:
    """Cleans names so that different names stay different.

    Asking for the same name again gives the same answer.
    """

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._given:
            self._given[name] = self._unused(clean(name))
        return self._given[name]

    def _unused(self, wanted: str) -> str:
        taken = set(self._given.values())
        number, found = 1, wanted
        while found in taken:
            number += 1
            suffix = f"_{number}"
            found = wanted[: NAME_LIMIT - len(suffix)] + suffix
        return found


def describe(value: Any) -> str:
    """Return a short text for a Param's value; a long one is cut.

    Functions and classes are told by their qualified name, because their ``repr`` holds an address that
    changes from run to run.
    """
    text = _text(value)
    return text if len(text) <= VALUE_LIMIT else text[: VALUE_LIMIT - 1] + "…"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    name = getattr(value, "__qualname__", None)
    if callable(value) and isinstance(name, str):
        module = getattr(value, "__module__", None)
        return f"{module}.{name}" if module else name
    try:
        return str(value)
    except Exception as error:  # a user's __str__ may do anything
        return f"{type(value).__name__} (no text: {error!r})"
