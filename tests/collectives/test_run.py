"""``spark_ring.run``: results, errors, output, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import spark_ring
from spark_ring.errors import AbortedError, ConfigError, LaunchError, PeerLostError, WorkerError

QUICKLY = 10.0  # seconds for a failure to end everything, process start included, on a busy machine


def _place(*args: object, **kwargs: object) -> tuple[object, ...]:
    return spark_ring.rank(), spark_ring.size(), args, kwargs


def test_results_come_in_rank_order_with_arguments_passed_on() -> None:
    results = spark_ring.run(_place, args=(1, "b"), kwargs={"c": None}, np=3)
    assert results == [(rank, 3, (1, "b"), {"c": None}) for rank in range(3)]


def test_a_closure_and_a_large_argument_travel() -> None:
    import numpy as np

    weights = np.arange(1_000_000.0)
    results = spark_ring.run(lambda extra: spark_ring.allreduce(weights + extra), args=(1,))
    assert all(np.array_equal(result, 2 * (weights + 1)) for result in results)


def test_functions_of_the_main_script_travel_by_value(tmp_path: Path) -> None:
    """Case 143: what a notebook or a script defines need not be importable by the ranks."""
    script = tmp_path / "script.py"
    script.write_text(
        "import spark_ring\n"
        "class Model:\n"
        "    def __init__(self, rank): self.rank = rank\n"
        "def train(): return Model(spark_ring.rank())\n"
        "if __name__ == '__main__':\n"
        "    print([model.rank for model in spark_ring.run(train, np=2)])\n"
    )
    process = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.stdout, process.stderr) == ("[0, 1]\n", "")


@pytest.mark.parametrize("np", [0, -1, 1.5, "2", True])
def test_a_number_of_processes_that_makes_no_sense_is_refused(np: object) -> None:
    with pytest.raises(ConfigError, match="np is"):
        spark_ring.run(_place, np=np)  # type: ignore[arg-type]


def test_an_unknown_setting_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="no setting named 'transprot'"):
        spark_ring.run(_place, transprot="tcp")


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(LaunchError, match=r"kwargs\['lock'\].*cannot be pickled"):
        spark_ring.run(_place, kwargs={"lock": threading.Lock()})


def _unpicklable_result() -> object:
    return (n for n in range(3))


def test_a_result_that_cannot_be_pickled_is_named_with_its_rank() -> None:
    with pytest.raises(WorkerError, match=r"returned a generator, which cannot be pickled"):
        spark_ring.run(_unpicklable_result, np=1)


class OddError(Exception):
    """An exception that cannot be rebuilt from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} against {second}")


def _raise_in_rank_1(kind: str) -> None:
    if spark_ring.rank() == 1:
        if kind == "plain":
            raise KeyError("no such column")
        if kind == "odd":
            raise OddError(1, 2)
        sys.exit(3)
    while True:  # the others are in the middle of their work
        spark_ring.allreduce(1.0)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("plain", "KeyError", "no such column"),
        ("odd", "OddError", "1 against 2"),
        ("exit", "SystemExit", "3"),
    ],
)
def test_an_exception_in_one_rank_ends_all_and_is_raised_with_rank_and_traceback(
    kind: str, name: str, text: str
) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        spark_ring.run(_raise_in_rank_1, args=(kind,), np=3)
    assert time.monotonic() - started < QUICKLY
    error = caught.value
    assert (error.rank, error.error_type) == (1, name)
    assert text in error.error_message
    assert "_raise_in_rank_1" in error.traceback
    assert f"rank 1 of 3 raised {name}" in str(error)
    assert "_raise_in_rank_1" in str(error)
    if kind == "plain":
        assert isinstance(error.__cause__, KeyError)


def _report_what_the_others_see(folder: str) -> None:
    if spark_ring.rank() == 2:
        raise ZeroDivisionError("the cause")
    try:
        while True:
            spark_ring.allreduce(1.0)
    except Exception as error:
        Path(folder, f"{spark_ring.rank()}").write_text(f"{type(error).__name__} {error}")
        raise RuntimeError("a cry that hides the cause") from error


def test_the_others_are_told_why_and_their_errors_never_hide_the_first(tmp_path: Path) -> None:
    """Case 100: the error names the rank that failed, not its neighbour."""
    with pytest.raises(WorkerError) as caught:
        spark_ring.run(_report_what_the_others_see, args=(str(tmp_path),), np=3)
    assert (caught.value.rank, caught.value.error_type) == (2, "ZeroDivisionError")
    for rank in (0, 1):
        seen = (tmp_path / str(rank)).read_text()
        assert seen.startswith(AbortedError.__name__)
        assert "rank 2 raised ZeroDivisionError: the cause" in seen


