"""A worker's output, line by line with its rank."""

from __future__ import annotations

import io
import sys

import pytest

from spark_ring.spark.output import PrefixedStream, prefixed_output


def test_each_line_gets_the_prefix_and_only_whole_lines_are_written():
    """Case 104: lines of several ranks that share a terminal stay apart."""
    target = io.StringIO()
    stream = PrefixedStream(target, "[1] ")
    stream.write("a")
    assert target.getvalue() == ""
    stream.write("b\nc\n\nd")
    assert target.getvalue() == "[1] ab\n[1] c\n"
    stream.finish()
    assert target.getvalue() == "[1] ab\n[1] c\n[1] d\n"


def test_a_progress_bar_becomes_lines():
    target = io.StringIO()
    PrefixedStream(target, "> ").write("10%\r20%\r30%\n")
    assert target.getvalue() == "> 10%\n> 20%\n> 30%\n"


def test_print_and_stderr_are_prefixed_and_put_back(capsys):
    def fail():
        with prefixed_output("[0] "):
            print("out")
            print("err", file=sys.stderr)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    print("after")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("[0] out\nafter\n", "[0] err\n")
