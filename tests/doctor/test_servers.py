"""doctor on real servers: a whole installation, and many that are broken in one way each."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import bcrypt
import pytest
import yaml

from rank_exporter import rulepack
from rank_exporter.doctor.alertmanagers import check_delivery
from rank_exporter.doctor.endpoint import Endpoint
from rank_exporter.doctor.finding import State
from rank_exporter.doctor.grafana import check_grafana
from rank_exporter.doctor.prometheus import Prometheus
from rank_exporter.doctor.targets import remedy_for

SERVER_CHECKS = {"targets", "ranks", "metrics", "labels", "rules", "sending", "receivers"}


@pytest.fixture
def expect(examine, eventually, alertmanager):
    """Waits until doctor finds these checks broken and no others, and returns the one text of each.

    Everything else that servers can tell has to be good.
    """

    def expect(prometheus, *broken, alertmanager=alertmanager, also=frozenset()):
        def look():
            code, findings = examine("--prometheus", prometheus, "--alertmanager", f"http://{alertmanager}")
            states = {check: {state for state, _ in found} for check, found in findings.items()}
            assert {check for check, found in states.items() if "broken" in found} == set(broken), findings
            assert {check for check, found in states.items() if found == {"good"}} >= SERVER_CHECKS - set(broken) - also
            assert code == (1 if broken else 0)
            return {check: findings[check][0][1] for check in broken}

        return eventually(look)

    return expect


def test_a_whole_installation(agent, start_prometheus, expect, examine, eventually):
    """On a whole installation everything is good, and what was not given is said not to have been checked."""
    prometheus = start_prometheus({agent: {}})
    assert expect(prometheus) == {}

    def look():
        code, findings = examine("--prometheus", prometheus, "--agent", f"http://{agent}")
        assert code == 0, findings
        return findings

    findings = eventually(look)
    assert findings[f"agent http://{agent}"] == [("good", "version 0.1.0 serves 2 ranks of 1 runs → ")]
    for check, option in (
        ("operator", "--kube-yaml"),
        ("dashboards", "--grafana"),
        ("receivers, delivery", "--alertm"),
    ):
        ((state, text),) = findings[check]
        assert state == "not checked"
        assert option in text


def test_no_target_is_an_agent(start_prometheus, expect):
    """Without targets the remedy names both ways in which agents are found."""
    found = expect(start_prometheus({}), "targets", also={"ranks", "metrics", "labels"})
    assert "none of the targets of http://127.0.0.1:" in found["targets"]
    assert "PodMonitor" in found["targets"]
    assert "RANK_EXPORTER_FILE_SD_DIR" in found["targets"]


def test_a_target_is_down(agent, start_prometheus, expect, free_port):
    """A target where nobody listens is named with its error."""
    port = free_port()
    found = expect(start_prometheus({agent: {}, f"127.0.0.1:{port}": {}}), "targets")
    assert f"http://127.0.0.1:{port}/metrics is down: " in found["targets"]
    assert "see that a job runs there" in found["targets"]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            'Get "http://eof-403.example:40139/metrics": dial tcp 10.40.1.40:40139: connect: connection refused',
            "see that a job runs there",
        ),
        ("server returned HTTP status 401 Unauthorized", "give the scrape configuration a user"),
        ("server returned HTTP status 403 Forbidden", "let Prometheus through"),
        ('Get "http://node-401:10911/metrics": context deadline exceeded', "let Prometheus reach the port"),
        ('Get "http://eof:1/metrics": dial tcp: lookup eof-401 on 10.0.0.2:53: no such host', "give hosts a name"),
        ('Get "http://10.0.0.1:10911/metrics": EOF', "set the scheme to https"),
        ("something new", "ask for that address by hand"),
    ],
)
def test_remedy_follows_the_error_and_not_the_address(error, remedy):
    """Digits and words of a host's name or port are not taken for the error."""
    assert remedy_for(error).startswith(remedy)


def test_credentials_are_missing(start_agent, start_prometheus, expect, tmp_path):
    """An agent with users, of which Prometheus knows none, is down for want of credentials."""
    users = {"ops": bcrypt.hashpw(b"x", bcrypt.gensalt(4)).decode()}
    (tmp_path / "web.yml").write_text(yaml.safe_dump({"basic_auth_users": users}))
    address = start_agent([0], "--web-config-file", str(tmp_path / "web.yml"))
    found = expect(start_prometheus({address: {}}), "targets", also={"ranks", "metrics", "labels"})
    assert "401 Unauthorized → give the scrape configuration a user" in found["targets"]


def test_scrapes_are_too_rare(agent, start_prometheus, expect):
    """An interval at which one lost scrape would end a rank's alerts is named, with what to do."""
    job = {"scrape_interval": "1m"}
    found = expect(start_prometheus({agent: {}}, job=job), "targets", also={"ranks", "metrics", "labels"})
    assert "agents are scraped every 1m → scrape every 45s or more often" in found["targets"]
    assert "--window" in found["targets"]


