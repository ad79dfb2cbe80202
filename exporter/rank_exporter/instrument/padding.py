"""Which samples a distributed sampler only repeats, so that every rank gets as many.

Told by place: such samplers deal the epoch's samples out in an order of their own, and what is dealt beyond the last is
padding. A sampler whose way of dealing is not known here is taken to pad nothing; what it repeats shows as duplicates.
"""

from __future__ import annotations

from typing import Any, Final

from torch.utils.data import BatchSampler, DistributedSampler

__all__ = ["Padding", "padding_of"]

_KEEP_PLACES: Final = frozenset(
    {
        # Lightning's and transformers': they deal out as the class that they are made from.
        "DistributedSamplerWrapper",
        "UnrepeatedDistributedSampler",
        "UnrepeatedDistributedSamplerWrapper",
        "DistributedSamplerWithLoop",
        "DistributedLengthGroupedSampler",
    }
)


class Padding:
    """Counts the padding in each batch of an epoch, to be asked in the order in which batches were drawn.

    The i-th sample of a batch stands at place ``start + i * stride`` of the epoch, of which ``limit`` are real. Each
    batch begins ``per_batch + per_sample * its size`` after the one before it.
    """

    __slots__ = ("_limit", "_per_batch", "_per_sample", "_start", "_stride")

    def __init__(self, *, limit: int, start: int, stride: int, per_batch: int, per_sample: int) -> None:
        self._limit = limit
        self._start = start
        self._stride = stride
        self._per_batch = per_batch
        self._per_sample = per_sample

    def of_next(self, size: int) -> int:
        """How many of the next batch's samples are padding: the last ones."""
        start = self._start
        self._start = start + self._per_batch + self._per_sample * size
        beyond = start + size * self._stride - self._limit
        if beyond <= 0:
            return 0
        return size - max(0, min(size, -((start - self._limit) // self._stride)))


def padding_of(loader: Any) -> Padding | None:
    """How a loader's sampler pads the epoch that begins now; None where it does not, or where that is not known."""
    batches: Any = getattr(loader, "batch_sampler", None)
    if batches is None:
        # Batches may be made by what stands as the sampler.
        batches = getattr(loader, "sampler", None)
    skipped = 0
    while type(batches).__name__ == "SkipBatchSampler":
        skipped += batches.skip_batches
        batches = batches.batch_sampler
    if type(batches).__name__ == "BatchSamplerShard":
        return _of_shard(batches, skipped)
    sampler = batches
    if type(batches) is BatchSampler:
        sampler, skipped = batches.sampler, skipped * batches.batch_size
    return _of_sampler(sampler, skipped)


def _of_sampler(sampler: Any, skipped: int) -> Padding | None:
    if not isinstance(sampler, DistributedSampler):
        return None
    kind = type(sampler)
    if kind.__iter__ is not DistributedSampler.__iter__ and kind.__name__ not in _KEEP_PLACES:
        return None
    # Counted in places per rank: a sample is one on, for all ranks together num_replicas.
    ranks = sampler.num_replicas
    return Padding(
        limit=len(sampler.dataset),  # type: ignore[arg-type]
        start=sampler.rank + skipped * ranks,
        stride=ranks,
        per_batch=0,
        per_sample=ranks,
    )


def _of_shard(shard: Any, skipped: int) -> Padding | None:
    """Accelerate's: batches dealt out in turn, or each of them in equal parts."""
    batches = shard.batch_sampler
    if type(batches) is not BatchSampler or shard.drop_last or not shard.even_batches:
        return None
    size, ranks = batches.batch_size, shard.num_processes
    every = size if shard.split_batches else size * ranks
    own = size // ranks if shard.split_batches else size
    return Padding(
        limit=len(batches.sampler),  # type: ignore[arg-type]
        start=own * shard.process_index + skipped * every,
        stride=1,
        per_batch=every,
        per_sample=0,
    )
