"""`tools/beside`, by which the gate runs two rows of steps at the same time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TOOL = Path(__file__).parents[2] / "tools" / "beside"


def beside(first: str, second: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "bash", "-c", first, "--", "bash", "-c", second]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_waits_for_the_other_and_what_the_first_prints_comes_last(tmp_path: Path) -> None:
    """Neither ends before the other has begun."""
    a, b = tmp_path / "a", tmp_path / "b"
    meet = "echo {name}; touch {mine}; until [ -e {other} ]; do sleep 0.01; done"
    done = beside(meet.format(name="first", mine=a, other=b), meet.format(name="second", mine=b, other=a))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("second", "first")


@pytest.mark.parametrize("which", [0, 1])
def test_the_first_failure_ends_the_other_and_its_children(tmp_path: Path, which: int) -> None:
    """Nothing that one of them has started is left, and what was printed until then is shown."""
    marker = tmp_path / "pid"
    commands = [f"echo seen; sleep 1000 & echo $! > {marker}; wait"] * 2
    commands[which] = f"echo seen; until [ -s {marker} ]; do sleep 0.01; done; exit 3"
    done = beside(*commands)
    assert done.returncode == 1
    assert done.stdout.splitlines().count("seen") == 2
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(marker.read_text())).wait(60)
