"""What the demo prints and draws."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from spark_ring import _core

__all__ = ["epochs", "loss_curve", "phases", "quality", "versions", "workers"]


def versions(console: Console, spark: SparkSession, count: int) -> None:
    """Versions and topology."""
    names = ("spark-ring", "pyspark", "pyarrow", "torch", "mlflow", "numpy")
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    console.print(f"Python {platform.python_version()}, {found}", highlight=False)
    master = spark.sparkContext.master
    slots = spark.sparkContext.defaultParallelism
    console.print(f"Spark {master}: {slots} slots, {count} workers, kernels {_core.simd()}", highlight=False)


def workers(console: Console, model: Any) -> None:
    """Where each worker ran and how many rows it read."""
    table = Table(title="Workers", title_justify="left")
    for name in ("rank", "host", "pid", "transport", "rows per epoch"):
        table.add_column(name, justify="right")
    for worker in model.summary.workers:
        facts = worker["facts"]
        table.add_row(
            str(worker["rank"]),
            str(facts["host"]),
            str(facts["pid"]),
            str(facts["transport"]),
            f"{worker['rows']:,}",
        )
    console.print(table)


def epochs(console: Console, model: Any) -> None:
    """One line per epoch."""
    table = Table(title="Epochs", title_justify="left")
    names = ("loss", "mae", "val_loss", "val_mae", "seconds", "rows_per_second")
    table.add_column("epoch", justify="right")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for record in model.history:
        best = " *" if record["epoch"] == model.summary.best_epoch else ""
        cells = [
            f"{record[name]:,.0f}" if name == "rows_per_second" else f"{record[name]:.3f}" for name in names
        ]
        table.add_row(f"{record['epoch']}{best}", *cells)
    console.print(table)
    console.print("* kept: the best validation loss")


def quality(console: Console, rivals: dict[str, dict[str, float]], seconds: float, rows: int) -> None:
    """RMSE and R² on the test months."""
    table = Table(title="Test months, same features", title_justify="left")
    table.add_column("model")
    table.add_column("RMSE, minutes", justify="right")
    table.add_column("R²", justify="right")
    for name, values in rivals.items():
        table.add_row(name, f"{values['rmse']:.3f}", f"{values['r2']:.4f}")
    console.print(table)
    console.print(f"scored {rows:,} rows in {seconds:.1f} s: {rows / seconds:,.0f} rows/s, features included")


def phases(console: Console, seconds: dict[str, float], model: Any) -> None:
    """Seconds per phase; those inside the fit are indented."""
    table = Table(title="Seconds per phase", title_justify="left")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    for name, value in seconds.items():
        table.add_row(name, f"{value:.1f}")
        if name == "features, then fit":
            for inner, spent in model.summary.phases.items():
                table.add_row(f"  {inner}", f"{spent:.1f}")
    console.print(table)


def loss_curve(model: Any, path: Path) -> None:
    """Draw training and validation loss per epoch into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    history = model.history
    numbers = [record["epoch"] for record in history]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(numbers, [record["loss"] for record in history], marker="o", label="training")
    axes.plot(numbers, [record["val_loss"] for record in history], marker="s", label="validation")
    axes.axvline(model.summary.best_epoch, color="grey", linestyle=":", label="kept")
    axes.set(xlabel="epoch", ylabel="mean squared error, minutes²", title="Arrival delay, two workers")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
