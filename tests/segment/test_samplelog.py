"""Files of identifiers from the writer's and the reader's side: whole, torn, damaged, and on a disk that is full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rank_exporter import digest
from rank_exporter.errors import SourceError
from rank_exporter.identity import Identity
from rank_exporter.instrument.samplefiles import SampleFiles
from rank_exporter.segment.samplelog import batch_line, end_line, file_name, first_line, read

IDENTITY = Identity(run="night/7", rank=3, local_rank=1, world_size=8, host="node-a")
END = end_line(samples=6, padded=1, complete=True)
LINES = [
    first_line(IDENTITY, 2, 77),
    batch_line(1, [5, -6], 2, 0),
    batch_line(2, None, 1, 0),
    batch_line(3, [2**63, 8, 9], 3, 1),
    END,
]


def write(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Whose it is, what was taken in which step, and what of it is padding or has no identifier."""
    found = read(write(tmp_path / file_name(IDENTITY, 2, 77), LINES))
    assert (found.run, found.rank, found.world_size, found.host, found.started_unix_ns, found.epoch) == (
        *("night/7", 3, 8, "node-a"),
        *(77, 2),
    )
    assert (found.samples, found.padded, found.identified, found.complete) == (6, 1, 4, True)
    assert found.ids is not None and found.padded_ids is not None and found.steps is not None
    assert found.ids.tolist() == [5, -6, -(2**63), 8]
    assert found.padded_ids.tolist() == [9]
    assert found.steps.tolist() == [1, 1, 3, 3]
    assert found.digest == digest.of([5, -6, 2**63, 8])
    assert not found.is_identified


def test_names_tell_processes_apart_and_stay_within_the_directory() -> None:
    """One directory serves all ranks, epochs and restarts."""
    names = {file_name(IDENTITY, epoch, started) for epoch in (1, 2) for started in (76, 77)}
    assert len(names) == 4
    assert not any("/" in name for name in names)


@pytest.mark.parametrize("torn", [0, 1, 20])
def test_a_file_whose_process_was_killed_is_read_as_far_as_it_goes(tmp_path: Path, torn: int) -> None:
    """The last line may be missing, or half there."""
    found = read(write(tmp_path / "x", [*LINES[:3], LINES[3][:torn]]))
    assert (found.samples, found.padded, found.identified, found.complete) == (3, 0, 2, False)


def test_what_came_after_a_checkpoint_can_be_left_out(tmp_path: Path) -> None:
    """By step, with the digest that goes with it."""
    found = read(write(tmp_path / "x", LINES)).until(2)
    assert (found.samples, found.padded, found.identified, found.complete) == (2, 0, 2, False)
    assert found.digest == digest.of([5, -6])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([b""], "it does not begin as rank-exporter-samples of version 1"),
        ([b'{"format": "other"}\n'], "it does not begin as"),
        ([LINES[0].replace(b'"version":1', b'"version":2')], "it does not begin as"),
        ([b"\xff\xfe\n"], "cannot be read"),
        ([LINES[0].replace(b'"rank":3', b'"rank":-3')], "'-3' is no natural number"),
        ([LINES[0], b"{}\n", END], "'step'"),
        ([LINES[0], b'{"step":1,"ids":[1.5]}\n', END], "identifiers are float"),
        ([LINES[0], b'{"step":1,"ids":[1],"padded":2}\n'], "step 1 has 1 samples and 2 of them padding"),
        ([*LINES[:4], end_line(samples=2, padded=1, complete=True)], "contradict 2 samples"),
        ([*LINES, LINES[1]], "it goes on after its end"),
        ([LINES[0], LINES[1][:9] + b"\n", END], "cannot be read"),
    ],
)
def test_damage_is_told_in_one_line(tmp_path: Path, lines: list[bytes], said: str) -> None:
    """Another file, another version, or what no rank has written."""
    with pytest.raises(SourceError) as caught:
        read(write(tmp_path / "x", lines))
    assert said in str(caught.value)
    assert str(tmp_path / "x") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_told(tmp_path: Path) -> None:
    """With what to give instead."""
    with pytest.raises(SourceError, match="does not exist: give a file or directory of RANK_EXPORTER_SAMPLE_IDS_DIR"):
        read(tmp_path / "x")


def test_texts_bytes_and_tuples_are_kept_as_what_stands_for_them(tmp_path: Path) -> None:
    """The digest of the file is that of the identifiers themselves."""
    ids: list[Any] = ["a", b"b\xff", (1, "c")]
    found = read(write(tmp_path / "x", [LINES[0], batch_line(1, ids, 3, 0)]))
    assert found.digest == digest.of(ids)
    with pytest.raises(TypeError):
        batch_line(1, [1.5], 1, 0)


FULL = """
import resource, signal, sys
from pathlib import Path
from rank_exporter.identity import Identity
from rank_exporter.instrument.samplefiles import SampleFiles

faults = []
identity = Identity(run="full", rank=0, local_rank=0, world_size=1, host="h")
fault = lambda reason, error: faults.append(str(error))
files = SampleFiles(Path(sys.argv[1]), identity, 1, step=lambda: 1, fault=fault)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
files.begin(0)
for number in range(3):
    files.put([number], 1, 0)
files._thread.join(1.2)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
files.put(list(range(100, 300)), 200, 0)
files._thread.join(1.2)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
files.put([7], 1, 0)
files.end(samples=204, padded=0, complete=True)
files.close()
print(len(faults), faults[0])
"""


def test_a_full_disk_loses_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    """A line that was half written is taken back, so that what follows can be read; the loss shows in the counts."""
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 identifiers cannot be written to")
    [path] = tmp_path.iterdir()
    found = read(path)
    assert found.ids is not None
    assert found.ids.tolist() == [0, 1, 2, 7]
    assert (found.samples, found.identified, found.complete) == (204, 4, True)


def test_what_comes_too_fast_is_left_out_and_said(tmp_path: Path) -> None:
    """Memory is bounded, whatever the disk does."""
    faults: list[str] = []
    files = SampleFiles(tmp_path, IDENTITY, 1, step=lambda: 1, fault=lambda _reason, error: faults.append(str(error)))
    batch = list(range(1 << 19))
    for _ in range(4):
        files.put(batch, len(batch), 0)
    assert len(faults) == 1
    assert "faster than they can be written" in faults[0]
    files.begin(0)
    files.end(samples=4 << 19, padded=0, complete=True)
    files.close()
    [path] = tmp_path.iterdir()
    assert json.loads(path.read_text().splitlines()[-1])["samples"] == 4 << 19