def test_agents_are_scraped_twice(agent, start_prometheus, expect):
    """Ranks that two jobs scrape are named, with where they come from; the rules that break on it are, too."""
    found = expect(start_prometheus({agent: {}}, jobs=2), "ranks", also={"rules"})
    assert "rank 0 of run job is scraped 2 times: " in found["ranks"]
    assert "/rank-exporter-0, " in found["ranks"]


def test_ranks_are_missing(start_agent, start_prometheus, expect):
    """Ranks of a run that nobody scrapes are named by number."""
    address = start_agent([0, 2], world_size=12)
    found = expect(start_prometheus({address: {}}), "ranks")
    assert "run job has 12 ranks, of which 10 are not scraped: 1, 3, 4, 5, 6, 7, 8, 9, …" in found["ranks"]


def test_metrics_are_dropped(agent, start_prometheus, expect):
    """A series that alerts need and that is dropped on the way is named."""
    drop = [{"source_labels": ["__name__"], "regex": "training_skew_budget_ratio", "action": "drop"}]
    found = expect(start_prometheus({agent: {}}, job={"metric_relabel_configs": drop}), "metrics")
    assert found["metrics"].startswith("training_skew_budget_ratio do not arrive")


def test_a_target_label_hides_the_exporters(agent, start_prometheus, expect):
    """A target's label of the name of one of ours is named, with what it did."""
    found = expect(start_prometheus({agent: {"host": "rack-7"}}), "labels")
    assert "the exporter's host arrive as exported_host" in found["labels"]


def test_the_host_is_a_pod(agent, start_prometheus, expect):
    """A host that is called like its pod means that the node's name was not handed in."""
    found = expect(start_prometheus({agent: {"pod": "node-1"}}), "labels")
    assert "host is the name of the pod, as in node-1" in found["labels"]
    assert "spec.nodeName" in found["labels"]


def test_rules_are_not_loaded(agent, start_prometheus, expect):
    """Without any rule the remedy tells how to load them."""
    found = expect(start_prometheus({agent: {}}, rules=[]), "rules")
    assert "has none of the " in found["rules"]
    assert "rule_files" in found["rules"]


def test_some_rules_are_missing(agent, start_prometheus, expect):
    """A pack without its last alert is not whole, and the alert is named."""
    pack = yaml.safe_load(rulepack.render(window="20s"))
    lost = pack["groups"][-1]["rules"].pop()
    found = expect(start_prometheus({agent: {}}, rules=[yaml.safe_dump(pack)]), "rules")
    assert f"rules are not loaded, among them {lost['alert']}" in found["rules"]


def test_rules_are_loaded_twice(agent, start_prometheus, expect):
    """A second copy of an alert is named."""
    pack = yaml.safe_load(rulepack.render(window="20s"))
    (alert, *_) = [rule for group in pack["groups"] for rule in group["rules"] if "alert" in rule]
    again = yaml.safe_dump({"groups": [{"name": "old", "rules": [alert]}]})
    found = expect(start_prometheus({agent: {}}, rules=[rulepack.render(window="20s"), again]), "rules")
    assert f"{alert['alert']} is loaded 2 times" in found["rules"]


def test_rules_do_not_evaluate(agent, start_prometheus, expect):
    """A rule that fails is named with Prometheus' own words."""
    pack = yaml.safe_load(rulepack.render(window="20s"))
    alert = pack["groups"][-1]["rules"][-1]
    alert["expr"] = "training_steps_total * on () training_steps_total"
    found = expect(start_prometheus({agent: {}}, rules=[yaml.safe_dump(pack)]), "rules")
    assert f"{alert['alert']} does not evaluate: " in found["rules"]
    assert "many-to-many" in found["rules"]


ALWAYS = yaml.safe_dump(
    {"groups": [{"name": "always", "interval": "1s", "rules": [{"alert": "Always", "expr": "vector(1)"}]}]}
)


def test_prometheus_knows_no_alertmanager(agent, start_prometheus, expect):
    """Without an Alertmanager nobody would be paged."""
    found = expect(start_prometheus({agent: {}}, send_to=()), "sending")
    assert "knows no Alertmanager" in found["sending"]


def test_alertmanager_is_out_of_reach(agent, start_prometheus, expect, free_port):
    """An Alertmanager that takes nothing of what is sent to it is named."""
    port = free_port()
    rules = [rulepack.render(window="20s"), ALWAYS]
    found = expect(start_prometheus({agent: {}}, rules=rules, send_to=(f"127.0.0.1:{port}",)), "sending")
    assert f"127.0.0.1:{port}" in found["sending"]
    assert found["sending"].startswith("no alert that ")


