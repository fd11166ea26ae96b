"""The ring for torch, under Horovod's names: ``import spark_ring.torch as ring`` (or ``as hvd``).

::

    ring.init()
    optimizer = ring.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    ring.broadcast_parameters(model.state_dict(), root_rank=0)
    ring.broadcast_optimizer_state(optimizer, root_rank=0)

Importing it also makes ``torch.distributed.init_process_group("spark_ring")`` work.
"""

from __future__ import annotations

from spark_ring.ops import Average, Max, Min, Product, ReduceOp, Sum
from spark_ring.torch.backend import register
from spark_ring.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from spark_ring.torch.ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from spark_ring.torch.optimizer import DistributedOptimizer
from spark_ring.world import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Average",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "shutdown",
    "size",
    "synchronize",
]

register()
