"""Every collective against NumPy: transport × world size × dtype × size × op × place.

One start per transport and world size; the cells run inside, see ``ring_cells.py``.
"""

import pytest
import ring_cells

from spark_ring.launch.answers import first_failure
from spark_ring.launch.local import LocalJob

SIZES = (1, 2, 3, 4, 8)


def _two_hosts(rank: int) -> dict[str, str]:
    """Pretend that even and odd ranks are on two hosts."""
    return {"host_id": f"pretended-{rank % 2}"}


def _place_on_two_hosts(rank: int, size: int) -> tuple[int, int, int, int]:
    """Local rank and size, and rank and size among those with the same local rank on other hosts."""
    host, local_rank = rank % 2, rank // 2
    local_sizes = ((size + 1) // 2, size // 2)
    return local_rank, local_sizes[host], host, sum(count > local_rank for count in local_sizes)


def _run(transport: str, size: int) -> list[dict]:
    each = _two_hosts if transport == "mixed" else None
    forced = "auto" if transport == "mixed" else transport
    settings = {"transport": forced, "segment_bytes": ring_cells.SEGMENT_BYTES, "collective_timeout": 60.0}
    with LocalJob(ring_cells.check_everything, np=size, each=each, **settings) as job:
        outcomes = job.wait(100)
    failure = first_failure(outcomes)
    if failure is not None:
        raise failure.error(size)
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transport", ["shm", "tcp", "mixed"])
def test_collectives_agree_with_numpy(transport: str, size: int) -> None:
    """Also Case 76 (zero elements), Case 80 (world of one)."""
    results = _run(transport, size)
    assert [result["failures"] for result in results] == [[]] * size

    expected = {"shm": "shm", "tcp": "tcp", "mixed": "tcp" if size == 2 else "shm+tcp"}[transport]
    assert {result["transport"] for result in results} == {"self" if size == 1 else expected}

    if transport == "mixed":
        assert [result["place"] for result in results] == [
            _place_on_two_hosts(rank, size) for rank in range(size)
        ]
    else:
        assert [result["place"] for result in results] == [(rank, size, 0, 1) for rank in range(size)]
