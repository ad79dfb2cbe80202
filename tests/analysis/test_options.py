"""What commands say of options: each option that a text names is one of the command that says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from rank_exporter.cli import main
from rank_exporter.segment.steplog import StepLog


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def _commands(group: click.Group, *above: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, *above, name)
        yield (*above, name)


def _named(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def _options(*command: str) -> set[str]:
    found: click.Command = main
    for name in command:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    return {"--help", *(option for one in found.params for option in (*one.opts, *one.secondary_opts))}


@pytest.mark.parametrize("command", sorted(_commands(main)), ids=" ".join)
def test_help_names_no_option_that_the_command_has_not(command: tuple[str, ...]) -> None:
    """Nobody is sent to an option of another command."""
    text = run(*command, "--help").stdout
    assert text
    assert _named(text) <= _options(*command)


@pytest.mark.parametrize("command", ["compare", "scaling"])
def test_arguments_are_what_prometheus_is_asked_for(command: str) -> None:
    """Commands that take several runs have no --run: the help says what names them, and so it is."""
    text = " ".join(run(command, "--help").stdout.split())
    assert "--prometheus URL A Prometheus; the arguments are names of its runs." in text
    asked = run(command, "a", "b", "--prometheus", "http://127.0.0.1:1")
    assert asked.exit_code == 2
    assert "http://127.0.0.1:1/api/v1/query cannot be read (" in asked.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "{spool}", "{spool}#b"),
        ("compare", "{spool}#a", "{spool}#b"),
        ("scaling", "{spool}", "{spool}#b"),
        ("scaling", "{spool}/none", "{spool}#b"),
        ("diagnose", "--spool", "{spool}"),
        ("diagnose",),
        ("diagnose", "--prometheus", "http://127.0.0.1:1"),
        ("gate", "--spool", "{spool}"),
        ("gate", "--spool", "{spool}", "--run", "a"),
        ("align", "--spool", "{spool}"),
        ("align",),
        ("reconcile",),
    ],
    ids=" ".join,
)
def test_remedies_are_options_of_the_command(simulate: Any, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A message that names an option names one that the command takes."""
    StepLog().write(tmp_path / "all.parquet", [*simulate(run="a"), *simulate(run="b")])
    done = run(*(argument.format(spool=tmp_path) for argument in arguments))
    assert done.exit_code != 0
    assert _named(done.output) <= _options(arguments[0])


def test_a_comparison_asks_for_the_samples_of_its_own_runs(simulate: Any, tmp_path: Path) -> None:
    """What is not known of A is to be given with the option that is A's."""
    StepLog().write(tmp_path / "all.parquet", [*simulate(run="a"), *simulate(run="b")])
    done = run("compare", "a", "b", "--spool", tmp_path)
    assert "A: no samples of the run are known: let an epoch end, or give --samples-a (" in done.stdout
