"""Every dashboard keeps to every rule."""

from __future__ import annotations

from itertools import combinations

import pytest

from . import house  # noqa: F401  its rules enter themselves
from .boards import Board, shipped
from .colour_vision import VISIONS, difference
from .house import COLOURS
from .rules import EXCEPTIONS, RULES

BOARDS = shipped()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_rule(board: Board, name: str) -> None:
    """The rule finds nothing."""
    assert list(RULES[name](board)) == []


def test_there_are_four_dashboards() -> None:
    """Their names are what others link to, and do not change."""
    assert set(BOARDS) == {
        "rank-exporter-fleet",
        "rank-exporter-hosts-shards",
        "rank-exporter-rank",
        "rank-exporter-stragglers",
    }


def test_exceptions_have_reasons() -> None:
    """A rule of the public linter that is left out has a reason, and is really left out."""
    for name, reason in EXCEPTIONS.items():
        assert len(reason) > 20 or reason in {f"as {other}" for other in EXCEPTIONS}
        assert name.removesuffix("-rule").replace("-", "_") not in RULES


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_differ_to_every_eye(vision: str) -> None:
    """No two colours of the palette look alike, whichever cones an eye lacks."""
    for one, other in combinations(sorted(COLOURS - {"text"}), 2):
        assert difference(one, other, vision) > 10, (one, other)
