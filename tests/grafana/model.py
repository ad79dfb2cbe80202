"""Whether a dashboard is what Grafana's own model of dashboards allows, in each version that is to import it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from .boards import Json

__all__ = ["MAJORS", "faults"]

MAJORS = (10, 11, 12)

# Grafana drops what it does not know, so an older or newer one is held to what it knows. The one that the generating
# library is of must know everything: a misspelt field is a fault.
_CLOSED = 11

_OF_THE_DATASOURCE = ("expr", "step", "titleFormat", "textFormat", "tagKeys", "useValueForTime")
"""Fields of an annotation that belong to Prometheus' plugin; Grafana's model of annotations is of its own store."""


@cache
def _schemas(major: int) -> dict[str, Any]:
    schemas = json.loads((Path(__file__).parent / "schema" / f"grafana-{major}.json").read_text(encoding="utf-8"))
    del schemas["$comment"]
    return schemas if major == _CLOSED else _opened(schemas)


def _opened(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _opened(value)
            for key, value in schema.items()
            if not (key == "additionalProperties" and value is False)
        }
    return [_opened(each) for each in schema] if isinstance(schema, list) else schema


@cache
def _validator(major: int, part: str) -> jsonschema.protocols.Validator:
    schema = _schemas(major)[part]
    if part.endswith("Custom"):
        # A field has the settings that the plugin gives it, but for those that the panel changes.
        schema = {key: value for key, value in schema.items() if key != "required"}
    return jsonschema.validators.validator_for(schema)(schema)


def _messages(major: int, part: str, value: object, where: str) -> Iterator[str]:
    for error in _validator(major, part).iter_errors(value):
        yield f"{where} {error.json_path}: {error.message[:200]}"


def faults(board: Json, major: int) -> list[str]:
    """What Grafana ``major`` would not understand: of the dashboard, and of each panel's options and settings."""
    bare = copy.deepcopy(board)
    for annotation in bare["annotations"]["list"]:
        for field in _OF_THE_DATASOURCE:
            annotation.pop(field, None)
    found = list(_messages(major, "dashboard", bare, board["uid"]))
    for panel in board["panels"]:
        where = f"{board['uid']}: {panel['title']}"
        kind = panel["type"]
        found += _messages(major, f"{kind}Options", panel["options"], f"{where} options")
        if kind != "stat":
            custom = panel["fieldConfig"]["defaults"].get("custom", {})
            found += _messages(major, f"{kind}Custom", custom, f"{where} custom")
            for override in panel["fieldConfig"]["overrides"]:
                set_ = {one["id"]: one["value"] for one in override["properties"]}
                own = {key.removeprefix("custom."): value for key, value in set_.items() if key.startswith("custom.")}
                found += _messages(major, f"{kind}Custom", own, f"{where} override {override['matcher']['options']}")
    return found
