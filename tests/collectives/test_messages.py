"""Send and receive: order, tags, looks, sizes, back-pressure, deadlines, ends."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from spark_ring.arrays import FLOATS, INTEGERS
from spark_ring.communicator import Communicator
from spark_ring.errors import (
    AbortedError,
    ClosedError,
    CollectiveTimeoutError,
    CommunicatorError,
    DataError,
    MismatchError,
    PeerLostError,
)
from tests.collectives.threads import together

LONG = 100_000  # bytes: more than travel unasked


def test_arrays_of_every_dtype_and_shape_arrive_as_they_were() -> None:
    dtypes = [name for name in (*FLOATS, *INTEGERS, "bool") if name != "bfloat16"]
    shapes: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (7, 5), (2, 3, 4, 5), (30_000,)]

    def work(comm: Communicator) -> None:
        rng = np.random.default_rng(4)
        for dtype in dtypes:
            for shape in shapes:
                array = rng.integers(0, 2, shape).astype(dtype)
                if comm.rank == 0:
                    comm.send(array, 1)
                    continue
                got = comm.recv(None, 0)
                assert (got.dtype, got.shape) == (array.dtype, array.shape)
                assert np.array_equal(got, array)
                got[...] = 0  # a new array may be written to

    together(work, 2)


def test_bfloat16_travels_as_any_other_dtype() -> None:
    from spark_ring._core import Buffer

    def work(comm: Communicator) -> None:
        bits = np.arange(50_000, dtype=np.uint16)
        if comm.rank == 0:
            comm.core.send(Buffer.from_pointer(bits.ctypes.data, [50_000], "bfloat16", bits), 1, 0, 10).wait()
            return
        got = np.zeros_like(bits)
        comm.core.receive(Buffer.from_pointer(got.ctypes.data, [50_000], "bfloat16", got), 0, 0, 10).wait()
        assert np.array_equal(got, bits)

    together(work, 2)


def test_a_non_contiguous_array_is_sent_as_it_looks() -> None:
    def work(comm: Communicator) -> None:
        array = np.arange(40_000.0).reshape(200, 200).T[::2]
        if comm.rank == 0:
            comm.send(array, 1)
        else:
            assert np.array_equal(comm.recv(np.empty((100, 200)), 0), array)

    together(work, 2)


def test_one_tag_keeps_its_order_and_tags_do_not_wait_for_each_other() -> None:
    sizes = [1, 20_000, 3, 0, 50_000, 2, 9000, 10]

    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            handles = [
                comm.isend(np.full(size, 100 * tag + turn), 1, tag=tag)
                for turn, size in enumerate(sizes)
                for tag in (5, 6, 7)
            ]
            for handle in handles:
                assert handle.wait(20) is None
            return
        for tag in (7, 5, 6):
            for turn, size in enumerate(sizes):
                got = comm.recv(None, 0, tag=tag)
                assert np.array_equal(got, np.full(size, 100 * tag + turn)), (tag, turn)

    together(work, 2)


def test_receives_may_be_posted_first_and_fill_the_given_arrays() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            outs = [np.zeros(size, np.int32) for size in (10, LONG, 0)]
            handles = [comm.irecv(out, 1, tag=tag) for tag, out in enumerate(outs)]
            comm.barrier()
            for tag in (2, 0, 1):
                assert handles[tag].wait(20) is outs[tag]
                assert (outs[tag] == tag + 1).all()
        else:
            comm.barrier()
            for tag, size in ((1, LONG), (2, 0), (0, 10)):
                comm.send(np.full(size, tag + 1, np.int32), 0, tag=tag)

    together(work, 2)


@pytest.mark.parametrize("size", [3, 5])
def test_everyone_to_everyone_while_collectives_run(size: int) -> None:
    def work(comm: Communicator) -> None:
        handle = comm.allreduce_async(np.ones(200_000), name="beside")
        sends, receives = [], []
        for turn in range(15):
            for peer in range(size):
                length = (turn * 7919 + comm.rank * 31 + peer) % 30_000
                sends.append(comm.isend(np.full(length, comm.rank * 1000 + turn), peer, tag=turn % 3))
        for turn in range(15):
            assert comm.allreduce(1.0) == size
            for peer in range(size):
                length = (turn * 7919 + peer * 31 + comm.rank) % 30_000
                receives.append((comm.irecv(None, peer, tag=turn % 3), length, peer * 1000 + turn))
        for received, length, value in receives:
            got = received.wait(60)
            assert got.shape == (length,)
            assert (got == value).all()
        for sent in sends:
            sent.wait(60)
        assert (handle.wait(60) == size).all()

    together(work, size)


def test_several_threads_send_and_receive_at_once() -> None:
    def work(comm: Communicator) -> None:
        errors: list[Exception] = []

        def use(tag: int) -> None:
            try:
                for turn in range(50):
                    length = (turn * 2003) % 20_000
                    sent = comm.isend(np.full(length, turn + tag), 1 - comm.rank, tag=tag)
                    assert (comm.recv(None, 1 - comm.rank, tag=tag) == turn + tag).all()
                    sent.wait(20)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=use, args=(tag,)) for tag in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors

    together(work, 2)


def test_an_array_of_other_looks_names_both_and_the_message_is_kept() -> None:
    def work(comm: Communicator) -> None:
        for length in (4, LONG):
            if comm.rank == 1:
                comm.send(np.ones(length, np.float32), 0, tag=3)
                continue
            wrong = rf"rank 1 sent float32 \[{length}\], this rank wants int64 \[4\]; the message is kept"
            with pytest.raises(MismatchError, match=wrong) as caught:
                comm.recv(np.zeros(4, np.int64), 1, tag=3)
            assert caught.value.rank == 1
            assert caught.value.operation == "recv of int64 [4] from rank 1, tag 3"
            posted = comm.irecv(np.zeros((length, 1), np.float32), 1, tag=3)
            with pytest.raises(MismatchError, match=rf"wants float32 \[{length}, 1\]"):
                posted.wait(20)
            assert comm.recv(None, 1, tag=3).tolist() == [1.0] * length

    together(work, 2)


def test_a_posted_receive_of_other_looks_gives_way_to_the_next() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.barrier()
            comm.send(np.ones(3), 0)
            return
        wrong, right = comm.irecv(np.zeros(2), 1), comm.irecv(np.zeros(3), 1)
        comm.barrier()
        assert right.wait(20).tolist() == [1.0] * 3
        with pytest.raises(MismatchError):
            wrong.wait(20)

    together(work, 2)


def test_a_flood_of_short_messages_waits_for_its_receiver() -> None:
    """4 MiB wait at the receiver; the rest at the sender, whose handles are not done."""
    count, length = 300, 60_000  # 18 MB

    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            handles = [comm.isend(np.full(length, turn % 251, np.uint8), 1) for turn in range(count)]
            comm.recv(None, 1)  # tells that the receiver's courier has taken what it takes
            assert not handles[-1].poll()
            comm.send(np.zeros(0), 1, tag=1)
            for handle in handles:
                handle.wait(30)
            return
        comm.send(np.zeros(0), 0)
        comm.recv(None, 0, tag=1)
        for turn in range(count):
            assert (comm.recv(None, 0) == turn % 251).all()

    together(work, 2)


def test_two_floods_toward_each_other_do_not_block() -> None:
    def work(comm: Communicator) -> None:
        other = 1 - comm.rank
        handles = [comm.isend(np.full(60_000, turn, np.uint8), other) for turn in range(200)]
        handles += [comm.isend(np.full(3_000_000, 1, np.uint8), other, tag=1) for _ in range(3)]
        for _ in range(3):
            assert comm.recv(None, other, tag=1).sum() == 3_000_000
        for turn in range(200):
            assert (comm.recv(None, other) == turn).all()
        for handle in handles:
            handle.wait(30)

    together(work, 2)


def test_more_messages_than_are_on_the_way_at_once() -> None:
    """Beyond the window of short messages and the number of offers, the rest waits at the sender."""
    count = 45_000

    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            value = np.zeros(1, np.int32)
            handles = [comm.isend(value + turn, 1) for turn in range(count)]
            comm.barrier()
            for handle in handles:
                handle.wait(60)
            return
        comm.barrier()
        got = [int(comm.recv(None, 0)[0]) for _ in range(count)]
        assert got == list(range(count))

    together(work, 2)


@pytest.mark.parametrize("length", [10, LONG])
def test_messages_to_oneself(length: int) -> None:
    def work(comm: Communicator) -> None:
        for _ in range(3):
            sent = comm.isend(np.arange(length), comm.rank, tag=9)
            assert comm.recv(None, comm.rank, tag=9).tolist() == list(range(length))
            sent.wait(20)
            receiving = comm.irecv(np.zeros(length, np.int64), comm.rank)
            comm.send(np.arange(length), comm.rank)
            assert receiving.wait(20).tolist() == list(range(length))
        with pytest.raises(CollectiveTimeoutError):
            comm.send(np.zeros(LONG), comm.rank, timeout=0.1)
        with pytest.raises(CollectiveTimeoutError):
            comm.recv(None, comm.rank, timeout=0.1)

    together(work, 1)
    together(work, 2)


def test_a_receive_that_nothing_comes_for_ends_with_its_deadline_alone() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.ones(1), 1, tag=8)
            comm.send(np.ones(1), 1, tag=9)
            assert comm.recv(None, 1).tolist() == [5.0]
            return
        with pytest.raises(CollectiveTimeoutError) as caught:
            comm.recv(np.zeros(2), 0, tag=7, timeout=0.5)
        assert caught.value.rank == 0
        assert "recv of float64 [2] from rank 0, tag 7: waited 0.5 s for rank 0" in str(caught.value)
        assert "what it sent with tags 8, 9 is here" in str(caught.value)
        comm.send(np.array([5.0]), 0)
        assert comm.recv(None, 0, tag=9).tolist() == [1.0]

    together(work, 2)


def test_a_send_that_nobody_receives_is_withdrawn() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeoutError, match=r"for rank 1, which did not receive it"):
                comm.send(np.zeros(LONG), 1, timeout=0.3)
            comm.send(np.ones(LONG), 1)
            comm.barrier()
            return
        comm.irecv(None, 0, tag=1)  # starts the courier
        threading.Event().wait(0.6)
        assert comm.recv(None, 0).sum() == LONG, "the one that was withdrawn must not come"
        comm.barrier()

    together(work, 2, close_timeout=0.1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda comm: comm.send(np.ones(1), 2), "dest must be a rank from 0 to 1"),
        (lambda comm: comm.recv(None, -1), "source must be a rank from 0 to 1"),
        (lambda comm: comm.send(np.ones(1), 1.5), "must be integers"),
        (lambda comm: comm.recv(None, 0, tag=-1), "tag must be from 0"),
        (lambda comm: comm.recv(None, 0, tag=2**63), "tag must be from 0"),
        (lambda comm: comm.send(np.array(["a"]), 1), "dtype <U1"),
        (lambda comm: comm.recv([1.0], 1), "must be a numpy.ndarray or None, not list"),
        (lambda comm: comm.recv(np.zeros((4, 4)).T, 1), "not C-contiguous"),
        (lambda comm: comm.recv(np.broadcast_to(np.zeros(1), (4,)), 1), "read-only"),
    ],
)
def test_what_cannot_be_sent_or_received_is_refused(call: Any, words: str) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(DataError, match=words):
            call(comm)

    together(work, 2)


def test_a_rank_that_closes_delivers_first_and_is_named_afterwards() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.isend(np.full(1000, 7.0), 0)
            comm.isend(np.full(LONG, 8.0), 0)
            comm.close()
            return
        assert (comm.recv(None, 1) == 7).all()
        assert (comm.recv(None, 1) == 8).all()
        for call in (lambda: comm.recv(None, 1), lambda: comm.send(np.ones(1), 1)):
            with pytest.raises(PeerLostError, match="rank 1 has closed its communicator") as caught:
                call()
            assert caught.value.rank == 1

    together(work, 2)


def test_a_receive_that_waits_hears_of_the_close() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.barrier()
            comm.close()
            return
        waiting = comm.irecv(None, 1)
        comm.barrier()
        with pytest.raises(PeerLostError, match="rank 1 has closed its communicator"):
            waiting.wait(20)

    together(work, 2)


def test_closing_ends_what_never_came() -> None:
    def work(comm: Communicator) -> None:
        handles = [comm.irecv(None, 1 - comm.rank), comm.isend(np.ones(LONG), 1 - comm.rank, tag=4)]
        comm.barrier()
        start = time.monotonic()
        comm.close()
        assert time.monotonic() - start < 10
        for handle in handles:
            with pytest.raises(CommunicatorError):
                handle.wait(20)
        with pytest.raises(ClosedError, match="send of float64"):
            comm.send(np.ones(1), 1 - comm.rank)

    together(work, 2, close_timeout=0.3)


def test_an_abort_ends_waiting_messages_on_every_rank() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 2:
            comm.barrier()
            comm.abort("no more data")
            with pytest.raises(AbortedError, match="this rank gave up: no more data"):
                comm.recv(None, 0)
            return
        waiting = comm.irecv(None, 1 - comm.rank)
        comm.barrier()
        with pytest.raises(AbortedError, match="rank 2 gave up: no more data"):
            waiting.wait(20)

    together(work, 3)


def test_groups_have_messages_of_their_own() -> None:
    def work(comm: Communicator) -> None:
        group = comm.group([2, 0])
        if group is None:
            return
        if comm.rank == 2:
            comm.send(np.array([1]), 0)
            group.send(np.array([2]), 1)
            with pytest.raises(CollectiveTimeoutError, match=r"in a group, its ranks from 0 being 2, 0"):
                group.recv(None, 1, timeout=0.1)
        else:
            assert group.recv(None, 0).tolist() == [2]
            assert comm.recv(None, 2).tolist() == [1]
        group.barrier()

    together(work, 3)


def test_a_dropped_handle_keeps_the_memory_until_the_end() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            for turn in range(20):
                comm.isend(np.full(LONG, turn, np.uint8), 1)  # nobody holds array or handle
            comm.barrier()
            comm.recv(None, 1, tag=1)
            return
        comm.barrier()
        for turn in range(20):
            assert (comm.recv(None, 0) == turn).all()
        comm.send(np.zeros(0), 0, tag=1)

    together(work, 2)


@pytest.mark.timeout(180)
def test_more_than_two_gib() -> None:
    count = (1 << 31) + 4097

    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            array = np.zeros(count, np.uint8)
            array[:: 1 << 20] = 1
            array[-1] = 77
            comm.send(array, 1)
            return
        got = comm.recv(None, 0)
        assert (got.size, got[-1], int(got[:: 1 << 20].sum())) == (count, 77, (count - 1) // (1 << 20) + 1)

    together(work, 2)
