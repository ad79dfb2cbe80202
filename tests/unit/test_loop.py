"""The explicit loop, without torch: steps and spans over a recorder in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import rank_exporter
from rank_exporter.phases import Phase
from rank_exporter.segment.reader import SegmentReader


@pytest.fixture
def exporter(tmp_path: object) -> Iterator[rank_exporter.Exporter]:
    started = rank_exporter.start(run="loop", directory=str(tmp_path), serve="off")
    yield started
    started.stop()


def records(exporter: rank_exporter.Exporter) -> list[dict[str, int]]:
    path = exporter._recorder.writer.path
    assert path is not None
    reader = SegmentReader(path)
    exporter.stop()
    steps = reader.steps()
    reader.close()
    return [{phase.label: int(ns) for phase, ns in zip(Phase, step["ns"], strict=True) if ns} for step in steps]


def test_each_batch_is_a_step(exporter: rank_exporter.Exporter) -> None:
    """A loop that names no phase still gets its steps and its input, the first batch apart."""
    assert list(exporter.steps(range(3))) == [0, 1, 2]
    found = records(exporter)
    assert [set(step) for step in found] == [{"first_batch", "other", "step"}] + [{"input_ready", "other", "step"}] * 2


def test_optimizer_phase_ends_the_step(exporter: rank_exporter.Exporter) -> None:
    """What follows the optimizer belongs to the next step."""
    for _ in exporter.steps(range(3)):
        with exporter.phase("optimizer"):
            pass
        with exporter.phase("forward"):
            pass
    found = records(exporter)
    assert ["forward" in step for step in found] == [False, True, True]
    assert all("optimizer" in step for step in found)


def test_accumulated_batches_are_one_step(exporter: rank_exporter.Exporter) -> None:
    """Two batches a step: three steps from six batches."""
    assert len(list(exporter.steps(range(6), accumulate=2))) == 6
    assert len(records(exporter)) == 3


def test_loop_left_by_break_keeps_its_last_step(exporter: rank_exporter.Exporter) -> None:
    """A second epoch after a break starts with a step of its own, without an empty one between."""
    for epoch in range(2):
        for number in exporter.steps(range(10)):
            if number == 2 + epoch:
                break
    assert len(records(exporter)) == 3 + 4


def test_empty_input_is_no_step(exporter: rank_exporter.Exporter) -> None:
    """Nothing to iterate over: nothing recorded."""
    assert list(exporter.steps([])) == []
    assert records(exporter) == []


def test_phase_ends_on_an_exception(exporter: rank_exporter.Exporter) -> None:
    """An exception passes through a span, which ends."""
    for _ in exporter.steps(range(1)):
        with pytest.raises(ZeroDivisionError), exporter.phase("forward"):
            raise ZeroDivisionError
        assert exporter._recorder.timeline.phase == Phase.OTHER


def test_mistakes_at_run_time_are_counted_and_said_once(
    exporter: rank_exporter.Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelt phase or a nonsensical count stops nothing."""
    for _ in range(3):
        with exporter.phase("fowrard"):
            pass
        exporter.count(samples=-1)
        exporter.count(samples="many")  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        (
            "rank 0: phase 'fowrard' is not timed: known are backward, checkpoint, collective_wait, eval, "
            "first_batch, forward, h2d, input_ready, optimizer (counted as 'phase', said once)"
        ),
        "rank 0: counts are (-1, 0, 0): give none below 0 (counted as 'count', said once)",
    ]


def test_wrong_accumulation_is_refused_at_once(exporter: rank_exporter.Exporter) -> None:
    """The error comes from the call, not from the first iteration."""
    with pytest.raises(rank_exporter.SettingError, match="accumulate is 0: give the number of batches per step"):
        exporter.steps([1], accumulate=0)


def test_explicit_loop_needs_no_torch() -> None:
    """This whole file runs without it."""
    if "torch" in sys.modules:
        pytest.skip("another test of this process loaded torch")
    rank_exporter.start  # noqa: B018 - loads the public module
    assert "torch" not in sys.modules
