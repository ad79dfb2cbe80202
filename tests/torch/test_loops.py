"""Training loops as people write them, in one process: each is trained for real and its step records are checked."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import rank_exporter
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import ERROR_REASONS, Word

Step = dict[str, int]
WORK = {"forward", "backward", "optimizer", "other", "step"}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


def batches(number: int) -> list[torch.Tensor]:
    return list(torch.randn(number, 8, 16))


def loader(number: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(number * 8, 16)), batch_size=8, **options)


class FailsOnce(torch.optim.SGD):
    """Its third step raises."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise torch.OutOfMemoryError("no memory is left")
        return super().step(closure)


def names(steps: list[Step]) -> list[set[str]]:
    return [set(step) for step in steps]


def test_without_a_loader_a_forward_after_the_optimizer_begins_the_next_step(recording: Any) -> None:
    """A list of batches needs no watching: model and optimizer tell the steps."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for batch in batches(5):
        model(batch).mean().backward()
        optimizer.step()
    assert names(recording.steps()) == [WORK] * 5


@pytest.mark.parametrize("with_loader", [True, False])
def test_without_an_optimizer_each_batch_is_a_step(recording: Any, with_loader: bool) -> None:
    """A hand-written update, or inference with gradients, still has steps: one a batch, or one a forward."""
    model, data = network(), loader(4)
    recording.watch(model=model, dataloader=data if with_loader else None)
    for (batch,) in data:
        model(batch).mean().backward()
    found = recording.steps()
    # Without a loader nothing tells that the last step is over.
    assert len(found) == (4 if with_loader else 3)
    assert all({"forward", "backward"} <= set(step) for step in found)


def test_two_models_with_two_optimizers_make_one_step_an_iteration(recording: Any) -> None:
    """A generator and a discriminator, trained in turn on each batch."""
    generator, judge, data = nn.Linear(16, 16), network(), loader(4)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (judge, generator)]
    recording.watch(model=generator, dataloader=data)
    recording.watch(model=judge, optimizer=optimizers)
    for (batch,) in data:
        optimizers[0].zero_grad()
        (judge(batch).mean() - judge(generator(batch).detach()).mean()).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        judge(generator(batch)).mean().backward()
        optimizers[1].step()
    found = recording.steps()
    assert names(found) == [WORK | {"first_batch"}] + [WORK | {"input_ready"}] * 3 + []


def test_lbfgs_runs_the_model_within_its_step_and_phases_still_add_up(recording: Any) -> None:
    """Forwards and backwards of the closure are what they are; the optimizer's own time is the rest."""
    model, data = network(), loader(3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    calls = 0
    for (batch,) in data:

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            nonlocal calls
            calls += 1
            time.sleep(0.01)
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch).pow(2).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)
    found = recording.steps()
    assert len(found) == 3
    assert calls > 3
    assert all({"forward", "backward", "optimizer"} <= set(step) for step in found)
    assert sum(step["optimizer"] for step in found) > calls * 0.01e9


