"""The lock of a directory's one agent."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest

from rank_exporter.agent.lock import take
from rank_exporter.segment.discovery import agent_lock, is_held


@pytest.fixture
def path(directory):
    return agent_lock(directory)


def test_the_lock_is_held_until_it_is_let_go(path):
    """Whoever takes the lock holds it for all to see; a second agent gets nothing; afterwards it is free."""
    first = take(path)
    assert is_held(path)
    assert take(path) is None
    os.close(first)
    assert not is_held(path)


def test_a_glance_does_not_turn_an_agent_away(path):
    """A rank that holds the lock for a moment, to see whether an agent is there, is waited out."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        glance = threading.Timer(0.1, fcntl.flock, (lock, fcntl.LOCK_UN))
        glance.start()
        taken = take(path)
        glance.join()
    assert taken is not None
    os.close(taken)
