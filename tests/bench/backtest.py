"""The rule pack against simulated runs of known truth, on a real Prometheus: ``make backtest``.

Each cell is simulated, written into a Prometheus of its own with the times at which its agents would have been scraped,
and the shipped rules are evaluated over it. The table says what fired, whether it named the right rank, host, phase and
shard, how long after the onset, and what was false; beside it the skew rule as it is usually stated. Notifications are
counted, pages + others, as Alertmanager would send them with the shipped configuration, by a reading of it
(tests/simulation/notifications.py). Shards stand in annotations, which are read from promtool's run of the same cells
where the table says so. Exit status 1 if any cell is not as wanted.

    make backtest ARGS="--quick"
    make backtest ARGS="--only rotating --only 'N=8, 10 s'"
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from rank_exporter import rulepack

from .backtest_cells import CELLS, Cell
from .backtest_cost import evaluation_cost
from .backtest_judge import Outcome, judge

_SHORTEST_SECONDS = 2160.0
"""A healthy cell is not cut shorter: the longer window has to be filled."""
SCENARIOS = frozenset(cell.scenario for cell in CELLS)
_HEAD = ("cell", "job-hours", "alert", "named", "after", "false/day", "notified", "also fired", "naive rule", "verdict")


def main() -> int:
    parser = argparse.ArgumentParser(prog="backtest", description="Judge the rule pack on simulated runs.")
    parser.add_argument("--only", action="append", help="a scenario, or a part of cells' names; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few cells of each kind")
    parser.add_argument("--hours", type=float, default=1.0, help="identical ranks for so many times their hours (1)")
    parser.add_argument("--jobs", type=int, default=2, help="cells that run at once (2)")
    parser.add_argument("--cost", type=int, default=1024, help="ranks to time one evaluation with; 0: do not (1024)")
    parser.add_argument("--rules", type=Path, help="a rule file instead of the shipped pack")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    pack = options.rules.read_text(encoding="utf-8") if options.rules else rulepack.render()
    chosen = [_for_hours(cell, options.hours) for cell in CELLS if _is_chosen(cell, options.only, options.quick)]
    if not chosen and options.only:
        parser.error(f"no cell is called {' or '.join(options.only)}")
    outcomes, crashed = _run(chosen, pack, options.jobs)
    text = "\n".join(_tables(outcomes, crashed))
    if options.cost and not options.only and not options.quick:
        text += "\n" + evaluation_cost(options.cost, pack)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 1 if crashed or any(outcome.faults for outcome in outcomes) else 0


def _is_chosen(cell: Cell, only: Sequence[str] | None, quick: bool) -> bool:
    if quick and not cell.quick:
        return False
    return not only or any(text == cell.scenario if text in SCENARIOS else text in cell.name for text in only)


def _for_hours(cell: Cell, factor: float) -> Cell:
    """Identical ranks for longer or shorter; what begins at a time stays as it is."""
    if "identical" not in (cell.scenario, *cell.name.split(", ")):
        return cell
    return replace(cell, seconds=max(cell.seconds * factor, min(cell.seconds, _SHORTEST_SECONDS)))


def _run(cells: Sequence[Cell], pack: str, jobs: int) -> tuple[list[Outcome], dict[str, str]]:
    """Judge all cells, the longest first, and say on stderr how far it is."""
    outcomes: list[Outcome] = []
    crashed: dict[str, str] = {}
    order = sorted(cells, key=lambda cell: -max(run.ranks for run in cell.runs) * cell.seconds / cell.interval)
    began = time.monotonic()
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        waiting = {pool.submit(judge, cell, pack): cell for cell in order}
        for number, future in enumerate(as_completed(waiting), start=1):
            cell = waiting[future]
            try:
                outcome = future.result()
            except Exception as error:  # noqa: BLE001 - the other cells still count
                traceback.print_exception(error)
                crashed[f"{cell.scenario}: {cell.name}"] = repr(error)
                continue
            outcomes.append(outcome)
            verdict = "; ".join(outcome.faults) or "ok"
            print(
                f"[{number}/{len(cells)} {time.monotonic() - began:.0f} s] {cell.scenario}: {cell.name}: {verdict}"
                f" ({outcome.took:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    places = {(cell.scenario, cell.name): place for place, cell in enumerate(CELLS)}
    outcomes.sort(key=lambda outcome: places[outcome.cell.scenario, outcome.cell.name])
    return outcomes, crashed


def _tables(outcomes: Sequence[Outcome], crashed: dict[str, str]) -> Iterator[str]:
    by_scenario: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_scenario[outcome.cell.scenario].append(outcome)
    for scenario, own in by_scenario.items():
        hours = sum(outcome.cell.job_hours for outcome in own)
        pages = sum(outcome.false_pages for outcome in own)
        others = sum(outcome.false_others for outcome in own)
        yield f"\n### {scenario}\n"
        yield f"{len(own)} cells, {hours:.0f} job-hours: {pages} false pages and {others} false warnings name a rank.\n"
        yield f"| {' | '.join(_HEAD)} |"
        yield "|" + "---|" * len(_HEAD)
        for outcome in own:
            yield f"| {' | '.join(_row(outcome))} |"
    failed = sum(1 for outcome in outcomes if outcome.faults)
    yield f"\n{len(outcomes) - failed} of {len(outcomes) + len(crashed)} cells are as wanted."
    for name, error in crashed.items():
        yield f"- {name}: {error}"


def _row(outcome: Outcome) -> Iterator[str]:
    cell = outcome.cell
    yield cell.name
    yield f"{cell.job_hours:.1f}"
    yield outcome.alert or "-"
    yield outcome.named or "-"
    yield "-" if outcome.latency is None else f"{outcome.latency / 60:.1f} min"
    yield f"{outcome.false_pages / (cell.seconds / 86400):.1f}"
    yield f"{outcome.pages}+{outcome.warnings}"
    yield outcome.also or "-"
    yield outcome.naive
    yield "; ".join(outcome.faults) or "ok"


if __name__ == "__main__":
    sys.exit(main())
