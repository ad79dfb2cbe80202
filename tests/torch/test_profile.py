"""A profile of some steps, asked for in the script or from outside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import rank_exporter
from rank_exporter.cli import main
from rank_exporter.phases import Phase
from rank_exporter.segment import layout
from rank_exporter.segment.layout import BY_DEVICE, ERROR_REASONS, PROFILED, Word
from rank_exporter.segment.reader import SegmentReader
from rank_exporter.timeline import Timeline


class Training:
    """A loop that can be run on, and what was recorded of it."""

    def __init__(self, directory: Path) -> None:
        self.exporter = rank_exporter.start(run="profiled", directory=directory / "segments", serve="off")
        path = self.exporter._recorder.writer.path
        assert path is not None
        self.path = path
        self.reader = SegmentReader(path)
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.exporter.watch(model=self.model, optimizer=self.optimizer)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.model(torch.ones(4, 8)).mean().backward()
            self.optimizer.step()
        self.exporter._recorder.publish()  # as the end of an epoch does

    def flags(self) -> list[int]:
        self.exporter.stop()
        return [int(flags) for flags in self.reader.steps()["flags"]]

    def observed(self) -> int:
        """Steps in the histogram."""
        found = self.reader.snapshot()
        assert found is not None
        return int(found.histograms[layout.histogram_slot(Phase.STEP, layout.SHARD_NONE), 1:].sum())

    def word(self, word: int) -> int:
        found = self.reader.snapshot()
        assert found is not None
        return found.word(word)

    def errors(self) -> int:
        return self.word(Word.ERRORS + ERROR_REASONS.index("profile"))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path)
    yield made
    made.exporter.stop()
    made.reader.close()
    assert type(made.exporter._recorder.timeline) is Timeline


def ranges(trace: Path) -> list[str]:
    """Names of the ranges in a trace that the exporter could have made, in their order."""
    known = {phase.label for phase in Phase}
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("ph") == "X"]
    return [
        event["name"]
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"]))
        if event["name"] in known or event["name"].startswith("step ")
    ]


def test_window_shows_phases_and_is_left_out_of_the_histograms(training: Training, tmp_path: Path) -> None:
    """Profiled steps count as steps and are flagged, as is the one in which the trace is written; none is observed."""
    training.steps(3)
    training.exporter.profile(steps=2, directory=tmp_path / "traces")
    training.steps(7)
    assert training.flags() == [0, 0, 0, PROFILED, PROFILED, PROFILED, 0, 0, 0, 0]
    assert training.word(Word.STEPS) == 10
    assert training.observed() == 7
    assert training.word(Word.PROFILE) == 0
    [trace] = (tmp_path / "traces").iterdir()
    assert trace.name == "rank-00000-steps-4-5.pt.trace.json"
    of_a_step = ["forward", "other", "backward", "other", "optimizer", "other"]
    assert ranges(trace) == ["step 4", "other", *of_a_step, "step 5", "other", *of_a_step]
    assert training.errors() == 0


def test_request_from_outside_profiles_the_same_steps(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command leaves a request with the rank; it is served once, and a second one after it."""
    monkeypatch.delenv("RANK_EXPORTER_DIR", raising=False)
    training.steps(3)
    common = ["profile", "--run", "profiled", "--dir", str(training.path.parent)]
    for steps in ("5..6", "11..11"):
        asked = CliRunner().invoke(main, [*common, "--steps", steps, "--output", str(tmp_path / "traces")])
        assert asked.exit_code == 0, asked.output
        assert asked.output.startswith(f"1 ranks of run profiled profile steps {steps} into {tmp_path}")
        training.steps(6)
    waited = sorted(trace.name for trace in (tmp_path / "traces").iterdir())
    assert waited == ["rank-00000-steps-11-11.pt.trace.json", "rank-00000-steps-5-6.pt.trace.json"]
    flagged = [number for number, flag in enumerate(training.flags(), 1) if flag]
    assert flagged == [5, 6, 7, 11, 12]
    assert [entry.suffix for entry in training.path.parent.iterdir()] == [".segment"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "5"], "steps is '5': give the first and the last, such as 1000..1004"),
        (["--steps", "9..7"], "steps are 9..7: give the first, from 1 on, and the last"),
        (["--steps", "100..200"], "steps are 100..200: give 100 at most"),
        (["--steps", "2..4"], "steps 2..4 are too early, as rank 0 has done 3: give later ones"),
        (["--steps", "8..9", "--run", "other"], "no rank of run 'other' is alive in"),
        (["--steps", "80..90", "--wait", "0.1"], "0 of 1 traces after 0.1 s: are the ranks still training?"),
    ],
)
def test_command_says_what_is_wrong(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    """One line each, and exit code 2."""
    monkeypatch.delenv("RANK_EXPORTER_DIR", raising=False)
    training.steps(4)
    common = ["profile", "--run", "profiled", "--dir", str(training.path.parent), "--output", str(tmp_path)]
    asked = CliRunner().invoke(main, [*common, *arguments])
    assert asked.exit_code == 2
    assert f"rank-exporter: {said}" in asked.stderr


def test_trace_that_cannot_be_written_costs_nothing_but_itself(training: Training, tmp_path: Path) -> None:
    """Training goes on, the fault is counted, and steps are recorded as before."""
    (tmp_path / "file").touch()
    training.steps(2)
    training.exporter.profile(steps=1, directory=tmp_path / "file")
    training.steps(8)
    assert training.flags() == [0, 0, PROFILED, PROFILED, *[0] * 6]
    assert training.errors() == 1
    assert not torch.autograd.profiler._is_profiler_enabled


@pytest.mark.parametrize("steps", [0, -1, 101, "many"])
def test_window_that_is_none_is_counted(training: Training, steps: Any) -> None:
    """A wrong number of steps is an error that training does not notice."""
    training.exporter.profile(steps=steps)
    training.steps(4)
    assert training.flags() == [0] * 4
    assert training.errors() == 1


def test_damaged_request_is_counted_and_gone(training: Training) -> None:
    """What lies there and is no request is taken away, and the rank asks no further."""
    training.path.with_suffix(".profile").write_text("{}")
    training.exporter._recorder.writer.words[training.exporter._recorder.writer.profile_word] = 1
    training.steps(4)
    assert training.flags() == [0] * 4
    assert training.errors() == 1
    assert training.word(Word.PROFILE) == 0
    assert not training.path.with_suffix(".profile").exists()


def test_users_own_profiler_is_left_alone(training: Training, tmp_path: Path) -> None:
    """Where the script profiles by itself, its profile is whole, and ours goes without."""
    training.steps(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        training.exporter.profile(steps=1, directory=tmp_path / "traces")
        training.steps(4)
    training.steps(2)
    assert [event.count for event in own.key_averages() if event.key == "aten::mean"] == [4]
    assert len(training.flags()) == 8
    assert training.errors() == 1
    assert not (tmp_path / "traces").exists()


def test_steps_resolved_late_by_a_device_are_flagged_by_their_number(training: Training, tmp_path: Path) -> None:
    """The device\'s clock publishes steps some time after they ended; the flags are those of the profiled ones."""

    class Late:
        def __init__(self) -> None:
            self.now = 0

        def record(self) -> int:
            self.now += 1
            return self.now

        def is_past(self, event: int) -> bool:
            return self.now - event > 40

        def between(self, first: int, second: int) -> int:
            return 1_000_000

        def release(self, event: int) -> None:
            pass

    training.exporter._recorder.use_device(Late())
    training.steps(8)
    assert training.word(Word.STEPS) < 7
    training.exporter.profile(steps=2, directory=tmp_path / "traces")
    training.steps(12)
    found = training.flags()
    assert [number for number, flag in enumerate(found, 1) if flag & PROFILED] == [9, 10, 11]
    assert any(flag == BY_DEVICE | PROFILED for flag in found)
    assert [trace.name for trace in (tmp_path / "traces").iterdir()] == ["rank-00000-steps-9-10.pt.trace.json"]


def test_fork_within_a_window_is_inert(training: Training, tmp_path: Path) -> None:
    """A child forked while its parent profiles records nothing and ends as it would."""
    training.steps(2)
    training.exporter.profile(steps=3, directory=tmp_path / "traces")
    training.steps(3)
    child = os.fork()
    if not child:
        plain = type(training.exporter._recorder.timeline) is Timeline
        os._exit(0 if plain else 1)
    assert os.waitpid(child, 0)[1] == 0
    training.steps(4)
    assert sum(flag == PROFILED for flag in training.flags()) == 4
