"""Starting and stopping in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import rank_exporter
from rank_exporter.segment.discovery import is_held, segment_files
from rank_exporter.segment.layout import Word
from rank_exporter.segment.reader import SegmentReader


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    running = rank_exporter.instrument.exporter._running  # type: ignore[attr-defined]
    if running is not None:
        running.stop()


def test_second_start_returns_the_running_exporter(tmp_path: Path) -> None:
    """Start is idempotent: one segment, one exporter."""
    first = rank_exporter.start(run="r", directory=tmp_path, serve="off")
    assert rank_exporter.start() is first
    assert rank_exporter.start(run="r", directory=tmp_path, serve="off") is first
    assert len(segment_files(tmp_path)) == 1


def test_second_start_with_other_settings_is_refused(tmp_path: Path) -> None:
    """Settings that would be ignored are an error, in one line."""
    rank_exporter.start(run="r", directory=tmp_path, serve="off")
    with pytest.raises(rank_exporter.SettingError, match=r"already started as .*: call stop\(\) before other settings"):
        rank_exporter.start(run="other", directory=tmp_path, serve="off")


def test_process_group_that_is_made_later_is_no_other_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who a rank is was settled at the first start."""
    first = rank_exporter.start(run="r", directory=tmp_path, serve="off")
    told = "rank_exporter.instrument.exporter.process_group_variables"
    monkeypatch.setattr(told, lambda: {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"})
    assert rank_exporter.start(run="r", directory=tmp_path, serve="off") is first
    assert first.identity.rank == 0


def test_start_after_stop_makes_a_new_segment(tmp_path: Path) -> None:
    """The old segment has ended and the new one is live; stopping twice does nothing."""
    first = rank_exporter.start(run="r", directory=tmp_path, serve="off")
    [old] = segment_files(tmp_path)
    first.stop()
    first.stop()
    rank_exporter.start(run="r", directory=tmp_path, serve="off")
    [new] = set(segment_files(tmp_path)) - {old}
    assert (is_held(old), is_held(new)) == (False, True)
    reader = SegmentReader(old)
    found = reader.snapshot()
    reader.close()
    assert found is not None
    assert found.word(Word.ENDED) == 1


def test_stopped_exporter_is_harmless(tmp_path: Path) -> None:
    """A loop that goes on after stop trains on, unrecorded."""
    exporter = rank_exporter.start(run="r", directory=tmp_path, serve="off")
    exporter.stop()
    for _ in exporter.steps(range(3)):
        exporter.set_shard("s")
        exporter.count(samples=1)
        with exporter.phase("forward"):
            pass
    [path] = segment_files(tmp_path)
    reader = SegmentReader(path)
    assert reader.steps().size == 0
    reader.close()


def test_unusable_directory_does_not_stop_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rank that cannot be recorded says so once and trains."""
    tmp_path.chmod(0o777)
    exporter = rank_exporter.start(run="r", directory=tmp_path)
    assert list(exporter.steps(range(3))) == [0, 1, 2]
    [record] = caplog.records
    assert record.getMessage().startswith(f"rank 0 is not recorded: segment directory {tmp_path} is writable by others")


def test_child_of_a_fork_is_inert_and_may_start_its_own(tmp_path: Path) -> None:
    """A forked worker records nothing through the parent's exporter, and can be a rank itself."""
    exporter = rank_exporter.start(run="r", directory=tmp_path, serve="off")
    child = os.fork()
    if child == 0:
        list(exporter.steps(range(5)))
        exporter.stop()
        own = rank_exporter.start(run="r", rank=1, world_size=2, directory=tmp_path, serve="off")
        os._exit(0 if own is not exporter and len(segment_files(tmp_path)) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(exporter.steps(range(2))) == [0, 1]
    [path] = [path for path in segment_files(tmp_path) if is_held(path)]
    reader = SegmentReader(path)
    assert len(reader.steps()) == 2
    reader.close()
