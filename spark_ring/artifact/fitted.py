"""A fitted model as a value: what a Spark model holds, and all there is to it without Spark."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from spark_ring.artifact.folder import Folder
from spark_ring.artifact.frameworks import framework
from spark_ring.artifact.summary import FitSummary
from spark_ring.artifact.trust import require_trust
from spark_ring.data.arrow import source_names
from spark_ring.data.schema import Contract, TensorSpec
from spark_ring.errors import ColumnError, DataError

__all__ = ["FittedModel", "OutputSpec", "load_model"]


@dataclass(frozen=True)
class OutputSpec:
    """One output of a model.

    Attributes:
        shape: of one row: ``()`` a number, ``(10,)`` ten numbers. A model's ``(rows, 1)`` counts as ``()``.
        dtype: NumPy name, as the model returns it.
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained model with what is needed to use it.

    Attributes:
        framework: ``"torch"``.
        files: the framework's files, name → content: weights and architecture.
        contract: which columns become which tensors.
        outputs: what the model returns, in order.
        history: one record per epoch.
        summary: how the fit went.
    """

    framework: str
    files: Mapping[str, bytes]
    contract: Contract
    outputs: tuple[OutputSpec, ...]
    history: tuple[dict[str, Any], ...] = ()
    summary: FitSummary = field(default_factory=FitSummary)

    @classmethod
    def of(
        cls,
        name: str,
        model: Any,
        contract: Contract,
        *,
        weights: bytes | None = None,
        outputs: Sequence[OutputSpec] | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        summary: FitSummary | None = None,
    ) -> FittedModel:
        """Make one of a framework's model.

        Args:
            name: of the framework.
            model: its model object; it is not changed.
            contract: as trained; every dimension known.
            weights: trained weights in the framework's safe format, in place of those in ``model``.
            outputs: what the model returns; ``None`` finds out with two rows of zeros.
            history: records of epochs.
            summary: how the fit went.
        """
        made = cls(
            framework=name,
            files=framework(name).pack(model, weights),
            contract=contract,
            outputs=tuple(outputs or ()),
            history=tuple(dict(record) for record in history),
            summary=summary or FitSummary(),
        )
        if not made.outputs:
            object.__setattr__(made, "outputs", made._probe())
        return made

    @property
    def module(self) -> Any:
        """A new model object of the framework: final weights, on the CPU, in evaluation mode."""
        return framework(self.framework).unpack(self.files)

    def predict(self, *arrays: Any, **named: Any) -> Any:
        """Score rows that are in memory.

        Args:
            arrays: the positional inputs, each ``(rows, *shape)``; what NumPy can turn into an array.
            named: the keyword inputs.

        Returns:
            An array ``(rows,)`` for a number per row, else ``(rows, *shape)``; a tuple of arrays for several
            outputs.

        Raises:
            DataError: another number of inputs or of rows than the model takes.
            ColumnError: an input of another shape or kind.
        """
        outputs = self.outputs_for(self._arrange(arrays, named))
        return outputs[0] if len(outputs) == 1 else outputs

    def outputs_for(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return every output for rows that are tensors already.

        Args:
            inputs: tensor name → array ``(rows, *shape)`` in the contract's dtype.
        """
        if len(next(iter(inputs.values()))) == 0:
            return tuple(np.empty((0, *output.shape), output.dtype) for output in self.outputs)
        found: tuple[np.ndarray, ...] = self._predictor(inputs)
        return found

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the files; equal digests are equal models."""
        total = hashlib.sha256()
        for name in sorted(self.files):
            content = self.files[name]
            total.update(f"{name}:{len(content)}:".encode())
            total.update(content)
        return total.hexdigest()

    def to_files(self) -> dict[str, bytes]:
        """Return the files of a saved model."""
        return {
            **self.files,
            "contract.json": _json(self.contract.to_dict()),
            "history.json": _json(list(self.history)),
            "summary.json": _json(self.summary.to_dict()),
        }

    def facts(self) -> dict[str, Any]:
        """Return what the metadata must know."""
        return {
            "kind": "model",
            "framework": self.framework,
            "outputs": [{"shape": list(output.shape), "dtype": output.dtype} for output in self.outputs],
        }

    @classmethod
    def read(cls, folder: Folder, *, trusted: bool = False) -> FittedModel:
        """Read a saved model.

        Raises:
            UntrustedArtifactError: it holds code and nobody vouches for it; nothing of it was read.
            StoreError: it is missing, damaged, or no model.
        """
        facts = folder.facts
        if facts.get("kind") != "model":
            raise DataError(f"{folder.place!r} holds a saved {facts.get('kind')}, not a fitted model")
        code = framework(facts["framework"]).CODE_FILES
        own = [name for name in folder.names if name not in ("contract.json", "history.json", "summary.json")]
        for name in own:
            if name in code:
                require_trust(folder.place, name, trusted)
        return cls(
            framework=facts["framework"],
            files={name: folder.read(name) for name in own},
            contract=Contract.from_dict(json.loads(folder.read("contract.json"))),
            outputs=tuple(OutputSpec(tuple(one["shape"]), one["dtype"]) for one in facts["outputs"]),
            history=tuple(json.loads(folder.read("history.json"))),
            summary=FitSummary.from_dict(json.loads(folder.read("summary.json"))),
        )

    @cached_property
    def _predictor(self) -> Any:
        return framework(self.framework).predictor(self.module, self.contract)

    def _arrange(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, np.ndarray]:
        positional = [spec for spec in self.contract.inputs if spec.key is None]
        keyed = {spec.key: spec for spec in self.contract.inputs if spec.key is not None}
        if len(arrays) != len(positional) or set(named) != set(keyed):
            expected = [*(source_names(spec) for spec in positional), *(f"{key}=" for key in keyed)]
            raise DataError(
                f"the model takes {len(self.contract.inputs)} input(s): {', '.join(expected)}; "
                f"{len(arrays)} positional and {sorted(named)} were given"
            )
        given = [*zip(positional, arrays, strict=True), *((keyed[key], named[key]) for key in keyed)]
        inputs = {spec.name: _as_tensor(value, spec) for spec, value in given}
        if len({len(array) for array in inputs.values()}) > 1:
            raise DataError(f"inputs of different lengths: { {name: len(a) for name, a in inputs.items()} }")
        return {spec.name: inputs[spec.name] for spec in self.contract.inputs}

    def _probe(self) -> tuple[OutputSpec, ...]:
        zeros = {spec.name: np.zeros((2, *spec.shape), spec.dtype) for spec in self.contract.inputs}
        return tuple(OutputSpec(output.shape[1:], output.dtype.name) for output in self._predictor(zeros))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_predictor", "digest")}


def load_model(path: str | os.PathLike[str], *, trusted: bool = False) -> FittedModel:
    """Load a saved model without Spark.

    Args:
        path: the folder that ``TorchModel.save`` wrote; in a saved pipeline the stage's own folder,
            ``<path>/stages/<n>_<uid>``.
        trusted: whether pickled code in it may run. Not needed when the model is made of ``torch.nn`` layers
            only.

    Returns:
        The model: ``predict(arrays)``, ``module``, ``contract``, ``history``, ``summary``.

    Raises:
        UntrustedArtifactError: it holds code and nobody vouches for it.
        StoreError: it is missing or damaged.
    """
    return FittedModel.read(Folder(path), trusted=trusted)


def _as_tensor(value: Any, spec: TensorSpec) -> np.ndarray:
    array = np.asarray(value)
    wanted = np.dtype(spec.dtype)
    column = spec.columns[0].name if spec.columns else spec.name
    if array.shape[1:] != spec.shape or array.ndim == 0:
        raise ColumnError(
            f"{source_names(spec)} has shape {array.shape}; expected "
            f"(rows{''.join(f', {n}' for n in spec.shape)})",
            column=column,
        )
    kinds = "biu" if wanted.kind in "iu" else "biuf"
    if array.dtype.kind not in kinds:
        raise ColumnError(
            f"{source_names(spec)} has dtype {array.dtype}; expected {spec.dtype}", column=column
        )
    return np.array(array, wanted, order="C")  # a copy: the model may work in place


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
