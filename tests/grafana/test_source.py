"""The committed dashboards are what the programs write, and a fault in a program is found by the rule for it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from . import house  # noqa: F401  its rules enter themselves
from .boards import DASHBOARDS, GRAFANA, build, has_generator
from .model import faults
from .rules import RULES

pytestmark = pytest.mark.skipif(not has_generator(), reason="grafana-foundation-sdk needs Python 3.11")

SOURCE = GRAFANA / "source"


def test_nothing_has_drifted(tmp_path: Path) -> None:
    """`make dashboards` changes nothing, and every file there is written by a program."""
    build(SOURCE, tmp_path)
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS.iterdir()}
    assert written == committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """In ``file``, ``old`` becomes ``new``, which the rule ``found_by`` is to notice."""

    file: str
    old: str
    new: str
    found_by: str


FAULTS = {
    "metric": Fault(
        file="overview.py",
        old="training_exposed_wait_seconds_total",
        new="training_exposed_waits_seconds_total",
        found_by="target_series",
    ),
    "record": Fault(
        file="queries.py",
        old="run_rank_phase:training_phase_excess_per_step:ratio",
        new="run_rank_phase:training_excess_per_step:ratio",
        found_by="target_series",
    ),
    "label of a matcher": Fault(
        file="hosts_shards.py", old='host=~"$host"', new='node=~"$host"', found_by="target_labels"
    ),
    "label of a group": Fault(
        file="queries.py",
        old='BY_RANK = f"{BY_RUN}, rank, host"',
        new='BY_RANK = f"{BY_RUN}, rank, node"',
        found_by="target_grouping",
    ),
    "label of a legend": Fault(
        file="overview.py",
        old='"rank {{rank}} · {{host}}"',
        new='"rank {{local_rank}} · {{host}}"',
        found_by="target_legends",
    ),
    "label of a variable": Fault(
        file="frame.py", old='"run", "Run", "run"', new='"run", "Run", "job"', found_by="template_label_promql"
    ),
    "unit": Fault(
        file="overview.py",
        old='"percentunit",\n        "No rank has fetched',
        new='"s",\n        "No rank has fetched',
        found_by="units_fit_series",
    ),
    "unit that there is not": Fault(
        file="overview.py", old='"suffix: GPU h"', new='"GPU-hours"', found_by="panel_units"
    ),
    "transformation": Fault(
        file="panels.py", old='id_val="groupingToMatrix"', new='id_val="matrix"', found_by="columns_exist"
    ),
    "column": Fault(file="overview.py", old='"Value #C": "Delay', new='"Value #Z": "Delay', found_by="columns_exist"),
    "sorting": Fault(
        file="overview.py",
        old='by="Later, of a step"',
        new='by="Lateness"',
        found_by="columns_exist",
    ),
    "link": Fault(
        file="frame.py", old='"url": f"/d/{uid}?', new='"url": f"/dashboards/{uid}?', found_by="links_from_values"
    ),
    "time range of a link": Fault(
        file="frame.py",
        old='parts = ["${__url_time_range}"]',
        new="parts = []",
        found_by="links_from_values",
    ),
    "variables of a link": Fault(
        file="frame.py",
        old='kept = ["datasource", "cluster", "namespace", "run"]',
        new='kept = ["datasource", "run"]',
        found_by="links_from_values",
    ),
    "link between dashboards": Fault(
        file="frame.py", old=".keep_time(True)", new=".keep_time(False)", found_by="links_between_dashboards"
    ),
    "red": Fault(file="palette.py", old="NEUTRAL = _BLUE", new="NEUTRAL = _VERMILION", found_by="red_for_breach_alone"),
    "data source": Fault(
        file="targets.py", old='uid="${datasource}"', new='uid="prometheus"', found_by="panel_datasource"
    ),
    "place": Fault(file="frame.py", old="left += width", new="left += width - 1", found_by="layout"),
    "look back": Fault(
        file="overview.py", old="({series}[$__rate_interval])", new="({series}[3m])", found_by="target_rate_interval"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name: str, tmp_path: Path) -> None:
    """With one thing broken in the source, the rule for it finds a fault."""
    fault = FAULTS[name]
    copy = tmp_path / "source"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / fault.file).read_text(encoding="utf-8")
    assert fault.old in text
    (copy / fault.file).write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    boards = build(copy, tmp_path / "dashboards")
    assert [found for board in boards.values() for found in RULES[fault.found_by](board)]


def test_fault_in_a_field_is_found(tmp_path: Path) -> None:
    """A field that Grafana does not know, or a value that it does not allow, is found by its model."""
    board = build(SOURCE, tmp_path)["rank-exporter-stragglers"].json
    assert faults(board, 11) == []
    board["panels"][0]["options"]["colourMode"] = "value"
    assert faults(board, 11)
    del board["panels"][0]["options"]["colourMode"]
    board["panels"][0]["options"]["colorMode"] = "solid"
    assert all(faults(board, major) for major in (10, 11, 12))


def test_provisioning() -> None:
    """The provisioning file has Grafana read a folder, and keep its hands off what is in it."""
    document = yaml.safe_load((GRAFANA / "provisioning" / "rank-exporter.yaml").read_text(encoding="utf-8"))
    assert document["apiVersion"] == 1
    [provider] = document["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    assert provider["options"]["path"].startswith("/")
