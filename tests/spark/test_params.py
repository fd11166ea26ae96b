"""Params: declared once, checked when set, honest about names."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol, HasSeed, HasWeightCol

from spark_ring.errors import ConfigError
from spark_ring.spark.params import HasInputs, HasLabels, HasPrediction, HasValidation, HasWeight
from spark_ring.spark.training_params import (
    HasEarlyStopping,
    HasObjects,
    HasReporting,
    HasTraining,
    HasWorkers,
)


class Stage(
    HasObjects,
    HasInputs,
    HasLabels,
    HasPrediction,
    HasWeight,
    HasValidation,
    HasTraining,
    HasEarlyStopping,
    HasWorkers,
    HasReporting,
):
    """Every Param in one stage."""


def test_every_param_has_documentation_a_setter_and_a_getter():
    stage = Stage()
    for param in stage.params:
        capital = param.name[0].upper() + param.name[1:]
        assert len(param.doc) > 20
        assert callable(getattr(stage, f"set{capital}"))
        assert callable(getattr(stage, f"get{capital}"))
        assert getattr(Stage, f"set{capital}").__doc__
    assert "batchSize: rows per worker and step" in stage.explainParams()


def test_it_has_the_mixins_that_spark_ml_looks_for():
    for mixin in (HasFeaturesCol, HasLabelCol, HasPredictionCol, HasSeed, HasWeightCol):
        assert isinstance(Stage(), mixin)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("batchSize", np.int64(7), 7),
        ("epochs", 3.0, 3),
        ("validationFraction", 0, 0.0),
        ("inputCols", ("a", "b"), ["a", "b"]),
        ("inputCols", {"x": ("a", "b"), "y": "c"}, {"x": ["a", "b"], "y": "c"}),
        ("seed", -5, -5),
        ("loss", [len, max], [len, max]),
        ("metrics", {"mae": len}, {"mae": len}),
    ],
)
def test_a_good_value_is_kept_in_one_form(name, value, kept):
    assert Stage().setParams(**{name: value}).getOrDefault(name) == kept


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("batchSize", 0, "at least 1"),
        ("batchSize", "32", "an integer"),
        ("batchSize", True, "an integer"),
        ("epochs", 1.5, "an integer"),
        ("validationFraction", 1.0, "below 1"),
        ("validationFraction", float("nan"), "at least 0"),
        ("learningRate", 0, "greater than 0"),
        ("learningRate", float("inf"), "finite"),
        ("shuffle", "false", "True or False"),
        ("labelCol", ["a"], "for several there is labelCols"),
        ("inputCols", "a", r"a list of column names"),
        ("inputCols", ["a", "a"], "each column once"),
        ("inputCols", {"a b": ["x"]}, "keyword argument"),
        ("inputCols", {"x": []}, "at least one column"),
        ("monitorMode", "up", "one of 'min', 'max'"),
        ("loss", 3, "a callable"),
        ("metrics", {"loss": len}, "are taken"),
        ("metrics", {"val_x": len}, "are taken"),
        ("lossWeights", [1, 0], "greater than 0"),
        ("store", "", "not empty"),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value, says):
    with pytest.raises(ConfigError, match=says) as caught:
        Stage().setParams(**{name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("num_proc", "numTrainWorkers"),
        ("feature_cols", "inputCols"),
        ("label_cols", "labelCols"),
        ("batch_size", "batchSize"),
        ("batchsize", "batchSize"),
        ("epoch", "epochs"),
        ("learning_rate", "learningRate"),
        ("sample_weight_col", "weightCol"),
        ("validation", "validationFraction"),
    ],
)
def test_another_librarys_name_gets_the_right_spelling(wrong, right):
    with pytest.raises(ConfigError, match=f"did you mean '{right}'"):
        Stage().setParams(**{wrong: 1})


def test_a_name_without_counterpart_says_what_to_do_instead():
    with pytest.raises(ConfigError, match="one backend, the ring"):
        Stage().setParams(backend="gloo")
    with pytest.raises(ConfigError, match="its Params are batchSize"):
        Stage().setParams(zzz=1)


def test_none_leaves_a_param_unset():
    stage = Stage().setParams(batchSize=5, inputCols=None)
    assert stage.getInputCols() is None
    assert stage.setBatchSize(None).getBatchSize() == 32
    with pytest.raises(ConfigError, match="cannot be None"):
        stage.setLoss(None)


def test_a_copy_with_extra_leaves_the_original_alone():
    stage = Stage().setParams(batchSize=5, loss=len)
    other = stage.copy({stage.batchSize: 9, stage.loss: max})
    assert (other.getBatchSize(), other.getLoss()) == (9, max)
    assert (stage.getBatchSize(), stage.getLoss()) == (5, len)


def test_two_ways_of_saying_the_same_are_refused():
    with pytest.raises(ConfigError, match="both set"):
        Stage().setParams(featuresCol="a", inputCols=["b"])._inputs()
    with pytest.raises(ConfigError, match="both set"):
        Stage().setParams(labelCol="a", labelCols=["b"])._labels()
    with pytest.raises(ConfigError, match="both set"):
        Stage().setParams(validationFraction=0.5, validationIndicatorCol="v")._validates()
