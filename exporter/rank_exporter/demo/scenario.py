"""What a demo plays, what should come of it, and whether it did. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..analysis.verdict import COMPUTE_STRAGGLER, INPUT_STRAGGLER, Verdict
from ..phases import Phase

__all__ = ["SCENARIOS", "Plan", "Scenario", "shortfalls"]

WIDTH = 512
LAYERS = 4
BATCH = 512
"""Of this size a step takes some 70 ms on a core of its own."""
INPUT_DELAY_SECONDS = 0.2
"""Some three steps: a third of one still where other work of the machine makes it take six times as long."""
EXTRA_MATMULS = 24
"""Of WIDTH x WIDTH; a step's forward and backward are 12 of them."""

BALANCED_SECONDS = 45.0
"""A straggler is paged in some 30 s."""
SETTLING_SECONDS = 6.0
"""Watched on after a page, for pages that should not follow: several evaluations of the rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``alert``, ``phase`` and ``verdict`` are what a straggler leads to; None where nobody is slow."""

    name: str
    alert: str | None = None
    phase: str | None = None
    verdict: str | None = None


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="balanced"),
        Scenario(
            name="input-straggler",
            alert="TrainingInputStraggler",
            phase=Phase.INPUT_READY.label,
            verdict=INPUT_STRAGGLER,
        ),
        Scenario(
            name="compute-straggler",
            alert="TrainingComputeStraggler",
            phase=Phase.OPTIMIZER.label,
            verdict=COMPUTE_STRAGGLER,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A scenario with its numbers. ``cores``: CPU cores that the ranks share."""

    scenario: Scenario
    ranks: int
    straggler_rank: int
    cores: int

    @property
    def run(self) -> str:
        """The name under which the run is recorded."""
        return f"demo-{self.scenario.name}"

    @property
    def share(self) -> float:
        """Of a core, for each rank; more than one core is not used."""
        return min(1.0, self.cores / self.ranks)

    def train_arguments(self) -> list[str]:
        """Arguments of the training script. Work shrinks with a rank's share of a core, so that steps do not grow."""
        arguments = ["--batch-size", str(max(32, round(BATCH * self.share))), "--layers", str(LAYERS)]
        if self.scenario.alert is None:
            return arguments
        arguments += ["--slow-rank", str(self.straggler_rank)]
        if self.scenario.phase == Phase.INPUT_READY.label:
            return [*arguments, "--input-delay", str(INPUT_DELAY_SECONDS)]
        return [*arguments, "--extra-matmuls", str(max(4, round(EXTRA_MATMULS * self.share)))]


def shortfalls(plan: Plan, verdict: Verdict, pages: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """What did not come as the scenario has it, a line each; empty if everything did.

    ``pages``: the labels of all alerts that were received or fire, each once.
    """
    found = []
    scenario, rank = plan.scenario, str(plan.straggler_rank)
    critical = [page for page in pages if page.get("severity") == "critical"]
    if scenario.alert is None:
        found += [f"expected no page, but {_name(page)} came" for page in critical]
        found += [f"expected no alert that names a rank, but {_name(page)} came" for page in _named(pages, critical)]
        if verdict.rank is not None:
            found.append(f"expected a verdict that names no rank, but it is {verdict.kind} of rank {verdict.rank}")
        return tuple(found)

    wanted = {"alertname": scenario.alert, "rank": rank, "phase": str(scenario.phase), "run": plan.run}
    right = [page for page in critical if wanted.items() <= page.items()]
    if not right:
        found.append(f"expected a page {_name(wanted)}, but {'none came' if not critical else 'it did not come'}")
    found += [f"expected no other page, but {_name(page)} came" for page in critical if page not in right]
    others = [page for page in _named(pages, critical) if page["rank"] != rank]
    found += [f"expected no alert that names another rank, but {_name(page)} came" for page in others]
    if (verdict.kind, verdict.rank, verdict.phase) != (scenario.verdict, plan.straggler_rank, scenario.phase):
        said = f"{verdict.kind}" + ("" if verdict.rank is None else f" of rank {verdict.rank} in {verdict.phase}")
        found.append(f"expected the verdict {scenario.verdict} of rank {rank} in {scenario.phase}, but it is {said}")
    return tuple(found)


def _named(pages: Sequence[Mapping[str, str]], without: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return [page for page in pages if page.get("rank") and page not in without]


def _name(page: Mapping[str, str]) -> str:
    details = [f"{label} {page[label]}" for label in ("rank", "phase") if page.get(label)]
    return " ".join([page.get("alertname", "an alert"), *([f"({', '.join(details)})"] if details else [])])
