"""The rule pack: the files under ``rules/``, put together and printed for whoever evaluates them.

The files are the only truth. Rendering adds what they cannot say: groups that are spread over files become one, so that
an alert stands behind the records it reads; every duration is scaled together; each alert gets the address of its
runbook and, before the path to its dashboard, that of Grafana.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from .errors import RulePackError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = [
    "BASE_FOR",
    "BASE_WINDOW",
    "DASHBOARD_BASE",
    "RULE_FORMATS",
    "RUNBOOK_BASE",
    "SCRAPE_SECONDS",
    "Alert",
    "alerts",
    "longest_scrape_interval",
    "render",
    "scale_promql",
    "shortest_window",
]

RULE_FORMATS: tuple[str, ...] = ("prometheus", "prometheusrule", "mimir")
"""``prometheus`` is a file for ``rule_files:``, also of Thanos and vmalert; ``prometheusrule`` a resource for the
Prometheus operator; ``mimir`` a file for ``mimirtool rules load``."""

BASE_WINDOW = "10m"
"""The window that the durations in the files are written for."""

BASE_FOR = "4m"
"""How long a straggler is late before it alerts, as written in the files."""

SCRAPE_SECONDS = 15
"""How often agents are scraped, as README, the chart and the examples have it."""

RUNBOOK_BASE = "https://github.com/rank-exporter/rank-exporter/blob/main/rules/runbooks/"
"""Where the runbooks are published; the name of the alert and .md follow."""

DASHBOARD_BASE = "http://localhost:3000"
"""Where Grafana is; the path to a dashboard follows."""

_UNIT_MS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = r"(?:\d+(?:ms|[ywdhms]))+"
_DURATION_PART = re.compile(r"(\d+)(ms|[ywdhms])")
_SHORTEST_WINDOW_MS = 1000

# Tokens of PromQL, as far as durations need them: strings and comments are skipped whole, and a name swallows an
# "offset" that is part of it. Only brackets and the offset modifier hold durations.
_PROMQL = re.compile(
    rf"""
      (?P<skip> "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | `[^`]*` | \#[^\n]* )
    | (?P<range> \[[^\]]*\] )
    | (?P<offset> \boffset\s+-?\s*{_DURATION}(?![\w:]) )
    | (?P<name> [A-Za-z_:][\w:]* )
    """,
    re.VERBOSE,
)
# PromQL inside an annotation stands in the raw strings of its template actions.
_ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_RAW_STRING = re.compile(r"`[^`]*`")

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)

_Group = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert of the pack, as the files have it. ``runbook`` is the text of its runbook, in Markdown."""

    name: str
    group: str
    severity: str
    expr: str
    runbook: str

    @property
    def runbook_url(self) -> str:
        """Where the runbook is published."""
        return f"{RUNBOOK_BASE}{self.name}.md"


def alerts() -> tuple[Alert, ...]:
    """List the alerts of the pack in the order of evaluation.

    Raises RulePackError if the pack is damaged or an alert has no runbook.
    """
    return tuple(
        Alert(
            name=rule["alert"],
            group=group["name"],
            severity=rule["labels"]["severity"],
            expr=rule["expr"],
            runbook=_runbook(rule["alert"]),
        )
        for group in _load_groups()
        for rule in group["rules"]
        if "alert" in rule
    )


