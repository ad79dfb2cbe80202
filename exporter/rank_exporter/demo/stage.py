"""A demo from the rise of the curtain to its fall: everything started, watched until the scenario has played, ended."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..analysis.diagnose import diagnose
from ..analysis.load import load_agent
from ..analysis.observation import judge
from ..analysis.profile import RunProfile
from ..analysis.run_load import Sources, load_run
from ..analysis.verdict import Verdict
from ..errors import SourceError
from . import training
from .failure import DemoError
from .interruption import Interruption
from .processes import Processes
from .progress import Progress
from .scenario import BALANCED_SECONDS, SETTLING_SECONDS, Plan, shortfalls
from .servers import Alertmanager, Binaries, Prometheus
from .webhook import Alert, Webhook

__all__ = ["Outcome", "Stage", "play", "set_up"]

_READY_SECONDS = 30.0
_FIRST_STEP_SECONDS = 75.0
_PAGE_SECONDS = 100.0
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a demo. ``page_latency_seconds``: from the straggler's first step to its page's arrival; None
    without one. ``shortfalls``: what the scenario expects and did not get."""

    plan: Plan
    profile: RunProfile
    verdict: Verdict
    alerts: tuple[Alert, ...]
    page_latency_seconds: float | None
    shortfalls: tuple[str, ...]


class Stage:
    """What a demo runs on. Everything it waits for can be interrupted."""

    def __init__(
        self,
        plan: Plan,
        *,
        directory: Path,
        processes: Processes,
        webhook: Webhook,
        prometheus: Prometheus,
        alertmanager: Alertmanager,
        interruption: Interruption,
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.processes = processes
        self.webhook = webhook
        self.prometheus = prometheus
        self.alertmanager = alertmanager
        self._interruption = interruption

    def until(self, happened: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Wait for something. Raises DemoError if it takes longer, or if a process ends meanwhile."""
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{what} took more than {seconds:.0f} s; is this machine busy with something else? "
                    f"{self.processes.last_words()}"
                )
            self.pause(_POLL_SECONDS)

    def pause(self, seconds: float) -> None:
        """Wait so long. Raises DemoError if a process has ended by itself, Interrupted on a signal."""
        self._interruption.wait(seconds)
        self.processes.check()

    def hold(self) -> None:
        """Wait for a signal, which then raises Interrupted."""
        while True:
            self.pause(1.0)

    def profile(self) -> RunProfile | None:
        """What the agent serves of the run now; None before all ranks are there."""
        url = training.agent_url(self.directory)
        if url is None:
            return None
        try:
            profile = load_agent(url, run=self.plan.run)
        except SourceError:
            return None
        return profile if len(profile.ranks) == self.plan.ranks else None


@contextmanager
def set_up(plan: Plan, binaries: Binaries, progress: Progress, interruption: Interruption) -> Iterator[Stage]:
    """Start the servers and the training; on leaving, end them and remove every file."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="rank-exporter-demo-"))
        stack.callback(shutil.rmtree, directory)
        (directory / "file_sd").mkdir()
        webhook = stack.enter_context(Webhook())
        alertmanager = stack.enter_context(closing(Alertmanager()))
        prometheus = stack.enter_context(closing(Prometheus()))
        processes = stack.enter_context(Processes(directory))
        stack.callback(progress.say, "Ending training and servers")
        stage = Stage(
            plan,
            directory=directory,
            processes=processes,
            webhook=webhook,
            prometheus=prometheus,
            alertmanager=alertmanager,
            interruption=interruption,
        )
        progress.say("Starting Prometheus, Alertmanager and a webhook that receives the pages")
        alertmanager.start(binaries.alertmanager, processes, directory, webhook=webhook.url)
        prometheus.start(
            binaries.prometheus,
            processes,
            directory,
            file_sd=directory / "file_sd",
            alertmanager=alertmanager.url,
        )
        ready = lambda: alertmanager.is_ready() and prometheus.is_ready()  # noqa: E731
        stage.until(ready, seconds=_READY_SECONDS, what="the start of Prometheus and Alertmanager")
        progress.say(f"Starting {plan.ranks} training ranks with torchrun: gloo on CPU, run {plan.run}")
        training.start(plan, processes, directory)
        yield stage


def play(stage: Stage, progress: Progress) -> Outcome:
    """Watch until the scenario has played. Raises DemoError if something ends early, Interrupted on a signal."""
    stage.until(lambda: _is_stepping(stage), seconds=_FIRST_STEP_SECONDS, what="the first training step")
    balanced = stage.plan.scenario.alert is None
    end = time.monotonic() + (BALANCED_SECONDS if balanced else _PAGE_SECONDS)
    progress.say(
        f"Training: watching {BALANCED_SECONDS:.0f} s for pages that should not come"
        if balanced
        else f"Training: rank {stage.plan.straggler_rank} is slow, waiting for the page"
    )
    look, page = 0.0, None
    while (now := time.monotonic()) < end:
        stage.pause(_POLL_SECONDS)
        if page is None and (page := _page(stage)):
            end = now + SETTLING_SECONDS
            progress.say(f"Paged: {page.name}; watching {SETTLING_SECONDS:.0f} s more for others")
        if now >= look:
            progress.status(_status(stage))
            look = now + _LOOK_SECONDS
    return _outcome(stage, page)


def _is_stepping(stage: Stage) -> bool:
    profile = stage.profile()
    return profile is not None and all(rank.steps for rank in profile.ranks)


def _page(stage: Stage) -> Alert | None:
    """The page that the scenario is about, once it has come."""
    return next((alert for alert in stage.webhook.alerts() if alert.name == stage.plan.scenario.alert), None)


def _status(stage: Stage) -> str:
    profile = stage.profile()
    steps = max((rank.steps for rank in profile.ranks), default=0) if profile else 0
    try:
        alerts = [_told(alert["labels"], alert["state"]) for alert in stage.prometheus.alerts()]
    except SourceError:
        return f"{steps} steps; Prometheus is slow to answer"
    return f"{steps} steps; {', '.join(alerts) or 'no alert'}"


def _told(labels: Mapping[str, str], state: str) -> str:
    """An alert of Prometheus; not every one names a rank."""
    rank = labels.get("rank")
    return f"{labels['alertname']} {state}" + (f" for rank {rank}" if rank else "")


def _verdict(stage: Stage, profile: RunProfile) -> Verdict:
    """From step records, as ``rank-exporter diagnose`` has it; from the totals where the agent has just lost them."""
    url = training.agent_url(stage.directory)
    try:
        observation, _ = load_run(Sources(agents=(url,) if url else (), run=stage.plan.run))
    except SourceError:
        return diagnose(profile)
    return judge(observation).verdict


def _outcome(stage: Stage, page: Alert | None) -> Outcome:
    stage.until(lambda: stage.profile() is not None, seconds=_LOOK_SECONDS * 5, what="the agent's answer")
    profile = stage.profile()
    if profile is None:
        raise DemoError("the agent answers now and then only: is this machine busy with something else?")
    verdict = _verdict(stage, profile)
    alerts = stage.webhook.alerts()
    labels = [alert.labels for alert in alerts]
    firing = [dict(alert["labels"]) for alert in stage.prometheus.alerts() if alert["state"] == "firing"]
    began = profile.ranks[stage.plan.straggler_rank].began
    return Outcome(
        plan=stage.plan,
        profile=profile,
        verdict=verdict,
        alerts=alerts,
        page_latency_seconds=None if page is None or began is None else page.received_at - began,
        shortfalls=shortfalls(stage.plan, verdict, labels + [fire for fire in firing if fire not in labels]),
    )
