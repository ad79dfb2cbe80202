"""What an agent shows of its host, and what happens to it when a source fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rank_exporter import catalog
from rank_exporter.agent.families import Families
from rank_exporter.agent.faults import Faults
from rank_exporter.agent.host.evidence import HostEvidence, Witness
from rank_exporter.agent.host.nvml import Device
from rank_exporter.identity import Identity
from rank_exporter.segment.reader import Source

PROC = Path("/proc")
PID = os.getpid()
START = int((PROC / "self/stat").read_text().rpartition(")")[2].split()[19])
NAMES = {metric.name for metric in catalog.HOST_EVIDENCE}
HOST_PIDS = "pid:[4026531836]"


class FixedDevices:
    """GPUs that are as they are set."""

    def __init__(self, *found: Device) -> None:
        self.found = list(found)
        self.problems: list[str] = []
        self.closed = False

    def latest(self) -> tuple[list[Device], list[str]]:
        return self.found, self.problems

    def close(self) -> None:
        self.closed = True


def gpu(index: int, *pids: int, **other: Any) -> Device:
    about = {"utilization": 0.75, "active_seconds": 12.5, "memory_used_bytes": 1 << 30}
    return Device(index=str(index), uuid=f"GPU-{index:04d}", pids=frozenset(pids), **{**about, **other})


def witness(rank: int = 0, *, live: bool = True, device_uuid: str = "", pid: int = PID, start: int = START) -> Witness:
    source = Source(
        identity=Identity(run="job", rank=rank, local_rank=rank, world_size=8, host="node-a"),
        pid=pid,
        pid_start_ticks=start,
        started_unix_ns=1,
        skew_budget_ratio=0.1,
    )
    return Witness(source, live, device_uuid)


class Machine:
    """Evidence of a made-up host: its files under ``root``, its clock, its GPUs. Process PID is this one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 100.0
        self.faults = Faults()
        self.devices = FixedDevices()
        own = root / "proc" / str(PID)
        own.mkdir(parents=True)
        (own / "stat").symlink_to(PROC / "self/stat")
        self.write("proc/self/ns/keep", "")
        (root / "proc/self/ns/pid").symlink_to(HOST_PIDS)
        self.write("proc/diskstats", "8 0 sda 40 0 320 500 0 0 0 0 0 0 0\n")
        self.write("proc/self/mountstats", "device a:/b mounted on /b with fstype nfs4\n\tREAD: 9 9 0 1 1 1 1 250\n")
        self.evidence = HostEvidence(
            "node-a",
            self.faults,
            root=root,
            devices=self.devices,
            clock=lambda: self.now,  # type: ignore[arg-type]
        )
        self.pass_second(user=0, idle=0, stalled_us=0)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def pass_second(self, *, user: int, idle: int, stalled_us: int) -> None:
        self.now += 1
        self.write("proc/stat", f"cpu {user} 0 0 {idle} 0 0 0 0 0 0\n")
        self.write("proc/pressure/cpu", f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us}\n")

    def sample(self, *ranks: Witness) -> dict[str, dict[tuple[str, ...], float]]:
        """Values by metric and by label values in the order of the catalog."""
        self.evidence.sample(ranks)
        return self.shown()

    def shown(self) -> dict[str, dict[tuple[str, ...], float]]:
        families = Families()
        self.evidence.add_to(families)
        found: dict[str, dict[tuple[str, ...], float]] = {}
        labels = {metric.name: metric.labels for metric in catalog.HOST_EVIDENCE}
        for family in text_string_to_metric_families(generate_latest(families).decode()):  # type: ignore[arg-type]
            for sample in family.samples:
                key = tuple(sample.labels[name] for name in labels[sample.name])
                found.setdefault(sample.name, {})[key] = sample.value
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_every_source_has_its_series(machine: Machine) -> None:
    """A host that has everything shows every metric of the catalog, per host and per rank as listed there."""
    machine.devices.found = [gpu(0, PID)]
    machine.sample(witness())
    machine.pass_second(user=30, idle=70, stalled_us=200_000)
    found = machine.sample(witness())
    assert found.keys() == NAMES
    assert found["training_host_cpu_utilization_ratio"] == {("node-a",): 0.3}
    assert found["training_host_cpu_pressure_ratio"] == {("node-a",): pytest.approx(0.2)}
    assert found["training_storage_reads_total"] == {("node-a", "sda"): 40, ("node-a", "a:/b"): 9}
    assert found["training_storage_read_seconds_total"] == {("node-a", "sda"): 0.5, ("node-a", "a:/b"): 0.25}
    rank = ("job", "0", "node-a")
    assert found["training_process_cpu_seconds_total"].keys() == {(*rank, "rank"), (*rank, "workers")}
    assert found["training_process_cpus_allowed"] == {(*rank, "rank"): len(os.sched_getaffinity(0))}
    assert found["training_device_active_seconds_total"] == {(*rank, "0"): 12.5}
    assert found["training_device_utilization_ratio"] == {(*rank, "0"): 0.75}
    assert found["training_device_memory_used_bytes"] == {(*rank, "0"): 1 << 30}
    assert machine.faults.counts["host"] == 0