def _die(how: str) -> None:
    if spark_ring.rank() == 1:
        print("last words", file=sys.stderr, flush=True)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(int(how))
    while True:
        spark_ring.allreduce(1.0)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("kill", r"was killed by signal 9 \(SIGKILL\)"),
        ("0", "exited with status 0"),
        ("7", "exited with status 7"),
    ],
)
def test_a_rank_that_ends_without_a_word_is_named(how: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(
        LaunchError, match=rf"rank 1 of 2 {words} before it returned(.|\n)*last words"
    ) as caught:
        spark_ring.run(_die, args=(how,))
    assert not isinstance(caught.value, PeerLostError)
    assert time.monotonic() - started < QUICKLY


def _print() -> None:
    print(f"out {spark_ring.rank()}")
    print("two\nlines without an end", end="", file=sys.stderr)


def test_output_is_passed_on_line_by_line_with_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """Case 104."""
    spark_ring.run(_print)
    printed = capsys.readouterr()
    assert sorted(printed.out.splitlines()) == ["[0] out 0", "[1] out 1"]
    lines = printed.err.splitlines()
    for rank in (0, 1):
        assert [line for line in lines if line.startswith(f"[{rank}]")] == [
            f"[{rank}] two",
            f"[{rank}] lines without an end",
        ]


def test_a_rank_reads_nothing_from_stdin() -> None:
    assert spark_ring.run(lambda: sys.stdin.read()) == ["", ""]


def test_variables_are_set_and_removed_for_the_ranks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 137."""
    monkeypatch.setenv("SPARK_RING_TEST_A", "ours")
    monkeypatch.setenv("SPARK_RING_TEST_B", "ours")
    env = {"SPARK_RING_TEST_A": None, "SPARK_RING_TEST_B": "theirs"}
    names = sorted(env)
    seen = spark_ring.run(lambda: [os.environ.get(name) for name in names], env=env)
    assert seen == [[None, "theirs"]] * 2
    assert [os.environ[name] for name in names] == ["ours", "ours"]


def test_settings_reach_the_ranks_from_arguments_and_from_env() -> None:
    assert spark_ring.run(lambda: spark_ring.world.current().transport, transport="tcp") == ["tcp"] * 2
    by_env = spark_ring.run(
        lambda: spark_ring.world.current().transport, env={"SPARK_RING_TRANSPORT": "shm"}, transport=None
    )
    assert by_env == ["shm"] * 2


def _what_everybody_on_the_host_can_read() -> tuple[str, str, str]:
    from spark_ring import world

    settings = world._settings_for({})
    secret = settings.secret
    assert len(secret) == 64
    found = [
        place
        for place, text in {
            "arguments": Path("/proc/self/cmdline").read_text(),
            "environment": Path("/proc/self/environ").read_text(),
            "settings": repr(settings),
        }.items()
        if secret in text
    ]
    return secret, ", ".join(found), Path("/proc/self/cmdline").read_text()


def test_the_secret_is_on_no_command_line_nor_in_the_environment() -> None:
    """Case 176."""
    results = spark_ring.run(_what_everybody_on_the_host_can_read)
    assert [found for _, found, _ in results] == ["", ""]
    assert "spark_ring.launch.worker" in results[0][2]
    other = spark_ring.run(_what_everybody_on_the_host_can_read, np=1)
    assert other[0][0] != results[0][0], "every job needs a secret of its own"


def test_a_job_inside_a_rank_is_a_world_of_its_own() -> None:
    def outer() -> list[tuple[int, int]]:
        inner = spark_ring.run(lambda: (spark_ring.rank(), spark_ring.size()), np=2)
        return [(spark_ring.rank(), spark_ring.size()), *inner]

    assert spark_ring.run(outer, np=1) == [[(0, 1), (0, 2), (1, 2)]]


def test_time_that_runs_out_names_the_ranks_that_still_run() -> None:
    def stall() -> None:
        if spark_ring.rank() == 0:
            threading.Event().wait()

    with pytest.raises(LaunchError, match=r"timeout=4 s; still running: 0\."):
        spark_ring.run(stall, timeout=4)


ORPHANS = """
import os, sys, threading
from pathlib import Path
import spark_ring
def stall(folder):
    import subprocess
    grandchild = subprocess.Popen(["sleep", "600"])
    spark_ring.barrier()
    Path(folder, f"{spark_ring.rank()}.new").write_text(f"{os.getpid()} {grandchild.pid}")
    Path(folder, f"{spark_ring.rank()}.new").rename(Path(folder, f"{spark_ring.rank()}.pids"))
    threading.Event().wait()
if __name__ == "__main__":
    spark_ring.run(stall, args=(sys.argv[1],), np=2)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_launcher(how: signal.Signals, tmp_path: Path) -> None:
    """Case 128: also what a rank started itself."""
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    launcher = subprocess.Popen([sys.executable, script, tmp_path], stderr=subprocess.PIPE)
    files = [tmp_path / f"{rank}.pids" for rank in range(2)]
    _until(lambda: all(file.exists() for file in files) or launcher.poll() is not None)
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    launcher.send_signal(how)
    _, error_text = launcher.communicate(timeout=10)
    _until(lambda: not any(_runs(pid) for pid in pids))
    if how == signal.SIGINT:
        assert b"KeyboardInterrupt" in error_text


def _until(condition: object, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_waiting_ranks_let_other_python_threads_run(tmp_path: Path) -> None:
    """The interpreter lock is released: rank 1 joins only after a thread of the waiting rank 0 has worked."""
    sign = str(tmp_path / "worked")

    def wait_with_a_thread() -> float:
        if spark_ring.rank() == 0:
            entered = threading.Event()

            def work() -> None:
                entered.wait()
                for _ in range(100_000):
                    pass
                Path(sign).touch()

            thread = threading.Thread(target=work)
            thread.start()
            handle = spark_ring.allreduce_async(1.0)
            entered.set()
            total = float(handle.wait(20))
            thread.join()
            return total
        _until(lambda: Path(sign).exists())
        return float(spark_ring.allreduce(1.0))

    assert spark_ring.run(wait_with_a_thread) == [2.0, 2.0]
