"""The command ``spark-ring``."""

from __future__ import annotations

import signal
import sys

import click

from spark_ring.errors import SparkRingError
from spark_ring.launch.answers import Failure

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Train over a ring of processes."""


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-np", "--num-processes", "np", type=click.IntRange(min=1), required=True, help="Number of ranks."
)
@click.option(
    "--env", "env", multiple=True, metavar="NAME=VALUE", help="Variable for every rank; repeatable."
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds for everything.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(np: int, env: tuple[str, ...], timeout: float | None, command: tuple[str, ...]) -> None:
    """Run COMMAND on several ranks of this host: spark-ring run -np 2 -- python train.py

    What the ranks print appears with a [rank] prefix. The exit status is that of the rank that failed first;
    128 + n when signal n killed it.
    """
    from spark_ring.launch.script import run_script

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        failure = run_script(command, np, env=_variables(env), timeout=timeout)
    except SparkRingError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        click.echo(f"spark-ring: ended by {signal.Signals(number).name}; all ranks were ended", err=True)
        sys.exit(128 + number)
    if failure is not None:
        click.echo(
            f"spark-ring: rank {failure.rank} of {np} {failure.message}; the other ranks were ended", err=True
        )
        sys.exit(_status(failure))


@main.command()
def check() -> None:
    """Say what is installed, which transports work, and by which address this host is reached."""
    from spark_ring.launch.check import report

    lines, well = report()
    for line in lines:
        click.echo(line)
    sys.exit(0 if well else 1)


def _end(number: int, frame: object) -> None:
    """Treat a request to end like Ctrl-C: the ranks are ended first."""
    raise KeyboardInterrupt(number)


def _variables(assignments: tuple[str, ...]) -> dict[str, str | None]:
    variables: dict[str, str | None] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{assignment!r} is not of the form NAME=VALUE", param_hint="--env")
        variables[name] = value
    return variables


def _status(failure: Failure) -> int:
    return 128 - failure.status if failure.status < 0 else failure.status


if __name__ == "__main__":
    main()
