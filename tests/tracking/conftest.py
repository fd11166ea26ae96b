"""A real MLflow store for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pytest

from spark_ring.data.manifest import Manifest, RowGroup
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """An MLflow database with its tables and nothing in them; making one takes seconds, copying it none."""
    path: Path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_store(tmp_path, empty_database, monkeypatch) -> Any:
    """A client of a store in ``tmp_path``, which is MLflow's current one during the test."""
    monkeypatch.chdir(tmp_path)  # artifacts go below the working folder
    database = tmp_path / "mlflow.db"
    database.write_bytes(empty_database.read_bytes())
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{database}")
    client = mlflow.MlflowClient()
    # The default experiment's artifacts would go to where the empty database was made.
    experiment = client.create_experiment("tests", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment(experiment_id=experiment)
    yield client
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)
    mlflow.tracking.fluent._active_experiment_id = None  # set_experiment reaches beyond the store
    mlflow.environment_variables.MLFLOW_EXPERIMENT_ID.unset()


@pytest.fixture
def manifest() -> Manifest:
    """Of a small dataset."""
    contract = Contract(
        (TensorSpec("x0", (SourceColumn("a b", "double"),), "float32"),),
        (TensorSpec("y0", (SourceColumn("y", "int"),), "int64"),),
    )
    groups = {
        "train": (RowGroup("train/0.parquet", 0, 90, 900),),
        "val": (RowGroup("val/0.parquet", 0, 10, 100),),
    }
    return Manifest("datasets/abc", contract, groups, {}, "abc" * 20)
