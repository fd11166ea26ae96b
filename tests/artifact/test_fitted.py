"""A fitted model as a value, and as a folder, without Spark."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from spark_ring.artifact import FitSummary, FittedModel, OutputSpec, load_model
from spark_ring.artifact.folder import Folder
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ColumnError, DataError, StoreError, UntrustedArtifactError

CONTRACT = Contract((TensorSpec("x0", (SourceColumn("features", "vector", 3),), "float32", (3,)),))
ROWS = np.random.default_rng(0).normal(size=(5, 3))


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def custom():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = plain()

        def forward(self, x):
            return self.inner(x)

    return Net()


def save(model, path):
    Folder(path).write(model.to_files(), {"class": "x.Y"}, model.facts(), overwrite=False)


def test_a_model_is_used_without_spark():
    """Case 163."""
    net = plain()
    model = FittedModel.of("torch", net, CONTRACT)
    assert model.outputs == (OutputSpec((), "float32"),)
    expected = net(torch.from_numpy(ROWS.astype("float32"))).detach().numpy()[:, 0]
    np.testing.assert_allclose(model.predict(ROWS), expected, rtol=1e-6)
    np.testing.assert_allclose(model.predict(ROWS[:1].tolist()), expected[:1], rtol=1e-6)
    assert model.predict(ROWS[:0]).shape == (0,)
    mine = model.module
    with torch.no_grad():
        mine[0].weight.zero_()
    np.testing.assert_allclose(model.predict(ROWS), expected, rtol=1e-6)  # each module is a copy


def test_equal_models_have_equal_digests_and_others_have_not():
    assert (
        FittedModel.of("torch", plain(), CONTRACT).digest == FittedModel.of("torch", plain(), CONTRACT).digest
    )
    other = plain()

    with torch.no_grad():
        other[0].bias.add_(1)
    assert (
        FittedModel.of("torch", other, CONTRACT).digest != FittedModel.of("torch", plain(), CONTRACT).digest
    )


@pytest.mark.parametrize(
    ("arrays", "named", "error", "match"),
    [
        ([], {}, DataError, "takes 1 input"),
        ([ROWS, ROWS], {}, DataError, "takes 1 input"),
        ([], {"features": ROWS}, DataError, "takes 1 input"),
        ([ROWS[:, :2]], {}, ColumnError, r"'features' has shape \(5, 2\); expected \(rows, 3\)"),
        ([ROWS.astype(str)], {}, ColumnError, "'features' has dtype"),
    ],
)
def test_wrong_inputs_are_named(arrays, named, error, match):
    with pytest.raises(error, match=match):
        FittedModel.of("torch", plain(), CONTRACT).predict(*arrays, **named)


def test_a_model_of_plain_layers_loads_without_trust(tmp_path):
    """Case 178: there is no code in it."""
    model = FittedModel.of("torch", plain(), CONTRACT, history=[{"epoch": 1, "loss": float("nan")}])
    save(model, tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert not list((tmp_path / "m").rglob("*.pkl"))
    np.testing.assert_array_equal(again.predict(ROWS), model.predict(ROWS))
    assert again.contract == model.contract
    assert np.isnan(again.history[0]["loss"])
    assert again.digest == model.digest


def test_a_model_with_code_asks_for_trust(tmp_path):
    """Cases 160, 178."""
    model = FittedModel.of("torch", custom(), CONTRACT)
    save(model, tmp_path / "m")
    with pytest.raises(UntrustedArtifactError, match=r"module\.pkl"):
        load_model(tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m", trusted=True).predict(ROWS), model.predict(ROWS))


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["module.pkl", "weights.safetensors"])
def test_a_malicious_pickle_is_not_executed(tmp_path, name):
    """Case 178: whichever file it hides in, and although the digests are right."""
    model = FittedModel.of("torch", custom(), CONTRACT)
    evil = FittedModel(
        "torch",
        {**model.files, name: pickle.dumps(Malicious(str(tmp_path / "owned")))},
        CONTRACT,
        model.outputs,
    )
    save(evil, tmp_path / "m")
    with pytest.raises(UntrustedArtifactError):
        load_model(tmp_path / "m")
    if name == "weights.safetensors":  # not even with trust: weights are never unpickled
        with pytest.raises(Exception, match=r"(?i)header"):
            load_model(tmp_path / "m", trusted=True).predict(ROWS)
    assert not (tmp_path / "owned").exists()


def test_that_the_malicious_pickle_would_have_worked(tmp_path):
    pickle.loads(pickle.dumps(Malicious(str(tmp_path / "owned"))))
    assert (tmp_path / "owned").exists()


def test_a_class_of_a_script_loads_in_a_process_that_never_saw_it(tmp_path):
    """Case 160, and no pyspark is imported on the way."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "from torch import nn\n"
        "from spark_ring.artifact import FittedModel\n"
        "from spark_ring.artifact.folder import Folder\n"
        "from spark_ring.data.schema import *\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x): return helper(x)\n"
        "def helper(x): return x.sum(1) * 2\n"
        "c = Contract((TensorSpec('x0', (SourceColumn('f', 'vector', 3),), 'float32', (3,)),))\n"
        "m = FittedModel.of('torch', Net(), c)\n"
        "Folder(sys.argv[1]).write(m.to_files(), {'class': 'x.Y'}, m.facts(), overwrite=False)\n"
    )
    load = (
        "import sys, spark_ring.artifact as a\n"
        "print(a.load_model(sys.argv[1], trusted=True).predict([[1, 2, 3]]))\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    path = str(tmp_path / "m")
    run(str(script), path)
    assert run("-c", load, path) == "[12.]\n"


def test_a_damaged_model_is_refused(tmp_path):
    save(FittedModel.of("torch", plain(), CONTRACT), tmp_path / "m")
    weights = tmp_path / "m" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(StoreError, match="damaged or was changed"):
        load_model(tmp_path / "m")


def test_a_saved_estimator_is_no_model(tmp_path):
    Folder(tmp_path / "e").write({}, {"class": "x.Y"}, {"kind": "estimator"}, overwrite=False)
    with pytest.raises(DataError, match="a saved estimator, not a fitted model"):
        load_model(tmp_path / "e")


def test_the_summary_tells_where_rows_and_time_went():
    workers = [
        {"rank": 0, "rows": 50, "facts": {"host": "a"}},
        {"rank": 1, "rows": 49, "facts": {"host": "b"}},
        {"rank": 2, "rows": 50, "facts": {"host": "a"}},
    ]
    summary = FitSummary("run-1", rows={"train": 149}, phases={"train": 1.25}, workers=workers, best_epoch=2)
    assert summary.topology == {"a": [0, 2], "b": [1]}
    assert summary.rows_per_worker == {0: 50, 1: 49, 2: 50}
    assert FitSummary.from_dict({**summary.to_dict(), "of the future": 1}) == summary
    for part in ("run-1", "train 1.2 s", "a: ranks 0, 2", "rank 1: 49", "train 149"):
        assert part in str(summary)


def test_a_model_survives_pickling_without_its_live_module():
    model = FittedModel.of("torch", plain(), CONTRACT)
    model.predict(ROWS)
    again = pickle.loads(pickle.dumps(model))
    assert "_predictor" not in again.__dict__
    np.testing.assert_array_equal(again.predict(ROWS), model.predict(ROWS))


def run(*args):
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
