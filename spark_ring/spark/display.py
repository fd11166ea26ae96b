"""What a fit shows while it runs: a bar where there is a terminal or a notebook, else a line per epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Display", "QuietDisplay", "make_display", "metrics_text"]

# What a record holds besides metrics; shown in another form, or not at all.
_NOT_METRICS = frozenset(("epoch", "rows", "seconds", "rows_per_second", "slowest_rank"))


class Display(Protocol):
    """Where a fit tells how it goes. Calls come from one thread at a time; none raises."""

    def note(self, text: str) -> None:
        """Say one thing, for example that data are being written."""

    def live(self, state: Mapping[str, Any]) -> None:
        """Show where training is: epoch, step, loss, rows per second."""

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        """Show a finished epoch."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class QuietDisplay:
    """Shows nothing."""

    def note(self, text: str) -> None:
        pass

    def live(self, state: Mapping[str, Any]) -> None:
        pass

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        pass

    def close(self) -> None:
        pass


class PlainDisplay(QuietDisplay):
    """A line per event, for logs."""

    def note(self, text: str) -> None:
        print(text, flush=True)

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        print(epoch_line(record, epochs), flush=True)


class BarDisplay(QuietDisplay):
    """A bar for the epoch that runs, above it a line per finished epoch."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:>6.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            transient=True,
        )
        self._task: Any = None

    def note(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def live(self, state: Mapping[str, Any]) -> None:
        if self._task is None:
            self._task = self._bars.add_task("", facts="")
            self._bars.start()
        self._bars.update(
            self._task,
            description=f"epoch {state['epoch']}/{state['epochs']}",
            completed=state["step"],
            total=state["steps"],
            facts=f"loss {state['loss']:.5g}  {state['rows_per_second']:,.0f} rows/s",
        )

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        self.note(epoch_line(record, epochs))

    def close(self) -> None:
        self._bars.stop()


def make_display(verbose: int) -> Display:
    """Return the display that fits: none, a bar, or plain lines."""
    if verbose == 0:
        return QuietDisplay()
    try:
        from rich.console import Console
    except ImportError:
        return PlainDisplay()
    console = Console()
    return BarDisplay() if console.is_terminal or console.is_jupyter else PlainDisplay()


def epoch_line(record: Mapping[str, Any], epochs: int) -> str:
    """Return one line for a finished epoch."""
    pace = f"{record.get('rows_per_second', 0.0):,.0f} rows/s  {record.get('seconds', 0.0):.1f} s"
    return f"epoch {record['epoch']}/{epochs}  {metrics_text(record)}  {pace}"


def metrics_text(record: Mapping[str, Any]) -> str:
    """Return a record's metrics, without times and counts."""
    return "  ".join(
        f"{name} {value:.5g}"
        for name, value in record.items()
        if name not in _NOT_METRICS and not name.endswith("_seconds") and isinstance(value, (int, float))
    )
