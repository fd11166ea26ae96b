"""When two DataFrames surely hold the same data, so that a dataset written for one can serve the other.

A DataFrame gets an identity only if all of this holds; otherwise it has none, and its data are written anew:

- every leaf of its plan is a Parquet or ORC relation whose files can be looked at from here;
- its plan consists of relational operators and of functions that are known to give the same result each time.
  A user's function or an ML transformer appears in a plan by name only, so those have no identity;
- the plan is printed in full.

The identity is a digest of the analyzed plan with its expression numbers made canonical, of the schema, of
the settings that change what expressions mean, and of path, size and modification time of every input file.
So it is the same in another session, and another one as soon as a source file changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame

__all__ = ["identity"]

_SETTINGS = (
    "spark.sql.ansi.enabled",
    "spark.sql.session.timeZone",
    "spark.sql.caseSensitive",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.decimalOperations.allowPrecisionLoss",
)
_WIDTH = "spark.sql.debug.maxToStringFields"

_OPERATORS = {
    "Project",
    "Filter",
    "Join",
    "Union",
    "SubqueryAlias",
    "Distinct",
    "Deduplicate",
    "Aggregate",
    "View",
}
# fmt: off
_FUNCTIONS = {
    "abs", "acos", "array", "array_contains", "array_max", "array_min", "array_position", "asin",
    "atan", "atan2", "avg", "bround", "cast", "cbrt", "ceil", "coalesce", "concat", "cos", "cosh",
    "count", "date_add", "date_diff", "date_trunc", "datediff", "day", "dayofmonth", "dayofweek",
    "dayofyear", "degrees", "element_at", "exp", "expm1", "flatten", "floor", "greatest", "hour", "if",
    "ifnull", "in", "isnan", "isnotnull", "isnull", "knownnotnull", "least", "length", "ln", "log",
    "log10", "log1p", "log2", "lower", "ltrim", "max", "min", "minute", "mod", "month", "nanvl",
    "negative", "normalizenanandzero", "not", "nullif", "nvl", "pmod", "positive", "pow", "power",
    "promote_precision", "quarter", "radians", "regexp_replace", "replace", "rint", "round", "rtrim",
    "second", "sha2", "sign", "signum", "sin", "sinh", "size", "split", "sqrt", "stddev", "stddev_samp",
    "substr", "substring", "sum", "tan", "tanh", "to_date", "to_timestamp", "trim", "trunc", "try_cast",
    "try_divide", "unix_date", "unix_timestamp", "upper", "variance", "weekday", "weekofyear", "year",
}
# fmt: on

_NUMBER = re.compile(r"#(\d+)L?")
_CALL = re.compile(r"([^\s(\[,]+)\s*\(")
_PREFIX = re.compile(r"^(?:[: ] {2})*(?:[:+]- )?")
_RELATION = re.compile(r"Relation (?:[\w.`]+)?\[.*\] (parquet|orc)$")
_WORDS = frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "%",
        "=",
        "<",
        ">",
        "<=",
        ">=",
        "<=>",
        "AND",
        "OR",
        "NOT",
        "IN",
        "CASE",
        "THEN",
        "ELSE",
        "WHEN",
        "AS",
        "Some",
    ]
)


def identity(df: DataFrame) -> str | None:
    """Return a digest that only DataFrames with the same data share; ``None`` where none is certain."""
    plan = _analyzed_plan(df)
    if plan is None or not is_repeatable(plan):
        return None
    files = _fingerprint(df.inputFiles())
    if files is None:
        return None
    settings = [df.sparkSession.conf.get(name, None) for name in _SETTINGS]
    text = json.dumps([canonical(plan), df.schema.json(), settings, files])
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(plan: str) -> str:
    """Renumber the expressions of a plan in the order in which they appear."""
    numbers: dict[str, int] = {}
    return _NUMBER.sub(lambda match: f"#{numbers.setdefault(match[1], len(numbers))}", plan)


def is_repeatable(plan: str) -> bool:
    """Whether a plan reads only Parquet or ORC, and computes only what gives the same result each time."""
    lines = [line for line in plan.splitlines() if line.strip()]
    depths = [len(_PREFIX.match(line)[0]) for line in lines]  # type: ignore[index]
    for i, line in enumerate(lines):
        node = line[depths[i] :].strip()
        is_leaf = i + 1 == len(lines) or depths[i + 1] <= depths[i]
        if is_leaf != (_RELATION.match(node) is not None):
            return False
        if is_leaf:
            continue
        if node.split(" ", 1)[0] not in _OPERATORS or "more fields" in node or ")#" in node:
            return False
        # A user's Python function shows as name(arguments)#number, even one named like a built-in.
        calls = {name for name in _CALL.findall(node.split(" ", 1)[-1]) if name not in _WORDS}
        if not all(name.lower() in _FUNCTIONS for name in calls):
            return False
    return bool(lines)


def _analyzed_plan(df: DataFrame) -> str | None:
    """Return the analyzed plan's tree in full, or ``None`` where this Spark does not give it."""
    conf = df.sparkSession.conf
    try:
        before = conf.get(_WIDTH, None)
        conf.set(_WIDTH, "100000")
        try:
            if hasattr(df, "_explain_string"):  # Spark Connect
                text = str(df._explain_string(extended=True))
                body = text.split("== Analyzed Logical Plan ==\n", 1)[1].split("\n== Optimized", 1)[0]
                return body.split("\n", 1)[1].strip("\n")  # the first line is the schema
            return str(df._jdf.queryExecution().analyzed().treeString()).strip("\n")
        finally:
            conf.unset(_WIDTH) if before is None else conf.set(_WIDTH, before)
    except Exception:  # an unknown Spark: no identity, so the data are written
        return None


def _fingerprint(files: list[str]) -> list[Any] | None:
    """Return path, size and time of every file; ``None`` if one cannot be seen."""
    found = []
    for url in sorted(files):
        parts = urlsplit(url)
        path = {"": "", "file": "", "dbfs": "/dbfs"}.get(parts.scheme)
        if path is None or parts.netloc:
            return None
        try:
            status = os.stat(path + unquote(parts.path))
        except OSError:
            return None
        found.append([url, status.st_size, status.st_mtime_ns, status.st_ino])
    return found or None
