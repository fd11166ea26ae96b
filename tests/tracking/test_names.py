"""Names and values as MLflow accepts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from spark_ring.tracking.names import NAME_LIMIT, VALUE_LIMIT, Names, clean, describe


@pytest.mark.parametrize(
    ("written", "accepted"),
    [
        ("acc@top,5", "acc_top_5"),
        ("val_loss", "val_loss"),
        ("größe/näher", "größe/näher"),
        ("../a//b/", "a/b"),
        ("/", "_"),
        ("", "_"),
        ("a\nb", "a_b"),
    ],
)
def test_a_name_is_cleaned(written, accepted):
    """Case 172."""
    assert clean(written) == accepted


@given(st.text(max_size=400))
def test_mlflow_accepts_every_cleaned_name(written):
    """Case 172."""
    name = clean(written)
    assert len(name) <= NAME_LIMIT
    _validate_metric_name(name)


@given(st.lists(st.text(alphabet="a@,_2", max_size=4), unique=True, max_size=12))
def test_different_names_stay_different_and_equal_ones_equal(written):
    names = Names()
    first = [names(name) for name in written]
    assert len(set(first)) == len(written)
    assert [names(name) for name in written] == first


def test_two_names_beyond_the_limit_stay_different():
    names = Names()
    first, second = names("a" * 300), names("a" * 301)
    assert first != second
    assert max(len(first), len(second)) <= NAME_LIMIT


def test_a_function_is_told_by_its_name_and_not_by_its_address():
    def mean_absolute_error(): ...

    text = describe({"mae": mean_absolute_error})
    assert "mean_absolute_error" in text
    assert "0x" not in text


def test_a_long_value_is_cut_and_a_broken_one_does_no_harm():
    """Case 172."""

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert len(describe("x" * 10_000)) == VALUE_LIMIT
    assert describe("x" * 10_000).endswith("…")
    assert describe(Broken()).startswith("Broken (no text")
    assert describe([1, 2.5, None]) == "[1, 2.5, None]"
