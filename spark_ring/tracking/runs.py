"""Which MLflow run a fit is logged into. The rules are told in :func:`spark_ring.tracking.start_run`.

MLflow keeps a stack of active runs for each thread. The stack of the thread that fits is read there; the run
itself is opened (and, when it is our own, closed) in the tracker's thread, on that thread's own stack.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any

__all__ = ["Place", "find_place", "open_run", "release"]

FIT_TAG = "spark_ring.fit"
PARENT_TAG = "mlflow.parentRunId"

_lock = threading.Lock()
_claimed: set[str] = set()  # users' runs that hold a fit of this process
_own: set[str] = set()  # runs that trackers opened and did not close yet


@dataclass(frozen=True)
class Place:
    """Where a fit finds itself.

    Attributes:
        active: the run that is active in the fitting thread.
        elsewhere: the one run that is active in other threads.
    """

    active: str | None = None
    elsewhere: str | None = None


def find_place() -> Place:
    """Look at the active runs. Called in the thread that fits.

    MLflow is not imported: before anybody did that, no run can be active.
    """
    fluent = sys.modules.get("mlflow.tracking.fluent")
    if fluent is None:
        return Place()
    run = fluent.active_run()
    if run is not None:
        return Place(active=run.info.run_id)
    others = _runs_of_all_threads(fluent) - _own
    return Place(elsewhere=next(iter(others))) if len(others) == 1 else Place()


def open_run(place: Place, experiment: str | None, run_name: str | None) -> tuple[str, bool]:
    """Return the run for a fit, and whether it is our own (to be closed). Called in the tracker's thread."""
    import mlflow

    client = mlflow.MlflowClient()
    if place.active is not None and _claim(client, place.active):
        return place.active, False
    parent = place.active or place.elsewhere
    if parent is not None:
        experiment_id = client.get_run(parent).info.experiment_id
    else:
        experiment_id = _experiment_id(mlflow, experiment) if experiment else None
    tags = {FIT_TAG: "1"} | ({PARENT_TAG: parent} if parent else {})
    run = mlflow.start_run(experiment_id=experiment_id, run_name=run_name, tags=tags)
    with _lock:
        _own.add(run.info.run_id)
    return run.info.run_id, True


def release(run_id: str) -> None:
    """Forget a run of our own after it was closed."""
    with _lock:
        _own.discard(run_id)


def _claim(client: Any, run_id: str) -> bool:
    """Take a user's run for one fit; ``False`` when it holds one already."""
    with _lock:
        if run_id in _claimed:
            return False
        _claimed.add(run_id)
    if FIT_TAG in client.get_run(run_id).data.tags:
        return False
    client.set_tag(run_id, FIT_TAG, "1")
    return True


def _experiment_id(mlflow: Any, name: str) -> str:
    found = mlflow.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(mlflow.create_experiment(name))
    except mlflow.MlflowException:  # another fit made it a moment ago
        found = mlflow.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)


def _runs_of_all_threads(fluent: Any) -> set[str]:
    # MLflow has no public way to see another thread's run. Where the private one is gone, no parent is found.
    try:
        stacks = fluent._active_run_stack.get_all_thread_values().values()
        return {run.info.run_id for stack in stacks for run in stack}
    except AttributeError:
        return set()
