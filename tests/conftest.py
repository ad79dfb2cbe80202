"""The order of the tests: those that take long begin first, so that workers end together."""

from __future__ import annotations

from pathlib import Path

import pytest

_LONGEST_FIRST = ("e2e", "align", "integrations", "torch", "reconcile", "agent", "doctor", "rules", "helm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by directory, stably."""

    def place(item: pytest.Item) -> int:
        part = item.path.relative_to(Path(__file__).parent).parts[0]
        return _LONGEST_FIRST.index(part) if part in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=place)
