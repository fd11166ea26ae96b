"""A bounded queue from one producing thread to one consumer, which either side may end at any time."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Channel"]

T = TypeVar("T")


class Channel(Generic[T]):
    """Items in order, then the end or an error.

    Args:
        capacity: items held before :meth:`put` waits.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._items: deque[T] = deque()
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        #: Seconds the consumer spent waiting in :meth:`get`.
        self.wait_seconds = 0.0

    def put(self, item: T) -> bool:
        """Add an item, waiting for room; ``False`` when the consumer is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException | None = None) -> None:
        """Say that no item follows; ``error`` is raised in the consumer after the items before it."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def get(self) -> T | None:
        """Return the next item, waiting for it; ``None`` at the end."""
        with self._changed:
            if not self._items and not self._ended and not self._closed:
                start = time.perf_counter()
                self._changed.wait_for(lambda: self._items or self._ended or self._closed)
                self.wait_seconds += time.perf_counter() - start
            if self._closed:
                return None
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return None

    def close(self) -> None:
        """The consumer wants no more: drop what is held, let the producer go."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the consumer is gone."""
        with self._changed:
            return self._closed
