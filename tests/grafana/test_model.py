"""Every dashboard is one that Grafana 10, 11 and 12 import, by their own model."""

from __future__ import annotations

import pytest

from .boards import Board, shipped
from .model import MAJORS, faults

BOARDS = shipped()


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_model(board: Board, major: int) -> None:
    """Types, names and values of every field are those of @grafana/schema."""
    assert faults(board.json, major) == []


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_classic(board: Board) -> None:
    """A dashboard is of the classic kind and of a version that Grafana 10 knows; later ones migrate from it."""
    assert board.json["schemaVersion"] <= 38
    assert not {"apiVersion", "kind", "spec"} & set(board.json)
