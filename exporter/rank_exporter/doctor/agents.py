"""Whether an agent answers, and with what."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from .. import catalog
from ..errors import SourceError
from .endpoint import Endpoint, RefusedError
from .finding import Finding, broken, good

__all__ = ["check_agent"]

_START = (
    "see that a job runs on that host, and that its address and port are right: one that is taken moves to the next"
)


def check_agent(agent: Endpoint) -> Iterator[Finding]:
    """Findings about one agent."""
    check = f"agent {agent.name}"
    try:
        text = agent.text("/metrics")
    except RefusedError as error:
        yield broken(
            check, str(error), "put a user of its web configuration into the address: https://user:password@host"
        )
        return
    except SourceError as error:
        yield broken(check, str(error), _START)
        return
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        samples = []
    builds = [sample.labels.get("version", "") for sample in samples if sample.name == catalog.BUILD_INFO.name]
    if not builds:
        yield broken(
            check,
            f"{agent.name} serves no {catalog.BUILD_INFO.name}: it is something else than an agent",
            "give an agent's address; the port is 10911 unless it was taken",
        )
        return
    ranks = {(sample.labels["run"], sample.labels["rank"]) for sample in samples if sample.name == catalog.STEPS.name}
    if not ranks:
        yield broken(
            check,
            f"version {builds[0]} serves no rank",
            "see that ranks use the agent's directory (RANK_EXPORTER_DIR) and its user, and call rank_exporter.start()",
        )
        return
    errors = {
        sample.labels["reason"]: sample.value
        for sample in samples
        if sample.name == catalog.ERRORS.name and sample.value
    }
    if errors:
        told = ", ".join(f"{reason} {count:g}" for reason, count in sorted(errors.items()))
        yield broken(
            check,
            f"version {builds[0]} serves {len(ranks)} ranks, and met errors: {told}",
            "read the lines it wrote on standard error, or agent.log in the directory of segments",
        )
        return
    yield good(check, f"version {builds[0]} serves {len(ranks)} ranks of {len({run for run, _ in ranks})} runs")
