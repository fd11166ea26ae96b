"""A world of one, for tests that need a communicator and no peers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_ring import world
from spark_ring.communicator import Communicator


@pytest.fixture
def alone() -> Iterator[Communicator]:
    """The real communicator of a world of one rank, as the process's default."""
    world.init()
    yield world.current()
    world.shutdown()
