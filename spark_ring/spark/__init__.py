"""The Spark side: a Spark ML estimator that trains on the ring, and the model that scores.

Names are found when first used: a worker imports one module of this package and none of the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_ring.spark.model import TorchModel as TorchModel
    from spark_ring.spark.run import run as run
    from spark_ring.spark.torch_estimator import TorchEstimator as TorchEstimator

__all__ = ["TorchEstimator", "TorchModel", "run"]

_HOME = {"TorchEstimator": "torch_estimator", "TorchModel": "model", "run": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
