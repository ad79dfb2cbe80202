"""What a rank took in an epoch, from its segment to the metrics."""

from __future__ import annotations

from .. import catalog
from ..segment.layout import EPOCH_WORDS, Word
from ..segment.reader import Snapshot
from .families import Families
from .residence import Resident

__all__ = ["add_samples"]


def add_samples(families: Families, resident: Resident, snapshot: Snapshot) -> None:
    """Add the epoch that ended last and, of a rank that is gone, the one it was in.

    That of a live rank is left out: its digest changes all the time, and each would be a series of its own.
    """
    _add(families, resident, snapshot, Word.ENDED_EPOCH, complete=snapshot.word(Word.ENDED_EPOCH_COMPLETE) == 1)
    if not resident.live:
        # A rank that was killed did not come to put its last samples into the digest.
        said = snapshot.word(Word.ENDED) == 1
        _add(families, resident, snapshot, Word.EPOCH, complete=False, whole=said)


def _add(
    families: Families, resident: Resident, snapshot: Snapshot, first: Word, *, complete: bool, whole: bool = True
) -> None:
    epoch, samples, padded, identified, digest = (int(word) for word in snapshot.words[first : first + EPOCH_WORDS])
    if not epoch:
        return
    source = resident.reader.source
    identity = source.identity
    about = (
        str(epoch - 1),
        str(samples),
        str(padded),
        f"{digest:016x}" if whole and identified == samples - padded else "",
        "true" if complete else "false",
        str(identity.world_size),
        str(source.started_unix_ns),
    )
    families.add(catalog.SAMPLE_DIGEST, (identity.run, str(identity.rank), identity.host, *about), 1)
