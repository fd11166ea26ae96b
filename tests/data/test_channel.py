"""The queue between the assembling thread and the consumer."""

from __future__ import annotations

import threading

import pytest

from spark_ring.data.channel import Channel


def test_items_in_order_then_the_end() -> None:
    channel: Channel[int] = Channel(2)
    thread = threading.Thread(target=lambda: ([channel.put(i) for i in range(50)], channel.end()))
    thread.start()
    assert [channel.get() for _ in range(51)] == [*range(50), None]
    assert channel.get() is None
    thread.join()


def test_put_waits_for_room() -> None:
    channel: Channel[int] = Channel(1)
    channel.put(0)
    second = threading.Event()
    thread = threading.Thread(target=lambda: (channel.put(1), second.set()))
    thread.start()
    assert not second.wait(0.05)
    assert channel.get() == 0
    assert second.wait(10)
    thread.join()


def test_an_error_comes_after_the_items_before_it_and_once() -> None:
    channel: Channel[int] = Channel(2)
    channel.put(1)
    channel.end(ZeroDivisionError("x"))
    assert channel.get() == 1
    with pytest.raises(ZeroDivisionError):
        channel.get()
    assert channel.get() is None


def test_closing_lets_a_waiting_producer_go() -> None:
    channel: Channel[int] = Channel(1)
    channel.put(0)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(channel.put(1)))
    thread.start()
    channel.close()
    thread.join(10)
    assert answers == [False]
    assert channel.get() is None
    assert not channel.put(2)


def test_waiting_is_counted() -> None:
    channel: Channel[int] = Channel(1)
    channel.put(0)
    channel.get()
    assert channel.wait_seconds == 0.0
    timer = threading.Timer(0.1, lambda: channel.put(1))
    timer.start()
    channel.get()
    timer.join()
    assert channel.wait_seconds > 0.05
