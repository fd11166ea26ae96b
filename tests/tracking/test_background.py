"""Calls in a thread of their own: order, failures, limits."""

from __future__ import annotations

import logging
import threading

import pytest

from spark_ring.tracking.background import Background


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "spark_ring")
    return caplog


def test_calls_run_in_order_in_another_thread(warnings):
    background, ran = Background("spark_ring-test"), []
    for number in range(50):
        background.submit("x", lambda number=number: ran.append((number, threading.get_ident())), limit=30)
    assert background.finish()
    assert [number for number, _ in ran] == list(range(50))
    assert {thread for _, thread in ran} == {ran[0][1]} != {threading.get_ident()}
    assert not warnings.records


def test_submitting_does_not_wait_for_a_call_that_blocks():
    background, gate = Background("spark_ring-test"), threading.Event()
    background.submit("blocked", gate.wait, limit=30)
    background.submit("after", lambda: None, limit=30)  # returns although the first has not
    gate.set()
    assert background.finish()


def test_a_failure_is_one_warning_and_later_calls_are_tried(warnings):
    background, ran = Background("spark_ring-test"), []

    def fail():
        raise ConnectionError("server is down\nsecond line")

    for _ in range(3):
        background.submit("metrics", fail, limit=30)
    background.submit("metrics", lambda: ran.append(1), limit=30)
    assert background.finish()
    assert ran == [1]
    (record,) = warnings.records
    assert "metrics" in record.message
    assert "server is down" in record.message
    assert "second line" not in record.message


def test_a_call_beyond_its_limit_is_left_behind(warnings):
    background, gate, ran = Background("spark_ring-test"), threading.Event(), []
    background.submit("the model", gate.wait, limit=0.05)
    background.submit("after", lambda: ran.append(1), limit=30)
    try:
        assert not background.finish()
        assert background.broken
        background.submit("later", lambda: ran.append(2), limit=30)
    finally:
        gate.set()
        background._thread.join(10)
    assert ran == []
    (record,) = warnings.records
    assert "the model" in record.message


def test_finishing_without_a_call_ends_the_thread():
    background = Background("spark_ring-test")
    assert background.finish()
    assert not background._thread.is_alive()
