"""The fitted model as a Spark ML stage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyspark.ml.param.shared import HasFeaturesCol, HasPredictionCol
from pyspark.ml.tuning import ParamGridBuilder
from torch import nn

from spark_ring.artifact import FitSummary, OutputSpec
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ConfigError
from spark_ring.spark.model import RingModel, TorchModel
from spark_ring.torch.module import weights_bytes


def contract(*specs):
    return Contract(tuple(specs))


VECTOR = TensorSpec("x0", (SourceColumn("f.v", "vector", 2),), "float32", (2,))


@pytest.fixture
def model():
    return TorchModel(nn.Linear(2, 1), contract(VECTOR), history=[{"epoch": 1, "loss": 0.5}])


def test_a_model_is_a_stage_with_params(model):
    assert isinstance(model, HasFeaturesCol)
    assert isinstance(model, HasPredictionCol)
    assert model.getFeaturesCol() == "f.v"
    assert model.setPredictionCol("p").getPredictionCol() == "p"
    assert model.setHandleInvalid("keep").getHandleInvalid() == "keep"
    for param in ("featuresCol", "predictionCol", "handleInvalid", "inferenceBatchSize", "outputKind"):
        assert f"{param}: " in model.explainParams()
    for setter in ("setInferenceBatchSize", "setOutputKind", "setProbabilityCol", "setRawPredictionCol"):
        with pytest.raises(ConfigError):
            getattr(model, setter)(-1)


@pytest.mark.parametrize(
    ("specs", "params"),
    [
        ([VECTOR], {"featuresCol": "f.v"}),
        (
            [
                TensorSpec("x0", (SourceColumn("a", "double"),), "float32"),
                TensorSpec("x1", (SourceColumn("b", "double"),), "float32"),
            ],
            {"inputCols": ["a", "b"]},
        ),
        (
            [
                TensorSpec(
                    "x0", (SourceColumn("a", "double"), SourceColumn("b", "double")), "float32", (2,), "dense"
                ),
                TensorSpec("x1", (SourceColumn("c", "int"),), "int64", (), "item"),
            ],
            {"inputCols": {"dense": ["a", "b"], "item": "c"}},
        ),
    ],
)
def test_input_params_come_from_the_contract(specs, params):
    class Any(nn.Module):
        def forward(self, *arguments, **keywords):
            return next(iter((*arguments, *keywords.values())))

    made = TorchModel(Any(), contract(*specs))
    assert {name: made.getOrDefault(name) for name in params} == params


def test_a_copy_has_its_own_params_and_the_same_weights(model):
    other = model.copy({model.predictionCol: "other"})
    assert model.getPredictionCol() == "prediction"
    assert other.getPredictionCol() == "other"
    assert other.uid == model.uid
    assert other.fitted is model.fitted
    assert len(ParamGridBuilder().addGrid(model.inferenceBatchSize, [1, 2]).build()) == 2


def test_the_native_module_is_taken_out_and_used(model):
    """Case 163."""
    rows = np.float32([[1, 2], [3, 4]])
    module = model.getModel()
    assert isinstance(module, nn.Linear)
    assert not module.training
    assert module is not model.module
    assert all(parameter.device.type == "cpu" for parameter in module.parameters())
    np.testing.assert_allclose(module(torch.from_numpy(rows)).detach().numpy()[:, 0], model.predict(rows))


def test_history_summary_and_contract_are_there(model):
    assert model.history == [{"epoch": 1, "loss": 0.5}]
    model.history[0]["loss"] = 9  # a copy
    assert model.history[0]["loss"] == 0.5
    assert model.summary == FitSummary()
    assert model.contract.inputs == (VECTOR,)


def test_trained_weights_and_a_callable(model):
    trained = nn.Linear(2, 1)
    made = TorchModel(lambda: nn.Linear(2, 1), contract(VECTOR), weights=weights_bytes(trained))
    assert torch.equal(made.module.weight, trained.weight)


def test_outputs_may_be_told_where_zeros_would_not_do():
    class NoZeros(nn.Module):
        def forward(self, x):
            assert x.any()
            return x

    with pytest.raises(AssertionError):
        TorchModel(NoZeros(), contract(VECTOR))
    made = TorchModel(NoZeros(), contract(VECTOR), outputs=[OutputSpec((2,), "float32")])
    assert made.predict([[1, 2]]).tolist() == [[1, 2]]


def test_an_empty_model_is_good_for_loading_only():
    """Case 161: a constructor without arguments."""
    for kind in (TorchModel, RingModel):
        with pytest.raises(ConfigError, match="is empty"):
            kind().fitted  # noqa: B018
    with pytest.raises(ConfigError, match="a module and a contract, or neither"):
        TorchModel(nn.Linear(1, 1))


def test_a_sequential_is_one_model():
    """Case 148: although it is iterable."""
    made = TorchModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), contract(VECTOR))
    assert len(made.fitted.outputs) == 1
