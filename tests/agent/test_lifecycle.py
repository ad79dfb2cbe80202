"""Ranks and agents that come, hang, die and come again: real processes throughout."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

PROGRESS = "training_phase_in_progress_seconds"


def segments(directory):
    return sorted(path.name for path in directory.glob("*.segment"))


def test_a_killed_agent_leaves_the_port_to_the_next(start_agent, start_rank):
    """After SIGKILL of an agent with open connections another binds the same port at once and serves the same."""
    start_rank()
    first = start_agent()
    assert first.scrape().ranks() == {"0"}
    first.kill()
    second = start_agent("--port", str(first.port))
    assert second.port == first.port
    assert second.scrape().value("training_steps_total", rank="0") == 1


def test_a_stopped_rank_is_still_answered_for(start_agent, start_rank, eventually):
    """While a rank is stopped scrapes answer, its series stay and its phase in progress grows."""
    rank = start_rank()
    agent = start_agent()
    rank.process.send_signal(signal.SIGSTOP)
    before = agent.scrape().value(PROGRESS, rank="0", phase="forward")
    eventually(lambda: agent.scrape().value(PROGRESS, rank="0", phase="forward") > before + 0.2)
    found = agent.scrape()
    assert found.value("training_steps_total", rank="0") == 1
    assert found.value("training_exporter_segments", state="live") == 1


def test_a_rank_stopped_within_a_commit_shows_its_last_good_step(start_agent, start_rank, eventually):
    """In the midst of a commit the last good state is served, with the phase in progress as it is now."""
    rank = start_rank()
    agent = start_agent()
    agent.scrape()
    rank.do("begin_commit")
    rank.do("phase", phase="optimizer")
    found = agent.scrape()
    assert found.value("training_steps_total", rank="0") == 1
    before = found.value(PROGRESS, rank="0", phase="optimizer")
    eventually(lambda: agent.scrape().value(PROGRESS, rank="0", phase="optimizer") > before)
    rank.kill()
    eventually(lambda: not agent.scrape().find(PROGRESS))
    assert agent.scrape().value("training_steps_total", rank="0") == 1


def test_a_rank_found_within_a_commit_shows_its_phase(start_agent, start_rank):
    """A rank that was stopped within a commit before the agent came still tells its phase in progress."""
    rank = start_rank()
    rank.do("begin_commit")
    found = start_agent().scrape()
    assert found.find(PROGRESS, rank="0", phase="forward")
    assert not found.ranks()


def test_a_dead_rank_lingers_and_goes(start_agent, start_rank, directory, eventually):
    """A killed rank keeps its totals but is in no phase; after the linger its series and its file are gone."""
    rank, other = start_rank(0), start_rank(1)
    agent = start_agent("--linger-seconds", "2")
    rank.do("step", input_ready=1_000_000, step=2_000_000)
    rank.kill()
    found = eventually(lambda: (s := agent.scrape()).value("training_exporter_segments", state="ended") and s)
    assert found.value("training_steps_total", rank="0") == 2
    for name in (PROGRESS, "training_rank_info"):
        assert [sample.labels["rank"] for sample in found.find(name)] == ["1"]
    eventually(lambda: agent.scrape().ranks() == {"1"})
    eventually(lambda: len(segments(directory)) == 1)
    other.do("step", step=1_000_000)
    assert agent.scrape().value("training_steps_total", rank="1") == 2


def test_a_restarted_rank_supersedes_the_dead_one(start_agent, start_rank, directory, eventually):
    """A new process with the same run and rank takes over at once, without duplicates, and the old file goes."""
    old = start_rank()
    agent = start_agent("--linger-seconds", "600")
    agent.scrape()
    old.kill()
    new = start_rank()
    new.do("step", step=1_000_000)
    assert agent.scrape().value("training_steps_total", rank="0") == 2
    eventually(lambda: len(segments(directory)) == 1)
    assert agent.scrape().value("training_exporter_errors_total", rank="", reason="duplicate_rank") == 0
    assert f"-{new.process.pid}-" in segments(directory)[0]


def test_start_stop_start_in_one_process(start_agent, record, directory):
    """A process that stops recording and starts again is shown once, from its new segment."""
    agent = start_agent("--linger-seconds", "600")
    first = record()
    first.step(step=1_000_000)
    first.step(step=1_000_000)
    assert agent.scrape().value("training_steps_total", rank="0") == 2
    first.writer.close()
    second = record()
    second.step(step=1_000_000)
    found = agent.scrape()
    assert found.value("training_steps_total", rank="0") == 1
    assert found.value("training_exporter_segments", state="ended") == 0
    assert segments(directory) == [second.path.name]


def test_two_live_processes_with_one_rank(start_agent, start_rank, directory):
    """Of two live processes that claim the same run and rank the later is served; the clash is counted once."""
    start_rank()
    later = start_rank()
    later.do("step", step=1_000_000)
    agent = start_agent()
    for _ in range(3):
        found = agent.scrape()
        assert found.value("training_steps_total", rank="0") == 2
        assert found.value("training_exporter_errors_total", rank="", reason="duplicate_rank") == 1
    assert agent.complaints.count("rank 0 of run job") == 1
    assert len(segments(directory)) == 2


def test_two_jobs_share_an_agent(start_agent, start_rank):
    """Ranks of two runs on one host are served by the one agent."""
    start_rank(run="one")
    start_rank(run="two")
    found = start_agent().scrape()
    assert {sample.labels["run"] for sample in found.find("training_steps_total")} == {"one", "two"}


def test_an_idle_agent_leaves(start_agent, start_rank, directory):
    """With --until-idle the agent stays while a rank lives, and leaves with exit code 0 and a clean directory."""
    rank = start_rank()
    agent = start_agent("--until-idle", "--linger-seconds", "0.5")
    with pytest.raises(subprocess.TimeoutExpired):
        agent.process.wait(timeout=2.5)
    rank.kill()
    assert agent.process.wait(timeout=120) == 0
    assert segments(directory) == []
    assert agent.complaints == ""


def test_a_second_agent_joins_quietly(start_agent, start_rank, run_agent):
    """Where an agent serves already, one that was started by a rank leaves with exit code 0 and says nothing."""
    start_rank()
    agent = start_agent()
    joined = run_agent("--until-idle")
    assert (joined.returncode, joined.stdout, joined.stderr) == (0, "", "")
    by_hand = run_agent()
    assert (by_hand.returncode, by_hand.stdout) == (1, "")
    assert by_hand.stderr.count("\n") == 1
    assert "has an agent already" in by_hand.stderr
    assert agent.scrape().ranks() == {"0"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent(start_agent, start_rank, directory, number):
    """SIGTERM and SIGINT end an agent with exit code 0, in silence; a live rank's segment stays."""
    start_rank()
    agent = start_agent()
    agent.scrape()
    agent.process.send_signal(number)
    assert agent.process.wait(timeout=120) == 0
    assert agent.complaints == ""
    assert len(segments(directory)) == 1


