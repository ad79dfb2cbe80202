"""`rank-exporter dashboards` lists, prints and writes the committed dashboards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rank_exporter.cli import main

from .boards import DASHBOARDS


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["dashboards", *arguments])


def test_lists_names_and_titles() -> None:
    """Without a name, each dashboard stands on a line of its own."""
    result = _run()
    assert result.exit_code == 0
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(DASHBOARDS.glob("*.json"))]
    listed = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    assert listed == [[board["uid"], board["title"]] for board in boards]


@pytest.mark.parametrize("path", sorted(DASHBOARDS.glob("*.json")), ids=lambda path: path.stem)
def test_prints_one(path: Path) -> None:
    """A dashboard is printed byte for byte."""
    result = _run(path.stem)
    assert result.exit_code == 0
    assert result.stdout_bytes == path.read_bytes()


def test_writes_all(tmp_path: Path) -> None:
    """Every dashboard becomes a file of a folder that is made, and is told of."""
    result = _run("--write", str(tmp_path / "new" / "folder"))
    assert result.exit_code == 0
    written = sorted((tmp_path / "new" / "folder").iterdir())
    assert result.stdout.splitlines() == [str(path) for path in written]
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in sorted(DASHBOARDS.iterdir())]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "dashboard 'nothing' is not known; use one of rank-exporter-fleet,"),
        (["--write", "{file}"], "cannot be written to {file}: File exists; choose"),
        (["rank-exporter-rank", "--write", "{file}"], "ask for one of both"),
    ],
)
def test_mistakes_end_in_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    """What is wrong is said in a line with the remedy, and with exit code 2."""
    file = tmp_path / "file"
    file.touch()
    result = _run(*(argument.format(file=file) for argument in arguments))
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert said.format(file=file) in line
