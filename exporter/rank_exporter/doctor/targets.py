"""Whether Prometheus scrapes the agents, and all of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from .. import catalog
from ..config import DEFAULT_PORT
from .finding import Finding, broken, good, unknown
from .prometheus import Labels, Prometheus

__all__ = ["check_targets", "remedy_for"]

_SLOWEST_SECONDS = 45.0
"""The rules take a rank for dead after twice as long, so that one scrape may be lost."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_REMEDIES = (
    ("HTTP status 401", "give the scrape configuration a user of the agents' web configuration (basic_auth)"),
    ("HTTP status 403", "let Prometheus through whatever stands before the agents"),
    ("x509", "give the scrape configuration the authority of the agents' certificates (tls_config) and their name"),
    ("certificate", "give the scrape configuration a client certificate of the agents' authority (tls_config)"),
    ("HTTP response to HTTPS", "set the scheme to http, or give the agents a web configuration with TLS"),
    ("malformed HTTP response", "set the scheme to https: the agents serve TLS"),
    ("EOF", "set the scheme to https if the agents serve TLS"),
    (
        "refused",
        "see that a job runs there and serves on that port; a target that is gone leaves with its pod or entry",
    ),
    ("deadline", "let Prometheus reach the port: network policy, security group, firewall"),
    ("no such host", "give hosts a name that Prometheus resolves: set RANK_EXPORTER_HOST or listen_address"),
    ("sample_limit", "raise the limit on samples"),
)
_ADDRESS = re.compile(r'"[^"]*://[^"]*"|(dial|read) (tcp|udp) \S+|lookup \S+')
_FIND = (
    "with the operator: see the checks of its resources (--kube-yaml), and that pods have the labels that the "
    "PodMonitor selects; with file_sd: see that RANK_EXPORTER_FILE_SD_DIR and the configuration name the same directory"
)


def check_targets(prometheus: Prometheus) -> Iterator[Finding]:
    """Findings about the targets. Raises SourceError."""
    agents = [labels for labels, _ in prometheus.query(catalog.BUILD_INFO.name)]
    ours = [target for target in prometheus.targets() if _is_ours(target, agents)]
    if not ours:
        yield broken("targets", f"none of the targets of {prometheus.name} is an agent", _FIND)
        return
    down = [target for target in ours if target["health"] == "down"]
    for target in down:
        error = target["lastError"]
        yield broken("targets", f"{target['scrapeUrl']} is down: {error}", remedy_for(error))
    slow = {target["scrapeInterval"] for target in ours if _seconds(target) > _SLOWEST_SECONDS}
    if slow:
        yield broken(
            "targets",
            f"agents are scraped every {', '.join(sorted(slow))}",
            "scrape every 45s or more often, best every 15s: to the rules a rank is gone 90s after its last scrape, so "
            "that at longer intervals one lost scrape ends its alerts; or load rules of a longer --window",
        )
    if not down and not slow:
        yield good("targets", f"{len(ours)} agents are up")
    yield from _check_ranks(prometheus)


def remedy_for(error: str) -> str:
    """What to do about an error of Prometheus's scraping. Hosts and ports in it may look like anything: not read."""
    told = _ADDRESS.sub("", error)
    return next((remedy for words, remedy in _REMEDIES if words in told), "ask for that address by hand")


def _is_ours(target: dict[str, Any], agents: Sequence[Labels]) -> bool:
    labels = target["labels"]
    known = any(labels.get("job") == one.get("job") and labels.get("instance") == one.get("instance") for one in agents)
    return known or f":{DEFAULT_PORT}/" in target["scrapeUrl"] or "rank-exporter" in target.get("scrapePool", "")


def _seconds(target: dict[str, Any]) -> float:
    parts = re.findall(r"(\d+)(ms|[smhd])", target.get("scrapeInterval", ""))
    return sum(int(count) * _UNITS[unit] for count, unit in parts)


def _check_ranks(prometheus: Prometheus) -> Iterator[Finding]:
    """Whether each rank of a run is there, once."""
    series = [labels for labels, _ in prometheus.query(catalog.STEPS.name)]
    runs: dict[tuple[str, str, str], list[Labels]] = defaultdict(list)
    for labels in series:
        runs[labels.get("cluster", ""), labels.get("namespace", ""), labels.get("run", "")].append(labels)
    if not runs:
        yield unknown("ranks", "no run is being scraped", "ask again while a job runs")
        return
    sizes = {labels.get("run", ""): int(size) for labels, size in prometheus.query(catalog.WORLD_SIZE.name)}
    whole = True
    for (_, _, run), found in sorted(runs.items()):
        ranks = [labels.get("rank", "") for labels in found]
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1}, key=_number)
        if twice:
            whole = False
            where = {
                labels.get("instance", "") + "/" + labels.get("job", "")
                for labels in found
                if labels.get("rank") == twice[0]
            }
            yield broken(
                "ranks",
                f"rank {twice[0]} of run {run} is scraped {ranks.count(twice[0])} times: {', '.join(sorted(where))}",
                "scrape each agent once: a PodMonitor and annotations, or two PodMonitors, may both select the pods; "
                "or give two jobs of the same name runs of their own (RANK_EXPORTER_RUN)",
            )
        missing = sorted({str(rank) for rank in range(sizes.get(run, 0))} - set(ranks), key=_number)
        if missing:
            whole = False
            told = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
            yield broken(
                "ranks",
                f"run {run} has {sizes[run]} ranks, of which {len(missing)} are not scraped: {told}",
                "see that the pods or hosts of these ranks are targets, and that the ranks call rank_exporter.start()",
            )
    if whole:
        yield good("ranks", f"{len(series)} ranks of {len(runs)} runs are scraped, each once")


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (-1, text)
