"""One fit's record in a real MLflow store."""

from __future__ import annotations

import importlib.util
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import mlflow
import pytest

from spark_ring.tracking import NoTracker, start_run, tracker
from spark_ring.tracking.mlflow_tracker import MLflowTracker


def fit(loss=1.0, **options):
    """What a fit does with its tracker; returns the run's id."""
    with start_run(**options) as record:
        record.log_params({"loss": loss})
        for epoch in (1, 2, 3):
            record.log_epoch({"epoch": epoch, "loss": loss / epoch})
    return record.run_id


def steps(client, run_id, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def test_a_fit_opens_a_run_of_its_own_and_closes_it(mlflow_store, manifest):
    """Cases 169, 170, 172."""
    with start_run(experiment="new one", run_name="first") as record:
        record.log_params({"batchSize": 32, "metrics": {"acc@top,5": len}, "long": "x" * 9999})
        record.log_dataset(manifest, "file:///store/datasets/abc")
        record.log_epoch({"epoch": 1, "loss": 0.5, "acc@top,5": 0.25, "note": "text", "flag": True})
        record.log_epoch({"epoch": 2, "loss": float("nan"), "acc@top,5": 0.5})
    run = mlflow_store.get_run(record.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first"
    assert mlflow_store.get_experiment(run.info.experiment_id).name == "new one"
    assert run.data.params["batchSize"] == "32"
    assert run.data.params["metrics"] == "{acc@top,5: builtins.len}"
    assert run.data.params["long"].endswith("x…")
    assert set(run.data.metrics) == {"loss", "acc_top_5"}
    assert steps(mlflow_store, record.run_id, "acc_top_5") == [(1, 0.25), (2, 0.5)]
    (dataset,) = (given.dataset for given in run.inputs.dataset_inputs)
    assert json.loads(dataset.profile)["splits"]["val"] == {"rows": 10, "bytes": 100}
    assert json.loads(dataset.schema)["spark_ring"][0]["columns"] == {"a b": "double"}
    assert dataset.digest == ("abc" * 12)
    history = mlflow.artifacts.load_dict(f"runs:/{record.run_id}/history.json")
    assert [(one["epoch"], one["loss"]) for one in history] == [(1, 0.5), (2, None)]
    assert mlflow.active_run() is None


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_a_run_of_its_own_is_closed_when_the_fit_fails(mlflow_store, error, status):
    """Case 170."""
    with pytest.raises(error), start_run() as record:
        raise error
    assert mlflow_store.get_run(record.run_id).info.status == status


def test_the_open_run_is_used_and_stays_open(mlflow_store):
    """Case 170."""
    with mlflow.start_run() as run:
        mlflow.log_param("loss", "of the user")
        assert fit(loss=2.0) == run.info.run_id
        assert mlflow.active_run().info.run_id == run.info.run_id
        assert mlflow_store.get_run(run.info.run_id).info.status == "RUNNING"
    assert steps(mlflow_store, run.info.run_id, "loss") == [(1, 2.0), (2, 1.0), (3, 2.0 / 3)]
    assert mlflow_store.get_run(run.info.run_id).data.params["loss"] == "of the user"


def test_a_second_fit_in_the_open_run_becomes_its_child(mlflow_store):
    """Case 170: no mixing of curves."""
    with mlflow.start_run() as parent:
        first, second = fit(loss=1.0), fit(loss=2.0)
    assert first == parent.info.run_id != second
    child = mlflow_store.get_run(second)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.info.status == "FINISHED"
    assert len(steps(mlflow_store, first, "loss")) == len(steps(mlflow_store, second, "loss")) == 3


def test_a_run_that_holds_a_fit_of_another_process_is_not_written_into(mlflow_store):
    run_id = fit(loss=1.0)
    with mlflow.start_run(run_id=run_id):
        other = fit(loss=2.0)
    assert mlflow_store.get_run(other).data.tags["mlflow.parentRunId"] == run_id
    assert len(steps(mlflow_store, run_id, "loss")) == 3


@pytest.mark.parametrize("inside", [True, False], ids=["inside a run", "without a run"])
def test_fits_in_two_threads_do_not_mix(mlflow_store, inside):
    """Case 170: as CrossValidator does with parallelism=2."""
    barrier = threading.Barrier(2)

    def one(loss):
        with start_run() as record:
            barrier.wait(30)
            for epoch in range(1, 6):
                record.log_epoch({"epoch": epoch, "loss": loss})
            barrier.wait(30)
        return record.run_id

    parent = mlflow.start_run().info.run_id if inside else None
    with ThreadPoolExecutor(2) as pool:
        ids = list(pool.map(one, [1.0, 2.0]))
    assert len({parent, *ids}) == 3
    for run_id, loss in zip(ids, [1.0, 2.0], strict=True):
        run = mlflow_store.get_run(run_id)
        assert run.info.status == "FINISHED"
        assert run.data.tags.get("mlflow.parentRunId") == parent
        assert steps(mlflow_store, run_id, "loss") == [(epoch, loss) for epoch in range(1, 6)]


def test_more_params_than_one_call_takes(mlflow_store):
    with start_run() as record:
        record.log_params({f"p{number}": number for number in range(250)})
    assert len(mlflow_store.get_run(record.run_id).data.params) == 250


def test_a_server_that_is_down_is_one_warning_and_no_failure(monkeypatch, caplog):
    """MLflow down never fails a fit, nor holds it long."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    try:
        with caplog.at_level(logging.WARNING, "spark_ring"), start_run() as record:
            record.log_params({"a": 1})
            record.log_epoch({"epoch": 1, "loss": 1.0})
    finally:
        mlflow.set_tracking_uri(before)
    assert record.run_id is None
    assert [r.name for r in caplog.records if r.name == "spark_ring"] == ["spark_ring"]
    assert "the fit goes on" in caplog.text


def test_without_mlflow_there_is_one_warning_in_all(monkeypatch, caplog):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(tracker, "find_spec", lambda name: None if name == "mlflow" else find_spec(name))
    monkeypatch.setitem(tracker._told, "missing", False)
    with caplog.at_level(logging.WARNING, "spark_ring"):
        assert isinstance(start_run(), NoTracker)
        assert isinstance(start_run(), NoTracker)
    assert caplog.text.count("MLflow is not installed") == 1


def test_a_disabled_tracker_keeps_nothing(mlflow_store, manifest):
    record = start_run(enabled=False)
    with record:
        record.log_params({"a": 1})
        record.log_epoch({"epoch": 1})
        record.log_dataset(manifest, "x")
        record.log_model(object())
    assert record.run_id is None
    assert mlflow_store.search_runs([e.experiment_id for e in mlflow_store.search_experiments()]) == []


def test_a_model_that_cannot_be_logged_costs_a_warning_only(mlflow_store, caplog):
    with caplog.at_level(logging.WARNING, "spark_ring"), start_run() as record:
        record.log_model(object())
        record.log_epoch({"epoch": 1, "loss": 1.0})
    assert mlflow_store.get_run(record.run_id).info.status == "FINISHED"
    assert mlflow_store.get_run(record.run_id).data.metrics == {"loss": 1.0}
    assert "could not log the model" in caplog.text


def test_both_trackers_have_every_method_of_the_protocol():
    wanted = {name for name in vars(tracker.Tracker) if not name.startswith("_")} | {"__enter__", "__exit__"}
    for kind in (NoTracker, MLflowTracker):
        assert wanted <= set(dir(kind))
