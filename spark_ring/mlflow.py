"""The MLflow flavor ``spark_ring``: fitted models as MLflow models.

A logged model comes back in three ways: :func:`load_model` gives the Spark Transformer,
``mlflow.pyfunc.load_model(uri).predict(pandas or numpy)`` scores without Spark, and
``mlflow.pyfunc.spark_udf(spark, uri, env_manager="local")`` scores as a function of columns.

Whoever loads an MLflow model runs code that the model names, whatever its flavor: the tracking server and the
registry say who may write there. So a model that is loaded through MLflow counts as trusted, unless MLflow's
own switch ``MLFLOW_ALLOW_PICKLE_DESERIALIZATION`` is false; then spark_ring asks as it does everywhere else
(see :mod:`spark_ring.artifact.trust`).
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_ring.artifact import FittedModel
from spark_ring.artifact.folder import Folder
from spark_ring.artifact.outputs import plan_for
from spark_ring.tracking.frames import FrameModel
from spark_ring.tracking.signature import example_frame, model_signature

if TYPE_CHECKING:
    from spark_ring.spark.model import RingModel

__all__ = ["FLAVOR_NAME", "load_model", "log_model", "save_model"]

FLAVOR_NAME = "spark_ring"
DATA = "spark_ring_model"
_PACKAGES = {"torch": ("torch", "safetensors")}


def save_model(
    model: RingModel,
    path: str | os.PathLike[str],
    mlflow_model: Any = None,
    *,
    signature: Any = None,
    input_example: Any = None,
    pip_requirements: list[str] | None = None,
    extra_pip_requirements: list[str] | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Save a fitted model as an MLflow model.

    Args:
        model: a fitted model of :mod:`spark_ring.spark`.
        path: a folder that does not exist yet, or is empty.
        mlflow_model: MLflow's description to add to; ``None`` makes one.
        signature: ``None`` derives it from the column contract.
        input_example: a pandas DataFrame with the source columns; vectors are welcome.
        pip_requirements: all of the model's requirements; ``None`` lists the versions in use.
        extra_pip_requirements: added to these.
        metadata: kept with the description.
    """
    import yaml  # type: ignore[import-untyped]
    from mlflow import pyfunc
    from mlflow.models import Model
    from mlflow.models.model import MLMODEL_FILE_NAME
    from mlflow.models.utils import _save_example
    from mlflow.utils import environment

    folder = Path(path).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    fitted = model.fitted
    plan = plan_for(fitted, {param.name: value for param, value in model.extractParamMap().items()})
    mlflow_model = mlflow_model or Model()
    mlflow_model.signature = signature or model_signature(fitted.contract, plan)
    if metadata is not None:
        mlflow_model.metadata = metadata
    if input_example is not None:
        _save_example(mlflow_model, example_frame(input_example, fitted.contract), str(folder))
    model.write().save(f"file:{folder / DATA}")
    conda, requirements, constraints = environment._process_pip_requirements(
        _requirements(fitted.framework), pip_requirements, extra_pip_requirements
    )
    pyfunc.add_to_model(
        mlflow_model,
        loader_module=__name__,
        data=DATA,
        conda_env=environment._CONDA_ENV_FILE_NAME,
        python_env=environment._PYTHON_ENV_FILE_NAME,
    )
    mlflow_model.add_flavor(
        FLAVOR_NAME, data=DATA, framework=fitted.framework, spark_ring_version=_version("spark-ring")
    )
    mlflow_model.save(str(folder / MLMODEL_FILE_NAME))
    (folder / environment._CONDA_ENV_FILE_NAME).write_text(yaml.safe_dump(conda))
    (folder / environment._REQUIREMENTS_FILE_NAME).write_text("\n".join(requirements))
    if constraints:
        (folder / environment._CONSTRAINTS_FILE_NAME).write_text("\n".join(constraints))
    environment._PythonEnv.current().to_yaml(str(folder / environment._PYTHON_ENV_FILE_NAME))


def log_model(
    model: RingModel,
    name: str = "model",
    *,
    run_id: str | None = None,
    registered_model_name: str | None = None,
    **options: Any,
) -> Any:
    """Log a fitted model.

    Args:
        model: a fitted model of :mod:`spark_ring.spark`.
        name: of the model in its run.
        run_id: the run; ``None`` is the active run, or a new one.
        registered_model_name: register it under this name.
        options: those of :func:`save_model`.

    Returns:
        MLflow's ``ModelInfo``; its ``model_uri`` loads the model.
    """
    from mlflow.models import Model

    # MLflow 3 calls the place in the run "name", MLflow 2 "artifact_path".
    named = "name" in inspect.signature(Model.log).parameters
    return Model.log(
        artifact_path=None if named else name,
        **({"name": name} if named else {}),
        flavor=sys.modules[__name__],
        run_id=run_id,
        registered_model_name=registered_model_name,
        model=model,
        **options,
    )


def load_model(model_uri: str, dst_path: str | None = None) -> Any:
    """Load a logged model as a Spark Transformer.

    Args:
        model_uri: for example ``"models:/delay/3"`` or ``"runs:/<run_id>/model"``.
        dst_path: where to download it; ``None`` is a temporary folder.

    Raises:
        UntrustedArtifactError: it holds pickled code, and MLflow is told not to allow that.
    """
    from importlib import import_module

    from mlflow.artifacts import download_artifacts

    folder = Path(download_artifacts(artifact_uri=model_uri, dst_path=dst_path)) / DATA
    place = f"file:{folder}"
    module, _, name = Folder(place).metadata["class"].rpartition(".")
    if module.partition(".")[0] != "spark_ring":
        raise ValueError(f"{folder} holds a {module}.{name}, which is no model of spark_ring")
    return getattr(import_module(module), name).load(place, trusted=_allowed())


def _load_pyfunc(path: str) -> FrameModel:
    """Called by MLflow, in this process or in Spark's workers."""
    folder = Folder(f"file:{Path(path).absolute()}")
    fitted = FittedModel.read(folder, trusted=_allowed())
    params = {**folder.metadata["defaultParamMap"], **folder.metadata["paramMap"]}
    return FrameModel(fitted, plan_for(fitted, params), keep_invalid=params["handleInvalid"] != "error")


def _allowed() -> bool:
    """Whether MLflow lets models run pickled code; versions without the switch do."""
    from mlflow import environment_variables

    switch = getattr(environment_variables, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION", None)
    return switch is None or bool(switch.get())


def _requirements(framework: str) -> list[str]:
    packages = ("spark-ring", *_PACKAGES.get(framework, ()), "pyarrow", "numpy", "pandas", "cloudpickle")
    # A local version ("2.13.0+cpu") is on no index.
    return [f"{package}=={_version(package).split('+')[0]}" for package in packages if _version(package)]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
