"""What rendering does to the rule files, and what it refuses."""

from __future__ import annotations

import re
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from click.testing import CliRunner, Result

from rank_exporter import rulepack
from rank_exporter.cli import main
from rank_exporter.errors import RankExporterError, RulePackError

_DURATION_IN_TREE = re.compile(r"\b([\d.]+)(ms|s)\b(?=[,\n])")


def _rules(text: str) -> list[dict[str, Any]]:
    document = yaml.safe_load(text)
    return [rule for group in document.get("spec", document)["groups"] for rule in group["rules"]]


def _tree(expr: str) -> tuple[str, list[Fraction]]:
    """An independent parser's view: the syntax tree without durations, and the durations in seconds."""
    tree = repr(promql_parser.parse(expr))
    seconds = [Fraction(n) / (1000 if unit == "ms" else 1) for n, unit in _DURATION_IN_TREE.findall(tree)]
    return _DURATION_IN_TREE.sub("DURATION", tree), seconds


def _queries(rule: dict[str, Any]) -> list[str]:
    """The queries in a rule's annotations, with some value for each verb."""
    text = " ".join(rule.get("annotations", {}).values())
    return [query.replace("%q", '"x"') for query in re.findall(r"printf `([^`]*)`", text)]


@pytest.mark.parametrize("window", [None, "1s", "30s", "7m", "1h30m"])
def test_promtool_accepts_the_pack_at_any_window(window: str | None, tmp_path: Path) -> None:
    """The rendered pack is a rule file that promtool accepts."""
    (tmp_path / "rules.yaml").write_text(rulepack.render(window=window), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", "rules.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_each_source_file() -> None:
    """The files can be loaded as they are, by whoever does not use the command."""
    folder = Path(rulepack.__file__).parent / "rules"
    files = [*folder.glob("recording/*.yaml"), *folder.glob("alerts/*.yaml")]
    assert files
    done = subprocess.run(["promtool", "check", "rules", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("window", "ratio"), [("30s", Fraction(1, 20)), ("1h", Fraction(6)), ("7m", Fraction(7, 10))])
def test_window_scales_every_duration_and_nothing_else(window: str, ratio: Fraction) -> None:
    """An independent parser finds the same expressions but for durations, each of which has been scaled."""
    scaled = 0
    for before, after in zip(_rules(rulepack.render()), _rules(rulepack.render(window=window)), strict=True):
        pairs = [(before["expr"], after["expr"]), *zip(_queries(before), _queries(after), strict=True)]
        for old, new in pairs:
            (old_tree, old_seconds), (new_tree, new_seconds) = _tree(old), _tree(new)
            assert new_tree == old_tree
            assert new_seconds == [second * ratio for second in old_seconds]
            scaled += len(old_seconds)
        if "alert" in before:
            [held], [longer] = (_tree(f"a[{rule['for']}]")[1] for rule in (before, after))
            assert longer == held * ratio
    assert scaled > 20


def test_window_scales_the_interval_of_groups() -> None:
    """Rules over a window of half a minute are evaluated every second and a half, those of the tail every six."""
    document = yaml.safe_load(rulepack.render(window="30s"))
    intervals = {group["name"]: group["interval"] for group in document["groups"]}
    assert intervals.pop("rank-exporter.tail") == "6s"
    assert set(intervals.values()) == {"1500ms"}


def test_for_scales_only_how_long_a_condition_holds() -> None:
    """``for_`` leaves windows alone, and ``window`` leaves it alone when both are given."""
    held, plain = _rules(rulepack.render(for_="1m")), _rules(rulepack.render())
    both = _rules(rulepack.render(window="30s", for_="1m"))
    assert [rule.get("for") for rule in both] == [rule.get("for") for rule in held]
    before = [rule.pop("for") for rule in plain if "alert" in rule]
    after = [rule.pop("for") for rule in held if "alert" in rule]
    assert set(zip(before, after, strict=True)) == {("4m", "1m"), ("1m", "15s"), ("10m", "150s"), ("15m", "225s")}
    assert held == plain


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ('rate(a{b="[5m] offset 5m"}[10m])', 'rate(a{b="[5m] offset 5m"}[30s])'),
        (
            r'rate(a{b="\"[5m]", c=~' + "'[5m]', d!=`[5m]`}[10m])",
            r'rate(a{b="\"[5m]", c=~' + "'[5m]', d!=`[5m]`}[30s])",
        ),
        ("max_over_time(a[1h:10m] offset 20m)", "max_over_time(a[3m:30s] offset 1m)"),
        ("max_over_time(a[1h:] offset -20m)", "max_over_time(a[3m:] offset -1m)"),
        ("a offset 1h20m # [10m] offset 10m", "a offset 4m # [10m] offset 10m"),
        ("sum by (offset) (offset) + a:offset * 5", "sum by (offset) (offset) + a:offset * 5"),
        ("a[10s]", "a[500ms]"),
        ("a[1ms]", "a[1ms]"),
    ],
)
def test_scaling_knows_promql(expr: str, expected: str) -> None:
    """Strings, comments and names that look like durations stay; ranges, subqueries and offsets change, never to 0."""
    assert rulepack.scale_promql(expr, Fraction(1, 20)) == expected


