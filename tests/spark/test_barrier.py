"""The barrier stage: one answer per rank, one ``allGather`` on every path, errors that say whose they are."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from spark_ring.config import environment
from spark_ring.data.schema import Contract
from spark_ring.data.store import Store
from spark_ring.errors import (
    AbortedError,
    ConfigError,
    LaunchError,
    PeerLostError,
    PreflightError,
    RendezvousError,
    StoreError,
    WorkerError,
)
from spark_ring.spark import barrier, worker_task
from spark_ring.spark.run import run
from spark_ring.spark.worker_task import DONE, ERROR, FOLLOWED, REFUSED, answer, job_from, job_to
from spark_ring.train.job import TrainJob, TrainOptions

JOB = TrainJob(
    run_id="r",
    store="/nowhere/at/all",
    dataset="datasets/d",
    contract=Contract(inputs=()),
    adapter="no_such_framework.adapter:Adapter",
    payload="p",
    payload_sha256="0",
    options=TrainOptions(epochs=3),
)


class Context:
    """A barrier of one task among two whose other rank says the same."""

    def __init__(self):
        self.gathered = 0

    def partitionId(self):
        return 0

    def getTaskInfos(self):
        return [type("Info", (), {"address": "127.0.0.1:1"})]

    def allGather(self, message):
        self.gathered += 1
        return [message, message]


def spec(**changes):
    plain = {
        "kind": "train",
        "size": 2,
        "secret": "00" * 32,
        "driver": "127.0.0.1",
        "settings": {},
        "mark": "",
    }
    return {**plain, "job": job_to(JOB), **changes}


def ask(context, **changes):
    return json.loads(answer(spec(**changes), context))


def test_a_job_survives_the_journey_as_plain_values():
    plain = json.loads(json.dumps(job_to(JOB)))
    assert job_from(plain) == JOB


@pytest.mark.parametrize("step", ["adapter", "mark", "connect", "work", "none"])
def test_every_path_gathers_exactly_once(monkeypatch, tmp_path, step):
    """Case 127: also where something fails before, in or after the rendezvous."""

    class Connected:
        @classmethod
        def connect(cls, rank, size, exchange, secret, settings, *, toward):
            if step == "connect":
                raise RendezvousError("no address")
            exchange("here")
            return cls()

        def close(self):
            pass

        def abort(self, reason):
            pass

    def train(spec, communicator):
        if step == "work":
            raise ValueError("in the user's code")
        return 5

    context = Context()
    monkeypatch.setattr(worker_task, "Communicator", Connected)
    monkeypatch.setattr(worker_task, "_train", train)
    job = replace(JOB, store=str(tmp_path), adapter="json:Adapter" if step != "adapter" else JOB.adapter)
    if step == "mark":
        monkeypatch.setattr(
            Store, "check_mark", lambda *a, **k: (_ for _ in ()).throw(StoreError("not shared"))
        )
    row = ask(context, job=job_to(job), mark="token" if step == "mark" else "")
    assert context.gathered == 1
    status, kind = {
        "adapter": (REFUSED, "ImportError"),
        "mark": (REFUSED, "StoreError"),
        "connect": (REFUSED, "RendezvousError"),
        "work": (ERROR, "ValueError"),
        "none": (DONE, None),
    }[step]
    assert (row["status"], row.get("type"), row["rank"]) == (status, kind, 0)


def test_what_spark_can_cure_is_raised_and_the_rest_is_an_answer(monkeypatch):
    """Cases 109, 110: a lost peer repeats the stage, a user's error does not; the communicator is closed."""
    closed = []

    class Communicator:
        def close(self):
            closed.append(True)

        def abort(self, reason):
            pass

    monkeypatch.setattr(worker_task, "_meet", lambda *a: Communicator())
    for error, status in (
        (AbortedError("rank 1 raised"), FOLLOWED),
        (SystemExit(1), ERROR),
        (OSError("x"), ERROR),
    ):
        monkeypatch.setattr(worker_task, "_train", lambda *a, error=error: (_ for _ in ()).throw(error))
        assert ask(Context())["status"] == status
    for error in (PeerLostError("rank 1 is gone"), RendezvousError("late")):
        monkeypatch.setattr(worker_task, "_train", lambda *a, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            answer(spec(), Context())
    assert len(closed) == 5


def test_the_first_cause_is_what_the_driver_raises():
    done = {"rank": 0, "host": "h", "status": DONE, "value": 1}
    error = {"rank": 1, "host": "h", "status": ERROR, "type": "KeyError", "message": "'a'", "traceback": "tb"}
    followed = {"rank": 0, "host": "h", "status": FOLLOWED, "type": "AbortedError", "message": "m"}
    with pytest.raises(WorkerError, match=r"rank 1 of 2 on host h raised KeyError: 'a'"):
        barrier._values([error, followed], 2)
    refused = {**error, "status": REFUSED, "type": "StoreError", "message": "not shared"}
    with pytest.raises(StoreError, match="rank 1 of 2 on host h: not shared"):
        barrier._values([{**done, "status": FOLLOWED}, refused], 2)
    with pytest.raises(LaunchError, match="was stopped"):
        barrier._values([followed, {**done, "rank": 1}], 2)
    with pytest.raises(LaunchError, match="one answer of each"):
        barrier._values([done, done], 2)
    assert barrier._values([{**done, "rank": 1, "value": 2}, done], 2) == [1, 2]


def test_the_task_is_small_and_names_a_missing_installation():
    """Cases 143, 145: the function travels by value; only where it runs does it look for spark_ring."""
    from pyspark import cloudpickle

    pickled = cloudpickle.dumps(barrier._task(spec()))
    assert len(pickled) < 8000
    program = (
        "import sys, pickle; sys.modules['spark_ring'] = None\n"
        f"task = pickle.loads({pickled!r})\n"
        "try:\n    list(task(iter([])))\nexcept ImportError as error:\n    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "spark_ring cannot be imported on host" in told.stdout, told.stderr
    failed = RuntimeError(
        "…\nImportError: spark_ring cannot be imported on host w1 with /usr/bin/python: x.\n…"
    )
    assert "on host w1" in str(barrier._stage_failed(failed, 2))
    assert "numTrainWorkers" in str(barrier._stage_failed(RuntimeError("[SPARK-24819]: Barrier"), 2))


def test_the_drivers_settings_reach_the_workers_but_not_its_address():
    with environment({"SPARK_RING_TRANSPORT": "tcp", "SPARK_RING_ADDRESS": "10.0.0.1"}):
        assert barrier._shared_settings() == {"transport": "tcp"}


@pytest.mark.spark
def test_a_function_runs_on_every_rank(spark):
    """Cases 133, 134: results come by rank; both ranks know their place on the host."""

    def where(factor, shift=0):
        import numpy

        import spark_ring

        total = spark_ring.allreduce(numpy.array([spark_ring.rank() + 1.0]))
        return (
            spark_ring.rank(),
            spark_ring.local_rank(),
            spark_ring.local_size(),
            float(total[0] * factor + shift),
        )

    assert run(where, [2], {"shift": 1}, numTrainWorkers=2) == [(0, 0, 2, 7.0), (1, 1, 2, 7.0)]
    assert run(where, [2]) == [(0, 0, 1, 2.0)]


@pytest.mark.spark
def test_a_ranks_error_stops_the_others(spark):
    """Case 109: in seconds, although the other rank waits in a collective."""

    def fail():
        import spark_ring

        if spark_ring.rank() == 1:
            raise LookupError("nothing here")
        spark_ring.barrier()

    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"rank 1 of 2.*LookupError: nothing here") as caught:
        run(fail, numTrainWorkers=2)
    assert time.monotonic() - began < 15
    assert "in fail" in caught.value.traceback


@pytest.mark.spark
def test_a_reused_python_worker_starts_clean(spark):
    """Case 110: nothing of the first job is left in the process that runs the second."""

    def look():
        import os
        import sys
        import threading

        import spark_ring

        names = [thread.name for thread in threading.enumerate()]
        spark_ring.barrier()
        return os.getpid(), names, type(sys.stdout).__name__, len(os.listdir("/proc/self/fd"))

    first = run(look, numTrainWorkers=2)
    again = run(look, numTrainWorkers=2)
    assert {pid for pid, *_ in first} & {pid for pid, *_ in again}, (
        "Spark started new workers: nothing was tested"
    )
    by_pid = {pid: rest for pid, *rest in first}
    for pid, names, stream, descriptors in again:
        assert stream == "PrefixedStream"
        if pid in by_pid:
            assert len(names) <= len(by_pid[pid][0])
            assert descriptors <= by_pid[pid][2] + 1


@pytest.mark.spark
def test_run_checks_first(spark):
    with pytest.raises(PreflightError, match="needs 5 task slots"):
        run(len, numTrainWorkers=5)
    import threading

    lock = threading.Lock()
    with pytest.raises(PreflightError, match="Param fn cannot be sent"):
        run(lambda: lock.locked(), numTrainWorkers=2)


@pytest.mark.spark
def test_a_store_that_is_not_shared_is_named(spark, tmp_path):
    """Case 154: the driver's mark is not where a worker looks."""
    job = replace(JOB, store=str(tmp_path), adapter="json:Adapter")
    with pytest.raises(StoreError, match=r"rank 0 of 2 .* is not shared"):
        barrier.train(spark, job, 2, "no-such-mark")
    with pytest.raises(LaunchError, match=r"no_such_framework.* cannot be imported on host"):
        barrier.train(spark, replace(job, adapter=JOB.adapter), 2, "")
    with pytest.raises(ConfigError):
        barrier.train(spark, replace(job, store="s3x:/a"), 2, "token")
