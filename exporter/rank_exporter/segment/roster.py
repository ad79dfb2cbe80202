"""Small files in the segment directory by which ranks and agent tell each other where agents are.

``agent.json`` is the agent's: where it listens. ``<segment>.peers`` is rank 0's: in which processes its run goes on and
at which address the agent of each can be asked. Both are replaced whole.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import SegmentError
from .layout import SUFFIX

__all__ = ["AgentAddress", "Roster", "agent_file", "roster_file", "rosters"]

_PEERS_SUFFIX: Final = ".peers"
_LARGEST_BYTES: Final = 64 << 20
_LONGEST_TARGET: Final = 300


def agent_file(directory: Path) -> Path:
    """Where the directory's agent tells its address."""
    return directory / "agent.json"


def roster_file(segment: Path) -> Path:
    """Where the rank with this segment, rank 0 of its run, lists its peers."""
    return segment.with_suffix(_PEERS_SUFFIX)


def _write(path: Path, content: dict[str, Any]) -> None:
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        text = file.read(_LARGEST_BYTES + 1)
    if len(text) > _LARGEST_BYTES:
        raise ValueError("it is larger than 64 MiB")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("it is no JSON object")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAddress:
    """Where an agent listens. ``address`` as it was set, "" for every interface; ``name``: its host."""

    address: str
    port: int
    name: str

    def write(self, directory: Path) -> None:
        """Raises OSError."""
        _write(agent_file(directory), {"address": self.address, "port": self.port, "name": self.name})

    @classmethod
    def read(cls, directory: Path) -> AgentAddress | None:
        """The address of the directory's agent; None if it has told none."""
        try:
            found = _read(agent_file(directory))
            return cls(address=str(found["address"]), port=int(found["port"]), name=str(found["name"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The ranks of one process group. ``targets``: ADDRESS:PORT of each rank's agent, by rank; "" where it has none."""

    run: str
    generation: int
    world_size: int
    targets: dict[int, str]

    def write(self, path: Path) -> None:
        """Raises OSError."""
        targets = {str(rank): target for rank, target in self.targets.items()}
        about = {"run": self.run, "generation": self.generation, "world_size": self.world_size}
        _write(path, {**about, "targets": targets})

    @classmethod
    def read(cls, path: Path) -> Roster:
        """Raises SegmentError if the file is none, and FileNotFoundError if there is none."""
        try:
            found = _read(path)
            world_size = int(found["world_size"])
            targets = {int(rank): str(target)[:_LONGEST_TARGET] for rank, target in found["targets"].items()}
            if not all(0 <= rank < world_size for rank in targets):
                raise ValueError(f"ranks beyond a world of {world_size}")
            return cls(
                run=str(found["run"]), generation=int(found["generation"]), world_size=world_size, targets=targets
            )
        except FileNotFoundError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise SegmentError(f"peer list {path} cannot be read ({error}): remove it") from error


def rosters(directory: Path) -> list[tuple[Path, Path]]:
    """The peer lists in the directory, each with the segment whose rank wrote it. Lists of segments that are gone are
    removed."""
    found = []
    for path in sorted(directory.glob(f"*{_PEERS_SUFFIX}")):
        segment = path.with_suffix(SUFFIX)
        if segment.exists():
            found.append((path, segment))
        else:
            path.unlink(missing_ok=True)
    return found
