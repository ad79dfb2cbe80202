"""Segments belong to the user that trains, and an agent of another user serves none of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NOBODY = 65534
AS_NOBODY = f"""
import os, sys
from rank_exporter.agent import command, service
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
command.agent(sys.argv[1:])
"""


def test_segments_are_private(start_rank, directory):
    """Directory and segments are their owner's alone, whatever the umask."""
    start_rank()
    assert directory.stat().st_mode & 0o777 == 0o700
    (segment,) = directory.glob("*.segment")
    assert segment.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_agent_of_another_user_refuses_to_serve(start_rank, directory, tmp_path):
    """A sidecar of another user is told whose directory it is, and what to do, with exit code 2."""
    start_rank()
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o005 and folder.stat().st_uid == os.getuid() and "pytest-" in str(folder):
            folder.chmod(0o755)
    command = [sys.executable, "-c", AS_NOBODY, "--dir", str(directory), "--listen-address", "127.0.0.1", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"Error: segment directory {directory} is no directory of uid {NOBODY}: remove it or set RANK_EXPORTER_DIR\n"
    )
