"""What a framework must offer so that its models can be kept and used, and where that is found.

A framework is named by a short text, which is stored with the model, and its module is imported where it
runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np

from spark_ring.data.schema import Contract
from spark_ring.errors import ConfigError

__all__ = ["Framework", "Predictor", "framework"]

_MODULES = {"torch": "spark_ring.torch.saved"}


class Predictor(Protocol):
    """A model ready to answer; evaluation mode, no gradients."""

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the outputs for some rows.

        Args:
            inputs: tensor name → array ``(rows, *shape)``, as the contract says.

        Returns:
            One array ``(rows, …)`` for each output.
        """


class Framework(Protocol):
    """The functions of a framework's module."""

    CODE_FILES: frozenset[str]
    """Names of files that hold code: they are read only with trust."""

    def pack(self, model: Any, weights: bytes | None) -> dict[str, bytes]:
        """Return a model as files. ``weights`` (the framework's own format) replace those in the model."""

    def unpack(self, files: Mapping[str, bytes]) -> Any:
        """Return the framework's model made of :meth:`pack`'s files: on the CPU, in evaluation mode."""

    def predictor(self, model: Any, contract: Contract) -> Predictor:
        """Return a predictor over a model of :meth:`unpack`."""

    def set_threads(self, threads: int) -> int:
        """Set how many CPU threads a forward pass takes; returns the number before."""


def framework(name: str) -> Framework:
    """Import a framework's module.

    Raises:
        ConfigError: the name is not known, or the framework is not installed.
    """
    if name not in _MODULES:
        raise ConfigError(f"no framework named {name!r}; there is {', '.join(_MODULES)}")
    try:
        return cast(Framework, import_module(_MODULES[name]))
    except ImportError as error:
        raise ConfigError(f"the model needs {name}, which cannot be imported: {error}") from error
