"""Connections that do not belong to the job: dropped, counted, and nobody waits for them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

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


class _Ear:
    """Stands between ranks and a listener, and keeps what the clients of each connection have said."""

    def __init__(self, endpoint: tuple[str, int]) -> None:
        self._endpoint = endpoint
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard: list[bytearray] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(self._endpoint)
            except OSError:  # the rank has all it needs and listens no more
                client.close()
                continue
            self.heard.append(bytearray())
            self._start(self._carry, client, server, self.heard[-1])

    @staticmethod
    def _carry(client: socket.socket, server: socket.socket, heard: bytearray) -> None:
        with client, server, contextlib.suppress(OSError):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is client:
                        heard += data
                    (server if source is client else client).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


def _say(endpoint: tuple[str, int], words: bytes) -> bytes:
    """Connect, say this and nothing more; return all that is answered until the listener hangs up."""
    answer = b""
    with socket.create_connection(endpoint, timeout=10) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(words)
        while piece := connection.recv(4096):
            answer += piece
    return answer


def _meet(
    secret: bytes, settings: Settings, before: Callable[[int, tuple[str, int]], tuple[str, int]]
) -> list[Any]:
    """Let two ranks meet; ``before(rank, endpoint)`` sees rank 0's listener first, and says whom to call."""
    with RendezvousServer(secret) as server:

        def join(rank: int) -> tuple[float, int]:
            exchange = exchange_through(server.address, secret, rank, 2, settings)

            def exchange_and_look(text: str) -> list[str]:
                texts = exchange(text)
                if rank == 0:
                    return texts
                fields = json.loads(texts[0])
                fields["port"] = before(rank, (fields["address"], fields["port"]))[1]
                return [json.dumps(fields), texts[1]]

            with Communicator.connect(
                rank, 2, exchange_and_look, secret, settings, toward=server.address
            ) as comm:
                return float(comm.allreduce(1.0)), comm.statistics()["strangers"]

        return _in_threads([lambda r=r: join(r) for r in range(2)])


def test_what_was_heard_in_a_session_opens_no_other() -> None:
    """An outsider has every byte of a real session and repeats it to the next one, of the same secret."""
    settings = Settings(transport="tcp", handshake_timeout=5.0, connect_timeout=20.0)
    ears: list[_Ear] = []
    answers: list[bytes] = []

    def listen(_: int, endpoint: tuple[str, int]) -> tuple[str, int]:
        ears.append(_Ear(endpoint))
        return "127.0.0.1", ears[0].port

    assert _meet(SECRET, settings, listen) == [(2.0, 0), (2.0, 0)]
    ears[0].close()
    heard = [bytes(words) for words in ears[0].heard if len(words) >= 96]
    assert len(heard) == 3  # control, data, messages
    assert all(words[:8] == b"SPKRING1" for words in heard)

    def repeat(_: int, endpoint: tuple[str, int]) -> tuple[str, int]:
        with ThreadPoolExecutor(8) as pool:
            answers.extend(pool.map(lambda words: _say(endpoint, words), [*heard, *heard]))
        return endpoint

    again = _meet(SECRET, settings, repeat)
    assert again == [(2.0, 6), (2.0, 0)]  # each was refused and counted
    for answer in answers:
        assert len(answer) == 104  # a hello and a verdict
        assert answer[64] == 1  # that refuses
        assert answer[72:] == bytes(32)  # and proves nothing


def test_a_challenge_that_is_sent_back_proves_nothing() -> None:
    """A listener without the secret answers a rank with what the rank itself has said."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def reflect() -> None:
            with contextlib.suppress(OSError):
                while data := theirs.recv(4096):
                    theirs.sendall(data)

        thread = threading.Thread(target=reflect)
        thread.start()
        with pytest.raises(RendezvousError):
            _core.handshake_client(ours.fileno(), SECRET, 2.0)
        ours.shutdown(socket.SHUT_RDWR)
        thread.join()


CROWD = 1000


def test_a_thousand_silent_and_slow_strangers_hold_nobody_up() -> None:
    """None is served beyond its time or beside too many others, so what they cost is bounded."""
    settings = Settings(transport="tcp", handshake_timeout=3.0, connect_timeout=30.0)
    stop = threading.Event()
    drips: list[threading.Thread] = []

    def drip(connection: socket.socket) -> None:
        """The beginning of a hello, one byte at a time, never enough."""
        with contextlib.suppress(OSError):
            for byte in b"SPKRING1" * 8:
                connection.sendall(bytes([byte]))
                if stop.wait(0.2):
                    return

    with ExitStack() as stack:

        def crowd(_: int, endpoint: tuple[str, int]) -> tuple[str, int]:
            for number in range(CROWD):
                connection = stack.enter_context(socket.create_connection(endpoint, timeout=10))
                if number % 50 == 0:
                    drips.append(threading.Thread(target=drip, args=(connection,)))
                    drips[-1].start()
                elif number % 3 == 0:
                    connection.sendall(b"\xff" * 200)  # no hello, however it is read
            return endpoint

        needed = 4 * CROWD
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < needed:
            pytest.skip(f"needs {needed} descriptors, this process may have {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        try:
            before = _resident_bytes()
            results = _meet(SECRET, settings, crowd)
            grown = _resident_bytes() - before
        finally:
            stop.set()
            for thread in drips:
                thread.join()
            stack.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [value for value, _ in results] == [2.0, 2.0], results
    assert CROWD // 3 <= results[0][1] <= CROWD
    assert grown < 64 * 1024 * 1024


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_rendezvous_serves_ranks_beside_more_strangers_than_it_takes() -> None:
    with RendezvousServer(SECRET, handshake_timeout=0.5, max_connections=8) as server, ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(socket.create_connection(_endpoint(server.address)))
        settings = Settings(handshake_timeout=2.0, connect_timeout=20.0)
        exchanges = [exchange_through(server.address, SECRET, rank, 2, settings) for rank in range(2)]
        assert _in_threads([lambda e=e: e("t") for e in exchanges]) == [["t", "t"]] * 2
        assert threading.active_count() < 64
    assert server.strangers >= 64
