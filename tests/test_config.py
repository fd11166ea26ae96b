"""Settings: defaults, environment, overrides, and what is refused."""

import dataclasses
import os

import pytest

from spark_ring.config import Settings, environment, inherited_environment, settings, variable_name
from spark_ring.errors import ConfigError


def test_defaults_when_nothing_is_set() -> None:
    assert settings(env={}) == Settings()


def test_each_setting_is_read_from_its_own_variable() -> None:
    samples = {int: "128", float: "2.5", bool: "yes", str: "x"}
    for field in dataclasses.fields(Settings):
        text = field.metadata["choices"][-1] if field.metadata["choices"] else samples[type(field.default)]
        read = settings(env={variable_name(field.name): text})
        changed = {name for name, value in vars(read).items() if value != getattr(Settings(), name)}
        assert changed == {field.name}, field.name


def test_every_setting_is_explained() -> None:
    assert all(len(field.metadata["doc"]) > 10 for field in dataclasses.fields(Settings))


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("TRUE", True), (" on ", True), ("0", False), ("no", False), ("", False)]
)
def test_truth_values(text: str, value: bool) -> None:
    assert settings(env={"SPARK_RING_TRUSTED_ARTIFACTS": text}).trusted_artifacts is value


def test_overrides_win_over_the_environment_and_none_means_not_given() -> None:
    env = {"SPARK_RING_SEGMENT_BYTES": "1024", "SPARK_RING_TRANSPORT": "tcp"}
    read = settings(env=env, segment_bytes=2048, transport=None)
    assert (read.segment_bytes, read.transport) == (2048, "tcp")


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ({"SPARK_RING_SEGMENT_BYTES": "many"}, ["SPARK_RING_SEGMENT_BYTES='many'", "an integer"]),
        ({"SPARK_RING_CONNECT_TIMEOUT": "soon"}, ["SPARK_RING_CONNECT_TIMEOUT='soon'", "a number"]),
        (
            {"SPARK_RING_TRUSTED_ARTIFACTS": "maybe"},
            ["SPARK_RING_TRUSTED_ARTIFACTS='maybe'", "true or false"],
        ),
        ({"SPARK_RING_TRANSPORT": "udp"}, ["transport", "'udp'", "auto, shm, tcp"]),
        ({"SPARK_RING_SEGMENT_BYTES": "63"}, ["segment_bytes", "63", "at least 64"]),
        ({"SPARK_RING_COLLECTIVE_TIMEOUT": "nan"}, ["collective_timeout", "nan"]),
        ({"SPARK_RING_COLLECTIVE_TIMEOUT": "0"}, ["collective_timeout", "at least 0.001"]),
    ],
)
def test_a_bad_value_is_refused_by_name(env: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(env=env)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_an_unknown_override_lists_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"no setting named 'segmentbytes'.*segment_bytes"):
        settings(segmentbytes=1)


def test_the_secret_is_in_no_text() -> None:
    """Case 175."""
    given = Settings(secret="5ec4e7")
    assert "5ec4e7" not in repr(given)
    assert "5ec4e7" not in str(given)


def test_environment_changes_are_put_back_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_RING_TEST_KEPT", "before")
    monkeypatch.delenv("SPARK_RING_TEST_NEW", raising=False)

    def change_and_fail() -> None:
        with environment({"SPARK_RING_TEST_KEPT": None, "SPARK_RING_TEST_NEW": "1"}):
            assert "SPARK_RING_TEST_KEPT" not in os.environ
            assert os.environ["SPARK_RING_TEST_NEW"] == "1"
            raise KeyError

    with pytest.raises(KeyError):
        change_and_fail()
    assert os.environ["SPARK_RING_TEST_KEPT"] == "before"
    assert "SPARK_RING_TEST_NEW" not in os.environ


def test_a_child_inherits_all_but_the_named_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_RING_SECRET", "ab")
    monkeypatch.setenv("SPARK_RING_TEST_KEPT", "x")
    inherited = inherited_environment(without=("SPARK_RING_SECRET",))
    assert "SPARK_RING_SECRET" not in inherited
    assert inherited["SPARK_RING_TEST_KEPT"] == "x"
