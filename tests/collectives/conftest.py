"""Tests of the ring leave nothing behind, not even a file descriptor."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_left(no_leaks_at_all: None) -> None:
    """Apply the strict check to every test in this folder."""