def test_a_leaving_agent_clears_up_after_the_dead_only(start_agent, start_rank, directory, eventually):
    """On leaving, segments of dead ranks are removed; those of live ranks and foreign files stay."""
    dead, live = start_rank(0), start_rank(1)
    for name in ("notes.txt", "notes.segment", "notes.draft"):
        (directory / name).write_text("mine")
    agent = start_agent("--linger-seconds", "600")
    dead.kill()
    eventually(lambda: agent.scrape().value("training_exporter_segments", state="ended") == 1)
    assert agent.stop() == 0
    left = {path.name for path in directory.iterdir()}
    assert left >= {"notes.txt", "notes.segment", "notes.draft"}
    (segment,) = left - {"notes.txt", "notes.segment", "notes.draft", "agent.lock"}
    assert f"-{live.process.pid}-" in segment


def test_a_detached_agent_is_nobodys_child(agent_command, start_rank, tmp_path, processes, eventually):
    """With --detach the command returns at once; its output is the one line, then its end; the agent serves on."""
    rank = start_rank()
    command = agent_command("--detach", "--until-idle", "--linger-seconds", "0.5")
    with (tmp_path / "agent.log").open("w+") as log:
        started = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=120, check=False)
    assert (started.returncode, (tmp_path / "agent.log").read_text()) == (0, "")
    assert started.stdout.count("\n") == 1
    assert started.stdout.startswith("serving http://127.0.0.1:")
    (agent,) = processes()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert str(agent) not in children
    assert httpx.get(started.stdout.split()[1], trust_env=False, timeout=60).status_code == 200
    rank.kill()
    eventually(lambda: not processes())
