"""How long segments stay, by a clock that the test turns."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rank_exporter.agent.faults import Faults
from rank_exporter.agent.linger import Linger
from rank_exporter.agent.residence import Residence


class Clock:
    def __init__(self):
        self.seconds = 0.0
        self._zero = time.time_ns()

    def __call__(self):
        return self.seconds

    def unix_ns(self):
        return self._zero + int(self.seconds * 1e9)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def residence(directory, clock):
    residence = Residence(directory, Linger(20), Faults(), clock=clock, unix_ns=clock.unix_ns)
    yield residence
    residence.close()


def test_linger_follows_the_interval_of_scrapes():
    """Twice the longest of the latest gaps, within 5 and 120 s; 30 s before any gap; a setting goes before."""
    linger = Linger(None)
    assert linger.seconds == 30
    linger.observe(0)
    assert linger.seconds == 30
    linger.observe(15)
    assert linger.seconds == 30
    for now in range(16, 24):
        linger.observe(now)
    assert linger.seconds == 5
    linger.observe(43)
    assert linger.seconds == 40
    linger.observe(1000)
    assert linger.seconds == 120
    fixed = Linger(7)
    fixed.observe(0)
    fixed.observe(60)
    assert (fixed.seconds, fixed.two_scrapes) == (7, 120)


def test_an_ended_segment_stays_for_the_linger(residence, record, clock):
    """It is served until the linger has passed since its end was seen, then removed."""
    rank = record()
    residence.scan()
    rank.writer.close()
    clock.seconds = 100
    residence.scan()
    assert [one.live for one in residence.served] == [False]
    clock.seconds = 119.9
    residence.scan()
    assert len(residence.served) == 1
    clock.seconds = 120
    residence.scan()
    assert residence.served == []
    assert not rank.path.exists()


@pytest.mark.parametrize(("age", "served"), [(5, 1), (25, 0)])
def test_a_segment_found_dead_is_shown_only_if_it_is_fresh(residence, record, clock, age, served):
    """Of a rank that ended before the agent came the last samples are served if the rank ended within the linger."""
    rank = record()
    rank.step(step=1_000_000)
    rank.writer.close()
    clock.seconds = age
    residence.scan()
    assert len(residence.served) == served
    assert rank.path.exists() == bool(served)


def test_the_last_step_is_a_sign_of_life(residence, record, clock):
    """A rank that ran for long and ended just now is fresh, although its file is old."""
    rank = record()
    old = time.time() - 3600
    rank.step(step=1_000_000)
    os.utime(rank.path, (old, old))
    rank.writer.close()
    clock.seconds = 5
    residence.scan()
    assert len(residence.served) == 1


def test_a_rank_that_said_it_is_done_is_ended(residence, record, clock):
    """It counts as ended although a child still holds its lock; its file goes once the child is gone, too."""
    rank = record()
    opened = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and fd.readlink() == rank.path]
    inherited = [os.dup(int(fd.name)) for fd in opened]
    residence.scan()
    rank.writer.close()
    residence.scan()
    assert [one.live for one in residence.served] == [False]
    clock.seconds = 20
    residence.scan()
    assert residence.served == []
    assert rank.path.exists()
    for descriptor in inherited:
        os.close(descriptor)
    residence.scan()
    assert not rank.path.exists()


def test_an_agent_that_is_never_used_leaves_late(residence, clock):
    """Without any segment it waits for 30 s, although the linger is 20 s."""
    clock.seconds = 29
    residence.scan()
    assert not residence.idle()
    clock.seconds = 30
    residence.scan()
    assert residence.idle()


def test_idle_is_counted_from_the_last_live_rank(residence, record, clock):
    """The agent is idle once the linger has passed since the last rank lived, and not before its samples are gone."""
    rank = record()
    residence.scan()
    clock.seconds = 500
    residence.scan()
    assert not residence.idle()
    rank.writer.close()
    clock.seconds = 501
    residence.scan()
    clock.seconds = 520.5
    residence.scan()
    assert not residence.idle()
    clock.seconds = 521
    residence.scan()
    assert residence.idle()


def test_a_live_rank_goes_before_a_later_one_that_ended(residence, record):
    """If a second process took a live rank's name and ended, the live one is served again and the other's file goes."""
    first, second = record(), record()
    residence.scan()
    assert [one.reader.path for one in residence.served] == [second.path]
    ended = second.path
    second.writer.close()
    residence.scan()
    assert [one.reader.path for one in residence.served] == [first.path]
    assert not ended.exists()


def test_drafts_of_the_dead_are_removed(residence, directory, clock):
    """A draft that nobody holds goes after a minute; a young one and a foreign file stay."""
    draft, foreign = directory / "00000-123-18ab.draft", directory / "letter.draft"
    for path in (draft, foreign):
        path.write_bytes(b"")
    residence.scan()
    assert draft.exists()
    clock.seconds = 120
    residence.scan()
    assert not draft.exists()
    assert foreign.exists()


def test_a_removed_file_ends_its_segment(residence, record, clock):
    """If somebody removes the file of a live rank its series linger and go, without an error."""
    rank = record()
    residence.scan()
    rank.path.unlink()
    residence.scan()
    assert [one.live for one in residence.served] == [False]
    clock.seconds = 20
    residence.scan()
    assert residence.served == []
