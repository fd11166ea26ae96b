"""Messages of the rendezvous on a socket: four bytes of length (big-endian), then a JSON object."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

__all__ = ["receive_message", "send_message"]


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message, within the socket's own timeout."""
    payload = json.dumps(message).encode()
    connection.sendall(len(payload).to_bytes(4, "big") + payload)


def receive_message(connection: socket.socket, limit: int, deadline: float) -> dict[str, Any]:
    """Read one message.

    Args:
        connection: the socket; its timeout is changed.
        limit: how many bytes a message may have.
        deadline: monotonic seconds.

    Raises:
        OSError: the connection broke, or the deadline passed.
        ValueError: this is no message, or too long a one.
    """
    length = int.from_bytes(_read(connection, 4, deadline), "big")
    if length > limit:
        raise ValueError(f"a message of {length} bytes; at most {limit} are read")
    try:
        message = json.loads(_read(connection, length, deadline))
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


def _read(connection: socket.socket, count: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < count:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        piece = connection.recv(count - len(received))
        if not piece:
            raise ConnectionError(f"the connection ended after {len(received)} of {count} bytes")
        received += piece
    return bytes(received)
