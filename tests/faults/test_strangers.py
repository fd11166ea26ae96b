"""Connections that do not belong to the job: dropped, counted, and nobody waits for them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest

from spark_ring import _core
from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from spark_ring.errors import AuthenticationError, RendezvousError
from spark_ring.rendezvous import RendezvousServer, exchange_through

SECRET = b"s" * 32


def _http(endpoint: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(endpoint)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    return connection


def _silent(endpoint: tuple[str, int]) -> socket.socket:
    return socket.create_connection(endpoint)


def _gone(endpoint: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(endpoint)
    connection.close()
    return connection


def _zeros(endpoint: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(endpoint)
    connection.sendall(bytes(4096))
    return connection


STRANGERS = (_http, _silent, _gone, _zeros)


def _endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _in_threads(calls: list[Callable[[], object]]) -> list[object]:
    """Run calls at the same time; return what each returned or raised."""
    results: list[object] = [None] * len(calls)

    def call(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_the_rendezvous_goes_on_beside_strangers() -> None:
    settings = Settings(handshake_timeout=1.0)
    with RendezvousServer(SECRET, handshake_timeout=1.0) as server, ExitStack() as stack:
        for stranger in STRANGERS:
            stack.enter_context(stranger(_endpoint(server.address)))
        exchanges = [exchange_through(server.address, SECRET, rank, 3, settings) for rank in range(3)]
        texts = _in_threads([lambda rank=rank: exchanges[rank](f"text of {rank}") for rank in range(3)])
        assert texts == [[f"text of {rank}" for rank in range(3)]] * 3
    # Closing waits for every connection to be done with.
    assert server.strangers == len(STRANGERS)


def test_a_wrong_secret_is_told_from_other_trouble_and_disturbs_nobody() -> None:
    settings = Settings(connect_timeout=5.0)
    with RendezvousServer(SECRET) as server:
        with pytest.raises(AuthenticationError):
            exchange_through(server.address, b"w" * 32, 0, 2, settings)("text")
        exchanges = [exchange_through(server.address, SECRET, rank, 2, settings) for rank in range(2)]
        assert _in_threads([lambda e=e: e("t") for e in exchanges]) == [["t", "t"]] * 2
    assert server.strangers == 1


def _connect_beside_strangers(
    rank: int, server: RendezvousServer, secret: bytes, settings: Settings
) -> object:
    exchange = exchange_through(server.address, SECRET, rank, 2, settings)
    opened = ExitStack()

    def exchange_and_let_strangers_in(text: str) -> list[str]:
        import json

        texts = exchange(text)
        if rank == 1:  # strangers reach every listener before its peer does
            for other in map(json.loads, texts):
                for stranger in STRANGERS:
                    opened.enter_context(stranger((other["address"], other["port"])))
        return texts

    with (
        opened,
        Communicator.connect(
            rank, 2, exchange_and_let_strangers_in, secret, settings, toward=server.address
        ) as communicator,
    ):
        return float(communicator.allreduce(np.float64(rank + 1)))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_connect_beside_strangers_on_their_listeners(transport: str) -> None:
    settings = Settings(transport=transport, handshake_timeout=2.0, connect_timeout=20.0)
    with RendezvousServer(SECRET) as server:
        results = _in_threads(
            [lambda r=r: _connect_beside_strangers(r, server, SECRET, settings) for r in range(2)]
        )
    assert results == [3.0, 3.0]


def test_ranks_of_different_secrets_do_not_talk() -> None:
    settings = Settings(handshake_timeout=1.0, connect_timeout=2.0)
    secrets = [SECRET, b"w" * 32]
    with RendezvousServer(SECRET) as server:
        results = _in_threads(
            [
                lambda r=r: Communicator.connect(
                    r,
                    2,
                    exchange_through(server.address, SECRET, r, 2, settings),
                    secrets[r],
                    settings,
                    toward=server.address,
                )
                for r in range(2)
            ]
        )
    assert all(isinstance(result, RendezvousError) for result in results), results
    assert any(isinstance(result, AuthenticationError) for result in results), results
    for result in results:
        assert SECRET.decode() not in str(result)


def test_a_server_that_is_no_rendezvous_server_is_refused() -> None:
    """Case 98: retried with back-off until the deadline, then an error that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        stop = threading.Event()

        def hang_up() -> None:
            listener.settimeout(0.05)
            while not stop.is_set():
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=hang_up)
        thread.start()
        settings = Settings(connect_timeout=0.5)
        try:
            with pytest.raises(RendezvousError) as caught:
                exchange_through(f"127.0.0.1:{port}", SECRET, 0, 2, settings)("text")
        finally:
            stop.set()
            thread.join()
    if not isinstance(caught.value, AuthenticationError):
        assert f"127.0.0.1:{port}" in str(caught.value)
        assert "SPARK_RING_CONNECT_TIMEOUT" in str(caught.value)


def test_the_handshake_is_mutual_over_a_plain_socket() -> None:
    for secrets, well in (((SECRET, SECRET), True), ((SECRET, b"x"), False)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            results = _in_threads(
                [
                    lambda s=ours, k=secrets[0]: _core.handshake_client(s.fileno(), k, 2.0),
                    lambda s=theirs, k=secrets[1]: _core.handshake_server(s.fileno(), k, 2.0),
                ]
            )
        if well:
            assert results == [None, None]
        else:
            assert all(isinstance(result, RendezvousError) for result in results), results
