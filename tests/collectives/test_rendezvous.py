"""The rendezvous server: gathering, deadlines, duplicates, later rounds."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_ring.config import Settings
from spark_ring.errors import RendezvousError
from spark_ring.frames import receive_message, send_message
from spark_ring.rendezvous import RendezvousServer, exchange_through

SECRET = b"s" * 32


def _meet(server: RendezvousServer, ranks: list[int], size: int, group: str = "world") -> list[object]:
    """Let ranks meet at the same time; return what each got or raised."""

    def ask(rank: int) -> object:
        exchange = exchange_through(
            server.address, SECRET, rank, size, Settings(connect_timeout=10), group=group
        )
        try:
            return exchange(f"{group} {rank}")
        except RendezvousError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(ask, ranks))


def test_everyone_gets_all_texts_in_rank_order_again_and_again() -> None:
    with RendezvousServer(SECRET) as server:
        for size in (5, 2, 5, 1):
            answers = _meet(server, list(range(size))[::-1], size)
            assert answers == [[f"world {rank}" for rank in range(size)]] * size


def test_groups_do_not_mix() -> None:
    with RendezvousServer(SECRET) as server, ThreadPoolExecutor(2) as pool:
        left = pool.submit(_meet, server, [0, 1], 2, "left")
        right = pool.submit(_meet, server, [0, 1], 2, "right")
        assert left.result() == [["left 0", "left 1"]] * 2
        assert right.result() == [["right 0", "right 1"]] * 2


def test_the_ranks_that_never_came_are_named_to_those_that_did() -> None:
    """Case 97."""
    with RendezvousServer(SECRET, connect_timeout=0.3) as server:
        answers = _meet(server, [0, 3], 4)
        for answer in answers:
            assert isinstance(answer, RendezvousError)
            assert "ranks 1, 2 of 4 did not come within 0.3 s (ranks 0, 3 did)" in str(answer)
            assert "SPARK_RING_CONNECT_TIMEOUT" in str(answer)
        assert _meet(server, [0, 1], 2) == [["world 0", "world 1"]] * 2, "a later round must work"


def test_two_processes_of_one_rank_are_both_told() -> None:
    with RendezvousServer(SECRET) as server:
        for answer in _meet(server, [1, 1], 3):
            assert isinstance(answer, RendezvousError)
            assert "two processes came as rank 1 of 3" in str(answer)


def test_a_known_loss_is_told_at_once_with_its_rank() -> None:
    with RendezvousServer(SECRET) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_meet, server, [0], 2)
        server.fail("rank 1 of 2 failed before all had met: it was killed", 1)
        (answer,) = waiting.result(timeout=10)
        assert isinstance(answer, RendezvousError)
        assert answer.rank == 1
        assert "it was killed" in str(answer)


def test_closing_ends_those_that_wait() -> None:
    server = RendezvousServer(SECRET)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_meet, server, [0], 2)
        while not server._rounds:
            threading.Event().wait(0.01)
        server.close()
        server.close()
        (answer,) = waiting.result(timeout=15)
    assert isinstance(answer, RendezvousError)


def test_an_address_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(RendezvousError, match=r"cannot bind 192\.0\.2\.1"):
        RendezvousServer(SECRET, host="192.0.2.1")


def test_a_round_that_is_complete_as_its_time_runs_out_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rank may come while a waiting one has timed out and does not hold the lock yet."""
    with RendezvousServer(SECRET, connect_timeout=0.2) as server:
        whole = server._changed.wait

        def wait(timeout: float | None = None) -> bool:
            (round_,) = server._rounds.values()
            woken = whole(timeout)
            if not woken:
                round_.texts[1] = "just in time"
            return woken

        monkeypatch.setattr(server._changed, "wait", wait)
        assert _meet(server, [0], 2) == [["world 0", "just in time"]]


def test_a_server_without_descriptors_waits_for_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = 0

    class Starved:
        """The listener, which at first has no descriptor to give."""

        def __init__(self, listener: socket.socket) -> None:
            self._listener = listener

        def accept(self) -> object:
            nonlocal refusals
            if refusals < 3:
                refusals += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self._listener.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(self._listener, name)

    with RendezvousServer(SECRET) as server:
        listener = server._listener
        monkeypatch.setattr(server, "_take_one", _with_listener(server, Starved(listener)))
        begin = time.monotonic()
        assert _meet(server, [0, 1], 2) == [["world 0", "world 1"]] * 2
        assert time.monotonic() - begin >= 0.1, "it must not spin"
        monkeypatch.undo()
    assert refusals == 3
    told = [record.message for record in caplog.records if "cannot take connections" in record.message]
    assert len(told) == 1
    assert "Too many open files; raise the limit (ulimit -n)" in told[0]


def _with_listener(server: RendezvousServer, listener: object) -> Callable[[], bool]:
    """Return the server's _take_one, taking from another listener."""
    whole = server._take_one

    def take_one() -> bool:
        kept, server._listener = server._listener, listener  # type: ignore[assignment]
        try:
            return whole()
        finally:
            server._listener = kept

    return take_one


def test_a_thread_that_cannot_start_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 0
    whole = threading.Thread.start

    def start(self: threading.Thread) -> None:
        nonlocal failures
        if self.name == "spark_ring-rendezvous-peer" and failures < 3:
            failures += 1
            raise RuntimeError("can't start new thread")
        whole(self)

    with RendezvousServer(SECRET, max_connections=1) as server:
        monkeypatch.setattr(threading.Thread, "start", start)
        assert _meet(server, [0], 1) == [["world 0"]]
        monkeypatch.undo()
    assert failures == 3
    assert not server._connections


def test_a_connection_taken_while_closing_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the accept thread took last is served by a thread that close() waits for."""
    server = RendezvousServer(SECRET, handshake_timeout=30)
    entered, taken, whole = threading.Event(), threading.Event(), server._take_one

    def slowly() -> bool:
        entered.set()
        while not server._closing:
            threading.Event().wait(0.005)
        done = whole()
        taken.set()
        return done

    monkeypatch.setattr(server, "_take_one", slowly)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        assert entered.wait(10)  # the accept thread is about to take it
        server.close()
        assert taken.is_set()
        assert not server._connections
        connection.settimeout(10)
        assert connection.recv(1) == b""


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_messages_arrive_whole_whatever_the_pieces() -> None:
    ours, theirs = _pair()
    with ours, theirs:
        message = {"text": "ü" * 1000, "rank": 3}
        thread = threading.Thread(target=send_message, args=(ours, message))
        thread.start()
        assert receive_message(theirs, 1 << 20, _soon()) == message
        thread.join()


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"\xff\xff\xff\xff", ValueError),
        (b"\x00\x00\x00\x02[]", ValueError),
        (b"\x00\x00\x00\x02{\xff", ValueError),
        (b"\x00\x00\x00\x09{}", ConnectionError),
        (b"\x00", ConnectionError),
        (b"", ConnectionError),
    ],
)
def test_hostile_messages_are_refused(sent: bytes, kind: type[Exception]) -> None:
    """Case 98: a peer that closes in the middle of a message, or claims one that is too long."""
    ours, theirs = _pair()
    with theirs:
        with ours:
            ours.sendall(sent)
        with pytest.raises(kind):
            receive_message(theirs, 1024, _soon())


def test_a_message_that_does_not_come_in_time_is_given_up() -> None:
    ours, theirs = _pair()
    with ours, theirs:
        ours.sendall(b"\x00\x00")
        with pytest.raises(TimeoutError):
            receive_message(theirs, 1024, time.monotonic() + 0.1)


def _soon() -> float:
    return time.monotonic() + 10
