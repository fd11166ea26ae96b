"""Beginning, ending and beginning again; exits, forks, and use after the end."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spark_ring
from spark_ring import world
from spark_ring.communicator import Communicator, Handle
from spark_ring.config import Settings
from spark_ring.errors import AbortedError, ClosedError, ConfigError
from spark_ring.rendezvous import RendezvousServer

SECRET = b"s" * 32


@pytest.fixture(autouse=True)
def _no_world_left() -> Any:
    yield
    world.shutdown()


def _ends_and_begins_again() -> list[tuple[int, int]]:
    """Meet 20 times, in turn as a world of all and as worlds of one; return threads and descriptors."""
    counts = []
    everyone = world._settings_for({})
    for turn in range(20):
        world.shutdown()
        with pytest.raises(ClosedError, match="not initialised"):
            world.allreduce(1.0)
        if turn % 2:
            world.init(rank=0, size=1)
            assert world.allreduce(1.0) == 1.0
        else:
            world.init()
            assert (world.rank(), world.size()) == (everyone.rank, everyone.size)
            assert world.allreduce(1.0) == everyone.size
        counts.append(_settled())
    return counts


def _settled() -> tuple[int, int]:
    """Return threads and descriptors; the kernel lists a thread for a moment after it was joined."""
    fewest, since = (10**6, 10**6), time.monotonic()
    while time.monotonic() - since < 0.05:
        now = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        if now < fewest:
            fewest, since = now, time.monotonic()
        time.sleep(0.002)
    return fewest


def test_twenty_worlds_in_one_process_do_not_grow_it() -> None:
    """Case 116."""
    for counts in spark_ring.run(_ends_and_begins_again, np=3):
        for first in (0, 1):  # like is compared with like: the world of all, the world of one
            assert len(set(counts[first + 2 :: 2])) == 1, counts


def test_init_twice_is_once_but_another_world_is_refused() -> None:
    world.init()
    first = world.current()
    world.init()
    assert world.current() is first
    with pytest.raises(ConfigError, match=r"already rank 0 of 1; call shutdown\(\) first"):
        world.init(rank=0, size=2)
    world.shutdown()
    world.shutdown()
    assert not world.is_initialized()


def test_threads_that_init_at_once_share_one_world() -> None:
    together = threading.Barrier(8)

    def begin(_: int) -> Communicator:
        together.wait()
        world.init()
        return world.current()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(begin, range(8)))) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rank": 1}, "SPARK_RING_SIZE"),
        ({"size": 2}, "SPARK_RING_RANK"),
        ({"rank": 0, "size": 2}, "SPARK_RING_RENDEZVOUS, SPARK_RING_SECRET are not set"),
        ({"rank": 0, "size": 2, "rendezvous": "127.0.0.1:1"}, "SPARK_RING_SECRET is not set"),
        ({"rank": 2, "size": 2, "rendezvous": "127.0.0.1:1", "secret": "ab"}, "rank is 2 and size is 2"),
        ({"rank": 0, "size": 2, "rendezvous": "127.0.0.1:1", "secret": "hush!"}, "not hexadecimal"),
        ({"rank": 0, "size": 2, "rendezvous": "nowhere", "secret": "ab"}, "host:port"),
    ],
)
def test_half_a_launch_says_what_is_missing(given: dict[str, Any], words: str) -> None:
    """Case 175: a missing key refuses to start."""
    with pytest.raises((ConfigError, spark_ring.errors.RendezvousError), match=words) as caught:
        world.init(**given)
    assert "hush!" not in str(caught.value)
    assert not world.is_initialized()


def test_a_lent_communicator_answers_the_verbs_and_survives_shutdown() -> None:
    lent = Communicator.connect(0, 1, lambda text: [text], b"", Settings())
    with lent:
        with world.use(lent):
            world.init()
            world.shutdown()
            assert world.current() is lent
            assert spark_ring.rank() == 0
        assert not world.is_initialized()
        assert lent.allreduce(2.0) == 2.0


def test_use_puts_the_former_world_back_also_after_an_error() -> None:
    world.init()
    own = world.current()
    with Communicator.connect(0, 1, lambda text: [text], b"", Settings()) as lent:
        with pytest.raises(KeyError), world.use(lent):
            raise KeyError
        assert world.current() is own


def test_a_closed_communicator_refuses_and_closes_again() -> None:
    communicator = Communicator.connect(0, 1, lambda text: [text], b"", Settings())
    communicator.close()
    communicator.close()
    for verb in (communicator.allreduce, communicator.allgather, communicator.broadcast):
        with pytest.raises(ClosedError):
            verb(np.ones(3))


def _abort_in_rank_0() -> tuple[int | None, str]:
    world.barrier()
    if world.rank() == 0:
        world.current().abort("no more data on rank 0")
        return None, ""
    with pytest.raises(AbortedError) as caught:
        world.allreduce(np.ones(10), name="later")
    return caught.value.rank, str(caught.value)


def test_abort_is_told_to_everyone_with_its_reason() -> None:
    results = spark_ring.run(_abort_in_rank_0, np=3)
    for rank in (1, 2):
        culprit, text = results[rank]
        assert culprit == 0
        assert "no more data on rank 0" in text
        assert "allreduce 'later'" in text


def _read_late(folder: str, transport: str) -> float:
    """Rank 0 ends as soon as its part is done; rank 1 waits for its result only then."""
    rank = world.rank()
    handle = world.allreduce_async(np.full(500_000, 1.0, np.float32))
    if rank == 0:
        value = float(handle.wait()[-1])
        world.shutdown()
        Path(folder, transport).touch()
        return value
    deadline = time.monotonic() + 20
    while not Path(folder, transport).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return float(handle.wait()[-1])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_normal_exit_right_after_the_last_collective_is_no_error(transport: str, tmp_path: Path) -> None:
    """Case 101."""
    assert spark_ring.run(_read_late, args=(str(tmp_path), transport), transport=transport) == [2.0, 2.0]


def _fork_child(communicator: Communicator, handle: Handle, queue: Any) -> None:
    answers = []
    for attempt in (
        handle.wait,
        lambda: handle.add_done_callback(print),
        lambda: communicator.allreduce(np.ones(2)),
        lambda: communicator.allreduce_async(np.ones(2)),
        lambda: communicator.barrier(),
        lambda: communicator.broadcast_object(1),
        lambda: world.allreduce(1.0),
    ):
        try:
            attempt()
            answers.append("it worked")
        except ClosedError as error:
            answers.append(str(error))
    world.shutdown()
    queue.put(answers)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads
def test_a_forked_child_is_refused_and_its_parent_unharmed() -> None:
    world.init()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    handle = world.allreduce_async(np.ones(2))
    child = context.Process(target=_fork_child, args=(world.current(), handle, queue))
    child.start()
    answers = queue.get()
    child.join()
    assert child.exitcode == 0
    child.close()
    queue.close()
    assert len(answers) == 7
    assert all("forked after the communicator was made" in answer for answer in answers), answers
    assert world.allreduce(1.0) == 1.0
    assert handle.wait().tolist() == [1.0, 1.0]


def test_a_forked_child_that_exits_normally_ends() -> None:
    """The interpreter's end in a child must not wait for threads that live in the parent only."""
    code = (
        "import os, sys, spark_ring\n"
        "spark_ring.init()\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), spark_ring.allreduce(2.0))\n"
    )
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (process.stdout, process.stderr) == ("0 2.0\n", "")


def test_a_world_can_meet_by_explicit_settings() -> None:
    def join(rank: int, address: str) -> float:
        from spark_ring.rendezvous import exchange_through

        settings = Settings()
        exchange = exchange_through(address, SECRET, rank, 2, settings)
        with Communicator.connect(rank, 2, exchange, SECRET, settings, toward=address) as communicator:
            return float(communicator.allreduce(float(rank)))

    with RendezvousServer(SECRET) as server, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(join, range(2), [server.address] * 2)) == [1.0, 1.0]
