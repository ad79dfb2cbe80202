"""What a verdict must take into account beside the durations: who stands still, what is hidden, what was profiled."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rank_exporter.analysis.diagnose import diagnose
from rank_exporter.analysis.observation import Window, judge, observe
from rank_exporter.cli import main
from rank_exporter.errors import SourceError
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import PROFILED
from rank_exporter.segment.steplog import StepLog


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["diagnose", *map(str, arguments)])


def said(ranks: Any, **options: Any) -> Any:
    return judge(observe(ranks, source="memory", **options)).verdict


def in_progress(ranks: Any, phases: list[str], *, seconds: float = 90.0, world_size: int | None = None) -> Any:
    """The profile of ranks that have been in these phases for so long."""
    profile = observe(ranks, source="memory").profile
    return dataclasses.replace(
        profile,
        world_size=world_size or profile.world_size,
        ranks=tuple(
            dataclasses.replace(rank, in_progress=(phase, seconds))
            for rank, phase in zip(profile.ranks, phases, strict=True)
        ),
    )


@pytest.mark.parametrize("phase", ["input_ready", "optimizer", "checkpoint", "other"])
def test_of_a_run_that_stands_still_the_rank_that_does_not_wait_is_named(simulate: Any, phase: str) -> None:
    """Three ranks wait in the collective, one is in a phase of its own: it is the one."""
    phases = ["collective_wait", "collective_wait", phase, "collective_wait"]
    verdict = diagnose(in_progress(simulate(), phases))
    assert (verdict.kind, verdict.rank, verdict.phase) == ("STALLED", 2, phase)
    assert (verdict.host, verdict.shard) == ("node-1", "shard-2" if phase == "input_ready" else None)


@pytest.mark.parametrize(
    ("phases", "evidence"),
    [
        (["collective_wait"] * 4, "all 4 ranks wait in a collective"),
        (["input_ready"] * 4, "rank 0 is in input_ready, rank 1 is in input_ready"),
        (["collective_wait", "input_ready", "optimizer", "collective_wait"], "rank 2 is in optimizer"),
    ],
)
def test_a_run_that_stands_still_for_another_reason_names_no_rank(
    simulate: Any, phases: list[str], evidence: str
) -> None:
    """All wait for each other, or several are elsewhere."""
    verdict = diagnose(in_progress(simulate(), phases))
    assert (verdict.kind, verdict.rank) == ("STALLED", None)
    assert evidence in "\n".join(verdict.evidence)


def test_a_missing_rank_is_said_where_the_others_wait(simulate: Any) -> None:
    """Of four ranks three wait; the fourth has died."""
    verdict = diagnose(in_progress(simulate()[:3], ["collective_wait"] * 3, world_size=4))
    assert (verdict.kind, verdict.rank) == ("STALLED", None)
    assert "rank 3 is not there" in verdict.evidence[1]


@pytest.mark.parametrize(
    ("phases", "seconds"),
    [
        (["collective_wait", "input_ready", "collective_wait", "collective_wait"], 20.0),
        (["eval"] * 4, 900.0),
        (["other"] * 4, 900.0),
    ],
)
def test_a_run_that_moves_or_rests_is_not_stalled(simulate: Any, phases: list[str], seconds: float) -> None:
    """A long step is no standstill, nor are ranks that evaluate together or have left the loop."""
    assert diagnose(in_progress(simulate(), phases, seconds=seconds)).kind == "BALANCED"


def test_hidden_waits_do_not_make_their_victims_stalled(simulate: Any) -> None:
    """With FSDP1 ranks wait in forward: the one in the optimizer is named, none in forward."""
    phases = ["forward", "forward", "optimizer", "forward"]
    assert diagnose(in_progress(simulate(waits_in="forward,backward"), phases)).rank == 2
    assert diagnose(in_progress(simulate(waits_in="forward,backward"), ["forward"] * 4)).rank is None


def test_a_live_run_that_stands_still_is_named(simulate: Any, serve: Any) -> None:
    """From a live agent: the phases in progress go on while no step ends."""
    waits = Phase.COLLECTIVE_WAIT
    url = serve(simulate(30), (waits, Phase.INPUT_READY, waits, waits))
    verdict = json.loads(run("--agent", url, "--stalled", "0", "--json").stdout)["verdict"]
    assert (verdict["kind"], verdict["rank"], verdict["phase"]) == ("STALLED", 1, "input_ready")
    assert (verdict["host"], verdict["shard"]) == ("node-0", "shard-1")
    assert json.loads(run("--agent", url, "--json").stdout)["verdict"]["kind"] == "BALANCED"


def hide(ns: np.ndarray) -> None:
    """Waiting as FSDP1 records it: in forward."""
    ns[:, :, Phase.FORWARD] += ns[:, :, Phase.COLLECTIVE_WAIT]
    ns[:, :, Phase.COLLECTIVE_WAIT] = 0


@pytest.mark.parametrize("waits_in", ["forward,backward", ""])
def test_phases_that_hold_waiting_are_not_accused(simulate: Any, on: Any, waits_in: str) -> None:
    """Where waiting hides in forward, its victims are not blamed, whether the run says where it hides or not; a rank
    late in its input is still found."""
    late = said(simulate(input_ready=on(1, 40), waits_in=waits_in, wait=hide))
    assert (late.kind, late.rank, late.phase) == ("INPUT STRAGGLER", 1, "input_ready")
    judged = judge(observe(simulate(backward=on(2, 60), waits_in=waits_in, wait=hide), source="memory"))
    assert (judged.verdict.kind, judged.verdict.rank) == ("UNKNOWN", None)
    assert judged.tax is None


def test_fsdp_tells_its_optimizer_apart(simulate: Any, on: Any) -> None:
    """Where the run says that only forward and backward wait, a slow optimizer is named."""
    verdict = said(simulate(optimizer=on(2, 30), waits_in="forward,backward", wait=hide))
    assert (verdict.kind, verdict.rank, verdict.phase) == ("COMPUTE STRAGGLER", 2, "optimizer")


def test_profiled_steps_are_left_out(simulate: Any, on: Any, tmp_path: Path) -> None:
    """A profiler that slows one rank in 40 of 120 steps makes it no straggler, from memory or from a step log."""
    flags = np.zeros((120, 4), dtype=int)
    flags[70:110, 2] = PROFILED
    ranks = simulate(120, forward=on(2, 300, steps=120, where=slice(70, 110)), flags=flags)
    assert said(ranks).kind == "BALANCED"
    StepLog().write(tmp_path / "x.parquet", ranks)
    done = json.loads(run("--spool", tmp_path, "--json").stdout)
    assert (done["verdict"]["kind"], done["steps"]["judged"], done["steps"]["profiled"]) == ("BALANCED", 80, 40)
    assert done["phases"]["forward"]["worst"]["p99"] < 0.1
    unflagged = simulate(120, forward=on(2, 300, steps=120, where=slice(70, 110)))
    assert said(unflagged).rank == 2
    everything = simulate(30, flags=PROFILED)
    with pytest.raises(SourceError, match="save profiled ones"):
        said(everything)


def test_a_window_of_steps(simulate: Any, on: Any, tmp_path: Path) -> None:
    """--steps and --last-steps look at a part of the run."""
    log = StepLog()
    log.write(tmp_path / "x.parquet", simulate(400, input_ready=on(1, 60, where=slice(100, 200))))
    late = json.loads(run("--spool", tmp_path, "--steps", "101..200", "--json").stdout)
    assert (late["verdict"]["rank"], late["verdict"]["pattern"]) == (1, "persistent")
    assert (late["steps"]["first"], late["steps"]["last"]) == (101, 200)
    after = json.loads(run("--spool", tmp_path, "--last-steps", 150, "--json").stdout)
    assert (after["verdict"]["kind"], after["steps"]["first"]) == ("BALANCED", 251)
    assert said(simulate(50), window=Window(first=40)).kind == "UNKNOWN"


def test_two_that_take_turns_unevenly_are_not_blamed_on_one(simulate: Any, on: Any) -> None:
    """Of two ranks one is late on 6 steps of 10 and the other on the rest: neither is the straggler."""
    turn = np.arange(400) % 10 < 6
    late = on(0, 100, ranks=2, where=turn) + on(1, 100, ranks=2, where=~turn)
    verdict = said(simulate(400, 2, input_ready=late))
    assert (verdict.kind, verdict.rank) == ("ROTATING STRAGGLER", None)


def test_one_rank_that_reads_for_all_is_a_shared_feed(simulate: Any) -> None:
    """Rank 0 reads, the others wait for their share of it: the run is bound by its input, and nobody is late."""

    def dispatch(ns: np.ndarray) -> None:
        ns[:, 1:, Phase.OTHER] += ns[:, 1:, Phase.INPUT_READY]
        ns[:, 1:, Phase.INPUT_READY] = 0

    verdict = said(simulate(input_ready=60, wait=dispatch))
    assert (verdict.kind, verdict.rank) == ("INPUT-BOUND", None)
    assert "only rank 0 reads input: a shared feed, on which the others depend" in verdict.evidence


def test_two_late_ranks_are_no_rotation(simulate: Any, on: Any) -> None:
    """Two of eight ranks late by the same: one is named, the other is mentioned."""
    late = on(2, 60, ranks=8) + on(5, 60, ranks=8)
    verdict = said(simulate(400, 8, input_ready=late))
    assert verdict.kind == "INPUT STRAGGLER"
    assert {verdict.rank, *verdict.also} == {2, 5}


def test_a_rank_that_was_not_seen_is_not_taken_for_the_fabric(simulate: Any, on: Any) -> None:
    """All ranks that were seen wait alike, for the one that was not."""
    verdict = said(simulate(forward=on(3, 90))[:3])
    assert (verdict.kind, verdict.rank) == ("UNKNOWN", None)
    assert "a rank not seen may be whom they wait for" in verdict.evidence


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [2, 8])
def test_noise_names_no_rank(simulate: Any, seed: int, ranks: int) -> None:
    """Identical ranks with input of wild size: whatever is said of all steps or the latest, nobody is blamed."""
    noise = 20 * np.random.default_rng(seed).lognormal(0, 1, (600, ranks))
    assert said(simulate(600, ranks, input_ready=noise, seed=seed)).rank is None


def test_a_tail_of_chance_is_not_named(simulate: Any, on: Any) -> None:
    """Five late steps of one rank of two may be chance; twenty are not."""
    few = on(1, 80, steps=500, ranks=2, where=slice(20, None, 100))
    assert said(simulate(500, 2, forward=few)).rank is None
    many = on(1, 80, steps=500, ranks=2, where=slice(20, None, 20))
    assert (said(simulate(500, 2, forward=many)).rank, said(simulate(500, 2, forward=many)).pattern) == (1, "tail")


def test_larger_batches_do_not_excuse_another_fault(simulate: Any, on: Any) -> None:
    """Twice the tokens explain twice the compute; they do not explain a slow optimizer or a slow loader."""
    tokens = np.full((400, 4), 1000)
    tokens[:, 2] = 2000
    optimizer = said(simulate(tokens=tokens, optimizer=on(2, 60)))
    assert (optimizer.kind, optimizer.rank, optimizer.phase) == ("COMPUTE STRAGGLER", 2, "optimizer")
    loader = said(simulate(tokens=tokens, input_ready=on(2, 60)))
    assert (loader.kind, loader.phase) == ("INPUT STRAGGLER", "input_ready")
    samples = np.full((400, 4), 8)
    samples[:, 1] = 16
    assert said(simulate(samples=samples, forward=on(1, 30), backward=on(1, 50))).kind == "BATCH SKEW"


def test_few_cores_are_told_beside_the_verdict(simulate: Any, on: Any) -> None:
    """A rank whose workers may use one core where those of others may use eight, on a host under pressure."""
    ranks = simulate(input_ready=on(1, 40))
    about = observe(ranks, source="memory").profile
    about = dataclasses.replace(
        about,
        pressure={"node-0": 0.6, "node-1": 0.02},
        ranks=tuple(
            dataclasses.replace(rank, cpus_allowed={"workers": 1.0 if rank.rank == 1 else 8.0}) for rank in about.ranks
        ),
    )
    evidence = judge(observe(ranks, about, source="memory")).verdict.evidence
    assert "its loader workers may use 1 CPUs, those of other ranks 8" in evidence
    assert "on host node-0 some task had no CPU 60% of the time" in evidence


def test_missing_ranks_and_few_steps_exit_with_2(simulate: Any, on: Any, tmp_path: Path) -> None:
    """UNKNOWN is told with its reason, and in the exit code."""
    log = StepLog()
    log.write(tmp_path / "missing.parquet", simulate(run="missing", input_ready=on(1, 40))[:3])
    log.write(tmp_path / "few.parquet", simulate(8, run="few"))
    missing = run("--spool", tmp_path, "--run", "missing", "--json")
    assert missing.exit_code == 2
    found = json.loads(missing.stdout)
    assert (found["verdict"]["rank"], found["missing_ranks"]) == (None, [3])
    few = run("--spool", tmp_path, "--run", "few")
    assert few.exit_code == 2
    assert "8 steps are too few to judge: at least 15 are needed" in few.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --agent, --prometheus or --spool: where is the run?"),
        (("--spool", "{spool}/none"), "none does not exist: give a file or directory of step logs"),
        (("--spool", "{spool}", "--run", "x"), "run 'x' was not found: there is one, two"),
        (("--spool", "{spool}"), "2 runs were found (one, two): name one with --run"),
        (("--spool", "{spool}", "--run", "one", "--steps", "90..99"), "steps 90 to 99 of run one cannot be aligned"),
        (("--spool", "{spool}", "--run", "one", "--generation", "3"), "generation 3 of run one was not found"),
        (("--agent", "http://127.0.0.1:1"), "http://127.0.0.1:1/metrics cannot be read ("),
        (("--agent", "nonsense"), "nonsense/metrics cannot be read ("),
        (("--prometheus", "http://127.0.0.1:1"), "which run of http://127.0.0.1:1? Name one with --run"),
        (("--prometheus", "http://127.0.0.1:1", "--run", "x"), "http://127.0.0.1:1/api/v1/query cannot be read ("),
        (("--prometheus", "http://x", "--run", "x", "--last", "soon"), "'soon' is no duration: give a number and s, m"),
        (("--prometheus", "http://x", "--run", "x", "--until", "then"), "'then' is no time: give Unix seconds"),
        (("--spool", "{spool}", "--run", "one", "--plot", "x.gif"), "plot x.gif is neither .png nor .svg"),
        (("--spool", "{spool}", "--run", "one", "--plot", "{spool}/no/x.png"), "cannot be written (No such file"),
    ],
)
def test_bad_input_is_one_clear_line(simulate: Any, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """It says what is wrong on standard error, prints no table, and fails."""
    StepLog().write(tmp_path / "all.parquet", [*simulate(40, run="one"), *simulate(40, run="two")])
    done = run(*(argument.format(spool=tmp_path) for argument in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(("rank-exporter: ", "Error: "))]
    assert message in line


def test_an_agent_that_is_gone_is_named_and_its_ranks_are_missing(simulate: Any, serve: Any) -> None:
    """The other agent's ranks are judged as far as that goes: no rank is named."""
    url = serve(simulate(60)[:2])
    done = run("--agent", url, "--agent", "http://127.0.0.1:1", "--json")
    assert done.exit_code == 2
    assert done.stderr.startswith("rank-exporter: http://127.0.0.1:1/metrics cannot be read (")
    assert json.loads(done.stdout)["missing_ranks"] == [2, 3]


