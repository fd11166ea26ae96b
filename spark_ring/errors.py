"""Every exception that spark_ring raises, as one tree.

::

    SparkRingError
    ├── ConfigError                 (ValueError)   a setting or Param has a value that cannot be used
    ├── CommunicatorError           (RuntimeError) something between ranks
    │   ├── RendezvousError         ranks could not find, reach or trust each other
    │   │   └── AuthenticationError a peer could not prove that it knows the job's secret
    │   ├── PeerLostError           a rank died or its connection broke
    │   ├── CollectiveTimeoutError  (TimeoutError) a deadline passed while waiting for peers
    │   ├── MismatchError           (ValueError)   ranks disagree about an operation
    │   ├── AbortedError            another rank gave up and said why
    │   └── ClosedError             the communicator was already closed
    ├── WorkerError                 (RuntimeError) a user's function raised in a worker
    ├── LaunchError                 (RuntimeError) workers could not be started
    ├── PreflightError              (RuntimeError) a check on the driver failed before any worker started
    ├── DataError                   (ValueError)   the data cannot be used as asked
    │   ├── ColumnError             one column, named
    │   └── ManifestError           a materialized dataset is missing, incomplete or of another version
    ├── StoreError                  (OSError)      a store cannot be read or written
    └── UntrustedArtifactError      (PermissionError) loading would run code nobody vouched for

Each message says what was expected, what was found, where (rank, column, setting) and what to do.
The attributes carry the same facts for programs.
"""

from __future__ import annotations

__all__ = [
    "AbortedError",
    "AuthenticationError",
    "ClosedError",
    "CollectiveTimeoutError",
    "ColumnError",
    "CommunicatorError",
    "ConfigError",
    "DataError",
    "LaunchError",
    "ManifestError",
    "MismatchError",
    "PeerLostError",
    "PreflightError",
    "RendezvousError",
    "SparkRingError",
    "StoreError",
    "UntrustedArtifactError",
    "WorkerError",
]


class SparkRingError(Exception):
    """Base of every error that spark_ring raises on purpose."""


class ConfigError(SparkRingError, ValueError):
    """A setting or Param has a value that cannot be used."""


class CommunicatorError(SparkRingError, RuntimeError):
    """Something went wrong between ranks.

    Attributes:
        rank: the rank that is to blame, or ``None`` when no single rank is.
        operation: the operation under way, for example ``"allreduce 'grad.0'"``, or ``None``.
    """

    def __init__(self, message: str, *, rank: int | None = None, operation: str | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.operation = operation

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class RendezvousError(CommunicatorError):
    """Ranks could not find, reach or trust each other while a communicator was being made."""


class AuthenticationError(RendezvousError):
    """A peer could not prove that it knows the job's secret."""


class PeerLostError(CommunicatorError):
    """A rank died, or the connection to it broke. ``rank`` is the lost rank."""


class CollectiveTimeoutError(CommunicatorError, TimeoutError):
    """A deadline passed while waiting for peers. ``rank`` is a rank that was waited for."""


class MismatchError(CommunicatorError, ValueError):
    """Ranks disagree about an operation: its name, kind, shape, dtype, op or root."""


class AbortedError(CommunicatorError):
    """Another rank gave up and said why. ``rank`` is that rank."""


class ClosedError(CommunicatorError):
    """The communicator was already closed, or the process was forked after it was made."""


class WorkerError(SparkRingError, RuntimeError):
    """A user's function raised in a worker.

    Attributes:
        rank: the rank in which it was raised.
        error_type: the name of the exception's class, for example ``"ZeroDivisionError"``.
        error_message: ``str()`` of the exception.
        traceback: the worker's formatted traceback.
    """

    def __init__(
        self, message: str, *, rank: int, error_type: str = "", error_message: str = "", traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.error_type = error_type
        self.error_message = error_message
        self.traceback = traceback

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class LaunchError(SparkRingError, RuntimeError):
    """Workers could not be started, or ended without a word."""


class PreflightError(SparkRingError, RuntimeError):
    """A check on the driver failed before any worker started."""


class DataError(SparkRingError, ValueError):
    """The data cannot be used as asked."""


class ColumnError(DataError):
    """One column cannot be used as asked.

    Attributes:
        column: the column's name as the user wrote it.
    """

    def __init__(self, message: str, *, column: str) -> None:
        super().__init__(message)
        self.column = column

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ManifestError(DataError):
    """A materialized dataset is missing, incomplete, or of another version."""


class StoreError(SparkRingError, OSError):
    """A store cannot be read or written."""


class UntrustedArtifactError(SparkRingError, PermissionError):
    """Loading would run code from an artifact that nobody vouched for."""


def _rebuild(cls: type[SparkRingError], args: tuple[object, ...], state: dict[str, object]) -> SparkRingError:
    """Unpickle an error with keyword-only attributes."""
    # OSError lays its objects out in its own way; cls.__new__ would find another base's __new__ first.
    make = OSError.__new__ if issubclass(cls, OSError) else Exception.__new__
    error: SparkRingError = make(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
