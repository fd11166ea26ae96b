"""Scoring and persistence on Spark Connect. Run by test_model_connect.py: a process has one kind of session.

Usage: connect_score.py FOLDER. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys

import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from torch import nn

from spark_ring.artifact import trusted_artifacts
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ColumnError, UntrustedArtifactError
from spark_ring.spark import shipping
from spark_ring.spark.model import TorchModel

CONTRACT = Contract(
    (TensorSpec("x0", (SourceColumn("features", "vector", 3),), "float32", (3,)),),
    (TensorSpec("y0", (SourceColumn("label", "int"),), "int64"),),
)


class Net(nn.Module):
    """A class of the main script: it travels and is saved by value."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(3, outputs)

    def forward(self, x):
        return self.layer(x)


def main(folder: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    torch.manual_seed(0)
    rows = torch.randn(21, 3).tolist()
    df = spark.createDataFrame(
        [(i, *row, i % 3) for i, row in enumerate(rows)], "id int, a double, b double, c double, label int"
    )
    assembler = VectorAssembler(inputCols=["a", "b", "c"], outputCol="features")
    net = Net()
    model = TorchModel(net, CONTRACT)

    def scores(pipeline, data=df):
        return [row.prediction for row in pipeline.transform(data).orderBy("id").collect()]

    found = {"expected": net(torch.tensor(rows)).detach().double()[:, 0].tolist()}
    pipeline = Pipeline(stages=[assembler, model]).fit(df)
    found["scored"] = scores(pipeline)
    for _ in range(2):
        pipeline.write().overwrite().save(f"{folder}/pipeline")
    try:
        PipelineModel.load(f"{folder}/pipeline")
    except UntrustedArtifactError:
        found["refused"] = True
    with trusted_artifacts():
        found["loaded"] = scores(PipelineModel.load(f"{folder}/pipeline"))
    scored = pipeline.transform(df)
    found["rmse"] = RegressionEvaluator(labelCol="label").evaluate(scored)

    path = f"{folder}/vectors"
    assembler.transform(df).write.parquet(path)
    found["from a file"] = scores(model, spark.read.parquet(path))
    classes = TorchModel(Net(3), CONTRACT).transform(spark.read.parquet(path))
    found["classes"] = [
        f"{field.name} {field.dataType.simpleString()}" for field in classes.schema.fields[-3:]
    ]
    found["class rows"] = classes.count()

    shipping.INLINE_BYTES = 10
    found["as an artifact"] = scores(model, spark.read.parquet(path))
    found["source"] = type(shipping.ship(model.fitted, spark, connect=True)).__name__
    try:
        model.transform(df)
    except ColumnError as error:
        found["missing"] = str(error)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
