"""Rows per second of ``transform`` beside what Spark allows and beside peers, interleaved.

    python benchmarks/scoring.py [--input columns|array|vector] [--rows 600000] [--repeats 5] [--json FILE]

A Parquet file with 50 float32 features (in 50 columns, in one array, or in a Spark vector) is scored by a
small network on ``local[2]``; the result goes nowhere (Spark's ``noop`` sink). "nothing" is an Arrow UDF on
the same input, packed as ``transform`` packs it, that returns zeros: what no model can beat. Medians, and
their share of "nothing".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import torch
from pyspark.ml.functions import array_to_vector, predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType
from torch import nn

from spark_ring import mlflow as flavor
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.spark.columns import tensor_column
from spark_ring.spark.model import TorchModel

FEATURES = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--input", choices=("columns", "array", "vector"), default="columns")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="spark_ring-bench-") as folder:
        df = write(spark, Path(folder) / "features", options.rows, options.input)
        ways = make_ways(spark, Path(folder), options.input)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(options.repeats + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way(df).write.format("noop").mode("overwrite").save()
                if repeat:  # the first round warms up
                    seconds[name].append(time.perf_counter() - began)
    spark.stop()
    report({name: options.rows / statistics.median(found) for name, found in seconds.items()}, options.json)


def write(spark: SparkSession, path: Path, rows: int, form: str) -> DataFrame:
    numbers = [F.rand(i).cast("float").alias(f"c{i}") for i in range(FEATURES)]
    whole = F.array(*numbers)
    columns = {"columns": numbers, "array": [whole.alias("x")], "vector": [array_to_vector(whole).alias("x")]}
    spark.range(0, rows, 1, 4).select("id", *columns[form]).write.parquet(str(path))
    return spark.read.parquet(str(path))


def make_ways(spark: SparkSession, folder: Path, form: str) -> dict[str, Any]:
    layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1)).eval()
    net = Keyword(layers) if form == "columns" else layers
    contract = contract_of(form)
    model = TorchModel(net, contract)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    flavor.save_model(model, folder / "model")
    through_mlflow = mlflow.pyfunc.spark_udf(spark, str(folder / "model"), env_manager="local")
    through_batches = predict_batch_udf(
        lambda: make_predict(layers),
        return_type=DoubleType(),
        batch_size=4096,
        input_tensor_shapes=[[FEATURES]],
    )
    (spec,) = contract.inputs
    packed = tensor_column(spec)
    given = {
        "columns": [F.col(column.name) for column in spec.columns],
        "array": [F.col("x")],
        "vector": [packed.cast("array<double>")],
    }

    def row_based(df: DataFrame) -> DataFrame:  # as transform does it, see scoring.py
        return df.filter(F.col("x").isNull() | F.col("x").isNotNull()) if form == "vector" else df

    def nothing(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield pa.array(np.zeros(len(batch)))

    do_nothing = F.arrow_udf(nothing, "double")
    return {
        "nothing": lambda df: row_based(df).withColumn("y", do_nothing(packed)),
        "transform": model.transform,
        "predict_batch_udf": lambda df: row_based(df).withColumn("y", through_batches(packed)),
        "mlflow.pyfunc.spark_udf": lambda df: row_based(df).withColumn("y", through_mlflow(*given[form])),
    }


def contract_of(form: str) -> Contract:
    if form == "columns":
        columns = tuple(SourceColumn(f"c{i}", "float") for i in range(FEATURES))
        return Contract((TensorSpec("x0", columns, "float32", (FEATURES,), "x"),))
    spark_type = "vector" if form == "vector" else "array<float>"
    return Contract((TensorSpec("x0", (SourceColumn("x", spark_type, FEATURES),), "float32", (FEATURES,)),))


class Keyword(nn.Module):
    """Takes its input by keyword, as several columns in one argument do."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def make_predict(net: nn.Module) -> Any:
    torch.set_num_threads(1)

    def predict(rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return net(torch.from_numpy(rows.astype(np.float32))).double().numpy()[:, 0]

    return predict


def report(rates: dict[str, float], path: Path | None) -> None:
    for name, rate in rates.items():
        print(f"{name:<26}{rate:>12,.0f} rows/s {rate / rates['nothing']:>8.0%}")
    if path:
        path.write_text(json.dumps(rates, indent=1))


if __name__ == "__main__":
    main()
