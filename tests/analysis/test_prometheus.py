"""The same verdicts from a real Prometheus, over a window of time, by what its counters gained in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner, Result

from rank_exporter.analysis.align import align
from rank_exporter.cli import main
from rank_exporter.histogram import FINE_EDGES, edge_seconds
from rank_exporter.phases import Phase
from rank_exporter.segment.steplog import StepLog

DEADLINE_SECONDS = 120.0
MINUTES = 30
EVERY_SECONDS = 120
EDGES = [edge_seconds(edge) for edge in FINE_EDGES]
KEPT = (
    *("01-slow-input", "01-of-two", "02-shared-feed", "07-stall-every-workers", "09-four-times-the-tokens"),
    *("11-optimizer", "12-forward", "13-other", "14-two-in-turn-of-two", "15-every-hundredth", "16-last-tenth"),
    *("balanced", "fabric", "slow-copy"),
)
ENDED_SECONDS = 3 * 3600


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


class Exposition:
    """OpenMetrics with timestamps: what a Prometheus would have scraped of these ranks while they made their steps."""

    def __init__(self, end: float) -> None:
        number = MINUTES * 60 // EVERY_SECONDS
        self.times = [end - (number - place) * EVERY_SECONDS for place in range(number + 1)]
        self._lines: dict[str, list[str]] = {}

    def add(self, family: str, name: str, labels: str, values: Any) -> None:
        lines = self._lines.setdefault(family, [])
        lines += [f"{name}{{{labels}}} {value:.9g} {at:.3f}" for at, value in zip(self.times, values, strict=True)]

    def add_rank(self, steps: Any, *, active: float | None, phase_now: tuple[str, float]) -> None:
        """Steps that end evenly over the time; ``phase_now``: in progress, and for how many seconds."""
        made = np.linspace(0, len(steps.records), len(self.times)).round().astype(int)
        of = f'run="{steps.run}",rank="{steps.rank}",host="{steps.host}"'
        self.add("training_steps counter", "training_steps_total", of, made)
        for name in ("samples", "tokens"):
            counted = np.concatenate([[0], np.cumsum(steps.records[name])])[made]
            self.add(f"training_{name} counter", f"training_{name}_total", of, counted)
        stamp = "training_last_step_timestamp_seconds"
        self.add(f"{stamp} gauge", stamp, of, self.times)
        about = f'{of},shard="{steps.shards[0]}",clock="host",waits_in="{steps.waits_in}"'
        self.add("training_rank_info gauge", "training_rank_info", about, [1] * len(made))
        now = "training_phase_in_progress_seconds"
        self.add(f"{now} gauge", now, f'{of},phase="{phase_now[0]}"', [phase_now[1]] * len(made))
        if active is not None:
            spent = np.concatenate([[0], np.cumsum(steps.records["ns"][:, Phase.STEP])])[made] / 1e9
            name = "training_device_active_seconds"
            self.add(f"{name} counter", f"{name}_total", f'{of},device="0"', spent * active)
            memory = "training_device_memory_used_bytes"
            self.add(f"{memory} gauge", memory, f'{of},device="0"', [2e9] * len(made))
        for phase in Phase:
            self._add_phase(phase, steps, of, made)

    def _add_phase(self, phase: Phase, steps: Any, of: str, made: Any) -> None:
        seconds = steps.records["ns"][:, phase] / 1e9
        seen = seconds > 0
        if not seen.any():
            return
        family, name = "training_phase_duration_seconds histogram", "training_phase_duration_seconds"
        shard = steps.shards[0] if phase is Phase.INPUT_READY else ""
        labels = f'{of},phase="{phase.label}",shard="{shard}"'
        totals = np.concatenate([[0], np.cumsum(seen)])[made]
        within = (seconds[:, None] <= EDGES) & seen[:, None]
        running = np.concatenate([np.zeros((1, len(EDGES)), dtype=int), np.cumsum(within, axis=0)])[made]
        # Buckets that stay empty, and those that hold everything, tell no more than their neighbours.
        first, last = np.searchsorted(EDGES, [seconds[seen].min(), seconds.max()])
        for place in range(max(first - 1, 0), min(last + 1, len(EDGES))):
            edge = EDGES[place]
            self.add(family, f"{name}_bucket", f'{labels},le="{edge!r}"', running[:, place])
        self.add(family, f"{name}_bucket", f'{labels},le="+Inf"', totals)
        self.add(family, f"{name}_count", labels, totals)
        self.add(family, f"{name}_sum", labels, np.concatenate([[0], np.cumsum(seconds)])[made])

    def add_run(
        self,
        ranks: Any,
        *,
        active: float | None = None,
        phases_now: tuple[str, ...] = (),
        again: bool = False,
    ) -> None:
        """``phases_now``: in which the ranks stand still. ``again``: only what differs from the same run's ranks
        elsewhere."""
        for place, steps in enumerate(ranks):
            phase = (phases_now[place], 300.0) if phases_now else ("forward", 0.01)
            self.add_rank(steps, active=active, phase_now=phase)
        if again:
            return
        run = f'run="{ranks[0].run}"'
        aligned = align(ranks)
        late = aligned.lateness
        for place, steps in enumerate(ranks):
            seconds = sum(blame.seconds for blame in aligned.blame() if blame.rank == place)
            name = "training_rank_delay_caused_seconds"
            of = f'{run},rank="{place}",host="{steps.host}",phase="input_ready"'
            self.add(f"{name} counter", f"{name}_total", of, np.linspace(0, seconds, len(self.times)))
        made = np.linspace(0, len(late.exposed), len(self.times)).round().astype(int)
        exposed = np.concatenate([[0], np.cumsum(late.exposed)])[made] / 1e9
        self.add("training_aligned_steps counter", "training_aligned_steps_total", run, made)
        self.add("training_exposed_wait_seconds counter", "training_exposed_wait_seconds_total", run, exposed)
        self.add("training_world_size gauge", "training_world_size", run, [ranks[0].world_size] * len(self.times))
        self.add("training_skew_budget_ratio gauge", "training_skew_budget_ratio", run, [0.1] * len(self.times))

    @property
    def families(self) -> dict[str, list[str]]:
        return self._lines


def text(expositions: list[Exposition]) -> str:
    families: dict[str, list[str]] = {}
    for one in expositions:
        for family, lines in one.families.items():
            families.setdefault(family, [f"# TYPE {family}"]).extend(lines)
    return "\n".join([*(line for lines in families.values() for line in lines), "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, cases: Any, simulate: Any, on: Any) -> Iterator[str]:
    """The address of a Prometheus that has scraped the cases until now, and a run that ended hours ago."""
    directory = tmp_path_factory.mktemp("prometheus")
    now = time.time()
    current, past = Exposition(now - 5), Exposition(now - ENDED_SECONDS)
    for name in KEPT:
        current.add_run(cases[name].ranks)
    current.add_run(simulate(run="devices", seed=3), active=0.95)
    current.add_run(simulate(run="faster", forward=-12, seed=4), active=0.6)
    past.add_run(simulate(run="ended", input_ready=on(2, 40)))
    current.add_run(simulate(run="part")[:3])
    turn = np.arange(400) % 10 < 6
    uneven = on(0, 100, ranks=2, where=turn) + on(1, 100, ranks=2, where=~turn)
    current.add_run(simulate(400, 2, run="uneven-turns", input_ready=uneven))
    waits = "collective_wait"
    current.add_run(simulate(run="stuck"), phases_now=(waits, waits, "input_ready", waits))
    current.add_run(simulate(run="moved", input_ready=on(1, 40), hosts=("a", "b", "c", "d")))
    elsewhere = {"shards": ("shard-4", "shard-5", "shard-6", "shard-7"), "hosts": ("b", "a", "d", "c"), "seed": 2}
    current.add_run(simulate(run="moved", input_ready=on(0, 40), **elsewhere), again=True)
    current.add_run(simulate(run="moved", hosts=("c", "d", "a", "b"), seed=3), again=True)
    metrics = directory / "metrics.txt"
    metrics.write_text(text([past, current]))
    data = directory / "data"
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(metrics), str(data)]
    done = subprocess.run(blocks, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (directory / "prometheus.yml").write_text("{}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["prometheus", f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={data}"]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
            stdout=log,
            stderr=log,
            env={**os.environ, "GOMAXPROCS": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + DEADLINE_SECONDS
    with httpx.Client(trust_env=False, timeout=60) as client:
        while not _is_ready(client, url):
            assert server.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.05)
    yield url
    server.terminate()
    server.wait(timeout=DEADLINE_SECONDS)


def _is_ready(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/-/ready").status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("name", [name for name in KEPT if name != "16-last-tenth"])
def test_the_verdict_is_the_same_as_from_records(prometheus: str, cases: Any, name: str) -> None:
    """Kind, rank, phase, host and shard; totals alone say less where they cannot tell."""
    case = cases[name]
    found = json.loads(run("diagnose", "--prometheus", prometheus, "--run", name, "--json").stdout)
    verdict = found["verdict"]
    assert (verdict["kind"], verdict["rank"]) == (case.histograms or case.kind, case.rank), verdict
    if case.phase is not None:
        assert (verdict["phase"], verdict["pattern"]) == (case.phase, case.pattern)
        assert verdict["host"] == case.ranks[case.rank].host
        assert verdict["shard"] == case.ranks[case.rank].shards[0]
    assert (found["window_seconds"], found["world_size"]) == (1800, case.ranks[0].world_size)
    assert found["missing_ranks"] == []


def test_a_shorter_window_sees_what_has_just_begun(prometheus: str) -> None:
    """A rank that is slow in the last tenth of the time is late in the window that holds it, and no other is named."""
    late = json.loads(
        run("diagnose", "--prometheus", prometheus, "--run", "16-last-tenth", "--last", "4m", "--json").stdout
    )
    assert (late["verdict"]["kind"], late["verdict"]["rank"]) == ("INPUT STRAGGLER", 1)
    before = ["--last", "20m", "--until", f"{time.time() - 300:.0f}"]
    past = json.loads(run("diagnose", "--prometheus", prometheus, "--run", "16-last-tenth", *before, "--json").stdout)
    assert past["verdict"]["kind"] == "BALANCED"


def test_a_run_that_has_ended_is_judged_by_its_last_steps(prometheus: str) -> None:
    """Without being told when that was."""
    found = json.loads(run("diagnose", "--prometheus", prometheus, "--run", "ended", "--json").stdout)
    assert (found["verdict"]["kind"], found["verdict"]["rank"]) == ("INPUT STRAGGLER", 2)
    assert found["follows"]["what"] is None
    assert found["follows"]["there"] == pytest.approx(0.04, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--run", "nobody"), "knows no run 'nobody': it has 01-of-two"),
        (("--run", "balanced", "--until", "2001-01-01T00:00:00Z"), "knows no run 'balanced'"),
        (("--run", "ended", "--last", "5m", "--until", "{between}"), "run 'ended' made no step in the 300 s before"),
    ],
)
def test_bad_input_is_one_clear_line(prometheus: str, arguments: tuple[str, ...], message: str) -> None:
    """An unknown run, and a window without steps."""
    between = f"{time.time() - ENDED_SECONDS / 2:.0f}"
    done = run("diagnose", "--prometheus", prometheus, *(argument.format(between=between) for argument in arguments))
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_that_take_turns_unevenly_are_not_blamed_on_one(prometheus: str) -> None:
    """By the delay that each rank caused: the one that is late on most steps caused little more than half."""
    found = json.loads(run("diagnose", "--prometheus", prometheus, "--run", "uneven-turns", "--json").stdout)["verdict"]
    assert (found["kind"], found["rank"]) == ("ROTATING STRAGGLER", None)


def test_a_run_that_stands_still_is_told(prometheus: str) -> None:
    """By the phases in progress: the rank that is not in the collective is the one."""
    found = json.loads(run("diagnose", "--prometheus", prometheus, "--run", "stuck", "--json").stdout)
    assert (found["verdict"]["kind"], found["verdict"]["rank"], found["verdict"]["phase"]) == (
        *("STALLED", 2),
        "input_ready",
    )


def test_shards_that_were_read_elsewhere_tell_the_host(prometheus: str) -> None:
    """Shard 1 was late on host b, and not where it was read after a restart."""
    found = json.loads(run("diagnose", "--prometheus", prometheus, "--run", "moved", "--json").stdout)["follows"]
    assert (found["what"], found["host"]) == ("host", "b")
    assert found["shard_elsewhere"] == pytest.approx(0, abs=0.004)


def test_missing_ranks_are_told(prometheus: str) -> None:
    """Three of four ranks make no verdict."""
    found = run("diagnose", "--prometheus", prometheus, "--run", "part", "--json")
    assert found.exit_code == 2
    assert json.loads(found.stdout)["missing_ranks"] == [3]


def test_the_gate_takes_devices_from_prometheus_and_steps_from_records(
    prometheus: str, simulate: Any, tmp_path: Path
) -> None:
    """Device time is known to Prometheus alone, the correlation to records alone: given both, both are judged."""
    options = ["--prometheus", prometheus, "--run", "devices", "--waive", "samples", "--json"]
    alone = run("gate", *options)
    assert alone.exit_code == 2, alone.output
    states = {one["name"]: one for one in json.loads(alone.stdout)["criteria"]}
    assert states["device-idle"]["figure"] == pytest.approx(0.05, abs=0.01)
    assert states["input-wait"]["reason"] == "it takes step records: give --spool or --agent too"
    StepLog().write(tmp_path / "x.parquet", simulate(run="devices", seed=3))
    both = run("gate", *options, "--spool", tmp_path)
    assert both.exit_code == 0, both.output
    assert {one["name"]: one["state"] for one in json.loads(both.stdout)["criteria"]} == {
        "input-ready": "pass",
        "input-wait": "pass",
        "device-idle": "pass",
        "samples": "not applicable",
    }


def test_runs_are_compared_and_scaled_by_name(prometheus: str) -> None:
    """A faster run is accepted by its steps and its memory; of two sizes the smaller one is the measure."""
    done = run("compare", "devices", "faster", "--prometheus", prometheus, "--waive", "samples", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["outcome"] == "accept"
    assert found["a"]["memory"] == found["b"]["memory"] == 2e9
    scaled = run("scaling", "balanced", "01-of-two", "--prometheus", prometheus, "--json")
    assert scaled.exit_code == 0, scaled.output
    assert [one["world_size"] for one in json.loads(scaled.stdout)["runs"]] == [2, 4]


def test_a_plot_over_time(prometheus: str, tmp_path: Path) -> None:
    """From range queries."""
    pytest.importorskip("matplotlib")
    done = run("diagnose", "--prometheus", prometheus, "--run", "01-slow-input", "--plot", tmp_path / "x.svg")
    assert done.exit_code == 0, done.output
    assert "time, UTC" in (tmp_path / "x.svg").read_text()
