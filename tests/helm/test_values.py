"""Values that are wrong are refused in one clear message, and right ones do what they say."""

from __future__ import annotations

import re

import pytest
import yaml
from helm_python.errors import HelmRenderError, HelmValuesError

from rank_exporter import catalog, rulepack
from rank_exporter.cli import main

TLS = {"tls_server_config": {"cert_file": "/tls.crt", "key_file": "/tls.key"}}
MUTUAL = {
    "tls_server_config": {
        **TLS["tls_server_config"],
        "client_auth_type": "RequireAndVerifyClientCert",
        "client_ca_file": "/ca.crt",
    }
}

MISSPELT = [
    ({"podMonitr": {}}, "at '': additional properties 'podMonitr' not allowed"),
    ({"podMonitor": {"intervall": "5s"}}, "at '/podMonitor': additional properties 'intervall' not allowed"),
    ({"training": {"namespace": "a"}}, "at '/training': additional properties 'namespace' not allowed"),
    (
        {"prometheusRule": {"alerts": {"TrainingInputStraggler": {"enable": False}}}},
        "at '/prometheusRule/alerts/TrainingInputStraggler': additional properties 'enable' not allowed",
    ),
    (
        {"webConfig": {"config": {"basic_auth": {}}}},
        "at '/webConfig/config': additional properties 'basic_auth' not allowed",
    ),
    (
        {"podMonitor": {"relabelings": [{"source_labels": ["a"]}]}},
        "at '/podMonitor/relabelings/0': additional properties 'source_labels' not allowed",
    ),
]
WRONG = [
    ({"training": {"port": "10911"}}, "at '/training/port': got string, want integer"),
    ({"training": {"port": 70000}}, "at '/training/port': maximum: got 70,000, want 65,535"),
    ({"training": {"namespaces": "team-a"}}, "at '/training/namespaces': got string, want array"),
    ({"podMonitor": {"enabled": "yes"}}, "at '/podMonitor/enabled': got string, want boolean"),
    ({"podMonitor": {"interval": "15"}}, "at '/podMonitor/interval': '15' does not match pattern"),
    ({"podMonitor": {"scheme": "HTTP"}}, "at '/podMonitor/scheme': value must be one of 'http', 'https'"),
    (
        {"prometheusRule": {"skewBudgetRatio": 0}},
        "at '/prometheusRule/skewBudgetRatio': exclusiveMinimum: got 0, want 0",
    ),
    (
        {"prometheusRule": {"severities": {"critical": ""}}},
        "at '/prometheusRule/severities/critical': minLength: got 0, want 1",
    ),
    ({"operatorLabels": {"release": 1}}, "at '/operatorLabels/release': got number, want string"),
    (
        {"webConfig": {"config": {"basic_auth_users": {"me": "secret"}}}},
        "at '/webConfig/config/basic_auth_users/me': 'secret' does not match pattern",
    ),
]
IMPOSSIBLE = [
    ({"scrapeAnnotations": {"enabled": True}}, "podMonitor.enabled and scrapeAnnotations.enabled are both true"),
    ({"training": {"anyNamespace": True, "namespaces": ["a", "b"]}}, "but training.namespaces lists a, b"),
    ({"training": {"podSelector": {"matchLabels": None}}}, "training.podSelector selects every pod"),
    ({"training": {"anyNamespace": True}, "networkPolicy": {"enabled": True}}, "networkPolicy.enabled needs to know"),
    ({"podMonitor": {"podTargetLabels": ["rank"]}}, "podMonitor.podTargetLabels has rank"),
    (
        {"prometheusRule": {"alerts": {"Nobody": {}}}},
        "prometheusRule.alerts.Nobody: there is no such alert; known are ",
    ),
    (
        {"prometheusRule": {"severities": {"page": "critical"}}},
        "prometheusRule.severities.page: there is no such severity; known are critical, warning",
    ),
    (
        {"prometheusRule": {"additionalAlertLabels": {"severity": "page", "team": "ml"}}},
        'prometheusRule.additionalAlertLabels.severity is "page", which no alert would get: use prometheusRule.',
    ),
    (
        {"prometheusRule": {"alerts": {"TrainingBatchSkew": {"labels": {"severity": "page"}}}}},
        'prometheusRule.alerts.TrainingBatchSkew.labels.severity is "page", which no alert would get: use ',
    ),
    (
        {"prometheusRule": {"additionalAlertLabels": {"run": "llama"}}},
        'additionalAlertLabels.run is "llama", which would hide what alerts are told apart by: give it another name',
    ),
    (
        {"prometheusRule": {"alerts": {"TrainingRankStalled": {"labels": {"phase": "any"}}}}},
        'alerts.TrainingRankStalled.labels.phase is "any", which would hide what alerts are told apart by',
    ),
    ({"webConfig": {"enabled": True}}, "webConfig.config is empty"),
    ({"webConfig": {"enabled": True, "config": TLS}}, "podMonitor.scheme is http, so every scrape would fail"),
    (
        {"webConfig": {"enabled": True, "config": {"basic_auth_users": {"me": "$2y$10$" + 53 * "a"}}}},
        "podMonitor.basicAuth is empty, so every scrape would get 401",
    ),
    (
        {"webConfig": {"enabled": True, "config": MUTUAL}, "podMonitor": {"scheme": "https"}},
        "webConfig.config requires client certificates",
    ),
    ({"podMonitor": {"tlsConfig": {"insecureSkipVerify": True}}}, "podMonitor.scheme is http: set it to https"),
    ({"alertmanagerConfig": {"enabled": True}}, "no receiver named training, to which the routes lead"),
    (
        {"alertmanagerConfig": {"enabled": True, "receivers": [{"name": "training"}]}},
        "no receiver named training-page, to which the routes lead",
    ),
]


