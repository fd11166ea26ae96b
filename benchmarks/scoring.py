"""Rows per second of ``transform`` beside what Spark allows and beside peers, interleaved.

    python benchmarks/scoring.py [--rows 600000] [--repeats 5] [--json FILE]

A Parquet file with 50 float32 features in one array column (or, with ``--vectors``, in a Spark vector) is
scored by a small network on ``local[2]``; the result goes nowhere (Spark's ``noop`` sink). "nothing" is an
Arrow UDF on the same column that returns zeros: what no model can beat. Medians, and their share of
"nothing".
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
from pyspark.ml.functions import array_to_vector, predict_batch_udf, vector_to_array
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType
from torch import nn

from spark_ring import mlflow as flavor
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.spark.model import TorchModel

FEATURES = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vectors", action="store_true", help="a Spark vector in place of an array<float>")
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
        df = write(spark, Path(folder) / "features", options.rows, options.vectors)
        ways = make_ways(spark, Path(folder), "vector" if options.vectors else "array<float>")
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(options.repeats + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way(df).write.format("noop").mode("overwrite").save()
                if repeat:  # the first round warms up
                    seconds[name].append(time.perf_counter() - began)
    spark.stop()
    report({name: options.rows / statistics.median(found) for name, found in seconds.items()}, options.json)


def write(spark: SparkSession, path: Path, rows: int, vectors: bool) -> DataFrame:
    features = F.array(*[F.rand(i).cast("float") for i in range(FEATURES)])
    column = array_to_vector(features) if vectors else features
    spark.range(0, rows, 1, 4).select("id", column.alias("x")).write.parquet(str(path))
    return spark.read.parquet(str(path))


def make_ways(spark: SparkSession, folder: Path, spark_type: str) -> dict[str, Any]:
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1)).eval()
    spec = TensorSpec("x0", (SourceColumn("x", spark_type, FEATURES),), "float32", (FEATURES,))
    model = TorchModel(net, Contract((spec,)))
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    flavor.save_model(model, folder / "model")
    through_mlflow = mlflow.pyfunc.spark_udf(spark, str(folder / "model"), env_manager="local")
    through_batches = predict_batch_udf(
        lambda: make_predict(net), return_type=DoubleType(), batch_size=4096, input_tensor_shapes=[[FEATURES]]
    )
    as_array = vector_to_array("x", "float32") if spark_type == "vector" else F.col("x")
    as_doubles = as_array.cast("array<double>" if spark_type == "vector" else "array<float>")

    def row_based(df: DataFrame) -> DataFrame:
        return df.filter(F.col("x").isNull() | F.col("x").isNotNull()) if spark_type == "vector" else df

    def nothing(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield pa.array(np.zeros(len(batch)))

    do_nothing = F.arrow_udf(nothing, "double")
    return {
        "nothing": lambda df: row_based(df).withColumn("y", do_nothing(as_array)),
        "transform": model.transform,
        "predict_batch_udf": lambda df: row_based(df).withColumn("y", through_batches(as_array)),
        "mlflow.pyfunc.spark_udf": lambda df: row_based(df).withColumn("y", through_mlflow(as_doubles)),
    }


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