@pytest.mark.parametrize(
    ("file", "text", "lost"),
    [
        ("proc/stat", "nonsense\n", {"training_host_cpu_utilization_ratio"}),
        ("proc/pressure/cpu", "nonsense\n", {"training_host_cpu_pressure_ratio"}),
        ("proc/diskstats", "nonsense\n", set()),
        ("proc/self/mountstats", "device a:/b mounted on /b with fstype nfs4\n READ: x\n", set()),
        (f"proc/{PID}/cgroup", "nonsense\n", {"training_process_cpu_seconds_total", "training_process_cpus_allowed"}),
    ],
    ids=["stat", "pressure", "disks", "mounts", "cgroup"],
)
def test_failing_source_costs_its_own_series(
    machine: Machine, capsys: pytest.CaptureFixture[str], file: str, text: str, lost: set[str]
) -> None:
    """What cannot be read is missing, counted each time and said once; all else is shown."""
    machine.devices.found = [gpu(0)]
    machine.sample(witness())
    for second in (1, 2):
        machine.pass_second(user=30 * second, idle=70 * second, stalled_us=200_000 * second)
        machine.write(file, text)
        found = machine.sample(witness())
        assert found.keys() == NAMES - lost
        assert machine.faults.counts["host"] == second
    storage = {"proc/diskstats": {("node-a", "a:/b")}, "proc/self/mountstats": {("node-a", "sda")}}
    if file in storage:
        assert found["training_storage_reads_total"].keys() == storage[file]
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot be sampled" in line


def test_host_that_has_nothing_shows_nothing(tmp_path: Path) -> None:
    """Without /proc and without GPUs there are no series and no faults."""
    faults = Faults()
    evidence = HostEvidence("node-a", faults, root=tmp_path, devices=FixedDevices())  # type: ignore[arg-type]
    (tmp_path / "proc").mkdir()
    evidence.sample([witness()])
    families = Families()
    evidence.add_to(families)
    assert families.collect() == []
    assert faults.counts["host"] == 0