@pytest.mark.parametrize(("values", "complaint"), [*MISSPELT, *WRONG], ids=[text for _, text in [*MISSPELT, *WRONG]])
def test_a_wrong_value_is_named(render, values, complaint):
    """A misspelt key or a value of the wrong kind stops with its path, and with no other complaint."""
    with pytest.raises(HelmValuesError) as caught:
        render(values)
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("- ")]
    assert complaint in line


@pytest.mark.parametrize(("values", "complaint"), IMPOSSIBLE, ids=[text for _, text in IMPOSSIBLE])
def test_an_impossible_combination_is_named(render, values, complaint):
    """Values that contradict each other stop with one line that says what was seen and what to do."""
    with pytest.raises(HelmRenderError) as caught:
        render(values)
    assert complaint in str(caught.value)
    assert ": " in str(caught.value).split(complaint[:20])[1]
    assert "\n" not in str(caught.value).strip()


def test_no_label_that_the_project_gives_alerts_can_be_overwritten(render, chart_path):
    """Whatever the rules put on alerts and Alertmanager groups or compares them by is refused as another label."""
    names = set()
    for alert in rulepack.alerts():
        for clause in re.findall(r"\b(?:by|on) \(([^)]*)\)", alert.expr):
            names |= set(clause.replace(",", " ").split())
    # Not on what an alert's expression gives, but on series that it reads.
    names -= {"device", "window"}
    config = yaml.safe_load((chart_path / "rules/alertmanager/alertmanager.yml").read_text())
    names |= set(config["route"]["group_by"])
    for rule in config["inhibit_rules"]:
        names |= set(rule["equal"])
        names |= {re.match(r"\w+", matcher)[0] for matcher in rule["source_matchers"] + rule["target_matchers"]}
    assert {"alertname", "severity", "cluster", "namespace", "run", "rank", "host", "reason"} <= names
    for name in {*names, "phase", "shipped_severity"}:
        with pytest.raises(HelmRenderError, match=rf"additionalAlertLabels\.{name} is "):
            render({"prometheusRule": {"additionalAlertLabels": {name: "x"}}})


@pytest.mark.parametrize("label", sorted({label for metric in catalog.METRICS for label in metric.labels}))
def test_no_label_of_the_exporter_is_a_pods(render, label):
    """Prometheus would rename the exporter's label, which rules and dashboards then look for in vain."""
    with pytest.raises(HelmRenderError, match=rf"podMonitor\.podTargetLabels has {label}, "):
        render({"podMonitor": {"podTargetLabels": ["team", label]}})


