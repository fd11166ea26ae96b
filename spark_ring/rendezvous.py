"""Where ranks find each other when nobody else gathers their announcements: a small server and its client.

One conversation, over TCP::

    client                                   server
      |------ connect ------------------------>|
      |<----- mutual HMAC (native) ----------->|   nothing else is read before it
      |------ {rank, size, group, text} ------>|   frame: 4 bytes of length, then JSON
      |              ... until all of (group, size) have come ...
      |<----- {texts: [...]} or {error: ...} --|
      close                                  close

Rounds are kept apart by group and size and start anew after each answer, so a job can meet again after
``shutdown()``, also with fewer ranks. Who cannot prove the secret is dropped and counted, and costs the
others nothing: each connection has its own short-lived thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from spark_ring import _core
from spark_ring.addresses import host_of
from spark_ring.config import Settings, variable_name
from spark_ring.errors import AuthenticationError, CommunicatorError, RendezvousError
from spark_ring.frames import receive_message, send_message

__all__ = ["RendezvousServer", "exchange_through"]

MAX_REQUEST = 64 * 1024
MAX_ANSWER = 64 * 1024 * 1024
MAX_SIZE = 1 << 16  # ranks of a round
_SLACK = 2.0  # seconds that a client waits beyond the server's deadline, for the server's better message
_STARVED_PAUSE = 0.05  # seconds before the server looks again when it lacks descriptors or threads
_log = logging.getLogger("spark_ring.rendezvous")


class RendezvousServer:
    """Gathers one text per rank and gives everyone all of them.

    Attributes:
        address: ``host:port`` for the clients.
        strangers: connections dropped because they did not prove the secret or did not speak the protocol.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        host: str = "127.0.0.1",
        connect_timeout: float = 60.0,
        handshake_timeout: float = 10.0,
        max_connections: int = 1024,
    ) -> None:
        """Bind a port of the kernel's choice and start to serve.

        Args:
            secret: the job's secret.
            host: address to bind and to tell the clients.
            connect_timeout: seconds that a round may last from its first rank to its last.
            handshake_timeout: seconds for a client to prove the secret and to send its text.
            max_connections: connections served at once; further ones are closed, and their clients try again.

        Raises:
            RendezvousError: the address cannot be bound.
        """
        self._secret = secret
        self._connect_timeout = connect_timeout
        self._handshake_timeout = handshake_timeout
        self._slots = threading.BoundedSemaphore(max_connections)
        self._changed = threading.Condition()
        self._rounds: dict[tuple[str, int], _Round] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._failure: dict[str, Any] = {}
        self._closing = False
        self._starved = False
        self.strangers = 0
        self._listener = _listen(host)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._waker, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="spark_ring-rendezvous", daemon=True)
        self._thread.start()

    def fail(self, reason: str, rank: int) -> None:
        """Answer everyone, now and later, with an error: ``rank`` is known to be lost."""
        with self._changed:
            self._failure = self._failure or {"error": reason, "rank": rank}
            self._changed.notify_all()

    def close(self) -> None:
        """Stop serving and end all threads. May be called again."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._wake.send(b".")
        self._thread.join()
        with self._changed:  # from here on there are no more
            handlers = list(self._connections.items())
        for connection, _ in handlers:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for _, thread in handlers:
            thread.join()
        for end in (self._listener, self._waker, self._wake):
            end.close()

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._waker, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._closing:
                    return
                if self._listener in ready and not self._take_one():
                    # The listener stays readable; look again when others may have let go of something.
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing, _STARVED_PAUSE)

    def _take_one(self) -> bool:
        """Take a connection and start to serve it; False if this process lacks descriptors or threads."""
        try:
            connection, source = self._listener.accept()
        except OSError as error:
            starved = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            if starved and not self._starved:
                _log.warning(
                    "the rendezvous server cannot take connections: %s; raise the limit (ulimit -n)", error
                )
            self._starved = starved
            return not starved  # else it was gone again before it was taken
        self._starved = False
        if not self._slots.acquire(blocking=False):
            self._drop(source, "too many connections")
            connection.close()
            return True
        thread = threading.Thread(
            target=self._serve, args=(connection, source), name="spark_ring-rendezvous-peer", daemon=True
        )
        with self._changed:
            self._connections[connection] = thread
        try:
            thread.start()
        except RuntimeError as error:  # the client tries again
            with self._changed:
                del self._connections[connection]
            connection.close()
            self._slots.release()
            _log.warning("the rendezvous server cannot serve a connection: %s", error)
            return False
        return True

    def _serve(self, connection: socket.socket, source: Any) -> None:
        try:
            request = self._read_request(connection)
            if request is None:
                self._drop(source, "it could not prove the job's secret or does not speak the protocol")
                return
            answer = self._gather(connection, *request)
            connection.settimeout(self._handshake_timeout)
            send_message(connection, answer)
        except OSError as error:
            _log.debug("rendezvous with %s broke: %s", source, error)
        finally:
            with self._changed:
                self._connections.pop(connection, None)
            connection.close()
            self._slots.release()

    def _read_request(self, connection: socket.socket) -> tuple[int, int, str, str] | None:
        """Return (rank, size, group, text), or None for a stranger."""
        try:
            connection.setblocking(True)
            _core.handshake_server(connection.fileno(), self._secret, self._handshake_timeout)
            message = receive_message(connection, MAX_REQUEST, time.monotonic() + self._handshake_timeout)
            rank, size, group, text = (message[key] for key in ("rank", "size", "group", "text"))
        except (CommunicatorError, OSError, ValueError, KeyError):
            return None
        well_formed = (
            type(rank) is int and type(size) is int and isinstance(group, str) and isinstance(text, str)
        )
        return (rank, size, group, text) if well_formed and 0 <= rank < size <= MAX_SIZE else None

    def _gather(
        self, connection: socket.socket, rank: int, size: int, group: str, text: str
    ) -> dict[str, Any]:
        """Enter a round, wait for its end, return the answer."""
        with self._changed:
            key = (group, size)
            round_ = self._rounds.get(key)
            if round_ is None:
                round_ = self._rounds[key] = _Round(size, time.monotonic() + self._connect_timeout)
            round_.enter(rank, text, connection)
            if round_.finished:
                self._end(key, round_)
            while not (round_.finished or self._failure or self._closing):
                in_time = self._changed.wait(max(0.0, round_.deadline - time.monotonic()))
                if not in_time and not round_.finished:  # its last rank may have come with the deadline
                    round_.error = round_.missing(self._connect_timeout)
                    self._end(key, round_)
            if round_.finished:
                return round_.answer()
            return self._failure or {"error": "the launcher ended while ranks were still meeting"}

    def _end(self, key: tuple[str, int], round_: _Round) -> None:
        """Let the next rank that comes start a new round, and wake those of this one."""
        if self._rounds.get(key) is round_:
            del self._rounds[key]
        self._changed.notify_all()

    def _drop(self, source: Any, why: str) -> None:
        with self._changed:
            self.strangers += 1
        _log.warning("rendezvous dropped a connection from %s: %s", source, why)


class _Round:
    """One gathering of all ranks of a group."""

    def __init__(self, size: int, deadline: float) -> None:
        self.size = size
        self.deadline = deadline
        self.texts: dict[int, str] = {}
        self.connections: dict[int, socket.socket] = {}
        self.error = ""

    @property
    def finished(self) -> bool:
        return bool(self.error) or len(self.texts) == self.size

    def enter(self, rank: int, text: str, connection: socket.socket) -> None:
        earlier = self.connections.get(rank)
        if earlier is not None and not _is_gone(earlier):
            self.error = (
                f"two processes came as rank {rank} of {self.size}, from {_name(earlier)} and from "
                f"{_name(connection)}; every process needs a rank of its own"
            )
            return
        self.texts[rank] = text
        self.connections[rank] = connection

    def missing(self, timeout: float) -> str:
        absent = [rank for rank in range(self.size) if rank not in self.texts]
        return (
            f"{_ranks(absent)} of {self.size} did not come within {timeout:g} s "
            f"({_ranks(sorted(self.texts))} did); look at the output of the missing, or raise "
            f"connect_timeout ({variable_name('connect_timeout')})"
        )

    def answer(self) -> dict[str, Any]:
        if self.error:
            return {"error": self.error}
        return {"texts": [self.texts[rank] for rank in range(self.size)]}


def _listen(host: str) -> socket.socket:
    try:
        # An IPv6 address may come with a zone, which only getaddrinfo understands.
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.bind(place)
            listener.listen(256)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise RendezvousError(f"the rendezvous server cannot bind {host}: {error}") from error
    return listener


def exchange_through(
    address: str,
    secret: bytes,
    rank: int,
    size: int,
    settings: Settings | None = None,
    *,
    group: str = "world",
) -> Callable[[str], list[str]]:
    """Return an ``exchange`` for :meth:`Communicator.connect` that goes through a :class:`RendezvousServer`.

    Args:
        address: the server's ``host:port``.
        secret: the job's secret.
        rank: this process's rank.
        size: the world size.
        settings: gives ``connect_timeout`` and ``handshake_timeout``.
        group: ranks of one group meet each other only.

    Returns:
        A function that sends this rank's text and returns those of all ranks, in rank order. While the
        server cannot be reached it tries again, ever more slowly, until ``connect_timeout``. It raises
        RendezvousError, or AuthenticationError when the secrets differ.
    """
    limits = settings or Settings()
    host = host_of(address)
    port_text = address.rpartition(":")[2]
    if not host or not port_text.isdigit():
        raise RendezvousError(f"the rendezvous address {address!r} is not of the form host:port", rank=rank)
    request = {"rank": rank, "size": size, "group": group}

    def exchange(text: str) -> list[str]:
        deadline = time.monotonic() + limits.connect_timeout + _SLACK
        pause, last = 0.02, "no attempt was made"
        while time.monotonic() < deadline:
            try:
                answer = _ask((host, int(port_text)), secret, {**request, "text": text}, limits, deadline)
            except AuthenticationError:
                raise
            except (OSError, CommunicatorError) as error:
                last = f"{type(error).__name__}: {error}"
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                pause = min(2 * pause, 1.0)
                continue
            return _texts(answer, rank, size)
        raise RendezvousError(
            f"rank {rank} got no answer from the rendezvous server at {address} within "
            f"{limits.connect_timeout:g} s (last: {last}); is the launcher alive and reachable from "
            f"this host? Raise connect_timeout ({variable_name('connect_timeout')}) if it is only slow",
            rank=rank,
        )

    return exchange


def _ask(
    endpoint: tuple[str, int], secret: bytes, request: dict[str, Any], limits: Settings, deadline: float
) -> dict[str, Any]:
    with socket.create_connection(endpoint, timeout=max(0.001, deadline - time.monotonic())) as connection:
        connection.setblocking(True)
        _core.handshake_client(connection.fileno(), secret, limits.handshake_timeout)
        connection.settimeout(limits.handshake_timeout)
        send_message(connection, request)
        try:
            return receive_message(connection, MAX_ANSWER, deadline)
        except ValueError as error:
            raise RendezvousError(f"the rendezvous server's answer cannot be read: {error}") from error


def _texts(answer: dict[str, Any], rank: int, size: int) -> list[str]:
    if "error" in answer:
        lost = answer.get("rank")
        raise RendezvousError(str(answer["error"]), rank=lost if isinstance(lost, int) else None)
    texts = answer.get("texts")
    if not isinstance(texts, list) or len(texts) != size or not all(isinstance(text, str) for text in texts):
        raise RendezvousError(
            f"rank {rank} got an answer that does not hold {size} texts from the rendezvous server"
        )
    return texts


def _is_gone(connection: socket.socket) -> bool:
    """Return whether the client has closed; while it waits for its answer, it sends nothing."""
    try:
        poll = select.poll()  # select() refuses descriptors from 1024
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0)) and connection.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True


def _name(connection: socket.socket) -> str:
    try:
        peer = connection.getpeername()
    except OSError:
        return "a closed connection"
    return f"{peer[0]}:{peer[1]}"


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
