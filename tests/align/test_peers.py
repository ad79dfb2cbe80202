"""The aligning agent among real agents and real liars, over HTTP on loopback."""

from __future__ import annotations

import dataclasses
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rank_exporter.segment.records import RankSteps
from rank_exporter.segment.roster import Roster, roster_file
from rank_exporter.segment.wire import Answer, encode

STEPS = 40
GENERATION = 7


def answer(*segments: RankSteps) -> bytes:
    return encode(Answer(agent="liar", segments=segments, last_steps=tuple(len(one.records) for one in segments)))


def random_records(steps: RankSteps) -> RankSteps:
    noise = np.frombuffer(np.random.default_rng(0).bytes(steps.records.nbytes), dtype=steps.records.dtype).copy()
    noise["step"] = steps.records["step"]
    return dataclasses.replace(steps, records=noise)


def from_the_future(steps: RankSteps) -> RankSteps:
    records = steps.records.copy()
    records["step"] += np.uint64(2**50)
    return dataclasses.replace(steps, records=records)


def tenfold_header(body: bytes) -> bytes:
    return body[:8] + struct.pack("<I", 2**31) + body[12:]


# What an agent can do wrong: bodies by name, given rank 3's true steps and rank 1's.
LIES: dict[str, Callable[[RankSteps, RankSteps], bytes]] = {
    "garbage": lambda own, other: b"\x00\xff<html>" * 1000,
    "empty": lambda own, other: b"",
    "cut": lambda own, other: answer(own)[:-100],
    "header": lambda own, other: tenfold_header(answer(own)),
    "random": lambda own, other: answer(random_records(own)),
    "future": lambda own, other: answer(from_the_future(own)),
    "run": lambda own, other: answer(dataclasses.replace(own, run="another")),
    "generation": lambda own, other: answer(dataclasses.replace(own, generation=8)),
    "rank": answer,
    "twice": lambda own, other: answer(own, own),
}
# These are told when they arrive; the others only tell nothing that could be used.
SILENT = {"random", "future"}
OTHERS = ("huge", "slow", "gone", "error", "redirect")


class Liar(BaseHTTPRequestHandler):
    """Serves /NAME/steps by the lie's name, as the Host header cannot carry it: one server a lie."""

    lie = ""
    body = b""
    over = threading.Event()

    def do_GET(self) -> None:
        if self.lie == "error":
            self.send_error(500)
            return
        self.send_response(302 if self.lie == "redirect" else 200)
        if self.lie == "redirect":
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        try:
            while self.lie == "huge" and not self.over.is_set():
                self.wfile.write(bytes(1 << 16))
            while self.lie == "slow" and not self.over.is_set():
                self.wfile.write(b"R")
                self.over.wait(0.2)
            self.wfile.write(self.body)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def liar() -> Iterator[Callable[[str, bytes], str]]:
    """Starts a server that lies, and returns its address."""
    servers: list[ThreadingHTTPServer] = []
    over = threading.Event()

    def start(lie: str, body: bytes) -> str:
        handler = type("Handler", (Liar,), {"lie": lie, "body": body, "over": over})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_an_agent_that_lies_costs_its_own_ranks_steps_alone(
    *,
    tmp_path: Path,
    start_agent: Callable[..., Any],
    simulate: Callable[..., list[RankSteps]],
    simulated: Callable[..., Any],
    liar: Callable[[str, bytes], str],
    eventually: Callable[..., Any],
) -> None:
    """Beside each lie all steps are aligned from the three honest ranks, the straggler among them is found, and the lie
    is counted and said once; nothing of it enters a metric."""
    near, far = start_agent(tmp_path / "near"), start_agent(tmp_path / "far")
    ranks = []
    for lie in (*LIES, *OTHERS):
        slow = np.where(np.arange(4) == 2, 60, 20)
        run = simulate(
            STEPS, 4, run=lie, generation=GENERATION, input_ready=np.broadcast_to(slow, (STEPS, 4)), forward=9
        )
        here, there = simulated(near.directory, run[0]), [simulated(far.directory, one) for one in run[1:3]]
        target = f"127.0.0.1:{closed_port()}"
        if lie != "gone":
            target = liar(lie, LIES[lie](run[3], run[1]) if lie in LIES else b"")
        targets = {0: near.target, 1: far.target, 2: far.target, 3: target}
        Roster(run=lie, generation=GENERATION, world_size=4, targets=targets).write(roster_file(here.writer.path))
        ranks += [here, *there]
    for rank in ranks:
        rank.commit(STEPS)
    for lie in (*LIES, *OTHERS):
        eventually(lambda lie=lie: near.value("training_aligned_steps_total", run=lie) == STEPS)
        assert near.value("training_aligned_ranks", run=lie) == 3, lie
        assert near.value("training_exposed_wait_seconds_total", run=lie) == pytest.approx(2 * 0.04 * STEPS), lie
        caused = near.values("training_delay_caused_seconds_total", run=lie)
        assert caused == {("node-0", "input_ready", "2", "shard-2"): pytest.approx(0.04 * STEPS)}, lie
        # Of the rank that cannot be asked nothing is told, of the others that it is 0.
        assert near.values("training_rank_aligned_steps_total", run=lie) == {
            ("node-0", str(rank)): STEPS for rank in range(3)
        }, lie
        assert near.values("training_rank_delay_caused_seconds_total", run=lie) == {
            ("node-0", "input_ready", "0"): 0,
            ("node-0", "input_ready", "1"): 0,
            ("node-0", "input_ready", "2"): pytest.approx(0.04 * STEPS),
        }, lie
    said = near.complaints.splitlines()
    assert near.value("training_exporter_errors_total", rank="", reason="peers") == len(said)
    # An honest agent that the machine does not let answer in time is said too.
    lied = [line for line in said if "ranks 3 are not aligned until it does" in line]
    for lie in (*LIES, *OTHERS):
        about = [line for line in lied if f"gives no steps of run {lie} " in line]
        assert len(about) == (lie not in SILENT), (lie, about)
    assert len(lied) == len(LIES) + len(OTHERS) - len(SILENT)
    assert near.get("/healthz").status_code == 200