def test_operator_labels_reach_what_the_operator_selects(render, find):
    """operatorLabels stand on each kind that the operator selects by labels, and an object's own labels win."""
    objects = render(
        {
            "operatorLabels": {"release": "monitoring", "app.kubernetes.io/instance": "x"},
            "podMonitor": {"additionalLabels": {"release": "own"}},
            "alertmanagerConfig": {"enabled": True, "receivers": [{"name": "training"}, {"name": "training-page"}]},
        }
    )
    labels = {
        kind: find(objects, kind)[0]["metadata"]["labels"]
        for kind in ("PodMonitor", "PrometheusRule", "AlertmanagerConfig")
    }
    assert {kind: of["release"] for kind, of in labels.items()} == {
        "PodMonitor": "own",
        "PrometheusRule": "monitoring",
        "AlertmanagerConfig": "monitoring",
    }
    assert labels["PrometheusRule"]["app.kubernetes.io/instance"] == "x"


def test_everything_can_be_switched_off(render):
    """With all switches off nothing is installed."""
    off = {"enabled": False}
    assert render({"podMonitor": off, "prometheusRule": off, "dashboards": off}) == []


def test_notes_say_what_to_do_next(notes):
    """The notes name the pods' labels, the operator's selectors and the label that kube-prometheus-stack wants."""
    text = notes()
    for words in ('rank-exporter/scrape: "true"', "ruleSelector", "--set operatorLabels.release=", "doctor"):
        assert words in text
    labelled = notes({"operatorLabels": {"release": "monitoring"}, "training": {"namespaces": ["team-a"]}})
    assert 'release: "monitoring"' in labelled
    assert "--set operatorLabels" not in labelled
    assert "namespace team-a" in labelled


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({"prometheusRule": {"enabled": False}}, "rank-exporter rules --format mimir"),
        ({"podMonitor": {"enabled": False}, "scrapeAnnotations": {"enabled": True}}, "rank-exporter rules"),
        ({"dashboards": {"enabled": False}}, "rank-exporter dashboards --write DIRECTORY"),
        ({"podMonitor": {"interval": "45001ms"}}, "rank-exporter rules --window 20m"),
    ],
    ids=["rules", "annotations", "dashboards", "interval"],
)
def test_notes_name_the_command_for_what_is_not_installed(notes, values, command):
    """What is switched off, or of no use as it is installed, is to be had from the command line."""
    assert command in notes(values)
    assert command not in notes()
    verb, *rest = command.split()[1:]
    known = {option for parameter in main.commands[verb].params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_notes_say_what_is_wrong_with_scraping(notes):
    """They say so where there is neither PodMonitor nor annotation, and that scrapes are too rare for the rules."""
    text = notes({"podMonitor": {"enabled": False}, "training": {"port": 9464}})
    assert "nothing scrapes the training pods yet. Have port 9464 of each scraped" in text
    longest = f"{rulepack.longest_scrape_interval():g}s"
    assert "lose sight" not in notes({"podMonitor": {"interval": longest}})
    slow = notes({"podMonitor": {"interval": f"{longest}1ms"}})
    assert f"podMonitor.interval is {longest}1ms, but with more than {longest} the rules lose sight" in slow
    assert "lose sight" in notes({"podMonitor": {"interval": "1h"}})


def test_notes_on_annotations(notes):
    """Where pods are to be annotated, the notes give the annotations instead of selectors."""
    text = notes({"podMonitor": {"enabled": False}, "scrapeAnnotations": {"enabled": True}, "training": {"port": 9464}})
    assert 'prometheus.io/port: "9464"' in text
    assert "podMonitorSelector" not in text


def test_network_policy_lets_prometheus_and_peers_in(render, find):
    """One policy a namespace: the agents' port for Prometheus, and every port among the training pods."""
    values = {"training": {"namespaces": ["a", "b"], "port": 9464}, "networkPolicy": {"enabled": True}}
    policies = find(render(values), "NetworkPolicy")
    assert [one["metadata"]["namespace"] for one in policies] == ["a", "b"]
    pods = {"matchLabels": {"rank-exporter/scrape": "true"}}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for one in policies:
        assert one["spec"]["podSelector"] == pods
        assert one["spec"]["ingress"] == [
            {"ports": [{"protocol": "TCP", "port": 9464}], "from": [monitoring]},
            {"from": [{"podSelector": pods}]},
        ]


def test_alertmanager_config_is_the_shipped_configuration(render, find, chart_path):
    """Routes and inhibition are those of alertmanager.yml, for our alerts alone, with severities as renamed."""
    receivers = [{"name": "training"}, {"name": "training-page"}]
    values = {
        "alertmanagerConfig": {"enabled": True, "receivers": receivers},
        "prometheusRule": {"severities": {"critical": "page"}},
    }
    objects = render(values)
    (spec,) = [one["spec"] for one in find(objects, "AlertmanagerConfig")]
    shipped = yaml.safe_load((chart_path / "rules/alertmanager/alertmanager.yml").read_text())
    assert spec["receivers"] == receivers
    assert spec["route"]["groupBy"] == shipped["route"]["group_by"]
    assert spec["route"]["repeatInterval"] == shipped["route"]["repeat_interval"]
    (ours,) = spec["route"]["matchers"]
    (rule,) = find(objects, "PrometheusRule")
    alerts = [one["alert"] for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
    assert ours == {"name": "alertname", "matchType": "=~", "value": "|".join(sorted(set(alerts)))}

    def text(matcher):
        return f'{matcher["name"]}{matcher["matchType"]}"{matcher["value"]}"'.replace('"page"', '"critical"')

    assert [[text(m) for m in route["matchers"]] for route in spec["route"]["routes"]] == [
        route["matchers"] for route in shipped["route"]["routes"]
    ]
    assert '"page"' in str(spec["route"]["routes"]).replace("'", '"')
    assert [
        {
            "source_matchers": [text(m) for m in rule["sourceMatch"]],
            "target_matchers": [text(m) for m in rule["targetMatch"]],
            "equal": rule["equal"],
        }
        for rule in spec["inhibitRules"]
    ] == shipped["inhibit_rules"]
    (templates,) = [one for one in find(objects, "ConfigMap") if one["metadata"]["name"].endswith("-templates")]
    shipped_templates = (chart_path / "rules/alertmanager/rank-exporter.tmpl").read_text(encoding="utf-8")
    assert templates["data"] == {"rank-exporter.tmpl": shipped_templates}


def _holds(matcher, labels):
    """Whether a matcher of an AlertmanagerConfig takes an alert; a label that is not there is empty."""
    value = labels.get(matcher["name"], "")
    if "~" in matcher["matchType"]:
        found = re.fullmatch(matcher["value"], value) is not None
    else:
        found = value == matcher["value"]
    return found != matcher["matchType"].startswith("!")


def _silenced(objects, find):
    """Which alert rules of a rendered chart silence which, by their places, if all alerts are of one rank."""
    (rule,) = find(objects, "PrometheusRule")
    labels = [
        {"alertname": one["alert"], **one["labels"]}
        for group in rule["spec"]["groups"]
        for one in group["rules"]
        if "alert" in one
    ]
    (config,) = find(objects, "AlertmanagerConfig")
    silenced = set()
    for inhibition in config["spec"]["inhibitRules"]:
        sources, targets = (
            {place for place, of in enumerate(labels) if all(_holds(matcher, of) for matcher in inhibition[side])}
            for side in ("sourceMatch", "targetMatch")
        )
        # An alert on both sides cannot be silenced by one on both sides, itself included.
        both = sources & targets
        silenced |= {
            (source, target)
            for source in sources
            for target in targets
            if not {source, target} <= both
            and all(labels[source].get(name) == labels[target].get(name) for name in inhibition["equal"])
        }
    return silenced


@pytest.mark.parametrize(
    "values",
    [
        {"severities": {"critical": "page"}},
        {"severities": {"critical": "ticket", "warning": "ticket"}},
        {"alerts": {"TrainingComputeStraggler": {"severity": "ticket"}}},
        {"alerts": {"TrainingInputStraggler": {"severity": "critical"}}},
        {"alerts": {"TrainingBatchSkew": {"severity": "warning"}, "TrainingRotatingStragglers": {"severity": "page"}}},
        {"alerts": {"TrainingTailStraggler": {"severity": "page"}, "TrainingDeviceIdle": {"severity": "critical"}}},
    ],
    ids=str,
)
def test_inhibition_is_the_same_whatever_severities_are_called(render, find, values):
    """Cause silences consequence, and no weaker form a stronger one, also where both are given one severity."""
    routes = {"enabled": True, "receivers": [{"name": "training"}, {"name": "training-page"}]}
    shipped = _silenced(render({"alertmanagerConfig": routes}), find)
    assert len(shipped) > 20
    assert _silenced(render({"alertmanagerConfig": routes, "prometheusRule": values}), find) == shipped