EXAMPLE = yaml.safe_load((Path(rulepack.__file__).parent / "rules/alertmanager/alertmanager.yml").read_text())
UNFIT = [
    (
        {"route": {"receiver": "a", "routes": [{"receiver": "b"}]}, "receivers": [{"name": "a"}, {"name": "b"}]},
        "none of the receivers a, b has an address",
    ),
    (
        {key: value for key, value in EXAMPLE.items() if key != "templates"},
        "has the example's address http://127.0.0.1:9099/",
    ),
]


@pytest.mark.parametrize("unfit", UNFIT, ids=["silent", "example"])
def test_nobody_is_told(agent, start_prometheus, start_alertmanager, expect, unfit):
    """Receivers without an address, and the addresses of the shipped example, reach nobody."""
    config, complaint = unfit
    other = start_alertmanager(config)
    found = expect(start_prometheus({agent: {}}, send_to=(other,)), "receivers", alertmanager=other)
    assert complaint in found["receivers"]


def test_alerts_do_not_arrive(agent, alertmanager, start_alertmanager, start_prometheus, eventually):
    """An alert that fires and that the given Alertmanager has not is named; the one that has it is fine."""
    firing = {"alert": rulepack.alerts()[0].name, "expr": "vector(1)", "labels": {"run": "job", "rank": "7"}}
    rules = [yaml.safe_dump({"groups": [{"name": "now", "interval": "1s", "rules": [firing]}]})]
    empty = start_alertmanager({"route": {"receiver": "a"}, "receivers": [{"name": "a"}]})
    url = start_prometheus({agent: {}}, rules=rules)
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    with Endpoint(url) as server, Endpoint(alertmanager) as right, Endpoint(empty) as wrong:

        def arrived():
            (finding,) = check_delivery(Prometheus(server), right, now=later)
            assert (finding.state, finding.seen) == (State.GOOD, "all 1 firing alerts have arrived")

        eventually(arrived)
        (finding,) = check_delivery(Prometheus(server), wrong, now=later)
        assert finding.state is State.BROKEN
        assert f"{firing['alert']} of rank 7 of run job fires in {url}" in finding.seen
        (finding,) = check_delivery(Prometheus(server), wrong)
        assert finding.state is State.UNKNOWN


def test_agents(examine, start_agent, free_port, agent):
    """An agent that is not there, is something else, or serves nobody, is named with what to do."""
    idle = start_agent([], name="idle")
    nowhere = f"127.0.0.1:{free_port()}"
    for address, complaint in (
        (nowhere, "cannot be reached"),
        (idle, "serves no rank → see that ranks use the agent's directory"),
    ):
        code, findings = examine("--agent", f"http://{address}")
        ((state, text),) = findings[f"agent http://{address}"]
        assert (code, state) == (1, "broken")
        assert complaint in text


def test_something_else_than_an_agent(examine, alertmanager, eventually):
    """Another server's metrics are not an agent's."""

    def look():
        code, findings = examine("--agent", f"http://{alertmanager}")
        assert code == 1
        assert "it is something else than an agent" in findings[f"agent http://{alertmanager}"][0][1]

    eventually(look)


def test_an_agent_with_users(examine, start_agent, tmp_path):
    """Credentials of an agent go into its address, and are not shown."""
    users = {"ops": bcrypt.hashpw(b"hush", bcrypt.gensalt(4)).decode()}
    (tmp_path / "web.yml").write_text(yaml.safe_dump({"basic_auth_users": users}))
    address = start_agent([0], "--web-config-file", str(tmp_path / "web.yml"))
    code, findings = examine("--agent", f"http://{address}")
    assert code == 1
    assert "it wants credentials" in str(findings)
    code, findings = examine("--agent", f"http://ops:hush@{address}")
    assert code == 0
    assert "hush" not in str(findings)


BOARDS = {"ranks": "Ranks", "fleet": "Fleet"}


def test_dashboards(grafana):
    """Dashboards that Grafana lacks are named by title."""
    for uids, state, seen in (
        (["ranks", "fleet", "other"], State.GOOD, "has Ranks, Fleet"),
        (["ranks"], State.BROKEN, "lacks Fleet"),
    ):
        with Endpoint(grafana(*uids)) as server:
            (finding,) = check_grafana(server, BOARDS)
        assert finding.state is state
        assert finding.seen.endswith(seen)


def test_grafana_wants_a_token(examine, grafana, tmp_path):
    """Without a token nothing is known of the dashboards; with it something is."""
    url = grafana("x", token="t0ken")  # noqa: S106 - of the stand-in
    code, findings = examine("--grafana", url)
    assert code == 2
    assert "--grafana-token-file" in findings["dashboards"][0][1]
    (tmp_path / "token").write_text("t0ken\n")
    with Endpoint(url, token="t0ken") as server:  # noqa: S106
        (finding,) = check_grafana(server, BOARDS)
    assert finding.state is State.BROKEN
    _, findings = examine("--grafana", url, "--grafana-token-file", str(tmp_path / "token"))
    assert "--grafana-token-file" not in findings["dashboards"][0][1]
