"""Small Python values between ranks, as JSON or bytes: the length first, then the payload.

A value travels as one byte for its kind (``j`` JSON, ``b`` bytes) and its text. Nothing is pickled: what a
peer sends can be wrong, but it cannot run code. A rank whose value cannot be sent announces the length -1,
so that every rank raises instead of waiting for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_ring.errors import CommunicatorError, DataError

if TYPE_CHECKING:
    from spark_ring.communicator import Communicator

__all__ = ["allgather_object", "broadcast_object", "decode", "encode"]

MAX_BYTES = 1 << 30
_UNSENDABLE = -1


def encode(value: Any) -> bytes:
    """Return the bytes that stand for a JSON value or bytes.

    Raises:
        DataError: the value is of another kind (the message says where in it), or too large.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        payload = b"b" + bytes(value)
    else:
        _check(value, "value")
        payload = b"j" + json.dumps(value, separators=(",", ":")).encode()
    if len(payload) > MAX_BYTES:
        raise DataError(f"the object takes {len(payload)} bytes; at most {MAX_BYTES} are sent. Use an array")
    return payload


def decode(payload: bytes) -> Any:
    """Return the value that :func:`encode` was given (tuples come back as lists)."""
    return json.loads(payload[1:]) if payload[:1] == b"j" else payload[1:]


def broadcast_object(communicator: Communicator, value: Any, root: int, name: str | None) -> Any:
    """See :meth:`spark_ring.communicator.Communicator.broadcast_object`."""
    payload, problem = _try_encode(value) if communicator.rank == root else (b"", None)
    length = np.array([_UNSENDABLE if problem else len(payload)], np.int64)
    communicator.broadcast(length, root, name=_part(name, "length"))
    _raise_unsendable(length, problem, "broadcast_object", root)
    data = np.frombuffer(payload, np.uint8) if communicator.rank == root else np.empty(length[0], np.uint8)
    communicator.broadcast(data, root, name=_part(name, "payload"))
    return decode(data.tobytes())


def allgather_object(communicator: Communicator, value: Any, name: str | None) -> list[Any]:
    """See :meth:`spark_ring.communicator.Communicator.allgather_object`."""
    payload, problem = _try_encode(value)
    length = np.array([_UNSENDABLE if problem else len(payload)], np.int64)
    lengths = communicator.allgather(length, name=_part(name, "length"))
    for rank in np.flatnonzero(lengths == _UNSENDABLE)[:1]:
        _raise_unsendable(lengths[rank : rank + 1], problem, "allgather_object", int(rank))
    gathered = communicator.allgather(np.frombuffer(payload, np.uint8), name=_part(name, "payload")).tobytes()
    ends = np.cumsum(lengths)
    return [decode(gathered[end - length : end]) for length, end in zip(lengths, ends, strict=True)]


def _raise_unsendable(length: np.ndarray, problem: DataError | None, operation: str, rank: int) -> None:
    if length[0] != _UNSENDABLE:
        return
    if problem is not None:
        raise problem
    raise CommunicatorError(
        f"{operation}: rank {rank} could not send its object; see that rank's DataError for what is in it",
        rank=rank,
        operation=operation,
    )


def _try_encode(value: Any) -> tuple[bytes, DataError | None]:
    try:
        return encode(value), None
    except DataError as error:
        return b"", error


def _part(name: str | None, part: str) -> str | None:
    return f"{name}.{part}" if name else None


def _check(value: Any, where: str) -> None:
    """Refuse what JSON cannot hold, or would silently change (keys that are not text)."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise DataError(
                    f"{where} has the key {key!r} of type {type(key).__name__}; keys must be text"
                )
            _check(item, f"{where}[{key!r}]")
    else:
        raise DataError(
            f"{where} is a {type(value).__name__}; objects between ranks are JSON values (None, bool, "
            "number, text, list, dict) or bytes. Send arrays with broadcast or allgather"
        )
