"""The chart, through the real Helm engine, and what its objects have to look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_python.chart import Chart

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "rank-exporter"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in Path(__file__).with_name("schemas").glob("*.json")}
KUBERNETES = ("1.25", "1.29", "1.33", "1.37")

Objects = list[dict[str, Any]]


def objects_of(manifests: dict[str, str]) -> Objects:
    """The objects of rendered manifests; notes are none."""
    return [
        document
        for name, text in sorted(manifests.items())
        if not name.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
        if document
    ]


def validate_object(document: dict[str, Any], *, versions: Sequence[str] = KUBERNETES) -> None:
    """Raises if an object is not what Kubernetes, or our schema of a custom resource, asks for."""
    kind = document["kind"].lower()
    if kind in SCHEMAS:
        jsonschema.validate(document, SCHEMAS[kind], cls=jsonschema.Draft202012Validator)
        return
    for version in versions:
        kubernetes_validate.validate(document, version, strict=True)


def find(objects: Objects, kind: str) -> Objects:
    return [document for document in objects if document["kind"] == kind]


@pytest.fixture
def chart_path() -> Path:
    return CHART


@pytest.fixture
def render() -> Callable[..., Objects]:
    """Renders the chart with values in namespace `monitoring`, as release `rx` unless another name is given."""

    def render(values: dict[str, Any] | None = None, *, chart: Path = CHART, release: str = "rx") -> Objects:
        return objects_of(_manifests(chart, values or {}, release))

    return render


@pytest.fixture
def notes() -> Callable[..., str]:
    """The notes that the chart prints after an installation with values."""
    return lambda values=None: _manifests(CHART, values or {})["rank-exporter/templates/NOTES.txt"]


def _manifests(chart: Path, values: dict[str, Any], release: str = "rx") -> dict[str, str]:
    with Chart.load(chart) as loaded:
        return loaded.render(values, name=release, namespace="monitoring")


@pytest.fixture(name="find")
def find_fixture() -> Callable[..., Objects]:
    return find


@pytest.fixture
def validate() -> Callable[..., None]:
    return validate_object


@pytest.fixture(params=CI_VALUES, ids=[path.stem for path in CI_VALUES])
def ci_values(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each file of ci/ in turn."""
    return yaml.safe_load(request.param.read_text()) or {}
