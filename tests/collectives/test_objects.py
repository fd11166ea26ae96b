"""Values between ranks: JSON and bytes, never pickle."""

from __future__ import annotations

import pytest
from threads import together

from spark_ring import objects
from spark_ring.communicator import Communicator
from spark_ring.errors import CommunicatorError, DataError

VALUES = [
    None,
    True,
    7,
    -1.5,
    "text ü",
    "",
    [],
    {},
    [1, [2, {"a": None}]],
    {"k": [1.0]},
    b"",
    b"\x00\xff" * 10,
]


@pytest.mark.parametrize("value", VALUES)
def test_values_arrive_as_they_were_sent(value: object) -> None:
    def work(comm: Communicator) -> object:
        assert comm.broadcast_object(value if comm.rank == 1 else object, root=1) == value
        return comm.allgather_object(value)

    assert together(work, 2) == [[value, value]] * 2


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_objects_of_different_sizes_come_from_every_rank(transport: str) -> None:
    """Case 82: some empty, one large."""
    values = ["", {"rows": list(range(200_000))}, b"", [None]]

    def work(comm: Communicator) -> object:
        return comm.allgather_object(values[comm.rank], name="facts")

    assert together(work, 4, transport=transport) == [values] * 4


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "value is a object"),
        ({"a": [1, {2, 3}]}, r"value\['a'\]\[1\] is a set"),
        ({"a": {1: "x"}}, r"value\['a'\] has the key 1 of type int"),
        ([lambda: 0], r"value\[0\] is a function"),
    ],
)
def test_what_json_cannot_hold_is_refused_where_it_is_and_everywhere(value: object, words: str) -> None:
    def work(comm: Communicator) -> None:
        for gather in (False, True):
            send = comm.allgather_object if gather else comm.broadcast_object
            if comm.rank == 0:
                with pytest.raises(DataError, match=words):
                    send(value)
            else:
                with pytest.raises(CommunicatorError, match="rank 0 could not send its object") as caught:
                    send("fine")
                assert caught.value.rank == 0
        assert comm.allreduce(1.0) == 3.0

    together(work, 3)


def test_tuples_arrive_as_lists_on_every_rank_alike() -> None:
    def work(comm: Communicator) -> object:
        return comm.broadcast_object((1, (2,)))

    assert together(work, 2) == [[1, [2]]] * 2


def test_a_payload_is_never_unpickled() -> None:
    import pickle

    assert objects.decode(b"b" + pickle.dumps({"a": 1})) == pickle.dumps({"a": 1})
    with pytest.raises(ValueError, match=r"."):
        objects.decode(b"j" + pickle.dumps({"a": 1}))
