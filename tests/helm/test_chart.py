"""The chart as a package: it lints, renders, validates, and is the same from its archive."""

from __future__ import annotations

import json
import re
import shutil
import tarfile

import jsonschema
import pytest
import yaml
from helm_python.chart import lint, package

import rank_exporter

# A name is cut after 40 characters: these have a dot, hyphens or a letter there, of their own or from the chart's name.
LONG_RELEASES = [
    *(f"{'a' * before}{edge}{'b' * 5}" for before in (38, 39, 40) for edge in (".", "-", "--")),
    *("a" * length for length in (25, 26, 39, 40, 53)),
    f"{'a' * 25}-rank-exporter.prod",
    "rank-exporter-for-large-language-models.prod.eu",
    "ml.team-a.prod",
]
OBJECT_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
GRAFANA = {"title": "Ranks {{ $labels }} <é> &", "uid": "ranks", "templating": {"list": []}}


def test_ci_values_are_there(chart_path):
    """There is a file of values for every way to install that the README tells of."""
    assert len(list((chart_path / "ci").glob("*-values.yaml"))) >= 5


def test_lint_is_clean(chart_path, ci_values):
    """`helm lint --strict` finds nothing worse than that the chart has no icon."""
    report = lint(chart_path, ci_values, strict=True, namespace="monitoring")
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_every_object_is_valid(render, validate, ci_values):
    """What is rendered fits the schemas of Kubernetes, from an old to the newest version, and of the operator."""
    for document in render(ci_values):
        validate(document)


def test_every_object_is_labelled_and_named(render, ci_values):
    """Objects carry the chart's labels and names of their own, and stand in a namespace that is meant."""
    objects = render(ci_values)
    assert len({(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in objects}) == len(
        objects
    )
    for document in objects:
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "rx"
        assert labels["helm.sh/chart"] == f"rank-exporter-{rank_exporter.__version__}"
        assert document["metadata"]["namespace"] in {"monitoring", "team-a", "team-b", "grafana"}


@pytest.mark.parametrize("override", ["", "nameOverride", "fullnameOverride"])
@pytest.mark.parametrize("release", LONG_RELEASES)
def test_names_are_valid_wherever_they_are_cut(render, chart_path, release, override):
    """Any name that Helm takes for a release gives objects names of their own, and labels, that Kubernetes takes."""
    values = yaml.safe_load((chart_path / "ci/secured-values.yaml").read_text())
    # What renders the rules takes longest, and has no name that others have not.
    off = {"prometheusRule": {"enabled": False}, "alertmanagerConfig": {"enabled": False}}
    own = {override: release.replace(".", "-")} if override else {}
    objects = render({**values, **off, **own}, release=release)
    assert {"PodMonitor", "ConfigMap", "NetworkPolicy", "Secret"} == {one["kind"] for one in objects}
    assert len({(one["kind"], one["metadata"]["name"]) for one in objects}) == len(objects)
    for document in objects:
        assert re.fullmatch(OBJECT_NAME, document["metadata"]["name"])
        for value in document["metadata"]["labels"].values():
            assert re.fullmatch(LABEL_VALUE, value)


def test_a_version_with_build_metadata_is_a_valid_label(render, chart_path, tmp_path):
    """A plus, which labels do not take, becomes an underscore, and a long one is cut where a label may end."""
    copy = shutil.copytree(chart_path, tmp_path / "chart")
    version = f"{rank_exporter.__version__}+{'a' * 42}.{'b' * 20}"
    metadata = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**metadata, "version": version, "appVersion": version}))
    for document in render(chart=copy):
        labels = document["metadata"]["labels"]
        assert labels["helm.sh/chart"].startswith(f"rank-exporter-{rank_exporter.__version__}_a")
        assert labels["app.kubernetes.io/version"].startswith(f"{rank_exporter.__version__}_a")
        assert all(re.fullmatch(LABEL_VALUE, value) for value in labels.values())


def test_a_package_renders_the_same(render, ci_values, chart_path, tmp_path):
    """The archive holds all that the templates read, so that it renders what the folder renders."""
    archive = package(chart_path, destination=tmp_path)
    assert render(ci_values, chart=archive) == render(ci_values)


