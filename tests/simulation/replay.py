"""Rules evaluated over time that has passed, by a real Prometheus, into which their results are written.

Each expression is asked for as a range, at the evaluations of its group; results become samples, a series that drops
out gets a stale marker, and alerts pass through pending, firing and ``keep_firing_for`` as in Prometheus'
rules/alerting.go. Rules are evaluated in order, each over a whole stretch of time before the next one: that is the same
as evaluation by evaluation as long as no rule reads itself or one that stands behind it. Where one does, stretches are
single evaluations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import numpy as np
import numpy.typing as npt
import promql_parser

from .remote_write import STALE, Sender, encode_labels, encode_samples, series
from .table import Labels, after_presence

__all__ = ["Replay", "Spans", "duration_seconds", "names_read", "reads_only_what_stands_before"]

Spans = list[tuple[float, float]]
"""Stretches of time in seconds, in order: when an alert first fires, and the first evaluation at which it does not."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_ALERT_SERIES: Final = ("ALERTS", "ALERTS_FOR_STATE")
_LABEL: Final = re.compile(r"\{\{\s*\$labels\.(\w+)\s*\}\}")


def duration_seconds(text: str) -> float:
    """A Prometheus duration in seconds."""
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhd])", text))


@dataclass(slots=True)
class _Active:
    """An alert that is pending or firing. Times are seconds."""

    since: float
    firing: bool = False
    kept_since: float | None = None


@dataclass(slots=True)
class _Rule:
    source: dict[str, Any]
    present: dict[tuple[str, Labels], bool] = field(default_factory=dict)
    active: dict[Labels, _Active] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.source.get("record") or self.source["alert"])

    @property
    def is_alert(self) -> bool:
        return "alert" in self.source

    def labels(self, found: dict[str, str]) -> Labels:
        """Labels of a result, with those of the rule. Raises ValueError for a template that is more than a label."""
        labels = {key: value for key, value in found.items() if key != "__name__"}
        for key, value in self.source.get("labels", {}).items():
            labels[key] = _LABEL.sub(lambda match: found.get(match[1], ""), str(value))
            if "{{" in labels[key]:
                raise ValueError(f"{self.name}: the replay cannot expand label {key}={value!r}")
        if self.is_alert:
            labels["alertname"] = self.name
        return tuple(sorted((key, value) for key, value in labels.items() if value))


