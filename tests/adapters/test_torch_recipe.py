"""Architectures as JSON: only where nothing is lost."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from spark_ring.errors import DataError
from spark_ring.torch.recipe import build, recipe


class Twice(nn.Linear):
    """A subclass: its forward is code."""

    def forward(self, x):
        return 2 * super().forward(x)


def changed(attribute, value):
    module = nn.Linear(2, 2)
    setattr(module, attribute, value)
    return module


def hooked():
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda module, inputs, output: output * 2)
    return module


def tied():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second)


NETWORKS = {
    "mlp": nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1, bias=False)
    ),
    "convolution": nn.Sequential(
        nn.Unflatten(1, (1, 9)),
        nn.Conv1d(1, 2, 3, padding="same"),
        nn.AvgPool1d(3),
        nn.Flatten(),
        nn.Linear(6, 2),
    ),
    "nested": nn.Sequential(
        nn.Sequential(nn.LayerNorm(5), nn.GELU("tanh"), nn.Tanh()), nn.Sequential(nn.Linear(5, 1))
    ),
    "embedding": nn.Sequential(nn.Embedding(10, 4, padding_idx=0), nn.Flatten(0)),
    "alone": nn.Linear(2, 2),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_plain_layers_has_a_recipe_that_gives_it_back(name):
    network = NETWORKS[name]
    described = recipe(network)
    assert described is not None
    again = build(json.loads(json.dumps(described)))
    assert repr(again) == repr(network)
    assert {n: p.shape for n, p in again.state_dict().items()} == {
        n: p.shape for n, p in network.state_dict().items()
    }
    assert all(parameter.is_meta for parameter in again.parameters())


@pytest.mark.parametrize(
    "network",
    [
        Twice(2, 2),
        nn.Sequential(nn.ReLU(), Twice(2, 2)),
        hooked(),
        tied(),
        changed("note", "x"),
        changed("forward", lambda x: x),
        changed("in_features", 3),
        changed("weight", nn.Parameter(torch.ones(5, 2))),
        nn.LSTM(2, 2),
        nn.TransformerEncoderLayer(4, 2),
    ],
    ids=lambda network: type(network).__name__,
)
def test_where_something_would_be_lost_there_is_no_recipe(network):
    assert recipe(network) is None


def test_describing_does_not_touch_the_random_generator():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    recipe(NETWORKS["mlp"])
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("layer", ["Module.__init__", "functional", "no_such_layer", 3, "__builtins__"])
def test_a_recipe_can_name_nothing_but_layers(layer):
    """Case 178: the file may come from anybody."""
    with pytest.raises(DataError, match=r"no layer of torch\.nn"):
        build({"layer": layer, "arguments": {}})