def test_the_package_holds_files_only(chart_path, tmp_path):
    """Links become files in the archive, and what only the project needs is left out."""
    archive = package(chart_path, destination=tmp_path)
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        assert all(member.isfile() for member in members)
        names = {member.name.removeprefix("rank-exporter/") for member in members}
        rule = tar.extractfile("rank-exporter/rules/alerts/stragglers.yaml").read()
    assert rule == (chart_path.parents[1] / "rules/alerts/stragglers.yaml").read_bytes()
    assert {"values.schema.json", "README.md", "templates/NOTES.txt"} <= names
    assert not [name for name in names if name.startswith(("ci/", "rules/runbooks/"))]


def test_versions_agree(chart_path):
    """The chart is of the version of the package."""
    metadata = yaml.safe_load((chart_path / "Chart.yaml").read_text())
    assert metadata["appVersion"] == metadata["version"] == rank_exporter.__version__


@pytest.fixture
def chart_with_dashboards(chart_path, tmp_path):
    """Makes a copy of the chart that holds some dashboards."""

    def make(count):
        copy = tmp_path / f"with-{count}"
        shutil.copytree(chart_path, copy)
        shutil.rmtree(copy / "dashboards")
        (copy / "dashboards").mkdir()
        for number in range(count):
            text = json.dumps({**GRAFANA, "uid": f"ranks-{number}"}, indent=2, ensure_ascii=number > 0) + "\n"
            (copy / "dashboards" / f"Rank_Board-{number}.json").write_text(text, encoding="utf-8")
        return copy

    return make


@pytest.mark.parametrize("count", [0, 1, 3])
def test_dashboards_are_rendered_byte_for_byte(render, find, validate, chart_with_dashboards, count):
    """Each dashboard becomes a ConfigMap for the sidecar, whatever braces and letters it holds."""
    chart = chart_with_dashboards(count)
    maps = find(render(chart=chart), "ConfigMap")
    assert [one["metadata"]["name"] for one in maps] == [f"rx-rank-exporter-rank-board-{n}" for n in range(count)]
    for number, one in enumerate(maps):
        validate(one)
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        name = f"Rank_Board-{number}.json"
        assert one["data"] == {name: (chart / "dashboards" / name).read_text(encoding="utf-8")}


def test_shipped_dashboards_are_rendered_byte_for_byte(render, find, chart_path):
    """The dashboards of the project are in the chart, all of them and as they are."""
    shipped = sorted((chart_path.parents[1] / "grafana" / "dashboards").glob("*.json"))
    rendered = {name: text for one in find(render(), "ConfigMap") for name, text in one["data"].items()}
    assert rendered == {path.name: path.read_text(encoding="utf-8") for path in shipped}


def test_readme_lists_every_value(chart_path):
    """The README's table has a line for each value, with its default where that is short."""
    text = (chart_path / "README.md").read_text()
    values = yaml.safe_load((chart_path / "values.yaml").read_text())
    free = {"operatorLabels", "commonLabels", "training.podSelector", "networkPolicy.from", "dashboards.labels"}
    paths = []
    for key, value in values.items():
        inner = value if isinstance(value, dict) and value and key not in free else None
        paths += [f"{key}.{name}" for name in inner] if inner else [key]
    listed = [line.split("`")[1] for line in text.split("## Values")[1].splitlines() if line.startswith("| `")]
    assert listed == paths


def test_the_schema_is_one(chart_path):
    """values.schema.json is a valid JSON schema, which knows every value and closes every object that it describes."""
    schema = json.loads((chart_path / "values.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    values = yaml.safe_load((chart_path / "values.yaml").read_text())
    jsonschema.validate(values, schema, cls=jsonschema.Draft202012Validator)
    assert set(schema["properties"]) == {*values, "global"}
    for key, value in values.items():
        if isinstance(value, dict) and "properties" in schema["properties"][key]:
            assert set(schema["properties"][key]["properties"]) == set(value), key

    open_objects = [
        path
        for path, node in _nodes(schema, "")
        if "properties" in node and node.get("additionalProperties") is not False
    ]
    assert open_objects == []


def _nodes(node, path):
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield path, node
        for key, child in node.items():
            yield from _nodes(child, f"{path}/{key}")
