"""A segment from its writer's and its reader's side: real files, real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rank_exporter.errors import SegmentError
from rank_exporter.histogram import SHORT_EDGES, bucket_index, edge_seconds
from rank_exporter.identity import Identity
from rank_exporter.phases import Phase
from rank_exporter.segment import layout
from rank_exporter.segment.discovery import is_held, prepare, segment_files
from rank_exporter.segment.layout import Word
from rank_exporter.segment.reader import STEP_DTYPE, SegmentReader
from rank_exporter.segment.writer import SHARD_IDLE_NS, SegmentWriter

IDENTITY = Identity(run="r", rank=3, local_rank=1, world_size=8, host="node-a")


class Clock:
    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def writer(tmp_path: Path, clock: Clock) -> Iterator[SegmentWriter]:
    made = SegmentWriter.create(tmp_path, IDENTITY, skew_budget_ratio=0.2, clock=clock)
    yield made
    made.close()


@pytest.fixture
def reader(writer: SegmentWriter) -> Iterator[SegmentReader]:
    assert writer.path is not None
    opened = SegmentReader(writer.path)
    yield opened
    opened.close()


def spent(**ns: int) -> list[int]:
    return [ns.get(phase.label, 0) for phase in Phase]


def test_layout_is_what_version_2_says() -> None:
    """Readers of another build rely on these numbers: change them and the version together."""
    assert layout.VERSION == 2
    assert layout.WORDS_OFFSET == 64
    assert layout.IDENTITY_OFFSET == 576
    assert layout.HISTOGRAMS_OFFSET == 6720
    assert layout.BUCKETS_OFFSET == 6720 + 46 * 995 * 8
    assert layout.RING_OFFSET == 6720 + 46 * 995 * 8 + 34 * 23 * 8
    assert layout.STEP_RECORD.size == STEP_DTYPE.itemsize == 144
    assert layout.SIZE == layout.RING_OFFSET + 4096 * 144


def test_reader_gets_what_was_committed(writer: SegmentWriter, reader: SegmentReader, clock: Clock) -> None:
    """Identity, totals, histograms, facts and raw records come back exact."""
    writer.set_facts({"device": "cpu", "backend": "gloo"})
    writer.set_shard("shard-7")
    writer.count(32, 4096, 2)
    writer.commit(spent(input_ready=300_000_000, step=1_200_000_000), ended_ns=clock.now - 5)
    before = time.time_ns()
    writer.commit(spent(input_ready=100_000_000, step=900_000_000, eval=7), ended_ns=clock.now)
    after = time.time_ns()
    found = reader.snapshot()
    assert found is not None
    assert reader.source.identity == IDENTITY
    assert reader.source.pid == os.getpid()
    assert reader.source.skew_budget_ratio == 0.2
    assert [found.word(word) for word in (Word.STEPS, Word.SAMPLES, Word.TOKENS, Word.PADDED)] == [2, 32, 4096, 2]
    assert before <= found.word(Word.LAST_STEP_UNIX_NS) <= after
    assert found.facts == {"device": "cpu", "backend": "gloo"}
    assert (found.shards, found.current_shard) == (("shard-7",), "shard-7")
    own = found.histograms[layout.histogram_slot(Phase.INPUT_READY, 0)]
    assert own[0] == 400_000_000
    assert own[1:].sum() == 2
    assert own[1 + bucket_index(300_000_000)] == 1
    assert found.histograms[layout.histogram_slot(Phase.EVAL, 0)].sum() == 7 + 1
    assert found.histograms[layout.histogram_slot(Phase.FORWARD, 0)].sum() == 0
    steps = reader.steps()
    assert steps["step"].tolist() == [1, 2]
    assert steps["ns"][:, Phase.STEP].tolist() == [1_200_000_000, 900_000_000]
    assert steps["samples"].tolist() == [32, 0]
    assert reader.steps(after=1)["step"].tolist() == [2]


def test_commit_counts_into_the_same_buckets_as_the_plain_function(
    writer: SegmentWriter, reader: SegmentReader, clock: Clock
) -> None:
    """The hot path's own arithmetic agrees with histogram.bucket_index everywhere."""
    chance = random.Random(3)
    expected = np.zeros(layout.HISTOGRAM_WORDS - 1, dtype=np.uint64)
    for ns in [1, 953, 954, 10**9, 4 * 10**12, *(int(10 ** chance.uniform(0, 13)) for _ in range(2000))]:
        writer.commit(spent(forward=ns), clock.now)
        expected[bucket_index(ns)] += 1
    found = reader.snapshot()
    assert found is not None
    assert (found.histograms[layout.histogram_slot(Phase.FORWARD, 0)][1:] == expected).all()


