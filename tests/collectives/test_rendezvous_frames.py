"""Bytes from the network that Python parses: whatever they are, the reader says so and the server goes on."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ring import _core, peers
from spark_ring.config import Settings
from spark_ring.errors import RendezvousError
from spark_ring.frames import receive_message, send_message
from spark_ring.rendezvous import RendezvousServer, exchange_through

SECRET = b"s" * 32
LIMIT = 4096

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
DEEP = b"[" * 2000 + b"]" * 2000


def _framed(payload: bytes, length: int | None = None) -> bytes:
    return (len(payload) if length is None else length).to_bytes(4, "big") + payload


FRAMES = st.one_of(
    st.binary(max_size=64),
    st.binary(max_size=64).map(_framed),
    JSON.map(lambda value: _framed(json.dumps(value).encode())),
    st.builds(_framed, st.binary(max_size=64), st.integers(0, 2**32 - 1)),
    st.just(_framed(DEEP)),
)


def _received(sent: bytes) -> Any:
    """Return what is read of these bytes and the end of the stream, or the error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        try:
            return receive_message(ours, LIMIT, time.monotonic() + 5)
        except (ValueError, OSError) as error:
            return error


@settings(max_examples=300, deadline=None, derandomize=True)
@given(FRAMES)
def test_any_bytes_are_an_object_or_a_plain_error(sent: bytes) -> None:
    got = _received(sent)
    if isinstance(got, dict):
        length = int.from_bytes(sent[:4], "big")
        assert length <= LIMIT
        # Equal as texts: NaN is not equal to itself.
        assert json.dumps(json.loads(sent[4 : 4 + length])) == json.dumps(got)
    else:
        assert isinstance(got, (ValueError, OSError))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_what_is_sent_is_what_is_received(message: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_message(theirs, message)
        assert json.dumps(receive_message(ours, 1 << 20, time.monotonic() + 5)) == json.dumps(message)


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read() -> None:
    error = _received(_framed(b"", 2**32 - 1))
    assert isinstance(error, ValueError)
    assert f"4294967295 bytes; at most {LIMIT}" in str(error)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=50) | JSON.map(json.dumps) | st.just(DEEP.decode()))
def test_an_announcement_is_good_or_a_rendezvous_error(text: str) -> None:
    with pytest.raises(RendezvousError, match="place 0 cannot be used"):
        peers.read_announcements([text], 0, 1)


REQUEST = {"rank": 0, "size": 1, "group": "world", "text": "t"}
HOSTILE = [
    _framed(DEEP),
    _framed(b"\xff\xfe"),
    _framed(b"", 2**31),
    *(
        _framed(json.dumps({**REQUEST, **wrong}).encode())
        for wrong in (
            {"size": 10**12},  # a list of who is missing would not fit into memory
            {"size": 10**400},
            {"rank": -1},
            {"rank": True},
            {"rank": 1},
            {"size": 1.0},
            {"group": None},
            {"text": ["t"]},
        )
    ),
    _framed(json.dumps({"rank": 0}).encode()),
    b"\0\0",
]


def test_who_knows_the_secret_and_talks_nonsense_is_dropped_counted_and_harmless() -> None:
    with RendezvousServer(SECRET, connect_timeout=5, handshake_timeout=2) as server:
        host, _, port = server.address.rpartition(":")
        for sent in HOSTILE:
            with socket.create_connection((host, int(port))) as connection:
                connection.setblocking(True)
                _core.handshake_client(connection.fileno(), SECRET, 5)
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(5)
                with contextlib.suppress(ConnectionError):  # it was dropped before all was read
                    assert connection.recv(1) == b""
        assert exchange_through(server.address, SECRET, 0, 1, Settings())("text") == ["text"]
    assert server.strangers == len(HOSTILE)