@dataclass(slots=True)
class _Group:
    rules: list[_Rule]
    interval: float
    next_step: int = 0


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive evaluations. times (K,): seconds."""

    times: npt.NDArray[np.float64]
    interval: float


class Replay:
    """Evaluates ``groups`` in Prometheus at ``url``. ``epoch``: Unix time of second 0.

    ``firing``: when each alert fired, by its labels and ``alertname``.
    """

    def __init__(self, url: str, groups: Sequence[dict[str, Any]], *, epoch: float) -> None:
        self.firing: dict[Labels, Spans] = {}
        self._epoch = epoch
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=900)
        self._sender = Sender(url, epoch)
        self._encoded: dict[tuple[str, Labels], bytes] = {}
        self._groups = [
            _Group([_Rule(rule) for rule in group["rules"]], duration_seconds(group["interval"])) for group in groups
        ]
        self.in_order = reads_only_what_stands_before(groups)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._sender.close()

    def evaluate(self, *, until: float, down: Sequence[tuple[float, float]] = ()) -> None:
        """Go on to the last evaluations at or before ``until``, in seconds; while Prometheus is down there are none."""
        if self.in_order:
            for group in self._groups:
                for stretch in _stretches(group, until, down):
                    self._evaluate(group, stretch)
            return
        pending = sorted(
            (time, place, stretch.interval)
            for place, group in enumerate(self._groups)
            for stretch in _stretches(group, until, down)
            for time in stretch.times
        )
        for time, place, interval in pending:
            self._evaluate(self._groups[place], _Stretch(np.array([time]), interval))

    def _evaluate(self, group: _Group, stretch: _Stretch) -> None:
        for rule in group.rules:
            names, values, present = self._query(rule, stretch)
            if rule.is_alert:
                self._alert(rule, names, values, present, stretch)
            else:
                self._write(rule, [(rule.name, labels) for labels in names], values, present, stretch)

    def _query(
        self, rule: _Rule, stretch: _Stretch
    ) -> tuple[list[Labels], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Labels of n results, their values and where there are any, both (n, K)."""
        start = self._epoch + stretch.times[0]
        asked = {
            "query": rule.source["expr"],
            "start": start,
            "end": self._epoch + stretch.times[-1],
            "step": stretch.interval,
        }
        answer = self._client.post("/api/v1/query_range", data=asked).json()
        if answer["status"] != "success":
            raise RuntimeError(f"{rule.name}: {answer['error']}")
        result = answer["data"]["result"]
        values = np.zeros((len(result), len(stretch.times)))
        present = np.zeros(values.shape, dtype=bool)
        for row, one in enumerate(result):
            pairs = one["values"]
            at = np.rint((np.array([pair[0] for pair in pairs]) - start) / stretch.interval).astype(np.intp)
            values[row, at] = [float(pair[1]) for pair in pairs]
            present[row, at] = True
        names = [rule.labels(one["metric"]) for one in result]
        if len(set(names)) < len(names):
            raise RuntimeError(
                f"{rule.name}: vector contains metrics with the same labelset after applying rule labels"
            )
        return names, values, present

    def _write(
        self,
        rule: _Rule,
        names: Sequence[tuple[str, Labels]],
        values: npt.NDArray[np.float64],
        present: npt.NDArray[np.bool_],
        stretch: _Stretch,
    ) -> None:
        known = set(names)
        gone = [name for name, there in rule.present.items() if there and name not in known]
        every = [*names, *gone]
        if not every:
            return
        shape = (len(gone), len(stretch.times))
        values = np.concatenate([values, np.zeros(shape)])
        present = np.concatenate([present, np.zeros(shape, dtype=bool)])
        before = np.array([rule.present.get(name, False) for name in every])
        ends = after_presence(present, before)
        written = present | ends
        times = np.rint((stretch.times + self._epoch) * 1000).astype(np.int64)
        samples = encode_samples(np.broadcast_to(times, values.shape), np.where(ends, STALE, values))
        self._sender.post(series(self._encode(name), samples[row][written[row]]) for row, name in enumerate(every))
        rule.present = dict(zip(every, present[:, -1].tolist(), strict=True))

    def _encode(self, name: tuple[str, Labels]) -> bytes:
        if name not in self._encoded:
            self._encoded[name] = encode_labels(*name)
        return self._encoded[name]

    def _alert(
        self,
        rule: _Rule,
        names: list[Labels],
        values: npt.NDArray[np.float64],
        present: npt.NDArray[np.bool_],
        stretch: _Stretch,
    ) -> None:
        states: dict[tuple[str, Labels], dict[int, float]] = {}
        for step, time in enumerate(stretch.times):
            there = {names[row] for row in np.flatnonzero(present[:, step])}
            self._pass_on(rule, there, float(time))
            for labels, active in rule.active.items():
                state = "firing" if active.firing else "pending"
                states.setdefault(("ALERTS", (*labels, ("alertstate", state))), {})[step] = 1.0
                states.setdefault(("ALERTS_FOR_STATE", labels), {})[step] = self._epoch + active.since
                if active.firing:
                    self._note(labels, float(time), stretch.interval)
        values = np.zeros((len(states), len(stretch.times)))
        present = np.zeros(values.shape, dtype=bool)
        for row, at in enumerate(states.values()):
            values[row, list(at)] = list(at.values())
            present[row, list(at)] = True
        self._write(rule, list(states), values, present, stretch)

    def _note(self, labels: Labels, time: float, interval: float) -> None:
        spans = self.firing.setdefault(labels, [])
        if spans and spans[-1][1] >= time:
            spans[-1] = (spans[-1][0], time + interval)
        else:
            spans.append((time, time + interval))

    def _pass_on(self, rule: _Rule, there: set[Labels], now: float) -> None:
        hold = duration_seconds(rule.source.get("for", "0s"))
        keep = duration_seconds(rule.source.get("keep_firing_for", "0s"))
        for labels in there:
            rule.active.setdefault(labels, _Active(since=now))
        for labels, active in list(rule.active.items()):
            if labels in there:
                active.kept_since = None
                active.firing = active.firing or now - active.since >= hold
                continue
            if active.firing and keep:
                active.kept_since = now if active.kept_since is None else active.kept_since
                if now - active.kept_since < keep:
                    continue
            del rule.active[labels]


def _stretches(group: _Group, until: float, down: Sequence[tuple[float, float]]) -> Iterator[_Stretch]:
    steps = np.arange(group.next_step, int(until // group.interval) + 1)
    group.next_step += len(steps)
    times = steps * group.interval
    up = np.ones(len(times), dtype=bool)
    for begin, end in down:
        up &= ~((times >= begin) & (times < end))
    edges = np.flatnonzero(np.diff(up.astype(int))) + 1
    for part, is_up in zip(np.split(times, edges), np.split(up, edges), strict=True):
        if len(part) and is_up[0]:
            yield _Stretch(part, group.interval)


def reads_only_what_stands_before(groups: Sequence[dict[str, Any]]) -> bool:
    """Whether no rule of the groups, in their order, reads itself or a later one."""
    later: list[tuple[str, dict[str, str]]] = []
    for rule in reversed([rule for group in groups for rule in group["rules"]]):
        names = [rule["record"]] if "record" in rule else _ALERT_SERIES
        later += [(name, rule.get("labels", {})) for name in names]
        if any(_may_be(selector, *one) for selector in _selectors(rule["expr"]) for one in later):
            return False
    return True


def names_read(groups: Sequence[dict[str, Any]]) -> set[str]:
    """Names of all series that expressions of the groups read."""
    exprs = [rule["expr"] for group in groups for rule in group["rules"]]
    return {selector.name for expr in exprs for selector in _selectors(expr) if selector.name}


def _selectors(expr: str) -> Iterator[promql_parser.VectorSelector]:
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expr), pre_visit=found.append)
    for node in found:
        selector = node.vector_selector if isinstance(node, promql_parser.MatrixSelector) else node
        if isinstance(selector, promql_parser.VectorSelector):
            yield selector


def _may_be(selector: promql_parser.VectorSelector, name: str, labels: dict[str, str]) -> bool:
    """Whether a selector may choose series of that name with these labels, whatever other labels they have."""
    if selector.name != name:
        return False
    return not any(
        matcher.op == promql_parser.MatchOp.Equal and labels.get(matcher.name, matcher.value) != matcher.value
        for matcher in selector.matchers.matchers
    )