def test_a_peer_that_comes_back_is_aligned_again(
    tmp_path: Path,
    start_agent: Callable[..., Any],
    simulate: Callable[..., list[RankSteps]],
    simulated: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    """Steps of a host whose agent was away are aligned without it, and with it once it is there again."""
    near, far = start_agent(tmp_path / "near"), start_agent(tmp_path / "far")
    run = simulate(2000, 3, generation=GENERATION, input_ready=20)
    ranks = [simulated((near if one.rank < 2 else far).directory, one) for one in run]
    targets = {0: near.target, 1: near.target, 2: far.target}
    Roster(run="job", generation=GENERATION, world_size=3, targets=targets).write(roster_file(ranks[0].writer.path))
    for rank in ranks:
        rank.commit(20)
    eventually(lambda: near.value("training_aligned_steps_total") == 20)
    assert near.value("training_aligned_ranks") == 3
    far.close()
    for rank in ranks:
        rank.commit(20)
    eventually(lambda: near.value("training_aligned_steps_total") == 40)
    assert near.value("training_aligned_ranks") == 2
    start_agent(tmp_path / "far", "--port", far.target.rpartition(":")[2])

    def goes_on() -> bool:
        for rank in ranks:
            rank.commit(1)
        return near.value("training_aligned_ranks") == 3

    eventually(goes_on)


def test_a_restarted_agent_does_not_count_steps_again(
    tmp_path: Path,
    start_agent: Callable[..., Any],
    simulate: Callable[..., list[RankSteps]],
    simulated: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    """The agent that takes over begins with the steps that end from then on; before, they were counted by the other."""
    agent = start_agent(tmp_path / "near")
    ranks = [simulated(agent.directory, one) for one in simulate(50, 2, generation=GENERATION, input_ready=20)]
    roster = Roster(run="job", generation=GENERATION, world_size=2, targets={0: agent.target, 1: agent.target})
    roster.write(roster_file(ranks[0].writer.path))
    for rank in ranks:
        rank.commit(30)
    eventually(lambda: agent.value("training_aligned_steps_total") == 30)
    agent.close()
    agent = start_agent(tmp_path / "near")
    for rank in ranks:
        rank.commit(20)
    eventually(lambda: agent.value("training_aligned_steps_total") == 20)


def test_generations_are_not_mixed_and_counters_go_on(
    tmp_path: Path,
    start_agent: Callable[..., Any],
    simulate: Callable[..., list[RankSteps]],
    simulated: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    """After a restart with three ranks for four, steps count on from where they were, from the new ranks alone; the
    rank that is left over from before, which still tells its steps, has no part in them."""
    agent = start_agent(tmp_path / "near")
    before = [simulated(agent.directory, one) for one in simulate(40, 4, generation=GENERATION, input_ready=20)]
    targets = dict.fromkeys(range(4), agent.target)
    Roster(run="job", generation=GENERATION, world_size=4, targets=targets).write(roster_file(before[0].writer.path))
    for rank in before:
        rank.commit(20)
    eventually(lambda: agent.value("training_aligned_steps_total") == 20)
    for rank in before[:3]:
        rank.writer.close()
    slow = np.broadcast_to([20, 50, 20], (30, 3))
    after = [simulated(agent.directory, one) for one in simulate(30, 3, generation=8, input_ready=slow)]
    targets = dict.fromkeys(range(3), agent.target)
    Roster(run="job", generation=8, world_size=3, targets=targets).write(roster_file(after[0].writer.path))
    for rank in (*after, before[3]):
        rank.commit(30)
    eventually(lambda: agent.value("training_aligned_steps_total") == 50)
    assert agent.value("training_aligned_ranks") == 3
    assert agent.value("training_exposed_wait_seconds_total") == pytest.approx(2 * 0.03 * 30)
    caused = agent.values("training_delay_caused_seconds_total", run="job")
    assert caused == {("node-0", "input_ready", "1", "shard-1"): pytest.approx(0.03 * 30)}
    compared = agent.values("training_rank_aligned_steps_total")
    assert compared == {("node-0", str(rank), "job"): 50 for rank in range(3)}
    assert sum(agent.values("training_last_rank_steps_total").values()) == 50
