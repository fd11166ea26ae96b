"""Arrays from one rank to another: the arguments of send and receive, checked and handed to the native ring.

Messages of one pair of ranks with one tag arrive in the order in which they were sent; csrc/engine/courier.h
tells how they travel. A short one (at most 64 KiB) is on its way at once; a long one waits until its receiver
has said where it goes, and so does a short one once 4 MiB of them wait at the receiver.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_ring import _core
from spark_ring.arrays import Array, as_input, as_output, buffer_of, dtype_named
from spark_ring.errors import DataError
from spark_ring.handle import Handle

if TYPE_CHECKING:
    from spark_ring.communicator import Communicator

__all__ = ["receive", "send"]

MAX_TAG = 2**63 - 1


def send(communicator: Communicator, array: Any, dest: int, tag: int, timeout: float | None) -> Handle:
    """See :meth:`spark_ring.communicator.Communicator.isend`."""
    title = f"send to rank {dest}, tag {tag}"
    _check_place(communicator, dest, tag, "dest", title)
    buffer = buffer_of(as_input(array, title), writable=False)
    native = communicator.core.send(buffer, operator.index(dest), operator.index(tag), _native(timeout))
    return Handle(native, lambda _: None)


def receive(
    communicator: Communicator, out: Array | None, source: int, tag: int, timeout: float | None
) -> Handle:
    """See :meth:`spark_ring.communicator.Communicator.irecv`."""
    title = f"recv from rank {source}, tag {tag}"
    _check_place(communicator, source, tag, "source", title)
    buffer = None
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise DataError(f"{title}: the output must be a numpy.ndarray or None, not {type(out).__name__}")
        as_input(out, title)  # checks the dtype
        buffer = buffer_of(as_output(out, out.shape, out.dtype, title), writable=True)
    native = communicator.core.receive(buffer, operator.index(source), operator.index(tag), _native(timeout))
    return Handle(native, _made if out is None else lambda _: out)


def _made(native: _core.Handle) -> Array:
    name, shape = native.received()
    flat: Array = np.frombuffer(native.take_result(), dtype=np.uint8)
    return flat.view(dtype_named(name, "recv")).reshape(shape)


def _native(timeout: float | None) -> float:
    return -1.0 if timeout is None else max(0.0, timeout)


def _check_place(communicator: Communicator, rank: Any, tag: Any, what: str, title: str) -> None:
    try:
        place, number = operator.index(rank), operator.index(tag)
    except TypeError:
        raise DataError(f"{title}: {what} and tag must be integers") from None
    if not 0 <= place < communicator.size:
        raise DataError(f"{title}: {what} must be a rank from 0 to {communicator.size - 1}")
    if not 0 <= number <= MAX_TAG:
        raise DataError(f"{title}: tag must be from 0 to 2**63 - 1")
