"""What kind of Spark session this is."""

from __future__ import annotations

from typing import Any

__all__ = ["is_connect"]


def is_connect(thing: Any) -> bool:
    """Whether a session or a DataFrame is one of Spark Connect: no ``sparkContext``, no JVM, no RDD."""
    return any(cls.__module__.startswith("pyspark.sql.connect") for cls in type(thing).__mro__)
