"""An exporter in this very process, and what it recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rank_exporter
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader, Snapshot

Step = dict[str, int]


class Recording:
    """The running exporter, and what its segment holds in the end. ``faults`` are those to be met, by reason."""

    def __init__(self, directory: Path) -> None:
        self.faults: dict[str, int] = {}
        self.exporter = rank_exporter.start(run="loops", directory=directory, serve="off")
        path = self.exporter._recorder.writer.path
        assert path is not None
        self._reader = SegmentReader(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exporter, name)

    def steps(self) -> list[Step]:
        self.exporter.stop()
        records = self._reader.steps()
        assert (records["ns"][:, : Phase.STEP].sum(axis=1) == records["ns"][:, Phase.STEP]).all()
        return [
            {phase.label: int(ns) for phase, ns in zip(Phase, record["ns"], strict=True) if ns} for record in records
        ]

    def snapshot(self) -> Snapshot:
        found = self._reader.snapshot()
        assert found is not None
        return found

    def close(self) -> None:
        self.exporter.stop()
        errors = {reason: self.snapshot().word(Word.ERRORS + n) for n, reason in enumerate(ERROR_REASONS)}
        self._reader.close()
        assert {reason: count for reason, count in errors.items() if count} == self.faults


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    """Fails if the exporter met another fault than those to be met."""
    made = Recording(tmp_path)
    yield made
    made.close()
