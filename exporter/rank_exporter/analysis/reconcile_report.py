"""A reconciliation as a person reads it and as a program does. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .reconciliation import EpochBalance, Finding, Reconciliation

__all__ = ["as_json", "as_text", "verdict"]

_SHOWN_RANKS: Final = 16


def verdict(result: Reconciliation) -> str:
    """The outcome in one line."""
    epochs = [str(balance.epoch) for balance in result.epochs if balance.judged]
    of = f"epoch {epochs[0]}" if len(epochs) == 1 else f"{len(epochs)} epochs"
    if result.clean is None:
        return f"could not tell: {result.unknown[0]}"
    if result.clean:
        samples = sum(balance.samples - balance.padded for balance in result.epochs if balance.judged)
        return f"clean: {of}, {samples} samples"
    kinds = ", ".join(dict.fromkeys(finding.kind for finding in result.findings))
    return f"differs: {len(result.findings)} findings ({kinds})"


def as_json(result: Reconciliation) -> dict[str, Any]:
    """One JSON object, digests as 16 hexadecimal digits, identifiers in full."""
    found = asdict(result)
    for epoch in found["epochs"]:
        epoch["digest"] = f"{epoch['digest']:016x}"
    return {"verdict": verdict(result), **found}


def as_text(result: Reconciliation, *, shown: int) -> RenderableType:
    """A table for each epoch, then what is not as it should be, with ``shown`` identifiers each at most."""
    parts: list[RenderableType] = []
    for balance in result.epochs:
        parts += [_table(balance), Text()]
    parts += [line for finding in result.findings for line in _finding(finding, shown)]
    parts += [Text(f"not known: {line}") for line in result.unknown]
    parts.append(Text(f"{result.run or 'run'}: {verdict(result)}", style="bold"))
    return Group(*parts)


def _table(balance: EpochBalance) -> Table:
    state = "complete" if balance.complete else "not complete" if balance.judged else "not complete, not judged"
    title = f"epoch {balance.epoch}, {state}: {balance.samples} samples, {balance.padded} padded, "
    table = Table(title=title + f"digest {balance.digest:016x}", title_justify="left")
    for name in ("rank", "host", "processes", "samples", "padded", "duplicates"):
        table.add_column(name, justify="left" if name == "host" else "right")
    table.add_column("read to the end")
    for rank in balance.ranks[:_SHOWN_RANKS]:
        table.add_row(
            str(rank.rank),
            " ".join(rank.hosts),
            str(rank.processes),
            str(rank.samples),
            str(rank.padded),
            "?" if rank.duplicates is None else str(rank.duplicates),
            "yes" if rank.complete else "no",
        )
    if len(balance.ranks) > _SHOWN_RANKS:
        table.add_row("…", f"and {len(balance.ranks) - _SHOWN_RANKS} more")
    return table


def _finding(finding: Finding, shown: int) -> Iterator[Text]:
    yield Text(f"{finding.kind}: {finding.text}", style="red")
    if finding.ids and shown:
        more = f" … {len(finding.ids) - shown} more" if len(finding.ids) > shown else ""
        yield Text(f"    {', '.join(map(str, finding.ids[:shown]))}{more}")
