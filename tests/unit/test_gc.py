"""Pauses for garbage collection."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rank_exporter
from rank_exporter.instrument.gc import watch_gc
from rank_exporter.segment.discovery import segment_files
from rank_exporter.segment.layout import Word
from rank_exporter.segment.reader import SegmentReader
from rank_exporter.segment.writer import SegmentWriter

MS = 1_000_000


class Clock:
    """Nanoseconds that pass by a millisecond with each reading."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += MS
        return self.now


def pause(path: Path) -> int:
    """The pause that an agent would read, in ns."""
    reader = SegmentReader(path)
    found = reader.snapshot()
    reader.close()
    assert found is not None
    return found.word(Word.GC_PAUSE_NS)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No collection but those that a test asks for, and no hook left behind."""
    before = list(gc.callbacks)
    gc.disable()
    yield
    gc.enable()
    assert gc.callbacks == before


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SegmentWriter]:
    about = rank_exporter.config.settings({}, run="r", directory=tmp_path)  # type: ignore[attr-defined]
    one = SegmentWriter.create(tmp_path, about.identity, skew_budget_ratio=0.1)
    yield one
    one.close()


def test_collections_are_timed_on_whichever_thread_they_run(writer: SegmentWriter) -> None:
    """Each collection adds its time, also one that another thread sets off."""
    assert writer.path is not None
    undo = watch_gc(writer, clock=Clock())
    gc.collect()
    assert pause(writer.path) == MS
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert pause(writer.path) == 2 * MS
    undo()
    gc.collect()
    assert pause(writer.path) == 2 * MS


def test_real_pauses_take_real_time(writer: SegmentWriter) -> None:
    """The word holds nanoseconds of the real clock."""
    assert writer.path is not None
    kept = [[number] for number in range(200_000)]
    undo = watch_gc(writer)
    gc.collect()
    undo()
    assert len(kept) == 200_000
    assert 100_000 < pause(writer.path) < 60 * 10**9


def test_watching_from_within_a_collection_adds_no_half_of_it(writer: SegmentWriter) -> None:
    """A hook that sees an end without its beginning leaves it alone."""
    assert writer.path is not None
    undos = []

    class Late:
        def __del__(self) -> None:
            undos.append(watch_gc(writer, clock=Clock()))

    late = Late()
    late.itself = late  # type: ignore[attr-defined]
    del late
    gc.collect()
    assert len(undos) == 1
    assert pause(writer.path) == 0
    gc.collect()
    assert pause(writer.path) == MS
    undos[0]()


def test_undoing_twice_is_harmless(writer: SegmentWriter) -> None:
    """The hook is taken out once."""
    undo = watch_gc(writer)
    undo()
    undo()


def test_forked_child_adds_nothing_and_may_be_watched_anew(writer: SegmentWriter) -> None:
    """A child's collections are not the rank's, and neither are its hooks."""
    assert writer.path is not None
    undo = watch_gc(writer, clock=Clock())
    child = os.fork()
    if child == 0:
        callbacks = list(gc.callbacks)
        gc.collect()
        again = watch_gc(SegmentWriter.private(), clock=Clock())
        gc.collect()
        os._exit(0 if len(gc.callbacks) == len(callbacks) + 1 and again is not undo else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pause(writer.path) == 0
    gc.collect()
    assert pause(writer.path) == MS
    undo()


def test_collection_that_forks_is_the_parents_alone(writer: SegmentWriter) -> None:
    """A child made in the midst of a collection does not end it for the rank."""
    assert writer.path is not None
    undo = watch_gc(writer, clock=Clock())
    children = []

    class Forks:
        def __del__(self) -> None:
            children.append(os.fork())

    forks = Forks()
    forks.itself = forks  # type: ignore[attr-defined]
    del forks
    gc.collect()
    if children == [0]:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert pause(writer.path) == MS
    undo()


def test_exporter_times_collections_from_start_to_stop(tmp_path: Path) -> None:
    """One line starts it, and after stop nothing is hooked and nothing recorded."""
    exporter = rank_exporter.start(run="r", directory=tmp_path, serve="off")
    [path] = segment_files(tmp_path)
    gc.collect()
    first = pause(path)
    assert first > 0
    gc.collect()
    second = pause(path)
    assert second > first
    exporter.stop()
    gc.collect()
    assert pause(path) == second