def render(
    *,
    format: str = "prometheus",  # noqa: A002 the word the command line uses
    window: str | None = None,
    for_: str | None = None,
    dashboard_url: str = DASHBOARD_BASE,
    runbook_url: str = RUNBOOK_BASE,
    name: str = "rank-exporter",
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Return the whole pack as YAML text.

    ``format`` is one of RULE_FORMATS. ``window`` is what the base window of 10m becomes; every duration in the pack is
    scaled by the same ratio. ``for_`` is what the ``for`` of 4m becomes, and scales every ``for`` alone. Both are
    Prometheus durations such as 30s or 1h30m. ``dashboard_url`` is where Grafana is, ``runbook_url`` the folder of the
    runbooks. ``name``, ``namespace`` and ``labels`` are the metadata
    of a PrometheusRule; an operator picks up only resources with the labels its ``ruleSelector`` asks for. ``name`` is
    the namespace of rules in Mimir, which holds the groups of one file.

    Raises RulePackError, in one line, if something asked for is not possible.
    """
    if format not in RULE_FORMATS:
        raise RulePackError(f"rule format {format!r} is not known; use one of {', '.join(RULE_FORMATS)}")
    scale = Fraction(1) if window is None else _ratio("window", window, BASE_WINDOW, _SHORTEST_WINDOW_MS)
    hold = scale if for_ is None else _ratio("for", for_, BASE_FOR, 1)
    dashboards, runbooks = _address("dashboard", dashboard_url), _address("runbook", runbook_url) + "/"
    groups = [_finish(group, scale, hold, dashboards, runbooks) for group in _load_groups()]

    if format != "prometheusrule" and (namespace is not None or labels):
        raise RulePackError(
            f"a {format.capitalize()} rule file has no metadata, but "
            f"namespace {namespace!r} and labels {dict(labels or {})!r} were given; "
            "leave them out or use the format prometheusrule"
        )
    document: dict[str, Any]
    if format == "prometheus":
        document = {"groups": groups}
    elif format == "mimir":
        document = {"namespace": name, "groups": groups}
    else:
        document = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": _metadata(name, namespace, labels or {}),
            "spec": {"groups": groups},
        }
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


def longest_scrape_interval(*, window: str | None = None) -> float:
    """The longest interval of scrapes, in seconds, with which the pack rendered with ``window`` sees every rank.

    Half of the shortest range that a rule looks back: then one scrape may be lost. Raises RulePackError.
    """
    scale = Fraction(1) if window is None else _ratio("window", window, BASE_WINDOW, _SHORTEST_WINDOW_MS)
    return float(_shortest_range_ms() * scale / 2000)


def shortest_window(*, scrape_seconds: float = SCRAPE_SECONDS) -> str:
    """The shortest ``window`` of render with which every rank is seen if agents are scraped so often."""
    written = _milliseconds(BASE_WINDOW)
    assert written  # noqa: S101 a constant of this module
    return _duration(math.ceil(Fraction(scrape_seconds) * 2000 * written / _shortest_range_ms()))


def scale_promql(expr: str, ratio: Fraction) -> str:
    """Return ``expr`` with the durations of its ranges, subqueries and offsets multiplied, and nothing else changed.

    Scaled durations are whole milliseconds, and at least one.
    """

    def token(match: re.Match[str]) -> str:
        if match.lastgroup in ("range", "offset"):
            return re.sub(_DURATION, lambda duration: _scaled(duration[0], ratio), match[0])
        return match[0]

    return _PROMQL.sub(token, expr)


def _shortest_range_ms() -> int:
    """The shortest range that a rule of the files looks back. What follows a colon is the step of a subquery."""
    ranges = [
        _milliseconds(match[0][1:-1].partition(":")[0].strip())
        for group in _load_groups()
        for rule in group["rules"]
        for match in _PROMQL.finditer(rule["expr"])
        if match.lastgroup == "range"
    ]
    return min(filter(None, ranges))


# Ten times as fast, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Dumper(yaml.SafeDumper):
    """Writes expressions as literal blocks, sequences indented, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_str)


def _pack() -> Traversable:
    return resources.files("rank_exporter") / "rules"


def _files(folder: str) -> Iterator[Traversable]:
    directory = _pack() / folder
    found = [file for file in directory.iterdir() if file.name.endswith(".yaml")] if directory.is_dir() else []
    if not found:
        raise RulePackError(f"no rule files in {directory}; install rank-exporter again")
    yield from sorted(found, key=lambda file: file.name)


def _load_groups() -> list[_Group]:
    """Read the files, records first, and join the groups of one name."""
    groups: dict[str, _Group] = {}
    for file in (*_files("recording"), *_files("alerts")):
        try:
            document = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a safe one
        except yaml.YAMLError as error:
            raise RulePackError(f"rule file {file} is no YAML; install rank-exporter again") from error
        for group in document["groups"]:
            known = groups.setdefault(group["name"], {**group, "rules": []})
            if known["interval"] != group["interval"]:
                raise RulePackError(
                    f"group {group['name']} has interval {group['interval']} in {file} and {known['interval']} in "
                    "another file; make them equal"
                )
            known["rules"].extend(group["rules"])
    return list(groups.values())


