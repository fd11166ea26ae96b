"""spark_ring: train a model from Spark, over a ring of our own.

Importing this package loads nothing else: every public name is found in its module the first time it is
used. So ``import spark_ring`` takes milliseconds and brings no framework along.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_ring import errors as errors
    from spark_ring.artifact import FittedModel as FittedModel
    from spark_ring.artifact import load_model as load_model
    from spark_ring.artifact import trusted_artifacts as trusted_artifacts
    from spark_ring.communicator import Communicator as Communicator
    from spark_ring.communicator import Handle as Handle
    from spark_ring.config import Settings as Settings
    from spark_ring.config import settings as settings
    from spark_ring.launch.local import run as run
    from spark_ring.ops import Adasum as Adasum
    from spark_ring.ops import Average as Average
    from spark_ring.ops import Max as Max
    from spark_ring.ops import Min as Min
    from spark_ring.ops import Product as Product
    from spark_ring.ops import ReduceOp as ReduceOp
    from spark_ring.ops import Sum as Sum
    from spark_ring.process_sets import ProcessSet as ProcessSet
    from spark_ring.process_sets import global_process_set as global_process_set
    from spark_ring.spark import TorchEstimator as TorchEstimator
    from spark_ring.spark import TorchModel as TorchModel
    from spark_ring.world import add_process_set as add_process_set
    from spark_ring.world import allgather as allgather
    from spark_ring.world import allgather_async as allgather_async
    from spark_ring.world import allgather_object as allgather_object
    from spark_ring.world import allreduce as allreduce
    from spark_ring.world import allreduce_async as allreduce_async
    from spark_ring.world import alltoall as alltoall
    from spark_ring.world import alltoall_async as alltoall_async
    from spark_ring.world import barrier as barrier
    from spark_ring.world import broadcast as broadcast
    from spark_ring.world import broadcast_async as broadcast_async
    from spark_ring.world import broadcast_object as broadcast_object
    from spark_ring.world import cross_rank as cross_rank
    from spark_ring.world import cross_size as cross_size
    from spark_ring.world import empty as empty
    from spark_ring.world import gather as gather
    from spark_ring.world import gather_async as gather_async
    from spark_ring.world import grouped_allreduce as grouped_allreduce
    from spark_ring.world import grouped_allreduce_async as grouped_allreduce_async
    from spark_ring.world import init as init
    from spark_ring.world import is_initialized as is_initialized
    from spark_ring.world import join as join
    from spark_ring.world import local_rank as local_rank
    from spark_ring.world import local_size as local_size
    from spark_ring.world import rank as rank
    from spark_ring.world import reducescatter as reducescatter
    from spark_ring.world import reducescatter_async as reducescatter_async
    from spark_ring.world import remove_process_set as remove_process_set
    from spark_ring.world import scatter as scatter
    from spark_ring.world import scatter_async as scatter_async
    from spark_ring.world import shutdown as shutdown
    from spark_ring.world import size as size
    from spark_ring.world import start_timeline as start_timeline
    from spark_ring.world import stop_timeline as stop_timeline

    __version__: str

_HOME = {
    "spark_ring.artifact": ("FittedModel", "load_model", "trusted_artifacts"),
    "spark_ring.communicator": ("Communicator", "Handle"),
    "spark_ring.config": ("Settings", "settings"),
    "spark_ring.launch.local": ("run",),
    "spark_ring.ops": ("Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"),
    "spark_ring.process_sets": ("ProcessSet", "global_process_set"),
    "spark_ring.spark": ("TorchEstimator", "TorchModel"),
    "spark_ring.world": (
        "add_process_set",
        "allgather",
        "allgather_async",
        "allgather_object",
        "allreduce",
        "allreduce_async",
        "alltoall",
        "alltoall_async",
        "barrier",
        "broadcast",
        "broadcast_async",
        "broadcast_object",
        "cross_rank",
        "cross_size",
        "empty",
        "gather",
        "gather_async",
        "grouped_allreduce",
        "grouped_allreduce_async",
        "init",
        "is_initialized",
        "join",
        "local_rank",
        "local_size",
        "rank",
        "reducescatter",
        "reducescatter_async",
        "remove_process_set",
        "scatter",
        "scatter_async",
        "shutdown",
        "size",
        "start_timeline",
        "stop_timeline",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Adasum",
    "Average",
    "Communicator",
    "FittedModel",
    "Handle",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Settings",
    "Sum",
    "TorchEstimator",
    "TorchModel",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "empty",
    "errors",
    "gather",
    "gather_async",
    "global_process_set",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "init",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "run",
    "scatter",
    "scatter_async",
    "settings",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "trusted_artifacts",
]


def __getattr__(name: str) -> Any:
    """Find a public name in its module, once."""
    value: Any
    if name == "errors":
        return import_module("spark_ring.errors")
    if name == "__version__":
        from importlib.metadata import version

        value = version("spark-ring")
    elif name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module 'spark_ring' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
