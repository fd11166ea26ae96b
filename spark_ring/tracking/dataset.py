"""A materialized dataset as MLflow records one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from spark_ring.data.manifest import Manifest

__all__ = ["describe_dataset"]

DIGEST_LIMIT = 36  # MLflow's


def describe_dataset(manifest: Manifest, source: str) -> Any:
    """Return MLflow's ``DatasetInput``: source columns, rows and bytes of each split, content key, place.

    Args:
        manifest: of the dataset.
        source: where it lies.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    splits = {name: {"rows": manifest.rows(name), "bytes": manifest.bytes(name)} for name in manifest.splits}
    tensors = [
        {
            "tensor": spec.name,
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "columns": {column.name: column.spark_type for column in spec.columns},
        }
        for spec in manifest.contract.tensors
    ]
    dataset = Dataset(
        name="training data",
        digest=_digest(manifest),
        source_type="local",
        source=json.dumps({"uri": source, "dataset": manifest.dataset}),
        schema=json.dumps({"spark_ring": tensors}),
        profile=json.dumps({"rows": sum(split["rows"] for split in splits.values()), "splits": splits}),
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", "training")])


def _digest(manifest: Manifest) -> str:
    """The content key under which the data are cached; without one, a digest of what the manifest lists."""
    if manifest.key:
        return manifest.key[:DIGEST_LIMIT]
    listed = repr([(name, manifest.row_groups(name)) for name in sorted(manifest.splits)])
    return hashlib.sha256(listed.encode()).hexdigest()[:DIGEST_LIMIT]
