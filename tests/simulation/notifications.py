"""How often Alertmanager would notify, by a reading of its configuration: its own clock cannot be made to run faster.

Grouping, waiting, inhibition and the decision to send follow Alertmanager 0.25: dispatch.go (a group is flushed
``group_wait`` after its first alert and every ``group_interval`` from there on), inhibit.go, and needsUpdate in
notify.go (what is new, what is resolved, or ``repeat_interval`` since).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .replay import Spans, duration_seconds
from .table import Labels

__all__ = ["Notification", "notifications"]

_MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"?(.*?)"?\s*')


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """What is sent. time: seconds. ``firing`` is empty where all is resolved."""

    time: float
    receiver: str
    firing: frozenset[Labels]


@dataclass(slots=True)
class _Group:
    receiver: str
    next_flush: float
    alerts: set[Labels] = field(default_factory=set)
    told: frozenset[Labels] | None = None
    told_resolved: frozenset[Labels] = frozenset()
    told_at: float = 0.0


def notifications(
    firing: Mapping[Labels, Spans], config: Path, *, until: float, tick: float = 5.0
) -> list[Notification]:
    """All notifications in time order. ``firing``: when each alert fires."""
    parsed = yaml.safe_load(config.read_text(encoding="utf-8"))
    sent: list[Notification] = []
    groups: dict[tuple[int, Labels], _Group] = {}
    now = 0.0
    while now <= until:
        active = {labels for labels, spans in firing.items() if any(begin <= now < end for begin, end in spans)}
        for labels in sorted(active):
            place, route = _route(parsed["route"], labels)
            key = (place, tuple((name, dict(labels).get(name, "")) for name in route["group_by"]))
            if key not in groups:
                groups[key] = _Group(route["receiver"], now + duration_seconds(route["group_wait"]))
            groups[key].alerts.add(labels)
        for key, group in list(groups.items()):
            if now >= group.next_flush:
                route = _routes(parsed["route"])[key[0]]
                sent += _flush(group, active, parsed, now, duration_seconds(route["repeat_interval"]))
                group.next_flush = now + duration_seconds(route["group_interval"])
                group.alerts &= active
                if not group.alerts:
                    # The group goes, and what was told of it is told: all is resolved.
                    del groups[key]
        now += tick
    return sent


def _flush(
    group: _Group, active: set[Labels], config: dict[str, Any], now: float, repeat: float
) -> Iterator[Notification]:
    heard = {labels for labels in group.alerts if not _is_inhibited(labels, active, config.get("inhibit_rules", []))}
    firing = frozenset(heard & active)
    resolved = frozenset(heard - active)
    if group.told is None:
        due = bool(firing)
    elif not firing <= group.told:
        due = True
    elif not firing:
        due = bool(group.told)
    else:
        due = not resolved <= group.told_resolved or now - group.told_at >= repeat
    if due:
        group.told, group.told_resolved, group.told_at = firing, resolved, now
        yield Notification(time=now, receiver=group.receiver, firing=firing)


def _is_inhibited(target: Labels, active: Iterable[Labels], rules: Sequence[dict[str, Any]]) -> bool:
    for rule in rules:
        if not _matches(target, rule["target_matchers"]):
            continue
        for source in active:
            if not _matches(source, rule["source_matchers"]):
                continue
            # An alert that is both cannot be inhibited by one that is both, itself included.
            if _matches(target, rule["source_matchers"]) and _matches(source, rule["target_matchers"]):
                continue
            if all(dict(source).get(name, "") == dict(target).get(name, "") for name in rule.get("equal", ())):
                return True
    return False


def _route(root: dict[str, Any], labels: Labels) -> tuple[int, dict[str, Any]]:
    """The first route that takes the alert; the root takes what no other does."""
    routes = _routes(root)
    for place, route in enumerate(routes[1:], start=1):
        if _matches(labels, route.get("matchers", ())):
            return place, route
    return 0, routes[0]


def _routes(root: dict[str, Any]) -> list[dict[str, Any]]:
    inherited = {key: value for key, value in root.items() if key != "routes"}
    children = root.get("routes", [])
    if any("routes" in child or child.get("continue") for child in children):
        raise ValueError("routes within routes, and routes that continue, are not read here")
    return [inherited, *({**inherited, **child} for child in children)]


def _matches(labels: Labels, matchers: Sequence[str]) -> bool:
    values = dict(labels)
    for matcher in matchers:
        parts = _MATCHER.fullmatch(matcher)
        if parts is None:
            raise ValueError(f"{matcher!r} is no matcher")
        name, operator, wanted = parts.groups()
        value = values.get(name, "")
        same = value == wanted if operator in ("=", "!=") else re.fullmatch(wanted, value) is not None
        if same != (operator in ("=", "=~")):
            return False
    return True
