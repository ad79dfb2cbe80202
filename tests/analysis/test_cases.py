"""The verdict on runs of the kinds that people report: the same from records in memory, step logs and a live agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from rank_exporter.analysis.observation import judge, observe
from rank_exporter.cli import main


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["diagnose", *map(str, arguments)])


def said(done: Result) -> dict[str, Any]:
    assert done.exit_code in (0, 2), done.output
    return json.loads(done.stdout)["verdict"]


def check(case: Any, verdict: dict[str, Any]) -> None:
    assert (verdict["kind"], verdict["rank"]) == (case.kind, case.rank), verdict
    assert verdict["pattern"] == case.pattern
    if case.phase is not None:
        assert verdict["phase"] == case.phase
    assert case.said in "\n".join(verdict["evidence"]), verdict
    if case.rank is not None:
        steps = case.ranks[case.rank]
        assert (verdict["host"], verdict["shard"]) == (steps.host, steps.shards[0])


def test_step_logs(case: Any, spool: Path) -> None:
    """From spooled files."""
    check(case, said(run("--spool", spool / f"{case.name}.parquet", "--json")))


def test_live_agent(live_case: Any, live: str) -> None:
    """From the address of an agent."""
    check(live_case, said(run("--agent", live, "--run", live_case.name, "--json")))


def test_histograms_alone_blame_no_other_rank(case: Any) -> None:
    """From totals of each phase the kind is the same, or less is said, and no other rank is named."""
    observation = observe(case.ranks, source="memory")
    verdict = judge(observe([], observation.profile, source="memory")).verdict
    assert verdict.kind == (case.histograms or case.kind), verdict
    assert verdict.rank in (case.rank, 1 if case.name.startswith("16-first") else None)
