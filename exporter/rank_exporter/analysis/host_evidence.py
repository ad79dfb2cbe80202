"""What the host of a late rank says for itself: CPUs that it may use, and how hard they are fought for. Pure."""

from __future__ import annotations

from statistics import median

from .comparison import Comparison
from .profile import RankProfile, RunProfile

__all__ = ["host_evidence"]

_FEWER = 0.5
_PRESSED = 0.2


def host_evidence(profile: RunProfile, comparison: Comparison, rank: RankProfile) -> list[str]:
    """A line for each thing that sets the rank, or its host, apart from the others."""
    found = []
    for process, own in sorted(rank.cpus_allowed.items()):
        others = [
            one.cpus_allowed[process] for one in comparison.ranks if process in one.cpus_allowed and one is not rank
        ]
        if others and own <= _FEWER * median(others):
            who = "its loader workers" if process == "workers" else "its process"
            found.append(f"{who} may use {own:g} CPUs, those of other ranks {median(others):g}")
    pressed = profile.pressure.get(rank.host)
    others = [share for host, share in profile.pressure.items() if host != rank.host]
    if pressed is not None and pressed >= _PRESSED and pressed >= 2 * median(others or [0.0]):
        found.append(f"on host {rank.host} some task had no CPU {pressed:.0%} of the time")
    return found
