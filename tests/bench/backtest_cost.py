"""What one evaluation of the pack costs a real Prometheus, whose own rule manager evaluates it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import yaml

from ..simulation.loaded import load
from ..simulation.prometheus import prometheus
from ..simulation.replay import duration_seconds, names_read
from ..simulation.run import Run

__all__ = ["evaluation_cost"]

_HISTORY_SECONDS = 2400.0
_EVALUATIONS = 2
_PATIENCE_SECONDS = 900.0


def evaluation_cost(ranks: int, pack: str) -> str:
    """Time the groups of ``pack`` on so many simulated ranks. Returns lines of Markdown."""
    groups = yaml.load(pack, Loader=yaml.CSafeLoader)["groups"]
    intervals = {group["name"]: duration_seconds(group["interval"]) for group in groups}
    run = Run(run="cost", ranks=ranks, step=2.0, sigma=0.5)
    with TemporaryDirectory(prefix="rank-exporter-cost-") as name:
        folder = Path(name)
        with prometheus(folder, rules=True) as url:
            # Data lie ahead, so that there are some to evaluate once all is loaded.
            ahead = 360.0 + 0.35 * ranks
            load(url, run, seconds=_HISTORY_SECONDS, end=time.time() + ahead, rules=False, only=names_read(groups))
            (folder / "rules.yml").write_text(pack, encoding="utf-8")
            httpx.post(f"{url}/-/reload", trust_env=False).raise_for_status()
            before, began = _cpu_seconds(url), time.monotonic()
            slowest, failures = _watch(url, list(intervals))
            busy = (_cpu_seconds(url) - before) / (time.monotonic() - began)
    lines = [
        f"\n### Cost of an evaluation, {ranks} ranks\n",
        "| group | seconds | interval | share of it |",
        "|---|---|---|---|",
    ]
    for group, took in slowest.items():
        lines.append(f"| {group} | {took:.2f} | {intervals[group]:.0f} s | {took / intervals[group]:.1%} |")
    lines.append(
        f"\nThe slowest evaluation of each, with {len(os.sched_getaffinity(0))} cores; {failures} failed. Prometheus "
        f"took {busy:.1%} of a core over all of it, {busy * 30:.1f} s of CPU time every 30 s."
    )
    return "\n".join(lines)


def _cpu_seconds(url: str) -> float:
    found = re.search(
        r"^process_cpu_seconds_total (\S+)$", httpx.get(f"{url}/metrics", trust_env=False).text, re.MULTILINE
    )
    assert found
    return float(found[1])


def _watch(url: str, groups: list[str]) -> tuple[dict[str, float], int]:
    """The slowest of a few evaluations of each group, and how many rules failed."""
    slowest = dict.fromkeys(groups, 0.0)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        text = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text
        counts = _samples(text, "prometheus_rule_evaluations_total")
        rules = _samples(text, "prometheus_rule_group_rules")
        for group, took in _samples(text, "prometheus_rule_group_last_duration_seconds").items():
            slowest[group] = max(slowest[group], took)
        if counts and all(counts.get(group, 0) >= _EVALUATIONS * rules[group] for group in groups):
            return slowest, int(sum(_samples(text, "prometheus_rule_evaluation_failures_total").values()))
        if time.monotonic() > deadline:
            raise TimeoutError(f"the rules were not evaluated {_EVALUATIONS} times: {counts}")
        time.sleep(1.0)


def _samples(text: str, name: str) -> dict[str, float]:
    """By rule group."""
    found = re.findall(rf'^{name}{{rule_group="[^"]*;([^"]*)"}} (\S+)$', text, re.MULTILINE)
    return {group: float(value) for group, value in found}
