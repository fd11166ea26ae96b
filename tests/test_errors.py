"""The error tree: what is in it, what built-in class each error also is, and that errors travel."""

import copy
import pickle

import pytest

from spark_ring import errors

ALL = [getattr(errors, name) for name in errors.__all__]
BUILT_IN = {
    errors.ConfigError: ValueError,
    errors.CommunicatorError: RuntimeError,
    errors.CollectiveTimeoutError: TimeoutError,
    errors.MismatchError: ValueError,
    errors.WorkerError: RuntimeError,
    errors.LaunchError: RuntimeError,
    errors.PreflightError: RuntimeError,
    errors.DataError: ValueError,
    errors.StoreError: OSError,
    errors.UntrustedArtifactError: PermissionError,
}


def _example(kind: type[errors.SparkRingError]) -> errors.SparkRingError:
    if issubclass(kind, errors.CommunicatorError):
        return kind("rank 2 left", rank=2, operation="allreduce 'grad'")
    if issubclass(kind, errors.WorkerError):
        return kind("rank 1 raised", rank=1, error_type="KeyError", error_message="'x'", traceback="tb")
    if issubclass(kind, errors.ColumnError):
        return kind("column x is ragged", column="x")
    return kind("text")


def test_every_error_in_the_module_is_exported_and_in_the_tree() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)
    assert all(issubclass(kind, errors.SparkRingError) for kind in ALL)
    assert all(name in (errors.__doc__ or "") for name in errors.__all__)


@pytest.mark.parametrize(("kind", "built_in"), BUILT_IN.items(), ids=lambda kind: kind.__name__)
def test_callers_can_catch_the_built_in_class(kind: type, built_in: type) -> None:
    with pytest.raises(built_in):
        raise _example(kind)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("through", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_keep_text_and_facts_through_pickle_and_copy(kind: type, through: object) -> None:
    """Workers send errors to the driver; the facts must arrive with them."""
    error = _example(kind)
    arrived = through(error)  # type: ignore[operator]
    assert type(arrived) is kind
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_a_communicator_error_tells_rank_and_operation() -> None:
    error = errors.PeerLostError("gone", rank=3, operation="barrier")
    assert (error.rank, error.operation) == (3, "barrier")
    assert (errors.PeerLostError("gone").rank, errors.PeerLostError("gone").operation) == (None, None)