def test_records_stand_before_what_reads_them_in_one_group() -> None:
    """Prometheus evaluates a group in order: only so is an alert's evidence of the same moment.

    A group that is evaluated less often may read another's records: they are never older than its own.
    """
    groups = yaml.safe_load(rulepack.render())["groups"]
    seconds = {group["name"]: _tree(f"a[{group['interval']}]")[1][0] for group in groups}
    for group in groups:
        recorded: set[str] = {
            rule["record"]
            for other in groups
            if seconds[other["name"]] < seconds[group["name"]]
            for rule in other["rules"]
            if "record" in rule
        }
        for position, rule in enumerate(group["rules"]):
            later = {other["record"] for other in group["rules"][position:] if "record" in other}
            read = set(re.findall(r"\b\w+:[\w:]+", rule["expr"]))
            assert read <= recorded, f"{rule.get('record') or rule['alert']} reads {read - recorded} of another group"
            assert not read & later - recorded
            recorded.add(rule.get("record", ""))


def test_prometheusrule_is_a_resource_with_the_labels_asked_for() -> None:
    """An operator finds the rules by labels; the groups are those of the rule file."""
    document = yaml.safe_load(
        rulepack.render(
            format="prometheusrule",
            name="stragglers",
            namespace="monitoring",
            labels={"release": "kube-prometheus-stack", "team.example.com/owner": "ml"},
        )
    )
    assert document["apiVersion"] == "monitoring.coreos.com/v1"
    assert document["kind"] == "PrometheusRule"
    assert document["metadata"] == {
        "name": "stragglers",
        "namespace": "monitoring",
        "labels": {"release": "kube-prometheus-stack", "team.example.com/owner": "ml"},
    }
    assert document["spec"] == yaml.safe_load(rulepack.render())


def test_mimir_has_the_groups_in_a_namespace() -> None:
    """mimirtool loads the same groups, each name once, into the namespace that the file names."""
    document = yaml.safe_load(rulepack.render(format="mimir", name="training"))
    assert list(document) == ["namespace", "groups"]
    assert document["namespace"] == "training"
    assert document["groups"] == yaml.safe_load(rulepack.render())["groups"]
    names = [group["name"] for group in document["groups"]]
    assert len(set(names)) == len(names)


def test_prometheusrule_has_no_labels_by_default() -> None:
    """Nothing is invented that was not asked for."""
    assert yaml.safe_load(rulepack.render(format="prometheusrule"))["metadata"] == {"name": "rank-exporter"}


def test_expressions_are_printed_as_blocks() -> None:
    """What is printed is meant to be read."""
    text = rulepack.render()
    assert text.count("expr: |\n") == len(_rules(text))
    assert "&" not in re.sub(r"^ *dashboard_url: .*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "json"}, "rule format 'json' is not known; use one of prometheus, prometheusrule, mimir"),
        ({"window": "soon"}, "window 'soon' is no duration; write it like 30s, 10m or 1h30m"),
        ({"window": ""}, "window '' is no duration; write it like 30s, 10m or 1h30m"),
        ({"window": "10"}, "window '10' is no duration; write it like 30s, 10m or 1h30m"),
        ({"window": "-30s"}, "window '-30s' is no duration; write it like 30s, 10m or 1h30m"),
        ({"window": "0s"}, "window '0s' is too short; use 1s or more"),
        ({"window": "999ms"}, "window '999ms' is too short; use 1s or more"),
        (
            {"dashboard_url": "grafana"},
            "dashboard URL 'grafana' is no address; write it like https://grafana.example.com",
        ),
        (
            {"runbook_url": "https://{{ x }}/"},
            "runbook URL 'https://{{ x }}/' is no address; write it like https://grafana.example.com",
        ),
        ({"for_": "0s"}, "for '0s' is too short; use 1ms or more"),
        ({"for_": "5 m"}, "for '5 m' is no duration; write it like 30s, 10m or 1h30m"),
        (
            {"format": "prometheusrule", "name": "My Rules"},
            (
                "name 'My Rules' is no Kubernetes name; use lower-case letters, digits, '-' and '.', "
                "and a letter or digit at both ends"
            ),
        ),
        (
            {"format": "prometheusrule", "labels": {"release": "two words"}},
            (
                "label release='two words' is no Kubernetes label; use letters, digits, '-', '_' and '.', "
                "at most 63 characters"
            ),
        ),
        (
            {"labels": {"release": "x"}},
            (
                "a Prometheus rule file has no metadata, but namespace None and labels {'release': 'x'} were given; "
                "leave them out or use the format prometheusrule"
            ),
        ),
    ],
)
def test_what_cannot_be_rendered_is_said_in_one_line(arguments: dict[str, Any], message: str) -> None:
    """What, the value seen, the remedy."""
    with pytest.raises(RulePackError) as caught:
        rulepack.render(**arguments)
    assert str(caught.value) == message
    assert isinstance(caught.value, RankExporterError)


