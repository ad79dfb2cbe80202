"""The public face in a training process: start, and the Exporter that it returns."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import config
from ..config import AgentSettings, Settings
from ..errors import SegmentError, SettingError
from ..identity import Identity
from ..phases import Phase
from ..segment.discovery import prepare
from ..segment.request import ProfileRequest
from ..segment.writer import SegmentWriter
from . import loop
from .gc import watch_gc
from .keeper import AgentKeeper
from .peers import PeerExchange
from .processgroup import process_group_variables
from .recorder import Recorder, log
from .samplefiles import SampleFiles
from .wrappers import innermost

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

__all__ = ["Exporter", "start"]

T = TypeVar("T")

_PHASES: Final = {phase.label: phase for phase in Phase if phase not in (Phase.STEP, Phase.OTHER)}

_lock = threading.Lock()
_running: Exporter | None = None
_keepers: dict[AgentSettings, AgentKeeper] = {}


class Exporter:
    """Records the steps of this rank. Made by ``start``; use it from the training thread.

    Nothing that it meets after ``start`` and ``watch`` raises: a fault is said once through the logger
    ``rank_exporter``, counted in ``training_exporter_errors_total``, and training goes on with less. In a forked
    child, such as a DataLoader worker, every method does nothing.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        rank = settings.identity.rank
        try:
            prepare(settings.agent.directory)
            writer = SegmentWriter.create(
                settings.agent.directory, settings.identity, skew_budget_ratio=settings.skew_budget_ratio
            )
        except SegmentError as error:
            log.warning("rank %d is not recorded: %s", rank, error)
            writer = SegmentWriter.private()
        self._recorder = Recorder(writer, rank=rank, default_shard=f"{rank}/{settings.identity.world_size}")
        self._keep_accounts(settings)
        self._recorder.bucket_timing = settings.bucket_timing
        if settings.bucket_timing and "torch" in sys.modules:
            from .commhook import follow_registration  # noqa: PLC0415 - torch is loaded where it is used

            follow_registration()
        self._spans = {name: loop.Span(self._recorder.timeline, phase) for name, phase in _PHASES.items()}
        self._undo: list[Callable[[], None]] = [watch_gc(writer)]
        self._watched: list[tuple[weakref.ref[Any], Callable[[], None]]] = []
        self._keeper: AgentKeeper | None = None
        if settings.serve == "auto" and writer.path is not None:
            # One for the life of the process: its thread cannot be ended while an agent lives.
            self._keeper = _keepers.setdefault(settings.agent, AgentKeeper(settings.agent, _agent_fault))
            self._keeper.start()
        self._exchange: PeerExchange | None = None
        if settings.identity.world_size > 1 and writer.path is not None:
            self._exchange = PeerExchange(
                settings.identity, writer.path, told=writer.set_generation, fault=_peers_fault
            )
            self._exchange.start()

    def _keep_accounts(self, settings: Settings) -> None:
        accounts, recorder = self._recorder.accounts, self._recorder
        if settings.sample_ids == "off":
            accounts.identifies = False
        elif settings.sample_ids != "auto":
            accounts.identify_by(settings.sample_ids.removeprefix("key:"))
        if settings.sample_ids_dir is not None:
            accounts.files = SampleFiles(
                settings.sample_ids_dir,
                settings.identity,
                recorder.writer.started_unix_ns,
                step=lambda: recorder.steps_ended + 1,
                fault=recorder.fault,
            )

    @property
    def identity(self) -> Identity:
        """Run, rank, local rank, world size and host under which this process is recorded."""
        return self._settings.identity

    def watch(
        self,
        *,
        model: Module | None = None,
        optimizer: Optimizer | Iterable[Optimizer] | None = None,
        dataloader: Iterable[Any] | None = None,
        sample_ids: str | int | Callable[[Any], Sequence[Any]] | None = None,
        bucket_timing: bool = False,
    ) -> None:
        """Record the phases of an unchanged training loop. Needs torch.

        model: torch.nn.Module; with DistributedDataParallel the wait for collectives is told from backward, with
        fully_shard from forward and backward; of FullyShardedDataParallel forward and backward include it.
        optimizer: one or several; a step ends with the last of them. dataloader: the one that feeds training.
        Each may be as a trainer wrapped it: Accelerate's and Fabric's are timed inside their wrappers. Call it again
        for what is made later. Raises SettingError for what cannot be watched.

        Samples and tokens of the dataloader are counted, and its samples accounted for by identifier: the sampler's
        indices, or what ``sample_ids`` says: a key or place in the batch, or a function that returns the identifiers of
        a batch, which are integers, texts, bytes or tuples of them.

        bucket_timing: time each gradient bucket of the model, a DistributedDataParallel, through a communication hook
        that does what is done without one, or what the hook does that you register after this; gradients stay the same
        bit for bit. SettingError where they might not.
        """
        if sample_ids is not None:
            self._recorder.accounts.identify_by(sample_ids)
        if dataloader is not None:
            self._watch(dataloader=dataloader)
            self._recorder.feed_with(innermost(dataloader))
        self._watch(model=model, optimizer=optimizer)
        if bucket_timing:
            from .commhook import time_buckets  # noqa: PLC0415 - torch is loaded where it is used

            undo = time_buckets(innermost(model), self._recorder)
            self._watched.append((weakref.ref(innermost(model)), undo))

    def _watch(self, *, model: Any = None, optimizer: Any = None, dataloader: Any = None) -> None:
        """As watch, save that the dataloader may as well be evaluation's, which is found out."""
        from .data import watch_loader  # noqa: PLC0415 - torch is loaded where it is used
        from .model import watch_model  # noqa: PLC0415
        from .optimizer import watch_optimizer  # noqa: PLC0415

        todo: list[tuple[Any, Callable[[Any, Recorder], Callable[[], None]]]] = []
        if model is not None:
            todo.append((model, watch_model))
        if optimizer is not None:
            several = optimizer if isinstance(optimizer, (list, tuple, set)) else [optimizer]
            todo += [(one, watch_optimizer) for one in several]
        if dataloader is not None:
            todo.append((dataloader, watch_loader))
        self._watched = [(known, undo) for known, undo in self._watched if known() is not None]
        for watched, hook in todo:
            watched = innermost(watched)  # noqa: PLW2901
            if not any(known() is watched for known, _ in self._watched):
                undo = hook(watched, self._recorder)
                self._watched.append((weakref.ref(watched), undo))

    def _unwatch(self, several: list[Any]) -> None:
        """Watch some of what is watched no longer."""
        for entry in [entry for entry in self._watched if any(entry[0]() is one for one in several)]:
            self._watched.remove(entry)
            entry[1]()

    def steps(self, batches: Iterable[T], *, accumulate: int = 1) -> Iterator[T]:
        """Iterate over batches, timing each fetch; a step is ``accumulate`` batches and what is done with them.

        It ends with the last ``optimizer`` phase in it, or where there is none, as the next batch is asked for.
        Raises SettingError if accumulate is below 1.
        """
        if accumulate < 1:
            raise SettingError(f"accumulate is {accumulate}: give the number of batches per step, at least 1")
        self._recorder.moves_on_at_forward = self._recorder.moves_on_at_step = False
        return loop.steps(self._recorder.timeline, batches, accumulate, self._recorder.publish)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time what is done within: ``with exporter.phase("forward"): …``.

        name: input_ready, h2d, forward, backward, collective_wait, optimizer, first_batch, eval or checkpoint;
        what is in none of them is ``other``. Another name is counted as an error and times nothing.
        """
        span = self._spans.get(name)
        if span is None:
            self._recorder.fault("phase", f"phase {name!r} is not timed: known are {', '.join(sorted(self._spans))}")
            return nullcontext()
        return span

    def set_shard(self, shard: object) -> None:
        """Name the data shard that input is read from, from now on; None: no shard.

        Without it, a watched loader's batches are asked (``__url__`` or ``shard`` in a mapping), then its dataset
        (``dataset.shard``); else the shard is "rank/world size".
        """
        try:
            self._recorder.shard_is_given = True
            self._recorder.writer.set_shard(shard)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("shard", error)

    def count(self, *, samples: int = 0, tokens: int = 0, padded: int = 0) -> None:
        """Count what the step in progress consumes: samples, tokens, and samples that are only padding.

        What is counted here is no longer counted automatically: these numbers stand.
        """
        try:
            numbers = operator.index(samples), operator.index(tokens), operator.index(padded)
            if min(numbers) < 0:
                raise ValueError(f"counts are {numbers}: give none below 0")
            self._recorder.writer.count(*self._recorder.accounts.given(*numbers))
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("count", error)

    def profile(self, steps: int = 5, *, directory: str | os.PathLike[str] = "profiles") -> None:
        """Profile the next whole steps with torch.profiler, 100 at most. Needs torch.

        Each rank writes DIRECTORY/rank-<rank>-steps-<first>-<last>.pt.trace.json, in which steps and phases are ranges
        of the names they are measured by: call it in the same step on every rank to get the same steps from all.
        They, and the step after them in which the trace is written, are left out of the histograms; in the step
        records they are flagged. What goes wrong is counted as an error, and training goes on.
        """
        try:
            first = self._recorder.steps_ended + 2
            where = os.path.abspath(directory)  # noqa: PTH100 - of a Path as of a str
            self._recorder.profile(ProfileRequest(first=first, last=first + steps - 1, directory=where))
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("profile", error)

    def stop(self) -> None:
        """Publish the last step, take all hooks out and end this rank's segment. Idempotent.

        The agent serves the last values until they were surely scraped; nothing here waits for that.
        """
        global _running  # noqa: PLW0603
        if self._keeper is not None:
            self._keeper.stop()
        if self._exchange is not None:
            self._exchange.stop()
        while self._watched:
            self._watched.pop()[1]()
        while self._undo:
            self._undo.pop()()
        self._recorder.close()
        if _running is self:
            _running = None
        atexit.unregister(self.stop)


def start(**settings: Any) -> Exporter:
    """Begin to record this rank; a second call returns the running exporter.

    Settings, each by keyword, else by variable RANK_EXPORTER_<NAME>, else as stated:

    - run, rank, local_rank, world_size, host: from torchrun's variables, else from the process group if there is one,
      else from mpirun's or Slurm's variables (identity.detect)
    - directory (variable ..._DIR): where segments live, /dev/shm/rank-exporter-<uid>
    - serve: "auto" starts one agent per host, "off" leaves serving to a sidecar
    - port 10911, listen_address all, linger_seconds twice the scrape interval, file_sd_dir none: the agent's
    - step_log_dir none, step_log_bytes 1 GiB: where it keeps the raw records of all steps, and how many at most
    - skew_budget_ratio 0.10: tolerated skew as a share of the median step time
    - bucket_timing False (variable: 1 or 0): time the gradient buckets of every DistributedDataParallel watched; one
      whose gradients might change by it is counted as an error and left alone
    - sample_ids "auto": samples are identified by the sampler's indices; "key:NAME" by what their batches have under
      NAME, "off" not at all; sample_ids_dir none: where all identifiers are written to

    Raises SettingError in one line for a setting that is wrong, or that differs from those of the running exporter.
    """
    global _running  # noqa: PLW0603
    with _lock:
        if _running is not None:
            # Who this is was settled at the start, whatever a process group that was made since then says.
            who = {name: getattr(_running.identity, name) for name in ("run", "rank", "local_rank", "world_size")}
            if settings and config.settings(**{**who, **settings}) != _running._settings:
                raise SettingError(f"already started as {_running.identity}: call stop() before other settings")
            return _running
        _running = Exporter(config.settings(ranked=process_group_variables(), **settings))
        atexit.register(_running.stop)
        return _running


def _agent_fault(error: str) -> None:
    if _running is not None:
        _running._recorder.fault("agent", error)


def _peers_fault(error: str) -> None:
    if _running is not None:
        _running._recorder.fault("peers", error)


def _forget_in_child() -> None:
    global _running, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _keepers.clear()
    if _running is not None:
        _running._recorder.abandon()
        atexit.unregister(_running.stop)
        _running = None


os.register_at_fork(after_in_child=_forget_in_child)
