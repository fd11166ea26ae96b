"""Ranks as threads of one process: enough for everything but deaths, and quick."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from spark_ring.communicator import Communicator
from spark_ring.config import Settings

SECRET = b"the secret of the tests, 32 byte"


class Meeting:
    """An ``exchange`` for ranks that are threads."""

    def __init__(self, size: int) -> None:
        self._texts = [""] * size
        self._barrier = threading.Barrier(size, timeout=30)

    def of(self, rank: int) -> Callable[[str], list[str]]:
        def exchange(text: str) -> list[str]:
            self._texts[rank] = text
            self._barrier.wait()
            return list(self._texts)

        return exchange


def together(fn: Callable[[Communicator], Any], size: int, **settings: Any) -> list[Any]:
    """Call ``fn(communicator)`` on every rank; return the results, or raise the first error.

    A setting may be a function of the rank.
    """
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    errors: list[Exception] = []

    def work(rank: int) -> None:
        own = {name: value(rank) if callable(value) else value for name, value in settings.items()}
        try:
            with _connect(rank, size, meeting, own) as communicator:
                results[rank] = fn(communicator)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def _connect(rank: int, size: int, meeting: Meeting, own: dict[str, Any]) -> Communicator:
    return Communicator.connect(rank, size, meeting.of(rank), SECRET, Settings(**own), toward="127.0.0.1")
