"""When two DataFrames surely hold the same data."""

from __future__ import annotations

import pytest
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F

from spark_ring.spark.identity import canonical, identity, is_repeatable

RELATION = "Relation [a#1L,b#2] parquet"


def test_expression_numbers_do_not_matter_but_their_places_do():
    assert canonical("Project [a#5L, b#7]\n+- x[a#5L]") == canonical("Project [a#9L, b#1]\n+- x[a#9L]")
    assert canonical("Project [a#5, b#7, a#5]") != canonical("Project [a#5, b#7, b#7]")


@pytest.mark.parametrize(
    "plan",
    [
        RELATION,
        f"Project [(a#1L * cast(2 as int)) AS c#7L]\n+- Filter (a#1L > cast(3 as int))\n   +- {RELATION}",
        f"Join Inner, (a#1L = a#5L)\n:- {RELATION}\n+- Project [a#5L]\n   +- {RELATION}",
        "SubqueryAlias spark_catalog.default.t\n+- Relation spark_catalog.default.t[a#1L] parquet",
    ],
)
def test_plans_over_files_are_repeatable(plan):
    assert is_repeatable(plan)


@pytest.mark.parametrize(
    "plan",
    [
        "",
        "LocalRelation [a#1]",
        "LogicalRDD [a#1], false",
        "Relation [a#1] csv",
        "Relation [a#1] JDBCRelation(t)",
        f"Project [UDF(a#1L) AS c#7]\n+- {RELATION}",
        f"Project [<lambda>(a#1L) AS c#8]\n+- {RELATION}",
        f"Project [abs(a#1L)#7 AS c#8]\n+- {RELATION}",
        f"Project [rand(5) AS c#8]\n+- {RELATION}",
        f"Filter (a#1L > unix_timestamp(current_timestamp()))\n+- {RELATION}",
        f"MapInArrow f(a#1L)#3, [b#4]\n+- {RELATION}",
        f"GlobalLimit 5\n+- LocalLimit 5\n   +- {RELATION}",
        f"Project [a#1L, ... 4 more fields]\n+- {RELATION}",
        f"Join Inner\n:- {RELATION}\n+- LocalRelation [x#1]",
    ],
)
def test_what_a_plan_does_not_show_in_full_is_not_repeatable(plan):
    assert not is_repeatable(plan)


@pytest.mark.spark
def test_an_identity_lasts_and_follows_plan_and_files(spark, tmp_path):
    """Case 131: the same from another read; another for another plan, setting or file."""
    path = str(tmp_path / "a b")
    write = spark.range(5).selectExpr("id", *(f"id + {i} c{i}" for i in range(40))).write
    write.parquet(path)

    def read():
        return spark.read.parquet(path)

    assert identity(read()) == identity(read()) is not None
    seen = {
        identity(read()),
        identity(read().where("id > 1")),
        identity(read().select("id")),
        identity(read().withColumn("c39", F.col("id"))),
        identity(read().join(read().select("id"), "id")),
    }
    assert len(seen) == 5
    assert None not in seen
    assert spark.conf.get("spark.sql.debug.maxToStringFields") == "25"
    write.mode("append").parquet(path)
    assert identity(read()) not in seen


@pytest.mark.spark
def test_no_identity_where_it_is_not_certain(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.range(5).write.parquet(path)
    spark.range(5).write.csv(path + "csv")
    df = spark.read.parquet(path)
    square = F.udf(lambda x: x * x, "long")
    for uncertain in (
        spark.range(5),
        spark.createDataFrame([(1,)], ["id"]),
        spark.read.csv(path + "csv"),
        df.select(square("id")),
        df.select(F.udf(abs, "long")("id").alias("id")),
        df.orderBy(F.rand()),
        df.limit(2),
        VectorAssembler(inputCols=["id"], outputCol="v").transform(df),
        df.mapInArrow(lambda batches: batches, "id long"),
    ):
        assert identity(uncertain) is None