def test_alerts_are_listed_with_their_runbooks() -> None:
    """Each alert of the rendered pack is listed, and carries the address of the runbook that is listed with it."""
    rendered = [rule for rule in _rules(rulepack.render()) if "alert" in rule]
    listed = rulepack.alerts()
    assert {"TrainingInputStraggler", "TrainingComputeStraggler"} <= {alert.name for alert in listed}
    for rule, alert in zip(rendered, listed, strict=True):
        assert rule["alert"] == alert.name
        assert rule["annotations"]["runbook_url"] == alert.runbook_url
        assert rule["labels"]["severity"] == alert.severity
        assert alert.runbook_url == rulepack.RUNBOOK_BASE + f"{alert.name}.md"


@pytest.mark.parametrize("window", [None, "1m", "200s", "1h"])
@pytest.mark.parametrize(("longer", "seen"), [(1, True), (1.05, False)], ids=["as often as needed", "less often"])
def test_ranks_are_seen_if_scrapes_are_as_often_as_is_said(
    window: str | None, longer: float, seen: bool, tmp_path: Path
) -> None:
    """Each evaluation sees each rank though every third scrape is lost; with a longer interval some do not."""
    interval = rulepack.longest_scrape_interval(window=window)
    ratio = interval / rulepack.longest_scrape_interval()
    scrape, evaluation, end = round(interval * longer * 1000), round(30_000 * ratio), round(3_600_000 * ratio)
    count = end // scrape + 1
    values = " ".join("_" if number % 3 == 2 else str(number) for number in range(count))
    evaluations = end // evaluation
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{evaluation}ms",
        "tests": [
            {
                "interval": f"{scrape}ms",
                "input_series": [
                    {"series": f'training_steps_total{{run="r",rank="{rank}",host="a"}}', "values": values}
                    for rank in "01"
                ],
                "promql_expr_test": [
                    {
                        "expr": f"count_over_time(run:training_ranks_reporting:count[{end}ms]) >= bool {evaluations}",
                        "eval_time": f"{end}ms",
                        "exp_samples": [{"labels": '{run="r"}', "value": int(seen)}],
                    }
                ],
            }
        ],
    }
    (tmp_path / "rules.yaml").write_text(rulepack.render(window=window), encoding="utf-8")
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _command(*arguments: str) -> Result:
    done = CliRunner().invoke(main, ["rules", *arguments])
    assert done.exit_code == 0, done.output
    return done


def test_a_window_too_short_for_the_usual_scrapes_is_said_in_one_line() -> None:
    """The rules are printed all the same: whoever scrapes as often as is said can use them."""
    shortest = rulepack.shortest_window()
    assert rulepack.longest_scrape_interval(window=shortest) == rulepack.SCRAPE_SECONDS
    short = _command("--window", "1m")
    assert short.stdout == rulepack.render(window="1m")
    assert short.stderr == (
        "rank-exporter: the rules of --window 1m need a scrape every 4.5 s or more often; "
        f"for one every 15 s give --window {shortest} or more\n"
    )
    for long in ([], ["--window", shortest], ["--window", "1h"], ["--for", "1s"]):
        assert _command(*long).stderr == ""


def test_help_says_how_often_to_scrape() -> None:
    """The figures in the text of --window are those of the pack."""
    text = " ".join(_command("--help").stdout.split())
    shipped, short = rulepack.longest_scrape_interval(), rulepack.longest_scrape_interval(window="1m")
    assert f"at least every {shipped:g} s with {rulepack.BASE_WINDOW}, every {short:g} s with 1m." in text


def test_scrapes_are_everywhere_as_often_as_the_note_assumes() -> None:
    """README, the example and the chart have one interval."""
    root = Path(__file__).parents[2]
    usual = f"{rulepack.SCRAPE_SECONDS}s"
    assert set(re.findall(r"scrape_interval: (\w+)", (root / "README.md").read_text(encoding="utf-8"))) == {usual}
    example = yaml.safe_load((root / "helm/examples/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    assert example["global"]["scrape_interval"] == usual
    chart = yaml.safe_load((root / "helm/rank-exporter/values.yaml").read_text(encoding="utf-8"))
    assert chart["podMonitor"]["interval"] == usual


def test_addresses_are_those_asked_for() -> None:
    """Links lead to the Grafana and the runbooks of whoever renders, with a slash at the end or without."""
    for rule in _rules(
        rulepack.render(dashboard_url="https://grafana.example/x/", runbook_url="https://wiki.example/r")
    ):
        if "alert" in rule:
            assert re.match(
                r"https://grafana\.example/x(\{\{ if \$labels\.rank \}\})?/d/", rule["annotations"]["dashboard_url"]
            )
            assert rule["annotations"]["runbook_url"] == f"https://wiki.example/r/{rule['alert']}.md"
