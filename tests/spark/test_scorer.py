"""What workers do with Arrow batches; no Spark here."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from spark_ring.artifact import FittedModel
from spark_ring.artifact.outputs import plan_outputs
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ColumnError
from spark_ring.spark import scorer as scorer_module
from spark_ring.spark.scorer import Scorer, has_nulls, merged, null_rows
from spark_ring.spark.shipping import Inline

VECTOR = Contract((TensorSpec("x0", (SourceColumn("features", "vector", 2),), "float32", (2,)),))
GROUPED = Contract(
    (
        TensorSpec(
            "x0",
            (SourceColumn("age", "int"), SourceColumn("size", "vector", 2), SourceColumn("price", "double")),
            "float32",
            (4,),
        ),
    )
)


class Recording(nn.Module):
    """Sums each row, and keeps how many rows and threads each forward pass had."""

    sizes: list[int] = []  # noqa: RUF012
    threads: list[int] = []  # noqa: RUF012

    def forward(self, x):
        Recording.threads.append(torch.get_num_threads())
        Recording.sizes.append(len(x))
        return x.sum(1)


@pytest.fixture
def sizes():
    scorer_module._kept.clear()
    Recording.sizes.clear()
    yield Recording.sizes
    scorer_module._kept.clear()


def make(contract=VECTOR, batch_size=10, keep=False, module=None):
    model = FittedModel.of("torch", module or Recording(), contract)
    plan = plan_outputs(
        model.outputs, kind="value", integer_label=False, prediction="p", probability="", raw=""
    )
    Recording.sizes.clear()
    return Scorer(Inline(model.files), model.digest, "torch", contract, plan, batch_size, keep)


def floats(rows):
    return pa.array(rows, pa.list_(pa.float32()))


def numbered(start, stop):
    return floats([[i, 1] for i in range(start, stop)])


def score(scorer, *batches):
    return pa.chunked_array(list(scorer.score(iter([(b,) for b in batches]), 1)), pa.float64()).to_pylist()


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([21], [10, 10, 1]),
        ([3, 3, 3, 3], [10, 2]),
        ([0, 4, 0], [4]),
        ([1], [1]),
        ([25, 1], [10, 10, 5, 1]),
        ([], []),
        ([0], []),
    ],
)
def test_batches_are_put_together_and_cut(sizes, lengths, expected):
    """Cases 28, 29, 50: empty batches in between, a last batch of one row."""
    ends = np.cumsum([0, *lengths])
    batches = [numbered(start, stop) for start, stop in pairwise(ends)]
    assert score(make(), *batches) == [i + 1 for i in range(sum(lengths))]
    assert sizes == expected


def test_results_come_while_batches_still_arrive(sizes):
    """Nothing is held back beyond one batch: a long partition does not pile up in memory."""
    taken = []

    def batches():
        for start in range(0, 100, 10):
            taken.append(start)
            yield (numbered(start, start + 10),)

    results = make().score(batches(), 1)
    next(results)
    assert taken == [0]
    results.close()


def test_merging_keeps_columns_beside_each_other():
    batches = iter([(pa.array([1]), pa.array(["a"])), (pa.array([2]), pa.array(["b"]))])
    ((numbers, letters),) = merged(batches, 5)
    assert list(zip(numbers.to_pylist(), letters.to_pylist(), strict=True)) == [(1, "a"), (2, "b")]


def test_the_model_is_made_once_and_kept(sizes, monkeypatch):
    scorer = make()
    score(scorer, numbered(0, 3))
    monkeypatch.setattr(Inline, "files", lambda self: pytest.fail("the model was made again"))
    assert score(scorer, numbered(0, 3)) == [1.0, 2.0, 3.0]


def test_no_more_than_a_few_models_are_kept(sizes):
    for bias in range(5):
        layer = nn.Linear(2, 1)
        nn.init.constant_(layer.bias, bias)
        score(make(module=layer), numbered(0, 1))
    assert len(scorer_module._kept) == scorer_module.KEPT_MODELS


def test_threads_are_those_of_the_task_and_are_put_back(sizes):
    before = torch.get_num_threads()
    scorer = make()
    Recording.threads.clear()
    list(scorer.score(iter([(numbered(0, 1),)]), before + 1))
    assert Recording.threads == [before + 1]
    assert torch.get_num_threads() == before


NULLS = {
    "null row": [[1, 2, 3, 4], None, [5, 6, 7, 8]],
    "null element": [[1, 2, 3, 4], [1, None, 3, 4], [5, 6, 7, 8]],
    "two of both": [None, [1, 2, 3, None], [1, 2, 3, 4]],
    "all": [None, None],
}


@pytest.mark.parametrize("rows", NULLS.values(), ids=NULLS)
@pytest.mark.parametrize("offset", [0, 1])
def test_rows_with_nulls_are_found_also_in_slices(rows, offset):
    """Case 4."""
    array = floats(rows)[offset:]
    expected = [row is None or None in row for row in rows[offset:]]
    assert null_rows(array).tolist() == expected
    assert has_nulls(array) == any(expected)


@pytest.mark.parametrize("rows", NULLS.values(), ids=NULLS)
def test_kept_rows_with_nulls_get_a_null(sizes, rows):
    """Case 167."""
    expected = [None if row is None or None in row else float(sum(row)) for row in rows]
    assert score(make(GROUPED, keep=True), floats(rows)) == expected


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ([None, 2, 3, 4], "column 'age'"),
        ([1, 2, None, 4], "column 'size'"),
        ([1, 2, 3, None], "column 'price'"),
        (None, "columns 'age', 'size', 'price'"),
    ],
)
def test_a_null_is_an_error_that_names_the_column(sizes, row, named):
    """Cases 1, 4."""
    with pytest.raises(ColumnError, match=rf"^{named} is null, or holds a null, in 1 of 2 rows"):
        score(make(GROUPED), floats([[1, 2, 3, 4], row]))


def test_a_null_number_is_named():
    contract = Contract((TensorSpec("x0", (SourceColumn("n", "double"),), "float32"),))
    scorer = make(contract, module=nn.Identity())
    with pytest.raises(ColumnError, match="column 'n'"):
        list(scorer.score(iter([(pa.array([1.0, None], pa.float32()),)]), 1))


@pytest.mark.parametrize("rows", [[[1, 2, 3]], [[1, 2], [1, 2, 3]]])
def test_another_width_than_was_fitted_is_named(sizes, rows):
    """Case 44."""
    with pytest.raises(ColumnError, match=r"'features'.*length .*3 .*must have length 2"):
        score(make(), floats(rows))