def test_gradient_buckets_come_back_apart(writer: SegmentWriter, reader: SegmentReader, clock: Clock) -> None:
    """Times until full and of reduction by slot, an edge closing the interval below it, and nothing else touched."""
    edge = round(edge_seconds(SHORT_EDGES[4]) * 1e9)
    writer.observe_bucket(3, edge, edge + 1)
    writer.observe_bucket(3, 1, 10**12)
    writer.observe_bucket(layout.OTHER_BUCKET, 0, 5)
    writer.commit(spent(step=7), clock.now)
    found = reader.snapshot()
    assert found is not None
    ready, reduction = found.buckets
    assert ready[3].nonzero()[0].tolist() == [0, 1, 1 + 4]
    assert reduction[3].nonzero()[0].tolist() == [0, 1 + 5, layout.BUCKET_HISTOGRAM_WORDS - 1]
    assert (ready[3, 0], reduction[3, 0]) == (edge + 1, 10**12 + edge + 1)
    assert found.buckets.sum(axis=2).nonzero()[1].tolist() == [3, 16, 3, 16]
    assert found.histograms.sum() == 7 + 1
    assert reader.steps()["step"].tolist() == [1]


def test_ring_keeps_the_latest_steps(writer: SegmentWriter, reader: SegmentReader, clock: Clock) -> None:
    """Once around the ring the oldest records give way, one early: the writer may be at it. The order stays."""
    total = layout.RING_STEPS + 10
    for number in range(total):
        writer.commit(spent(step=number + 1), clock.now)
    steps = reader.steps()
    assert steps["step"].tolist() == list(range(12, total + 1))
    assert (steps["ns"][:, Phase.STEP] == steps["step"]).all()


def test_ten_thousand_shards_stay_a_constant_number(writer: SegmentWriter, reader: SegmentReader, clock: Clock) -> None:
    """Sixteen shards keep names of their own; the others are counted together, and how many steps that were."""
    for number in range(10_000):
        writer.set_shard(f"shard-{number}")
        writer.commit(spent(input_ready=1000), clock.now)
    found = reader.snapshot()
    assert found is not None
    assert found.shards == tuple(f"shard-{number}" for number in range(16))
    assert found.current_shard == "other"
    assert found.word(Word.SHARDS_DROPPED) == 10_000 - 16
    assert found.histograms[layout.histogram_slot(Phase.INPUT_READY, layout.OTHER_SHARD)][1:].sum() == 10_000 - 16


