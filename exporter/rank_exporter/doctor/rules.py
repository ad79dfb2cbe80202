"""Whether the rule pack is loaded, once and whole, and evaluates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import yaml

from .. import rulepack
from .finding import Finding, broken, good, unknown
from .prometheus import Prometheus

__all__ = ["check_rules"]

_LOAD = (
    "with the operator: see that ruleSelector and ruleNamespaceSelector select the PrometheusRule (--kube-yaml); "
    "otherwise `rank-exporter rules > rules.yml` and name it in rule_files"
)


def check_rules(prometheus: Prometheus) -> Iterator[Finding]:
    """Findings about the rules. Raises SourceError."""
    pack = [_key(rule) for group in yaml.safe_load(rulepack.render())["groups"] for rule in group["rules"]]
    loaded = [rule for rule in prometheus.rules() if _loaded_key(rule) in set(pack)]
    if not loaded:
        yield broken("rules", f"{prometheus.name} has none of the {len(pack)} rules", _LOAD)
        return
    # An alert may have a rule for each severity.
    wanted, found = Counter(pack), Counter(_loaded_key(rule) for rule in loaded)
    missing = wanted - found
    whole = True
    if missing:
        whole = False
        yield broken(
            "rules",
            f"{missing.total()} of {len(pack)} rules are not loaded, among them {_told(next(iter(missing)))}",
            "load the pack of this version whole; alerts that were switched off on purpose are reported as well",
        )
    twice = [name for name, count in found.items() if count > wanted[name]]
    if twice:
        whole = False
        yield broken(
            "rules",
            f"{_told(twice[0])} is loaded {found[twice[0]]} times",
            "load the pack once: remove the older file or PrometheusRule, or every page comes twice",
        )
    for rule in loaded:
        if rule["health"] == "err":
            whole = False
            yield broken(
                "rules",
                f"{rule['name']} does not evaluate: {rule.get('lastError', '')}",
                "many-to-many and duplicate series mean that agents are scraped twice, or that runs share a name",
            )
    late = {rule["group"]: rule for rule in loaded if rule["spent"] > rule["interval"]}
    for group, rule in late.items():
        whole = False
        yield broken(
            "rules",
            f"group {group} takes {rule['spent']:.1f} s, and its interval is {rule['interval']:g} s",
            "give Prometheus more CPU, or the group a longer interval",
        )
    if not whole:
        return
    if any(rule["health"] == "unknown" for rule in loaded):
        yield unknown("rules", "rules are loaded and not yet evaluated", "ask again after the groups' interval")
        return
    yield good("rules", f"{len(loaded)} rules are loaded and evaluate")


def _key(rule: dict[str, Any]) -> tuple[str, str]:
    """Name and what tells records of one name apart."""
    return rule.get("alert") or rule["record"], rule.get("labels", {}).get("window", "")


def _loaded_key(rule: dict[str, Any]) -> tuple[str, str]:
    return rule["name"], (rule.get("labels") or {}).get("window", "")


def _told(name: tuple[str, str]) -> str:
    return f"{name[0]} of window {name[1]}" if name[1] else name[0]
