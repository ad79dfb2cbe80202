"""Kubernetes objects, as `kubectl get … -o json` or YAML files have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ..errors import SourceError

__all__ = ["Resource", "described", "matches", "of_kind", "read_resources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One object."""

    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def read_resources(texts: Mapping[str, str]) -> list[Resource]:
    """The objects in files, given as name and text; lists are taken apart. Raises SourceError."""
    found: list[Resource] = []
    for name, text in texts.items():
        try:
            documents = list(yaml.load_all(text, Loader=_Loader))
            found += [_resource(one) for document in documents if document for one in _items(document)]
        except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"{name} holds no Kubernetes objects: give YAML, or the output of kubectl") from error
    return found


class _Loader(yaml.SafeLoader):
    """Reads a bare = as a string, which matchers of alerts contain."""


def _scalar(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:value", _scalar)


def _items(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if document["kind"].endswith("List"):
        yield from document["items"]
    else:
        yield document


def _resource(document: dict[str, Any]) -> Resource:
    metadata = document["metadata"]
    return Resource(
        kind=document["kind"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        spec=document.get("spec") or {},
    )


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects labels; an empty one selects all. Raises SourceError for an unknown operator."""
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_holds(one, labels) for one in selector.get("matchExpressions") or [])


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    operator = expression["operator"]
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    raise SourceError(f"a label selector has the operator {operator!r}: it is none of Kubernetes")


def described(selector: Mapping[str, Any]) -> str:
    """A selector as a person reads it."""
    exact = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    return ", ".join(exact + [_expression(one) for one in selector.get("matchExpressions") or []]) or "everything"


def _expression(one: Mapping[str, Any]) -> str:
    return " ".join([one["key"], one["operator"], *map(str, one.get("values") or [])])


def of_kind(resources: Iterable[Resource], kind: str) -> list[Resource]:
    return [one for one in resources if one.kind == kind]