def test_idle_shard_gives_its_slot_away_and_starts_anew(
    writer: SegmentWriter, reader: SegmentReader, clock: Clock
) -> None:
    """Only the least recently used shard goes, only when long idle, and its counts do not pass to the heir."""
    for number in range(16):
        writer.set_shard(f"shard-{number}")
        writer.commit(spent(input_ready=1000), clock.now)
        clock.now += 1
    clock.now += SHARD_IDLE_NS
    writer.set_shard("shard-0")
    writer.commit(spent(input_ready=1000), clock.now)
    writer.set_shard("late")
    writer.commit(spent(input_ready=1000), clock.now)
    found = reader.snapshot()
    assert found is not None
    assert found.shards == ("shard-0", "late", *(f"shard-{number}" for number in range(2, 16)))
    assert found.histograms[0][1:].sum() == 2
    assert found.histograms[1][1:].sum() == 1
    assert found.current_shard == "late"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (7, "7"),
        ("a\0b", "ab"),
        ("ü" * 100, "…" + "ü" * 62),
        ("s3://bucket/" + "x" * 200 + "/shard-000123.tar", "…" + ("x" * 200 + "/shard-000123.tar")[-125:]),
        ("\ud800", "?"),
        (None, ""),
        ("", ""),
        ("other", "other"),
    ],
)
def test_any_shard_name_can_be_stored(writer: SegmentWriter, reader: SegmentReader, given: object, stored: str) -> None:
    """Long names keep their end, where paths differ; odd ones do no harm."""
    writer.set_shard(given)
    found = reader.snapshot()
    assert found is not None
    assert found.current_shard == stored


def test_a_rank_in_the_midst_of_a_commit_gives_no_half_step(writer: SegmentWriter, reader: SegmentReader) -> None:
    """While the sequence counter is odd nothing is returned; the phase in progress still is."""
    writer.words[writer.phase_word] = layout.pack_phase(Phase.FORWARD, 51_200)
    sequence = layout.WORDS_OFFSET // 8
    writer.words[sequence] += 1
    assert reader.snapshot() is None
    assert reader.phase_in_progress() == (Phase.FORWARD, 51_200)
    writer.words[sequence] += 1
    assert reader.snapshot() is not None


HAMMER = """
import sys, time
from pathlib import Path
from rank_exporter.identity import Identity
from rank_exporter.segment.writer import SegmentWriter
writer = SegmentWriter.create(Path(sys.argv[1]), Identity(run="r", rank=0, local_rank=0, world_size=1, host="h"),
                              skew_budget_ratio=0.1)
print("up", flush=True)
number = 0
while True:
    number += 1
    writer.count(number, 0, 0)
    writer.commit([number] * 7 + [7 * number] + [0] * 3, time.monotonic_ns())
    time.sleep(0.0005)
"""


@pytest.fixture
def hammer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", HAMMER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as answer:
        assert answer.readline() == b"up\n"
    yield process
    process.kill()
    process.wait()


