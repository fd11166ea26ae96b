"""How a fit went: where the time and the rows went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["FitSummary"]


@dataclass(frozen=True)
class FitSummary:
    """Facts of one fit. JSON values only.

    Attributes:
        run_id: identity of the fit in the store.
        store: the store's URL.
        dataset: the materialized dataset, relative to the store.
        rows: rows per split, ``{"train": 900, "val": 100}``.
        phases: seconds per phase, in order, for example ``{"materialize": 3.1, "launch": 2.0, "train":
            9.5}``.
        workers: per rank ``{"rank": 0, "rows": 450, "facts": {"host": …, "pid": …, "transport": …}}``.
        best_epoch: the epoch whose weights were kept, from 1; 0 when unknown.
        resumed_epoch: epochs that were already done when the last attempt began.
        mlflow_run_id: the MLflow run that holds the fit, or ``""``.
    """

    run_id: str = ""
    store: str = ""
    dataset: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    workers: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    resumed_epoch: int = 0
    mlflow_run_id: str = ""

    @property
    def topology(self) -> dict[str, list[int]]:
        """Host → ranks on it."""
        hosts: dict[str, list[int]] = {}
        for worker in self.workers:
            hosts.setdefault(str(worker.get("facts", {}).get("host", "?")), []).append(int(worker["rank"]))
        return hosts

    @property
    def rows_per_worker(self) -> dict[int, int]:
        """Rank → training rows it read in the last epoch."""
        return {int(worker["rank"]): int(worker["rows"]) for worker in self.workers}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> FitSummary:
        """Read what :meth:`to_dict` wrote; names that a later version added are left out."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: one for name, one in value.items() if name in known})

    def __str__(self) -> str:
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.phases.items())
        hosts = "; ".join(
            f"{host}: ranks {', '.join(map(str, ranks))}" for host, ranks in self.topology.items()
        )
        read = ", ".join(f"rank {rank}: {rows:,}" for rank, rows in self.rows_per_worker.items())
        lines = {
            "run": self.run_id,
            "rows": ", ".join(f"{name} {rows:,}" for name, rows in self.rows.items()),
            "phases": phases,
            "hosts": hosts,
            "rows per worker": read,
            "kept epoch": str(self.best_epoch) if self.best_epoch else "",
            "MLflow run": self.mlflow_run_id,
        }
        return "\n".join(f"{name + ':':<17}{text}" for name, text in lines.items() if text)