def _runbook(alert: str) -> str:
    file = _pack() / "runbooks" / f"{alert}.md"
    if not file.is_file():
        raise RulePackError(f"alert {alert} has no runbook {file}; write it")
    return file.read_text(encoding="utf-8")


def _finish(group: _Group, scale: Fraction, hold: Fraction, dashboards: str, runbooks: str) -> _Group:
    """Scale a group's durations and give its alerts their runbooks and dashboards."""
    rules = []
    for source in group["rules"]:
        rule = {**source, "expr": scale_promql(source["expr"], scale)}
        if "alert" in rule:
            annotations = {key: _scale_template(text, scale) for key, text in source["annotations"].items()}
            annotations["dashboard_url"] = dashboards + annotations["dashboard_url"]
            annotations["runbook_url"] = f"{runbooks}{rule['alert']}.md"
            rule["for"] = _scaled(rule["for"], hold)
            rule["annotations"] = annotations
        rules.append(rule)
    return {**group, "interval": _scaled(group["interval"], scale), "rules": rules}


def _metadata(name: str, namespace: str | None, labels: Mapping[str, str]) -> dict[str, Any]:
    for what, value in (("name", name), ("namespace", namespace)):
        if value is not None and not _DNS_NAME.fullmatch(value):
            raise RulePackError(
                f"{what} {value!r} is no Kubernetes name; use lower-case letters, digits, '-' and '.', "
                "and a letter or digit at both ends"
            )
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise RulePackError(
                f"label {key}={value!r} is no Kubernetes label; use letters, digits, '-', '_' and '.', "
                "at most 63 characters"
            )
    metadata: dict[str, Any] = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return metadata


def _address(what: str, url: str) -> str:
    """An address without a slash at its end, that neither YAML nor a template takes for anything else."""
    if not re.fullmatch(r"https?://[^\s{}/][^\s{}]*", url):
        raise RulePackError(f"{what} URL {url!r} is no address; write it like https://grafana.example.com")
    return url.rstrip("/")


def _scale_template(text: str, ratio: Fraction) -> str:
    """Scale the queries in an annotation."""

    def raw_string(match: re.Match[str]) -> str:
        return f"`{scale_promql(match[0][1:-1], ratio)}`"

    return _ACTION.sub(lambda action: _RAW_STRING.sub(raw_string, action[0]), text)


def _milliseconds(duration: str) -> int | None:
    if not re.fullmatch(_DURATION, duration, re.ASCII):
        return None
    return sum(int(count) * _UNIT_MS[unit] for count, unit in _DURATION_PART.findall(duration))


def _ratio(what: str, value: str, base: str, shortest_ms: int) -> Fraction:
    wanted, written = _milliseconds(value), _milliseconds(base)
    assert written  # noqa: S101 a constant of this module
    if wanted is None:
        raise RulePackError(f"{what} {value!r} is no duration; write it like 30s, 10m or 1h30m")
    if wanted < shortest_ms:
        raise RulePackError(f"{what} {value!r} is too short; use {_duration(shortest_ms)} or more")
    return Fraction(wanted, written)


def _scaled(duration: str, ratio: Fraction) -> str:
    """Scale a duration to whole milliseconds, and never to none. Unscaled, it stays as written."""
    written = _milliseconds(duration)
    if written is None:
        raise RulePackError(f"the rule pack holds {duration!r}, which is no duration; correct the rule file")
    return duration if ratio == 1 else _duration(max(1, round(written * ratio)))


def _duration(milliseconds: int) -> str:
    """Write a duration in the largest unit, up to hours, that holds it without a rest: 1500ms, 90s, 30m."""
    unit = next(unit for unit in ("h", "m", "s", "ms") if milliseconds % _UNIT_MS[unit] == 0)
    return f"{milliseconds // _UNIT_MS[unit]}{unit}"