def test_reader_never_sees_half_a_step(hammer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Against a rank that commits every half millisecond, every copy is of one moment: all totals agree."""
    [path] = segment_files(tmp_path)
    reader = SegmentReader(path)
    seen = set()
    while len(seen) < 100:
        found = reader.snapshot()
        assert found is not None
        steps = found.word(Word.STEPS)
        seen.add(steps)
        triangle = steps * (steps + 1) // 2
        assert found.word(Word.SAMPLES) == triangle
        for phase in (Phase.INPUT_READY, Phase.OTHER):
            histogram = found.histograms[layout.histogram_slot(phase, layout.SHARD_NONE)]
            assert (histogram[0], histogram[1:].sum()) == (triangle, steps)
        records = reader.steps()
        assert (records["ns"][:, Phase.STEP] == 7 * records["step"]).all()
        assert (np.diff(records["step"].astype(np.int64)) == 1).all()
    reader.close()


def test_lock_tells_a_dead_rank_from_a_stopped_one(hammer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Stopped is alive, killed is not, whatever happens to its process id."""
    [path] = segment_files(tmp_path)
    hammer.send_signal(signal.SIGSTOP)
    assert is_held(path)
    hammer.send_signal(signal.SIGCONT)
    assert is_held(path)
    hammer.kill()
    hammer.wait()
    assert not is_held(path)


def test_forked_child_neither_writes_nor_keeps_the_rank_alive(writer: SegmentWriter, reader: SegmentReader) -> None:
    """After detach, what a child does is lost, and the lock goes with the parent alone."""
    assert writer.path is not None
    path = writer.path
    done, goon = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        writer.detach()
        writer.set_shard("child")
        writer.commit(spent(step=5), 0)
        os.write(done[1], b"x")
        os.read(goon[0], 1)
        os._exit(0)
    try:
        assert os.read(done[0], 1) == b"x"
        found = reader.snapshot()
        assert found is not None
        assert (found.word(Word.STEPS), found.shards) == (0, ())
        assert is_held(path)
        writer.close()
        assert not is_held(path)
    finally:
        os.write(goon[1], b"x")
        os.waitpid(child, 0)
        for descriptor in (*done, *goon):
            os.close(descriptor)


def test_no_room_is_an_error_before_the_first_store() -> None:
    """A full file system is found out at creation, where it can be told, not by a fatal signal in a step."""
    program = f"""
import resource, tempfile
from pathlib import Path
from rank_exporter.identity import Identity
from rank_exporter.segment.writer import SegmentWriter
from rank_exporter.errors import SegmentError
resource.setrlimit(resource.RLIMIT_FSIZE, ({layout.SIZE} // 2, resource.RLIM_INFINITY))
with tempfile.TemporaryDirectory() as directory:
    try:
        SegmentWriter.create(Path(directory), Identity(run="r", rank=0, local_rank=0, world_size=1, host="h"),
                             skew_budget_ratio=0.1)
    except SegmentError as error:
        print(error)
    assert not list(Path(directory).iterdir())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"segment of {layout.SIZE} bytes does not fit in" in done.stdout
    assert "give it more room (in a container, a larger /dev/shm) or set RANK_EXPORTER_DIR" in done.stdout


def _damage(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize(
    ("offset", "data", "said"),
    [
        (0, b"GARBAGE!", "not with a segment's mark"),
        (8, b"\x09\0\0\0", "has layout 9, this reads 2"),
        (layout.IDENTITY_OFFSET + 3, b"#", "has a damaged identity (CRC-32 differs)"),
        (16, (123).to_bytes(8, "little"), f"has {layout.SIZE} bytes of {layout.SIZE}"),
    ],
)
def test_damaged_preamble_is_told_in_one_line(writer: SegmentWriter, offset: int, data: bytes, said: str) -> None:
    """A foreign, newer or corrupt file is refused as it is opened."""
    assert writer.path is not None
    _damage(writer.path, offset, data)
    with pytest.raises(SegmentError) as caught:
        SegmentReader(writer.path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damage_after_opening_is_an_error_too(writer: SegmentWriter, reader: SegmentReader) -> None:
    """A slot out of bounds, facts that fail their checksum, and a file cut short are told, not believed."""
    assert writer.path is not None
    _damage(writer.path, layout.WORDS_OFFSET + 8 * Word.CURRENT_SHARD, (99).to_bytes(8, "little"))
    with pytest.raises(SegmentError, match="names shard slot 99"):
        reader.snapshot()
    _damage(writer.path, layout.WORDS_OFFSET + 8 * Word.CURRENT_SHARD, (17).to_bytes(8, "little"))
    writer.set_facts({"device": "cpu"})
    _damage(writer.path, layout.FACTS_OFFSET + layout.FACTS_HEADER.size, b"?")
    with pytest.raises(SegmentError, match="damaged facts"):
        reader.snapshot()
    os.truncate(writer.path, 4000)
    with pytest.raises(SegmentError, match="bytes short"):
        reader.snapshot()


def test_directory_is_ours_alone(tmp_path: Path) -> None:
    """The directory is made 0700, and one that others can write to is refused."""
    fresh = tmp_path / "a" / "b"
    prepare(fresh)
    assert fresh.stat().st_mode & 0o777 == 0o700
    fresh.chmod(0o777)
    with pytest.raises(SegmentError, match=r"writable by others \(mode 777\): chmod 0700 it"):
        prepare(fresh)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SegmentError, match="cannot be made"):
        prepare(file)
    link = tmp_path / "link"
    link.symlink_to(fresh)
    with pytest.raises(SegmentError, match="is no directory of uid"):
        prepare(link)
