"""What arrays are taken, copied, kept, and refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator
from spark_ring.errors import ConfigError, DataError
from spark_ring.ops import ReduceOp

KINDS = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)


def test_0_d_stays_0_d_where_that_has_a_meaning() -> None:
    """Case 79."""

    def work(comm: Communicator) -> None:
        loss = np.array(comm.rank + 0.5)
        reduced = comm.allreduce(loss, "average")
        assert isinstance(reduced, np.ndarray)
        assert (reduced.shape, float(reduced)) == ((), 1.5)
        assert comm.allreduce(loss, out=loss) is loss
        assert comm.allgather(np.array(comm.rank)).tolist() == [0, 1, 2]
        moved = np.array(float(comm.rank))
        assert comm.broadcast(moved, 2) is moved
        assert (moved.shape, float(moved)) == ((), 2.0)
        with pytest.raises(DataError, match="reducescatter 's': a 0-d array has no rows"):
            comm.reducescatter(loss, name="s")

    together(work, 3)


def test_plain_numbers_and_lists_are_arrays_too() -> None:
    def work(comm: Communicator) -> None:
        assert comm.allreduce(1.5) == 3.0
        assert comm.allreduce([1, 2]).tolist() == [2, 4]
        assert comm.allgather([comm.rank]).tolist() == [0, 1]

    together(work, 2)


def test_every_shape_without_elements_keeps_its_shape() -> None:
    """Case 76: also when only one rank has no rows."""

    def work(comm: Communicator) -> None:
        for shape in ((0,), (1, 0, 2), (0, 3)):
            empty = np.ones(shape, np.float32)
            assert comm.allreduce(empty).shape == shape
            assert comm.broadcast(empty).shape == shape
            assert comm.allgather(empty).shape == (3 * shape[0], *shape[1:])
        assert comm.reducescatter(np.ones((0, 3))).shape == (0, 3)
        rows = np.full((0 if comm.rank == 1 else 2, 2), comm.rank)
        assert comm.allgather(rows).tolist() == [[0, 0], [0, 0], [2, 2], [2, 2]]

    together(work, 3)


def test_non_contiguous_and_foreign_byte_order_inputs_are_copied() -> None:
    def work(comm: Communicator) -> None:
        matrix = np.arange(12.0).reshape(3, 4)
        assert np.array_equal(comm.allreduce(matrix.T), 2 * matrix.T)
        assert np.array_equal(comm.allreduce(matrix[:, ::2]), 2 * matrix[:, ::2])
        assert np.array_equal(comm.allgather(matrix[::-1]), np.concatenate([matrix[::-1]] * 2))
        assert np.array_equal(comm.allreduce(np.arange(4, dtype=">f4")), [0, 2, 4, 6])
        frozen = np.arange(3.0)
        frozen.flags.writeable = False
        assert comm.allreduce(frozen).tolist() == [0, 2, 4]
        # The root only reads.
        assert comm.broadcast(matrix.T if comm.rank == 0 else np.empty((4, 3)), 0)[1].tolist() == [1, 5, 9]

    together(work, 2)


def test_an_output_that_overlaps_the_input_is_right() -> None:
    def work(comm: Communicator) -> None:
        memory = np.arange(10.0)
        expected = 2 * memory[:8]
        assert np.array_equal(comm.allreduce(memory[:8], out=memory[2:]), expected)

    together(work, 2)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.ones((4, 6))[:, ::2], "not C-contiguous"),
        (np.broadcast_to(1.0, (4, 3)), "read-only"),
        (np.ones((3, 4)), r"must have shape \(4, 3\).*it has shape \(3, 4\)"),
        (np.ones((4, 3), np.float32), "dtype float64.*dtype float32"),
        ([0.0] * 12, "must be a numpy.ndarray, not list"),
    ],
)
def test_an_output_that_cannot_be_written_in_place_is_refused(out: object, words: str) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(DataError, match=f"allreduce 'grad': the output.*{words}"):
            comm.allreduce(np.ones((4, 3)), out=out, name="grad")  # type: ignore[arg-type]

    together(work, 1)


def test_a_receiver_of_a_broadcast_must_be_writable() -> None:
    def work(comm: Communicator) -> None:
        target = np.ones(3)
        if comm.rank == 1:
            frozen = np.ones(3)
            frozen.flags.writeable = False
            with pytest.raises(DataError, match="broadcast 'w': the output is read-only"):
                comm.broadcast(frozen, 0, name="w")
        comm.broadcast(target, 0)

    together(work, 2)


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.ones(2, complex), np.array([{}]), np.ones(2, "datetime64[s]")]
)
def test_an_unsupported_dtype_is_refused_with_the_supported_ones(array: np.ndarray) -> None:
    def work(comm: Communicator) -> None:
        for verb in (comm.allreduce, comm.allgather, comm.broadcast, comm.reducescatter):
            with pytest.raises(
                DataError, match=r"is not supported; the supported dtypes are float16, .*bool"
            ):
                verb(array)

    together(work, 1)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_numeric_dtype_is_reduced(transport: str) -> None:
    def work(comm: Communicator) -> None:
        for kind in KINDS:
            array = np.arange(1, 6, dtype=kind)
            assert comm.allreduce(array).dtype == kind
            assert comm.allreduce(array).tolist() == [3, 6, 9, 12, 15], kind
            assert comm.allreduce(array + comm.rank, "max").tolist() == [3, 4, 5, 6, 7], kind
            assert comm.reducescatter(array, "product")[0] == (1, 27, 125)[comm.rank], kind

    together(work, 3, transport=transport)


def test_bool_has_and_and_or_but_no_sum() -> None:
    def work(comm: Communicator) -> None:
        mine = np.array([True, False, comm.rank == 0])
        assert comm.allreduce(mine, "max").tolist() == [True, False, True]
        assert comm.allreduce(mine, "min").tolist() == [True, False, False]
        assert comm.allgather(mine).dtype == np.bool_
        with pytest.raises(ConfigError, match="bool"):
            comm.allreduce(mine, "sum")

    together(work, 2)


def test_the_average_of_integers_is_rounded_toward_zero() -> None:
    """Case 71: one rule for every framework, decided in the native ring."""

    def work(comm: Communicator) -> None:
        mine = np.array([comm.rank + 1, -comm.rank - 1, 2**31 - 1], np.int32)
        assert comm.allreduce(mine, "average").tolist() == [1, -1, 2**31 - 1]

    together(work, 2)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_float16_average_does_not_overflow(transport: str) -> None:
    """Case 74: the sum of four times 40000 is beyond float16, the average is not."""

    def work(comm: Communicator) -> None:
        mine = np.full(1000, 40000.0, np.float16)
        assert (comm.allreduce(mine, "average") == 40000.0).all()
        assert (comm.allreduce(mine, prescale=0.25) == 40000.0).all()

    together(work, 4, transport=transport)


def test_scales_are_applied_before_and_after() -> None:
    def work(comm: Communicator) -> None:
        assert comm.allreduce(np.full(3, 2.0), prescale=0.5, postscale=10.0).tolist() == [20.0] * 3
        with pytest.raises(ConfigError, match=r"prescale.*floating"):
            comm.allreduce(np.ones(3, np.int32), prescale=0.5)

    together(work, 2)


def test_ops_have_the_fields_names() -> None:
    def work(comm: Communicator) -> None:
        mine = np.array([comm.rank + 1.0])
        results = {op: float(comm.allreduce(mine, op)[0]) for op in ReduceOp}
        assert results == {"sum": 3.0, "average": 1.5, "min": 1.0, "max": 2.0, "product": 2.0, "adasum": 1.5}
        assert comm.allreduce(mine, "Sum") == 3.0
        with pytest.raises(
            ConfigError, match=r"no reduction named 'mean'; .*average, max, min, product, sum"
        ):
            comm.allreduce(mine, "mean")
        with pytest.raises(DataError, match="root is 2; it must be a rank from 0 to 1"):
            comm.broadcast(mine, 2)

    together(work, 2)
