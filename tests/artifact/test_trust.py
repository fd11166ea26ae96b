"""Nobody's code runs unless somebody vouches for it."""

from __future__ import annotations

import threading

import pytest

from spark_ring.artifact.trust import require_trust, trusted_artifacts
from spark_ring.config import environment
from spark_ring.errors import UntrustedArtifactError


def test_without_a_word_of_trust_there_is_an_error_that_names_all_ways_to_give_it():
    """Case 178."""
    with pytest.raises(UntrustedArtifactError) as caught:
        require_trust("/models/1", "module.pkl")
    for part in (
        "/models/1",
        "module.pkl",
        "trusted=True",
        "trusted_artifacts()",
        "SPARK_RING_TRUSTED_ARTIFACTS=1",
    ):
        assert part in str(caught.value)


def test_three_ways_to_trust():
    require_trust("x", "y", trusted=True)
    with trusted_artifacts():
        require_trust("x", "y")
    with environment({"SPARK_RING_TRUSTED_ARTIFACTS": "1"}):
        require_trust("x", "y")
    with pytest.raises(UntrustedArtifactError):
        require_trust("x", "y")


def test_trust_ends_with_the_block_also_on_an_error():
    with pytest.raises(ValueError), trusted_artifacts():
        raise ValueError
    with pytest.raises(UntrustedArtifactError):
        require_trust("x", "y")


def test_trust_of_one_thread_is_not_that_of_another():
    found = []

    def other():
        try:
            require_trust("x", "y")
        except UntrustedArtifactError:
            found.append("refused")

    with trusted_artifacts():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
    assert found == ["refused"]