def test_a_run_is_put_together_from_several_agents(simulate: Any, on: Any, serve: Any) -> None:
    """Each host's agent tells of its own ranks."""
    ranks = simulate(120, input_ready=on(3, 40, steps=120))
    first, second = serve(ranks[:2]), serve(ranks[2:])
    done = json.loads(run("--agent", first, "--agent", second, "--json").stdout)
    assert (done["verdict"]["kind"], done["verdict"]["rank"], done["missing_ranks"]) == ("INPUT STRAGGLER", 3, [])
    assert done["budget"] == 0.1
    assert run("--agent", first, "--run", "other").stderr.strip().endswith("it has job")


@pytest.mark.parametrize(("ranks", "suffix"), [(4, "png"), (12, "svg")])
def test_a_plot_of_each_ranks_phases(simulate: Any, on: Any, tmp_path: Path, ranks: int, suffix: str) -> None:
    """A picture with a line for each rank, or, of many, a band and the one that is named."""
    pytest.importorskip("matplotlib")
    StepLog().write(tmp_path / "x.parquet", simulate(60, ranks, input_ready=on(1, 40, steps=60, ranks=ranks)))
    out = tmp_path / f"plot.{suffix}"
    done = run("--spool", tmp_path / "x.parquet", "--plot", out)
    assert done.exit_code == 0, done.output
    data = out.read_bytes()
    if suffix == "png":
        assert data.startswith(b"\x89PNG")
        assert len(data) > 20_000
    else:
        text = data.decode()
        for expected in ("rank 1", "all ranks", "input_ready", "INPUT STRAGGLER"):
            assert f"<!-- {expected}" in text or expected in text


