"""Writers in processes of their own, which are killed in the middle of anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a program that says ``begin <number>`` before a write, and after it a word for how it ended."""
    command = [sys.executable, "-c", program, json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


def environment(**variables: str) -> dict[str, str]:
    """The environment of a child that imports what this process can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}


def kill(process: subprocess.Popen[str]) -> tuple[dict[int, str], int]:
    """End it by SIGKILL; the last word of each of its writes, and the last one's number."""
    process.kill()
    told, _ = process.communicate()
    ends: dict[int, str] = {}
    last = 0
    for line in told.splitlines():
        end, number = line.split()
        ends[int(number)] = end
        last = max(last, int(number))
    return ends, last
