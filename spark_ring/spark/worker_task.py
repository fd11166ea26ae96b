"""One barrier task: from Spark's Python worker to a rank of the ring, and back as one row.

The order of things, the same on every path:

1. Check what can be checked alone: the store is shared, the adapter can be imported.
2. Meet the other ranks in exactly one ``allGather``. A rank whose checks failed takes part in it too and says
   so; then all ranks stop, with that reason. So no rank ever waits for one that does not come.
3. Train (or call the user's function), with the world initialised.
4. Answer with a row of JSON.

What becomes of an exception decides whether Spark repeats the stage. A user's error is an answer, a row of
status ``error``: repeating would only raise it again. A lost peer, a missed deadline, a broken rendezvous is
raised: Spark resubmits the stage, and training goes on from the last checkpoint.

A Spark Python worker is used for many tasks, so nothing stays behind: the communicator is closed and the
streams are put back, however the task ends.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

from spark_ring import world
from spark_ring.communicator import Communicator
from spark_ring.config import settings
from spark_ring.data.schema import Contract
from spark_ring.data.store import Store
from spark_ring.errors import (
    AbortedError,
    ClosedError,
    CollectiveTimeoutError,
    CommunicatorError,
    PeerLostError,
    RendezvousError,
)
from spark_ring.spark.output import prefixed_output
from spark_ring.train.job import TrainJob, TrainOptions

__all__ = ["DONE", "ERROR", "FOLLOWED", "REFUSED", "answer", "job_from", "job_to"]

DONE = "done"  # value holds the result
ERROR = "error"  # the user's code raised here
FOLLOWED = "followed"  # another rank failed and this one was stopped by it
REFUSED = "refused"  # a check before training failed here

# The driver left its mark long before: this allows for storage that shows new files late.
_MARK_SECONDS = 5.0

# What Spark can cure by running the stage again.
_INFRASTRUCTURE = (PeerLostError, CollectiveTimeoutError, RendezvousError)


class _RefusedError(Exception):
    """Some rank's checks failed; ``own`` says whether this rank's did."""

    def __init__(self, own: BaseException | None) -> None:
        super().__init__(str(own))
        self.own = own


def answer(spec: Mapping[str, Any], context: Any) -> str:
    """Be one rank of the job and return the row to send to the driver, JSON.

    Args:
        spec: what :mod:`.barrier` sent: ``kind``, ``size``, ``secret``, ``driver``, ``settings``, ``job`` …
        context: Spark's ``BarrierTaskContext``.

    Raises:
        PeerLostError, CollectiveTimeoutError, RendezvousError: what running the stage again can cure.
    """
    rank = int(context.partitionId())
    row: dict[str, Any] = {"rank": rank, "host": socket.gethostname()}
    with prefixed_output(f"[{rank}] "):
        try:
            row |= {"status": DONE, "value": _work(spec, context, rank)}
        except _RefusedError as refused:
            row |= {"status": FOLLOWED} if refused.own is None else _described(REFUSED, refused.own)
        except _INFRASTRUCTURE:
            raise
        except (AbortedError, ClosedError) as error:
            row |= _described(FOLLOWED, error)
        except (Exception, SystemExit) as error:
            row |= _described(ERROR, error)
    return json.dumps(row)


def job_to(job: TrainJob) -> dict[str, Any]:
    """Return a job as plain values."""
    return asdict(job)


def job_from(value: Mapping[str, Any]) -> TrainJob:
    """Read what :func:`job_to` wrote."""
    plain = {**value, "contract": Contract.from_dict(value["contract"])}
    return TrainJob(**{**plain, "options": TrainOptions(**value["options"])})


def _work(spec: Mapping[str, Any], context: Any, rank: int) -> Any:
    communicator = _meet(spec, context, rank)
    try:
        body = {"train": _train, "call": _call}[spec["kind"]]
        return body(spec, communicator)
    except CommunicatorError:
        raise
    except BaseException as error:
        with contextlib.suppress(Exception):
            communicator.abort(f"rank {rank} raised {type(error).__name__}: {error}")
        raise
    finally:
        communicator.close()


def _meet(spec: Mapping[str, Any], context: Any, rank: int) -> Communicator:
    """Connect to the other ranks by one ``allGather``, which every rank reaches whatever failed before."""
    own: BaseException | None = None
    gathered = False

    def gather(text: str, error: BaseException | None) -> list[str]:
        nonlocal gathered
        gathered = True
        said = json.dumps({"text": text, "failed": error is not None})
        answers = [json.loads(message) for message in context.allGather(said)]
        if any(found["failed"] for found in answers):
            raise _RefusedError(error)
        return [str(found["text"]) for found in answers]

    try:
        _check_alone(spec)
        return Communicator.connect(
            rank,
            int(spec["size"]),
            lambda text: gather(text, None),
            bytes.fromhex(spec["secret"]),
            settings(**spec["settings"]),
            toward=spec["driver"] or _first_task_host(context),
        )
    except _RefusedError:
        raise
    except Exception as error:
        if gathered:
            raise
        own = error
    if spec["size"] > 1:
        gather("", own)
    raise _RefusedError(own)


def _check_alone(spec: Mapping[str, Any]) -> None:
    if spec["mark"]:
        Store(spec["job"]["store"]).check_mark(spec["mark"], wait=_MARK_SECONDS)
    if spec["kind"] == "train":
        module = spec["job"]["adapter"].partition(":")[0]
        try:
            import_module(module)
        except ImportError as error:
            raise ImportError(
                f"{module} cannot be imported on host {socket.gethostname()} with {sys.executable}: {error}. "
                "Install the framework and the same version of spark_ring on every executor"
            ) from error


def _first_task_host(context: Any) -> str:
    """Return the host of rank 0's executor, as Spark knows it."""
    return str(context.getTaskInfos()[0].address).rpartition(":")[0]


def _train(spec: Mapping[str, Any], communicator: Communicator) -> dict[str, Any]:
    from spark_ring.train.worker import run_worker

    result = run_worker(job_from(spec["job"]), communicator)
    if result.rank != 0:
        result = replace(result, history=[])  # the same on all ranks: it travels once
    return asdict(result)


def _call(spec: Mapping[str, Any], communicator: Communicator) -> str:
    """Call the user's function; its result travels pickled, through Spark."""
    import cloudpickle

    with world.use(communicator):
        function, args, kwargs = cloudpickle.loads(base64.b64decode(spec["function"]))
        value = function(*args, **kwargs)
    return base64.b64encode(cloudpickle.dumps(value)).decode()


def _described(status: str, error: BaseException) -> dict[str, Any]:
    text = io.StringIO()
    traceback.print_exception(type(error), error, error.__traceback__, file=text)
    return {
        "status": status,
        "type": type(error).__name__,
        "message": str(error),
        "traceback": text.getvalue(),
    }
