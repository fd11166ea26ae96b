"""A new process: load the saved pipeline, score the test months again, compare with what the demo wrote."""

from __future__ import annotations

from operator import sub
from pathlib import Path

import click
from pyspark.ml import PipelineModel

import spark_ring
from spark_ring.demo.flights import load_flights, split_by_month
from spark_ring.demo.session import start_session

#: Rows fall into other batches here, and a matrix product may round differently with another number of rows.
MINUTES = 1e-3


@click.command(help=__doc__)
@click.argument("root", type=click.Path(exists=True, path_type=Path))
def main(root: Path) -> None:
    spark = start_session(2)
    # The saved model holds its Python class as code; this process made it, so it is trusted.
    with spark_ring.trusted_artifacts():
        pipeline = PipelineModel.load(str(root / "pipeline"))
    _, test = split_by_month(load_flights(spark, root / "data"))
    again = sorted(row.prediction for row in pipeline.transform(test).select("prediction").collect())
    before = sorted(row.prediction for row in spark.read.parquet(str(root / "scored")).collect())
    worst = max(map(abs, map(sub, again, before)), default=0.0)
    if len(again) != len(before) or worst > MINUTES:
        raise SystemExit(
            f"{len(again):,} predictions against {len(before):,}, largest difference {worst} minutes"
        )
    print(f"{len(again):,} predictions of the reloaded pipeline; largest difference {worst:.1g} minutes")
    spark.stop()


if __name__ == "__main__":
    main()