def test_without_matplotlib_a_plot_says_what_to_install(
    simulate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names the extra; everything else works without it."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    StepLog().write(tmp_path / "x.parquet", simulate(60))
    done = run("--spool", tmp_path, "--plot", tmp_path / "x.png")
    assert done.exit_code == 2
    assert done.stderr.strip().endswith("pip install 'rank-exporter[plot]'")
    assert run("--spool", tmp_path).exit_code == 0


def test_the_table_and_the_verdict_for_people(simulate: Any, on: Any, tmp_path: Path) -> None:
    """Median and worst rank of each phase, the verdict, what it costs, and what to look at."""
    StepLog().write(tmp_path / "x.parquet", simulate(input_ready=on(1, 40)))
    lines = [" ".join(line.split()) for line in run("--spool", tmp_path).stdout.splitlines()]
    assert lines[0] == "Run job: 400 steps (1 to 400), 4 of 4 ranks"
    (row,) = [line for line in lines if line.startswith("input_ready")]
    assert row.endswith(" 1 node-0")
    assert any(
        line.startswith("INPUT STRAGGLER: rank 1, phase input_ready, host node-0, shard shard-1") for line in lines
    )
    assert any(line.startswith("Waiting for the last rank cost ") for line in lines)
    assert lines[-1].startswith("Next: Look at the storage behind host node-0 and shard shard-1.")
