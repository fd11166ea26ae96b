"""Who vouches for saved code.

A model's architecture may be saved as pickled Python, and unpickling runs whatever it says. So that never
happens silently. There are three ways to say "I trust this artifact":

* ``TorchModel.load(path, trusted=True)`` and ``spark_ring.load_model(path, trusted=True)``;
* ``with spark_ring.trusted_artifacts(): PipelineModel.load(path)``, where no argument can be passed;
* ``SPARK_RING_TRUSTED_ARTIFACTS=1`` for a whole process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from spark_ring.config import settings
from spark_ring.errors import UntrustedArtifactError

__all__ = ["require_trust", "trusted_artifacts"]

_trusting: ContextVar[bool] = ContextVar("spark_ring_trusts_artifacts", default=False)


@contextmanager
def trusted_artifacts() -> Iterator[None]:
    """Trust every artifact that this thread loads inside the ``with`` block."""
    token = _trusting.set(True)
    try:
        yield
    finally:
        _trusting.reset(token)


def require_trust(place: str, file: str, trusted: bool = False) -> None:
    """Check that somebody vouches for pickled code.

    Args:
        place: where the artifact is, for the message.
        file: the file that holds code.
        trusted: whether the caller of a load function said so.

    Raises:
        UntrustedArtifactError: nobody does.
    """
    if trusted or _trusting.get() or settings().trusted_artifacts:
        return
    raise UntrustedArtifactError(
        f"{place!r} holds pickled Python code ({file}), which runs when it is loaded. If you trust "
        "whoever wrote it, say so: load(path, trusted=True); or 'with "
        "spark_ring.trusted_artifacts():' around PipelineModel.load(path); or set "
        "SPARK_RING_TRUSTED_ARTIFACTS=1 for the whole process"
    )
