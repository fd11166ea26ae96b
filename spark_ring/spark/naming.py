"""Wrong Param names: find the one that was meant.

People come from Horovod, from Spark's Scala-style names and from plain typing errors. A name that no
Param has is an error that gives the right spelling; it is never accepted and ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from spark_ring.errors import ConfigError

__all__ = ["unknown_param"]

# Names of other libraries for the same thing (Horovod's estimators, TorchDistributor, XGBoost, Keras).
_SAME = {
    "num_proc": "numTrainWorkers",
    "num_processes": "numTrainWorkers",
    "num_workers": "numTrainWorkers",
    "np": "numTrainWorkers",
    "feature_cols": "inputCols",
    "features_cols": "inputCols",
    "featuresCols": "inputCols",
    "features": "featuresCol",
    "feature_col": "featuresCol",
    "labels": "labelCols",
    "label": "labelCol",
    "sample_weight_col": "weightCol",
    "loss_fn": "loss",
    "loss_fns": "loss",
    "criterion": "loss",
    "net": "model",
    "module": "model",
    "validation": "validationFraction",
    "lr": "learningRate",
    "num_epochs": "epochs",
    "maxIter": "epochs",
    "random_seed": "seed",
    "shuffle_buffer_size": "shuffle",
    "lr_scheduler": "scheduler",
    "early_stopping": "patience",
    "gradient_clipping": "gradientClipNorm",
    "experiment": "experimentName",
    "mlflow": "logToMLflow",
}

# Things that have no counterpart, with what to do instead.
_INSTEAD = {
    "backend": "there is one backend, the ring; numTrainWorkers says how many workers it joins",
    "use_gpu": "workers use what Spark gives them",
    "callbacks": "metrics, scheduler and patience cover what callbacks are mostly used for",
    "transformation_fn": "transform the DataFrame before fit, in Spark",
    "partitions_per_process": "row groups are sized by spark_ring",
    "run_id": "each fit makes a run of its own; runName is its name in MLflow",
    "gradient_compression": "gradients travel in the model's dtype",
    "train_steps_per_epoch": "an epoch reads every row once",
    "validation_steps_per_epoch": "an epoch reads every row once",
}


def unknown_param(owner: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that ``owner`` has no Param of.

    Args:
        owner: the class's name, for example ``"TorchEstimator"``.
        name: what was written.
        known: the names of its Params.
    """
    names = sorted(known)
    if name in _INSTEAD:
        return ConfigError(f"{owner} has no Param {name!r}: {_INSTEAD[name]}")
    meant = _meant(name, names)
    if meant:
        return ConfigError(f"{owner} has no Param {name!r}; did you mean {meant!r}?")
    return ConfigError(f"{owner} has no Param {name!r}; its Params are {', '.join(names)}")


def _meant(name: str, names: list[str]) -> str | None:
    if _SAME.get(name) in names:
        return _SAME[name]
    folded = {_fold(known): known for known in names}
    if _fold(name) in folded:
        return folded[_fold(name)]
    close = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=0.75)
    return folded[close[0]] if close else None


def _fold(name: str) -> str:
    return name.replace("_", "").lower()