def test_problems_of_gpus_are_counted(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU that does not answer is counted each time, and said once for each kind of trouble."""
    machine.devices.found = [gpu(1)]
    machine.devices.problems = ["GPU 0 does not answer (GPU is lost)"]
    for _ in range(3):
        assert machine.sample()["training_device_utilization_ratio"].keys() == {("", "", "node-a", "1")}
    machine.devices.problems = ["NVML has not returned for 10 s"]
    machine.sample()
    assert machine.faults.counts["host"] == 4
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_what_a_gpu_does_not_tell_is_missing(machine: Machine) -> None:
    """A partitioned GPU shows its memory and no utilisation."""
    machine.devices.found = [gpu(0, utilization=None, active_seconds=None)]
    found = machine.sample()
    assert "training_device_memory_used_bytes" in found
    assert not found.keys() & {"training_device_utilization_ratio", "training_device_active_seconds_total"}


def test_gpu_is_labelled_with_the_rank_that_says_it_uses_it(machine: Machine) -> None:
    """Within a container, where process numbers say nothing, the rank's own word counts."""
    machine.devices.found = [gpu(0), gpu(1)]
    found = machine.sample(witness(5, device_uuid="0001", pid=1, start=1))
    assert found["training_device_utilization_ratio"].keys() == {("", "", "node-a", "0"), ("job", "5", "node-a", "1")}


def test_process_numbers_of_another_namespace_name_no_rank(machine: Machine) -> None:
    """Within a container, a host's process of the same number is not taken for the rank."""
    pid_namespace = machine.root / "proc/self/ns/pid"
    pid_namespace.unlink()
    pid_namespace.symlink_to("pid:[4026532999]")
    machine.devices.found = [gpu(0, PID)]
    assert machine.sample(witness())["training_device_utilization_ratio"].keys() == {("", "", "node-a", "0")}


def test_gpu_of_several_ranks_is_labelled_with_none(machine: Machine) -> None:
    """What two ranks share is neither's, and it is shown once."""
    machine.devices.found = [gpu(0)]
    found = machine.sample(witness(0, device_uuid="0000"), witness(1, device_uuid="0000"))
    assert found["training_device_utilization_ratio"].keys() == {("", "", "node-a", "0")}


def test_ended_rank_keeps_its_counters_and_loses_its_gauges(machine: Machine) -> None:
    """The last CPU time stays on show with the rank's other last values, and goes with them."""
    live = machine.sample(witness())
    ended = machine.sample(witness(live=False))
    rank = ("job", "0", "node-a")
    seconds = "training_process_cpu_seconds_total"
    assert ended[seconds] == live[seconds]
    assert ended[seconds].keys() == {(*rank, "rank"), (*rank, "workers")}
    assert "training_process_cpus_allowed" not in ended
    assert seconds not in machine.sample()


def test_closing_lets_go_of_the_gpus(machine: Machine) -> None:
    """What is held open is closed with the agent."""
    machine.evidence.close()
    assert machine.devices.closed


def test_scrapes_read_the_last_sample_while_one_is_made(machine: Machine) -> None:
    """A source that hangs keeps no scrape waiting: the series of the sample before are shown."""
    before = machine.sample(witness())
    path = machine.root / "proc/diskstats"
    path.unlink()
    os.mkfifo(path)
    thread = threading.Thread(target=machine.evidence.sample, args=([witness()],))
    thread.start()
    # Opening for writing returns once the sampler has opened it for reading.
    with path.open("w"):
        assert machine.shown() == before
    thread.join(timeout=120)
    assert not thread.is_alive()
    assert ("node-a", "sda") not in machine.shown()["training_storage_reads_total"]


def test_a_real_agent_shows_its_real_host(
    start_agent: Callable[..., Any], start_rank: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """A rank's CPU time and CPUs, and the host's CPUs, appear on their own, and grow."""
    rank = start_rank(3)
    agent = start_agent()
    labels = {"run": "job", "rank": "3", "host": "node-a", "process": "rank"}
    name = "training_process_cpu_seconds_total"
    found = eventually(lambda: (scrape := agent.scrape()).find(name, **labels) and scrape)
    ticks = (PROC / str(rank.process.pid) / "stat").read_text().rpartition(")")[2].split()[11:13]
    assert 0 < found.value(name, **labels) <= sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    assert found.value("training_process_cpus_allowed", **labels) == len(os.sched_getaffinity(rank.process.pid))
    ratio = eventually(lambda: agent.scrape().find("training_host_cpu_utilization_ratio", host="node-a"))
    assert 0 < ratio[0].value <= 1
    rank.kill()
    ended = eventually(lambda: (s := agent.scrape()).value("training_exporter_segments", state="ended") == 1 and s)
    assert ended.value(name, **labels) >= found.value(name, **labels)
    assert ended.value("training_exporter_errors_total", reason="host") == 0
    assert agent.complaints == ""
