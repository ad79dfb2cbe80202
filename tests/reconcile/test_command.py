"""The command's sources, manifests and errors: one line each, and a status that scripts can rely on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from rank_exporter.cli import main
from rank_exporter.identity import Identity
from rank_exporter.segment.samplelog import batch_line, end_line, file_name, first_line


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["reconcile", *map(str, arguments)])


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A file of identifiers in a directory of the run's; returns the directory."""

    def make(run: str, rank: int, ids: Sequence[Any], *, world: int = 1, started: int = 1, end: bool = True) -> Path:
        identity = Identity(run=run, rank=rank, local_rank=rank, world_size=world, host="h")
        directory = tmp_path / run
        directory.mkdir(exist_ok=True)
        lines = [first_line(identity, 0, started), batch_line(1, list(ids), len(ids), 0)]
        lines += [end_line(samples=len(ids), padded=0, complete=True)] if end else []
        (directory / file_name(identity, 0, started)).write_bytes(b"".join(lines))
        return directory

    return make


def manifest_files(directory: Path, ids: Sequence[Any]) -> dict[str, Path]:
    paths = {name: directory / f"manifest.{name}" for name in ("txt", "jsonl", "parquet")}
    paths["txt"].write_text("".join(f"{one}\n" for one in ids))
    paths["jsonl"].write_text(
        "".join(json.dumps({"id": one} if place else one) + "\n" for place, one in enumerate(ids))
    )
    pq.write_table(pa.table({"id": list(ids), "size": [1] * len(ids)}), paths["parquet"])
    return paths


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
@pytest.mark.parametrize("ids", [[3, 1, 2], ["a/3", "b/1", "ü"], ["1", "2", "3"]], ids=["integers", "names", "digits"])
def test_manifests_of_every_format_say_the_same(write: Write, tmp_path: Path, ids: list[Any], kind: str) -> None:
    """Clean where they are right; what is missing, where one more is expected."""
    samples = write("r", 0, ids)
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir()
    wrong.mkdir()
    assert run("--samples", samples, "--manifest", manifest_files(right, ids[::-1])[kind]).exit_code == 0
    more = [*ids, 9 if type(ids[0]) is int else "9"]
    found = run("--samples", samples, "--manifest", manifest_files(wrong, more)[kind], "--json")
    assert found.exit_code == 1
    assert [(one["kind"], [str(i) for i in one["ids"]]) for one in json.loads(found.stdout)["findings"]] == [
        ("omitted", ["9"])
    ]


def test_trials_are_compared_wherever_they_lie(write: Write) -> None:
    """In directories of their own, or in one, by name."""
    one, other = write("one", 0, [0, 1, 2]), write("other", 0, [2, 1, 0])
    different = write("different", 0, [0, 1, 3])
    assert run("--samples", one, "--against", other).exit_code == 0
    assert run("--samples", one, "--samples", other, "--run", "one", "--against-run", "other").exit_code == 0
    assert run("--samples", one, "--samples", other, "--against-run", "other").exit_code == 0
    found = run("--samples", one, "--against", different)
    assert found.exit_code == 1
    assert "omitted: epoch 0: no rank took 1 sample of the 3 of run different" in found.stdout


def test_attempts_under_several_names_are_one_trial(write: Write) -> None:
    """Where each attempt got a run id of its own."""
    first, second = write("try-1", 0, [0, 1], end=False), write("try-2", 0, [2, 3], started=2)
    found = run("--samples", first, "--samples", second, "--run", "try-1", "--run", "try-2", "--manifest", 4)
    assert found.exit_code == 0, found.output


def test_long_lists_are_cut_for_people_and_whole_in_json(write: Write) -> None:
    """--list says how many."""
    samples = write("r", 0, [0])
    shown = run("--samples", samples, "--manifest", 100, "--list", 3).stdout
    assert "    1, 2, 3 … 96 more" in shown
    found = json.loads(run("--samples", samples, "--manifest", 100, "--json").stdout)
    assert found["findings"][0]["ids"] == list(range(1, 100))


def test_a_damaged_file_is_named_and_nothing_is_called_clean(write: Write) -> None:
    """The others are reconciled; a difference that they show stands."""
    samples = write("r", 0, [0, 1])
    (samples / "x.samples.jsonl").write_text("{}\n")
    found = run("--samples", samples, "--manifest", 2)
    assert found.exit_code == 2
    assert "x.samples.jsonl cannot be read" in found.stderr
    assert found.stdout.splitlines()[-1].startswith("r: could not tell: samples ")
    assert run("--samples", samples, "--manifest", 3).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--samples", "{dir}/nothing"], "nothing does not exist: give a file or directory of"),
        (["--samples", "{dir}"], "holds no .samples.jsonl file: give that of RANK_EXPORTER_SAMPLE_IDS_DIR"),
        (["--samples", "{r}", "--run", "q"], "no samples of run q, or samples of run q were not found"),
        (["--samples", "{r}", "--samples", "{s}"], "there are samples of 2 runs (r, s): name one with --run"),
        (["--samples", "{r}", "--manifest", "{dir}/m"], "does not exist: give a file, or the number of samples"),
        (["--samples", "{r}", "--manifest", "{dir}/empty"], "is empty: give the identifiers of an epoch"),
        (["--samples", "{r}", "--manifest", "{dir}/bad.parquet"], "cannot be read ("),
        (["--samples", "{r}", "--manifest", "{dir}/bad.jsonl"], "cannot be read ('id')"),
        (["--samples", "{r}", "--resumed-from", "3"], "there were 0 restarts, and 1 steps to go on from"),
        (["--agent", "http://127.0.0.1:9"], "http://127.0.0.1:9/metrics cannot be read"),
        (["--agent", "nonsense"], "give an agent's address, http://HOST:PORT"),
        (["--prometheus", "http://127.0.0.1:9", "--run", "r"], "http://127.0.0.1:9"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(write: Write, tmp_path: Path, arguments: list[str], said: str) -> None:
    """With status 2, and nothing on standard output."""
    r, s = write("r", 0, [0]), write("s", 0, [0])
    places = {"dir": tmp_path / "other", "r": r, "s": s}
    places["dir"].mkdir()
    for name, text in (("empty", "\n"), ("bad.parquet", "no"), ("bad.jsonl", '{"name": 1}\n')):
        (places["dir"] / name).write_text(text)
    if "nothing" in said or "holds no" in said:
        for path in places["dir"].iterdir():
            path.unlink()
    found = run(*(argument.format(**places) for argument in arguments))
    assert found.exit_code == 2, found.output
    assert any(part in found.stderr for part in said.split(", or ")), found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --samples, --agent or --prometheus: what did the ranks take?"),
        (["--prometheus", "http://p"], "give --run with --prometheus: which run?"),
        (["--samples", "x", "--manifest", "3", "--against", "y"], "give one of --manifest and --against"),
        (["--samples", "x", "--epoch", "-1"], "-1 is not in the range"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], said: str) -> None:
    """By click, with status 2."""
    found = run(*arguments)
    assert (found.exit_code, said in found.stderr) == (2, True), found.output
