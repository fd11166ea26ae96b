"""Checkpoints of one run: written by rank 0 after each epoch, found again after a failure.

A checkpoint is one file, ``runs/<run>/checkpoints/epoch-00003``, so that the store's atomic rename makes it
appear whole or not at all. Where a store cannot promise that, the digest at the end tells a partial file::

    magic         18 bytes  b"spark_ring ckpt 1\\n"
    header length  8 bytes  little endian
    header         JSON: epoch, history, monitor's state, kept weights, fingerprint of the job
    state          the adapter's bytes, to the digest
    digest        32 bytes  SHA-256 of everything before

The last two are kept. One that is damaged is passed over for the one before. One of another job (the
fingerprint differs: a run id was used again) is never read.

Weights of the kept epoch are a file of their own, ``runs/<run>/weights/epoch-00003.safetensors``. A weights
file is deleted only when no remaining checkpoint names it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import Any

from spark_ring.communicator import Communicator
from spark_ring.data.store import Store

__all__ = ["Checkpoint", "CheckpointFolder", "decode", "encode"]

log = logging.getLogger(__name__)

MAGIC = b"spark_ring ckpt 1\n"
KEPT = 2
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after an epoch.

    Attributes:
        epoch: epochs done, from 1.
        history: their records.
        monitor: :meth:`spark_ring.train.monitor.Monitor.state`.
        weights: path of the kept weights, relative to the store; ``""`` when the state itself is kept.
        fingerprint: which job this belongs to.
        state: the adapter's bytes.
    """

    epoch: int
    history: list[dict[str, Any]]
    monitor: dict[str, Any]
    weights: str
    fingerprint: str
    state: bytes = field(repr=False)


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint file."""
    header = {name: value for name, value in vars(checkpoint).items() if name != "state"}
    text = json.dumps(header).encode()
    body = b"".join((MAGIC, len(text).to_bytes(_LENGTH_BYTES, "little"), text, checkpoint.state))
    return body + hashlib.sha256(body).digest()


def decode(data: bytes) -> Checkpoint:
    """Read the bytes of a checkpoint file.

    Raises:
        ValueError: the bytes are damaged, partial, or no checkpoint.
    """
    start = len(MAGIC) + _LENGTH_BYTES
    if len(data) < start + _DIGEST_BYTES or not data.startswith(MAGIC):
        raise ValueError(f"no checkpoint: {len(data)} bytes that do not begin with {MAGIC!r}")
    body, digest = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the digest does not match: the file is damaged or was not written to its end")
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    return Checkpoint(state=bytes(body[end:]), **json.loads(data[start:end]))


class CheckpointFolder:
    """The checkpoints and weights of one run.

    Only rank 0 may write or prune; :meth:`resume` is a collective that every rank calls.

    Args:
        store: where the run's folder is.
        run_id: the run.
        fingerprint: of the job; checkpoints with another one are not ours.
        weights_suffix: what the name of a weights file ends with.
    """

    def __init__(self, store: Store, run_id: str, fingerprint: str, weights_suffix: str) -> None:
        self._store = store
        self._folder = f"runs/{run_id}/checkpoints"
        self._weights = f"runs/{run_id}/weights"
        self._suffix = weights_suffix
        self._named: dict[int, str] = {}
        self.fingerprint = fingerprint

    def newest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint of this job."""
        for epoch in reversed(self._epochs()):
            name = self._name(epoch)
            try:
                found = decode(self._store.read_bytes(name))
            except (OSError, ValueError) as problem:
                log.warning("checkpoint %s cannot be used, trying the one before: %s", name, problem)
                continue
            if found.fingerprint != self.fingerprint:
                log.warning("checkpoint %s belongs to another job with the same run id; it is ignored", name)
            elif found.weights and not self._store.exists(found.weights):
                log.warning("checkpoint %s names weights that are gone: %s", name, found.weights)
            else:
                self._named[epoch] = found.weights
                return found
        return None

    def resume(self, communicator: Communicator) -> Checkpoint | None:
        """Find the newest whole checkpoint on rank 0 and give it to every rank.

        Rank 0 alone looks, so that ranks cannot see different folders while files appear. The bytes travel
        over the ring and not through the store: no rank depends on when the store shows it a file.
        """
        found = self.newest() if communicator.rank == 0 else None
        epoch = communicator.broadcast_object(found.epoch if found else 0, root=0)
        if not epoch:
            return None
        data = communicator.broadcast_object(encode(found) if found else b"", root=0)
        return found or decode(data)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then drop what is not needed any more."""
        self._store.write_bytes(self._name(checkpoint.epoch), encode(checkpoint))
        self._named[checkpoint.epoch] = checkpoint.weights
        self._prune(checkpoint)

    def write_weights(self, epoch: int, weights: bytes) -> str:
        """Write the weights of an epoch. Returns their path, relative to the store."""
        path = self.weights_path(epoch)
        self._store.write_bytes(path, weights)
        return path

    def weights_path(self, epoch: int) -> str:
        """Return where the weights of an epoch are, relative to the store."""
        return f"{self._weights}/epoch-{epoch:05d}{self._suffix}"

    def _prune(self, last: Checkpoint) -> None:
        """Keep the newest checkpoints up to ``last`` and the weights they name."""
        mine = [epoch for epoch in self._epochs() if epoch <= last.epoch]
        keep = set(mine[-KEPT:])
        for epoch in self._epochs():
            if epoch not in keep:
                self._store.delete(self._name(epoch))
        named = {self._weights_of(epoch) for epoch in keep}
        for name in self._store.list(self._weights):
            path = f"{self._weights}/{name}"
            if path not in named:
                self._store.delete(path)

    def _weights_of(self, epoch: int) -> str:
        """Return the weights a checkpoint names; reads the file only if this process does not know them."""
        if epoch not in self._named:
            try:
                self._named[epoch] = decode(self._store.read_bytes(self._name(epoch))).weights
            except (OSError, ValueError):
                self._named[epoch] = ""
        return self._named[epoch]

    def _epochs(self) -> list[int]:
        names = (name.removeprefix("epoch-") for name in self._store.list(self._folder))
        return sorted(int(name) for name in names if name.isdigit())

    def _name(self, epoch: int) -> str:
        return f"{self._folder}/epoch-{epoch:05d}"
