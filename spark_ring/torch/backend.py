"""``torch.distributed.init_process_group("spark_ring")``: how its ranks meet.

Importing :mod:`spark_ring.torch` registers the backend. torch then calls :func:`create` on every rank of a
group with a store of the group's own (torchrun's, or any other). The ranks exchange their announcements
through it (:mod:`spark_ring.peers`), and connect to each other as the ranks of any world.

The secret comes from the setting ``secret`` when a launcher gave one to all ranks. Without one, rank 0 makes
it and passes it through the store, which is then what has to be trusted: as torch itself trusts it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from spark_ring.communicator import Communicator
from spark_ring.config import settings
from spark_ring.torch.process_group import RingProcessGroup

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["BACKEND", "create", "register"]

BACKEND = "spark_ring"


def register() -> None:
    """Make the name ``"spark_ring"`` known to ``torch.distributed``; may be called again."""
    if dist.is_available() and not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, create, devices=["cpu"])


def create(store: Store, rank: int, size: int, timeout: timedelta) -> RingProcessGroup:
    """Connect the ranks of one group; torch calls this on each of them.

    Args:
        store: shared by the group's ranks and by nobody else.
        rank: this process's rank in the group.
        size: the number of ranks in the group.
        timeout: how long a collective waits for its peers, and connecting for them.

    Raises:
        RendezvousError: ranks could not find or reach each other.
        AuthenticationError: a peer does not know the secret.
    """
    seconds = max(timeout.total_seconds(), 0.001)
    chosen = settings()
    chosen = replace(chosen, collective_timeout=seconds, connect_timeout=min(seconds, chosen.connect_timeout))

    def exchange(text: str) -> list[str]:
        store.set(f"ring/{rank}", text)
        keys = [f"ring/{r}" for r in range(size)]
        store.wait(keys, timedelta(seconds=chosen.connect_timeout))
        return [store.get(key).decode() for key in keys]

    communicator = Communicator.connect(rank, size, exchange, _secret(store, rank, chosen.secret), chosen)
    return RingProcessGroup(communicator, store)


def _secret(store: Store, rank: int, known: str) -> bytes:
    if rank == 0:
        store.set("ring/nonce", secrets.token_hex(32))
    nonce: bytes = store.get("ring/nonce")
    if known:  # the job's own secret; the nonce only tells groups apart
        return hmac.new(bytes.fromhex(known), b"torch.distributed " + nonce, hashlib.sha256).digest()
    return bytes.fromhex(nonce.decode())