def test_scaler_that_skips_the_optimizer_still_ends_the_step(recording: Any) -> None:
    """An infinite gradient costs an optimizer step, not a training step, and is counted."""
    model, data = network(), loader(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    for number, (batch,) in enumerate(data):
        optimizer.zero_grad()
        loss = model(batch).mean() * (float("inf") if number in (2, 4) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    found = recording.steps()
    assert len(found) == 6
    assert all("optimizer" in step for step in found)
    assert recording.snapshot().word(Word.OPTIMIZER_STEPS_SKIPPED) == 2


def test_recomputed_activations_count_as_backward(recording: Any) -> None:
    """Checkpointing runs a forward within backward; a step still has one forward, and a longer backward."""

    class Slow(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            time.sleep(0.05)
            return value * 1

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(Slow(), nn.Linear(16, 16), nn.Tanh())

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(checkpoint(self.inner, value, use_reentrant=False))

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    recording.watch(model=model.inner)
    for batch in batches(4):
        model(batch).mean().backward()
        optimizer.step()
    found = recording.steps()
    assert min(step["forward"] for step in found) < 0.09e9
    assert min(step["backward"] for step in found) >= 0.05e9


def _watch_then_compile(model: nn.Module, watch: Callable[[nn.Module], None]) -> Any:
    watch(model)
    return torch.compile(model, backend="aot_eager", fullgraph=True)


def _compile_then_watch(model: nn.Module, watch: Callable[[nn.Module], None]) -> Any:
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    watch(compiled)
    return compiled


def _watch_then_compile_in_place(model: nn.Module, watch: Callable[[nn.Module], None]) -> Any:
    watch(model)
    model.compile(backend="aot_eager", fullgraph=True)
    return model


def _compile_in_place_then_watch(model: nn.Module, watch: Callable[[nn.Module], None]) -> Any:
    model.compile(backend="aot_eager", fullgraph=True)
    watch(model)
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "order", [_watch_then_compile, _compile_then_watch, _watch_then_compile_in_place, _compile_in_place_then_watch]
)
def test_compiled_model_is_timed_and_its_graph_is_whole(recording: Any, order: Callable[..., Any]) -> None:
    """Compiled before or after, by function or in place: fullgraph holds, and each step has its phases once."""
    torch.compiler.reset()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = order(model, lambda watched: recording.watch(model=watched, optimizer=optimizer))
    for batch in batches(4):
        compiled(batch).mean().backward()
        optimizer.step()
    assert names(recording.steps()) == [WORK] * 4


def test_failing_forward_and_backward_leave_the_next_steps_right(recording: Any) -> None:
    """A loop that survives an exception goes on with phases that are balanced."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError

    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.mood = network(), ""

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            if self.mood == "forward":
                raise ArithmeticError
            value = self.inner(value)
            return Fails.apply(value) if self.mood == "backward" else value

    model = Moody()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for batch, mood in zip(batches(6), ["", "forward", "", "backward", "", ""], strict=True):
        model.mood = mood
        try:
            model(batch).mean().backward()
            optimizer.step()
        except ArithmeticError:
            continue
    found = recording.steps()
    assert names(found) == [WORK] * 4
    assert recording._recorder.timeline.phase == Phase.OTHER


def test_copies_of_a_watched_model_are_ordinary(recording: Any) -> None:
    """An averaged copy, a saved and a reloaded model work as ever, and are not taken for the watched one."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    averaged = AveragedModel(model).module
    twins = [averaged, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)]  # noqa: S301
    for batch in batches(3):
        expected = model(batch)
        expected.mean().backward()
        optimizer.step()
        for twin in twins:
            twin(batch).mean().backward()
    found = recording.steps()
    assert len(found) == 3
    assert b"rank_exporter" not in buffer.getvalue()


class Keeps(nn.Module):
    """Has a state of its own for copies, with all its attributes, as LSTMs and Lightning's modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.inner(value))


@pytest.mark.parametrize("make", [Keeps, lambda: nn.LSTM(16, 4)])
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda model: model._replicate_for_data_parallel()])
def test_copy_that_takes_all_attributes_along_runs_itself(recording: Any, make: Any, how: Any) -> None:
    """A target network, or a part on another device, must not run the model that it was copied from."""
    model = make()
    recording.watch(model=model)
    twin = how(model)
    ran = []
    twin.register_forward_pre_hook(lambda module, _inputs: ran.append(module))
    twin(torch.ones(1, 16))
    assert [module is twin for module in ran] == [True]


@pytest.mark.parametrize("prepare", [lambda _model: None, lambda model: model.compile(backend="eager")])
def test_watched_model_lives_no_longer_than_without(recording: Any, prepare: Callable[[nn.Module], None]) -> None:
    """Nothing that records it holds it."""
    model = network()
    recording.watch(model=model)
    prepare(model)
    model(torch.ones(1, 16)).mean().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_traced_model_is_as_it_is_without(recording: Any) -> None:
    """torch.fx runs it with stand-ins for tensors."""
    model = network()
    around = nn.Sequential(model)
    plain = torch.fx.symbolic_trace(around).code
    recording.watch(model=model)
    assert torch.fx.symbolic_trace(around).code == plain
    assert not any(recording.snapshot().word(Word.ERRORS + place) for place in range(len(ERROR_REASONS)))


def test_copies_of_a_watched_loader_are_ordinary(recording: Any) -> None:
    """A pickled or copied loader has its own class again and is not timed."""
    data = loader(3)
    recording.watch(dataloader=data)
    assert isinstance(data, DataLoader)
    for twin in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):  # noqa: S301
        assert type(twin) is DataLoader
        assert len(list(twin)) == 3
    assert recording.steps() == []


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_start_in_the_first_batch_of_each_epoch(recording: Any, persistent: bool) -> None:
    """With workers, kept or not, each epoch's first batch stands apart and the end of the epoch is no input."""
    data = loader(4, num_workers=1, persistent_workers=persistent)
    recording.watch(dataloader=data)
    for _ in range(2):
        for _ in data:
            pass
    found = recording.steps()
    assert [{"first_batch", "input_ready"} & set(step) for step in found] == (
        [{"first_batch"}] + [{"input_ready"}] * 3
    ) * 2
    assert recording.snapshot().word(Word.EPOCHS) == 2


def test_evaluation_on_the_watched_loader_is_no_training(recording: Any) -> None:
    """Batches fetched and run without gradients count as evaluation."""
    model, data = network(), loader(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    for _ in range(2):
        for (batch,) in data:
            model(batch).mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for (batch,) in data:
                model(batch)
        model.train()
    found = recording.steps()
    assert len(found) == 6
    assert ["eval" in step for step in found] == [False, False, False, True, False, False]


class Prefetching(DataLoader[Any]):
    """Read by a thread of its own, as people make it with prefetch_generator."""

    def __iter__(self) -> Any:
        inner, ready = super().__iter__(), queue.Queue[Any](1)
        end = object()

        def read() -> None:
            for batch in inner:
                ready.put(batch)
            ready.put(end)

        threading.Thread(target=read, daemon=True).start()
        return iter(ready.get, end)


@pytest.mark.parametrize("model_is_watched", [True, False])
def test_loader_that_a_thread_reads_costs_the_input_alone(
    recording: Any, caplog: pytest.LogCaptureFixture, model_is_watched: bool
) -> None:
    """Its fetches are no wait and disturb no phase. Steps end all the same, and what is missing is said once."""
    recording.faults = {"hook": 3}
    model, data = network(), Prefetching(TensorDataset(torch.randn(16, 16)), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model if model_is_watched else None, optimizer=optimizer, dataloader=data)
    for _ in range(3):
        for (batch,) in data:
            model(batch).mean().backward()
            optimizer.step()
    found = recording.steps()
    assert len(found) == 12
    assert all("input_ready" not in step and "optimizer" in step for step in found)
    (record,) = caplog.records
    assert record.getMessage() == (
        "rank 0: batches are fetched on another thread than the one that trains: how long training waits for them, and "
        "which samples it takes, is not recorded (counted as 'hook', said once)"
    )


@pytest.mark.parametrize("work", [{"model", "forward", "backward"}, set()])
def test_training_may_have_a_thread_of_its_own(recording: Any, work: set[str]) -> None:
    """Whoever steps the optimizer is who trains, wherever the exporter was started. The input of the first step alone
    was not seen, so that the first epoch is none that could be reconciled."""
    model, data = network(), loader(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model if work else None, optimizer=optimizer, dataloader=data)

    def train() -> None:
        for _ in range(2):
            for (batch,) in data:
                model(batch).mean().backward()
                optimizer.step()
            ended.append(recording.snapshot().words[Word.ENDED_EPOCH : Word.ENDED_EPOCH_COMPLETE + 1].tolist())

    ended: list[list[int]] = []
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    found = recording.steps()
    always = {*work, "optimizer", "other", "step"} - {"model"}
    firsts = [found[0], found[4]]
    assert [set(step) - {"other"} for step in firsts] == [always - {"other"}, (always | {"first_batch"}) - {"other"}]
    assert "first_batch" in found[1]
    assert names(found[2:4] + found[5:]) == [always | {"input_ready"}] * 5
    assert [(epoch[0], epoch[1], epoch[-1]) for epoch in ended] == [(1, 24, 0), (2, 32, 1)]


def test_batch_that_a_thread_read_before_changes_no_step(recording: Any) -> None:
    """One that looks at the data on another thread, before the loop does, is forgotten."""
    model, data = network(), loader(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    looks = threading.Thread(target=lambda: next(iter(data)))
    looks.start()
    looks.join()
    for (batch,) in data:
        for _ in range(2):
            model(batch).mean().backward()
            optimizer.step()
    assert names(recording.steps()) == [WORK | {"first_batch"}] + [WORK | {"input_ready"}] * 3


def test_batches_that_are_kept_are_trained_on_in_steps(recording: Any) -> None:
    """A loop over what a loader gave, once it is read to its end, has a step a batch."""
    model, data = network(), loader(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    kept = list(data)
    for _ in range(2):
        for (batch,) in kept:
            model(batch).mean().backward()
            optimizer.step()
    found = recording.steps()
    assert len(found) == 8
    assert all({"forward", "backward", "optimizer"} <= set(step) for step in found)


def test_thread_that_reads_another_loader_is_left_alone(recording: Any) -> None:
    """Where training has a loader of its own, one that is read beside it changes nothing."""
    model, data, other = network(), loader(4), loader(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    recording.watch(dataloader=other)
    for (batch,) in data:
        reader = threading.Thread(target=list, args=(other,))
        reader.start()
        for _ in range(2):
            model(batch).mean().backward()
            optimizer.step()
        reader.join()
    assert names(recording.steps()) == [WORK | {"first_batch"}] + [WORK | {"input_ready"}] * 3


@pytest.mark.parametrize("where", ["step", "closure"])
def test_optimizer_that_raises_costs_its_step_alone(recording: Any, where: str) -> None:
    """What a loop does after it caught the error, and in later steps, is not the optimizer's."""
    model, data = network(), loader(6)

    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            with torch.enable_grad():
                loss = closure()
            if number == 2 and where == "step":
                raise torch.OutOfMemoryError("no memory is left")
            return super().step(lambda: loss)

    optimizer = Fails(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    for number, (batch,) in enumerate(data):

        def closure(batch: torch.Tensor = batch, number: int = number) -> torch.Tensor:
            if number == 2 and where == "closure":
                raise FloatingPointError("the loss is not a number")
            loss: torch.Tensor = model(batch).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with contextlib.suppress(torch.OutOfMemoryError, FloatingPointError):
            optimizer.step(closure)
        time.sleep(0.02)
    found = recording.steps()
    assert len(found) == 6
    # What comes after a step belongs to the next, or to the step itself where its optimizer never ended.
    asleep = [step["other"] > 0.02e9 for step in found]
    assert asleep == [False, True, True, False, True, True]
    assert all(step["optimizer"] < 0.02e9 for number, step in enumerate(found) if number != 2)


def test_optimizer_that_raises_without_a_loader_costs_its_step_alone(recording: Any) -> None:
    """Where only the optimizer tells steps, one that raised is over with the next."""

    model = network()
    optimizer = FailsOnce(model.parameters(), lr=0.1)
    recording.watch(optimizer=optimizer)
    for batch in batches(6):
        model(batch).mean().backward()
        with contextlib.suppress(torch.OutOfMemoryError):
            optimizer.step()
        time.sleep(0.02)
    found = recording.steps()
    assert len(found) == 6
    assert all(step["optimizer"] < 0.02e9 for number, step in enumerate(found) if number != 2)
    assert all(step["other"] > 0.02e9 for step in found[4:])


@pytest.mark.parametrize("with_loader", [True, False])
def test_optimizer_that_raises_within_a_scaler_costs_its_step_alone(recording: Any, with_loader: bool) -> None:
    """The scaler's own phase and that of the optimizer within are both over."""

    model, data = network(), loader(6)
    optimizer, scaler = FailsOnce(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    recording.watch(optimizer=optimizer, dataloader=data if with_loader else None)
    for (batch,) in data:
        scaler.scale(model(batch).mean()).backward()
        with contextlib.suppress(torch.OutOfMemoryError):
            scaler.step(optimizer)
        scaler.update()
        time.sleep(0.02)
    found = recording.steps()
    assert len(found) == 6
    assert all(step["optimizer"] < 0.02e9 for step in found[:2] + found[3:])
    assert all(step["other"] > 0.02e9 for step in found[4:])


def test_optimizers_made_anew_each_end_their_steps(recording: Any) -> None:
    """Without a loader, one that joins later has steps of its own, also while those before it live on."""
    model, made = network(), []
    for number, batch in enumerate(batches(8)):
        if number % 4 == 0:
            made.append(torch.optim.SGD(model.parameters(), lr=0.1))
            recording.watch(optimizer=made[-1])
        model(batch).mean().backward()
        made[-1].step()
    assert len(recording.steps()) == 8


def test_own_optimizer_phase_may_run_the_model(recording: Any) -> None:
    """A search along a line, which the loop itself calls its optimizer."""
    model = network()
    recording.watch(model=model)
    with torch.no_grad():
        for batch in batches(4):
            with recording.phase("optimizer"):
                model(batch)
                time.sleep(0.02)
            recording._recorder.advance()
    found = recording.steps()
    assert [step["optimizer"] > 0.02e9 for step in found] == [True] * 4


def test_optimizer_in_the_place_of_one_that_is_gone_ends_steps_by_batches(recording: Any) -> None:
    """A loop that goes on with another optimizer, of which nobody told, is recorded all the same."""
    model, data = network(), loader(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    for epoch in range(3):
        if epoch == 1:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for (batch,) in data:
            model(batch).mean().backward()
            optimizer.step()
    assert len(recording.steps()) == 12


def test_optimizer_that_steps_anew_begins_the_next_step(recording: Any) -> None:
    """Where neither a loader nor the model is watched, nothing else tells; two optimizers still make one step."""
    model = network()
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    recording.watch(optimizer=[first, second])
    for batch in batches(5):
        model(batch).mean().backward()
        first.step()
        second.step()
    assert names(recording.steps()) == [{"optimizer", "other", "step"}] * 5


def test_evaluation_before_training_is_none(recording: Any) -> None:
    """As trainers do it to see that it works: nothing was trained yet, and the mode of what is watched tells."""
    model, data, held_out = network(), loader(4), loader(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for either in (data, held_out):
        recording.exporter._watch(dataloader=either)
    model.eval()
    for (batch,) in held_out:
        with torch.no_grad():
            model(batch)
    model.train()
    for (batch,) in data:
        model(batch).mean().backward()
        optimizer.step()
    assert [set(step) & {"eval", "first_batch"} for step in recording.steps()] == [{"first_batch"}, set(), set(), set()]
    assert recording.snapshot().word(Word.SAMPLES) == 4 * 8


def test_model_within_the_one_in_training_may_be_evaluated(recording: Any) -> None:
    """Where what a wrapper holds is put into evaluation mode, fetches with gradients enabled are evaluation's too."""

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = network()

        def forward(self, batch: torch.Tensor) -> Any:
            return self.module(batch)

    model, data, held_out = Wrapper(), loader(4), loader(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    recording.exporter._watch(dataloader=held_out)
    for _ in range(2):
        for (batch,) in data:
            model(batch).mean().backward()
            optimizer.step()
        model.module.eval()
        for (batch,) in held_out:
            with torch.no_grad():
                model.module(batch)
        model.train()
    found = recording.steps()
    assert ["eval" in step for step in found] == [False] * 4 + [True] + [False] * 3
    assert recording.snapshot().word(Word.SAMPLES) == 2 * 4 * 8


def test_hooks_are_gone_after_stop(recording: Any) -> None:
    """Stopping leaves model, optimizer and loader as they were."""
    model, data = network(), loader(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = (len(model._forward_hooks), len(model._forward_pre_hooks), type(data))
    recording.watch(model=model, optimizer=optimizer, dataloader=data)
    recording.stop()
    assert (len(model._forward_hooks), len(model._forward_pre_hooks), type(data)) == before
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "bert"}, "model is 'str': give a torch.nn.Module or DistributedDataParallel"),
        ({"optimizer": 3}, "optimizer is 'int': give a torch.optim.Optimizer, or several"),
        ({"dataloader": [1, 2]}, "dataloader is 'list' and cannot be watched"),
    ],
)
def test_what_cannot_be_watched_is_told_at_once(recording: Any, wrong: dict[str, Any], said: str) -> None:
    """The line names what was given and what can be."""
    with pytest.raises(rank_exporter.SettingError) as caught:
        recording.watch(**wrong)
    assert str(caught.value).startswith(said)
