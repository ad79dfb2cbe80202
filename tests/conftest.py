"""The order of the tests: those that take long begin first, so that workers end together; and what servers spend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_LONGEST_FIRST = ("e2e", "align", "integrations", "torch", "reconcile", "agent", "doctor", "rules", "helm")

# promtool, Prometheus and their like: of the short lives that they lead here, a quarter is garbage collection.
os.environ.setdefault("GOGC", "400")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by directory, stably."""

    def place(item: pytest.Item) -> int:
        part = item.path.relative_to(Path(__file__).parent).parts[0]
        return _LONGEST_FIRST.index(part) if part in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=place)
