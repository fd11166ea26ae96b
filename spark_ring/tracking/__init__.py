"""What a fit leaves behind in MLflow; nothing, quietly, when MLflow is absent.

``start_run`` is the only door. It never raises and never makes a fit wait for a slow server: see
:mod:`.background`.
"""

from __future__ import annotations

from spark_ring.tracking.tracker import NoTracker, Tracker, start_run

__all__ = ["NoTracker", "Tracker", "start_run"]
