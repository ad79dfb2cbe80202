"""Settings: where they come from, and what a mistake in them says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rank_exporter import config
from rank_exporter.errors import SettingError

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "night-7"}


def test_torchrun_variables_identify_the_rank() -> None:
    """Under torchrun nothing has to be set."""
    found = config.settings({**TORCHRUN, "NODE_NAME": "node-a"}).identity
    assert (found.run, found.rank, found.local_rank, found.world_size, found.host) == ("night-7", 3, 1, 8, "node-a")


@pytest.mark.parametrize(
    ("environ", "run"),
    [
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "77"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "29500"}, "10.0.0.5:29500"),
        ({"MASTER_ADDR": "10.0.0.5", "PMIX_NAMESPACE": "prterun-1"}, "10.0.0.5"),
        ({"PMIX_NAMESPACE": "prterun-1"}, "prterun-1"),
        ({"RANK_EXPORTER_RUN": "mine", "TORCHELASTIC_RUN_ID": "other"}, "mine"),
    ],
)
def test_run_is_taken_from_the_most_specific_source(environ: dict[str, str], run: str) -> None:
    """Explicit beats elastic, beats Slurm, beats the rendezvous address."""
    assert config.settings(environ).identity.run == run


def test_slurm_task_variables_count_only_within_a_job_step() -> None:
    """A plain python in an sbatch script is one process, whatever the allocation's size."""
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16"}
    outside = config.settings(slurm).identity
    within = config.settings({**slurm, "SLURM_STEP_ID": "0"}).identity
    assert (outside.rank, outside.world_size) == (0, 1)
    assert (within.rank, within.local_rank, within.world_size) == (5, 1, 16)


@pytest.mark.parametrize(
    "names",
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ],
)
def test_ranks_of_mpirun_are_told_apart(names: tuple[str, str, str]) -> None:
    """Also within an allocation of Slurm's, whose own variables tell nodes then; torchrun within goes before."""
    environ = {**dict(zip(names, ("5", "1", "16"), strict=True)), "SLURM_STEP_ID": "0", "SLURM_PROCID": "2"}
    found = config.settings(environ).identity
    assert (found.rank, found.local_rank, found.world_size) == (5, 1, 16)
    inner = config.settings({**environ, "RANK": "7", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}).identity
    assert (inner.rank, inner.local_rank, inner.world_size) == (7, 0, 8)


@pytest.mark.parametrize(
    "environ", [{}, {"RANK": ""}, {"WORLD_SIZE": "1"}, {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}]
)
def test_what_a_process_group_tells_goes_together(environ: dict[str, str]) -> None:
    """Where there is no RANK, it tells rank and world size, whatever else is set; where there is one, nothing."""
    ranked = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "a"}
    found = config.settings(environ, ranked=ranked).identity
    assert (found.rank, found.world_size, found.run) == (5, 8, "a")
    other = config.settings({**environ, "RANK": "1", "WORLD_SIZE": "2"}, ranked=ranked).identity
    assert (other.rank, other.world_size) == (1, 2)


def test_argument_beats_variable_beats_default(tmp_path: Path) -> None:
    """Each setting comes from the nearest place that names it."""
    environ = {
        "RANK_EXPORTER_PORT": "9000",
        "RANK_EXPORTER_DIR": str(tmp_path),
        "RANK_EXPORTER_SKEW_BUDGET_RATIO": "0.2",
    }
    by_variable = config.settings(environ)
    by_argument = config.settings(environ, port=9001, skew_budget_ratio=0.3)
    assert (by_variable.agent.port, by_variable.skew_budget_ratio, by_variable.agent.directory) == (9000, 0.2, tmp_path)
    assert (by_argument.agent.port, by_argument.skew_budget_ratio) == (9001, 0.3)
    for text, given, chosen in (("1", None, True), ("0", None, False), ("1", False, False), ("0", True, True)):
        assert config.settings({"RANK_EXPORTER_BUCKET_TIMING": text}, bucket_timing=given).bucket_timing is chosen
    default = config.settings({})
    assert default.bucket_timing is False
    assert (default.agent.port, default.skew_budget_ratio, default.identity.host) == (10911, 0.10, socket.gethostname())


@pytest.mark.parametrize(
    ("environ", "keywords", "said"),
    [
        (
            {"RANK_EXPORTER_PROT": "1"},
            {},
            "RANK_EXPORTER_PROT is set to '1', but there is no such setting: did you mean RANK_EXPORTER_PORT?",
        ),
        ({"RANK_EXPORTER_PORT": "http"}, {}, "RANK_EXPORTER_PORT is 'http': give a whole number"),
        ({}, {"port": 70000}, "port is 70000: give 1 to 65535, or 0 for any free port"),
        ({}, {"linger_seconds": -1.0}, "linger_seconds is -1: give 0 to 3600"),
        (
            {"RANK_EXPORTER_SERVE": "on"},
            {},
            "RANK_EXPORTER_SERVE is 'on': give 'auto', or 'off' where a sidecar serves",
        ),
        (
            {"RANK_EXPORTER_BUCKET_TIMING": "yes"},
            {},
            "RANK_EXPORTER_BUCKET_TIMING is 'yes': give 1 to time gradient buckets, or 0",
        ),
        ({}, {"skew_budget_ratio": 0.0}, "skew_budget_ratio is 0: give a share of the step above 0, such as 0.10"),
        ({"RANK": "x"}, {}, "RANK is 'x': give a whole number, or unset it"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, {}, "rank is 8: give 0 to world_size - 1, which is 7"),
        ({}, {"run": "a\nb"}, "run is 'a\\nb': give 1 to 200 printable characters"),
    ],
)
def test_mistake_is_told_in_one_line(environ: dict[str, str], keywords: dict[str, object], said: str) -> None:
    """The line names the setting, the value seen and what is allowed."""
    with pytest.raises(SettingError) as caught:
        config.settings(environ, **keywords)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_variables_of_a_kubernetes_service_of_our_name_are_not_settings() -> None:
    """A Service named rank-exporter injects look-alikes into every pod of its namespace."""
    link = "tcp://10.96.0.7:10911"
    environ = {
        "RANK_EXPORTER_SERVICE_HOST": "10.96.0.7",
        "RANK_EXPORTER_SERVICE_PORT": "10911",
        "RANK_EXPORTER_SERVICE_PORT_METRICS": "10911",
        "RANK_EXPORTER_PORT": link,
        "RANK_EXPORTER_PORT_10911_TCP": link,
        "RANK_EXPORTER_PORT_10911_TCP_ADDR": "10.96.0.7",
        "RANK_EXPORTER_PORT_10911_TCP_PORT": "10911",
        "RANK_EXPORTER_PORT_10911_TCP_PROTO": "tcp",
    }
    assert config.settings(environ).agent.port == config.DEFAULT_PORT
