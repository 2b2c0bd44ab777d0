"""The cold mode: from the start of a process to its result, by the script that a user would write.

The scripts (``scripts.py``, ``tables/scripts.py``) import what they need and nothing else, so
imports, threads, connections and first touches of memory count, and the interpreter itself. The
clock begins before the process is started and ends when the script has its result; the end of the
process is not in it. CPU time and peak memory are those of the whole process up to then, without the
rows that are written: they are loaded between the imports and the write, and what that takes is
taken off. What is read, and the libraries, are in the page cache: the first run does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb_httpfs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servers import S3Server

TIMEOUT_SECONDS = 600
# pds would import remote-store, of which its users have none.
HIDDEN = Path(__file__).resolve().parent / "hidden"

_BEGIN = """
pause, result = (0, 0, 0), None
"""
# Loading the rows is taken off, as the warm mode has them before its clock starts, and so is their memory.
_LOAD = """
import resource, time
def look():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/status") as status:
        level = int(status.read().split("VmRSS:")[1].split()[0])
    return time.monotonic(), usage.ru_utime + usage.ru_stime, level
before = look()
import pyarrow
with pyarrow.OSFile({path!r}) as file:
    rows = pyarrow.ipc.open_file(file).read_all()
{adopt}
pyarrow.default_memory_pool().release_unused()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts again at the present level
pause = [b - a for a, b in zip(before, look())]
"""
# Two processes of one machine have the same monotonic clock. Rows have a shape; other results are shown as they are.
_END = """
import time
end = time.monotonic()
import json, os, resource
usage = resource.getrusage(resource.RUSAGE_SELF)
with open("/proc/self/status") as status:
    peak = int(status.read().split("VmHWM:")[1].split()[0])
figures = {
    "end": end - pause[0],
    "cpu": usage.ru_utime + usage.ru_stime - pause[1],
    "peak_kib": peak - pause[2],
    "result": getattr(result, "shape", result),
}
print(json.dumps(figures), flush=True)
os._exit(0)  # what libraries do at the end of a process, some of them badly, is not compared
"""


def load(path: Path, adopt: str = "") -> str:
    """The lines that make ``rows`` of an Arrow file, and a system's own of them."""
    return _LOAD.format(path=str(path), adopt=adopt)


def modules(system: str, server: S3Server | None) -> Path | None:
    """A folder that a system needs first on its module path."""
    return HIDDEN if system == "pds" else duckdb_httpfs.modules(system, server)


def environment(*folders: Path | None) -> dict[str, str]:
    """What a measured process finds: some folders before the others on its module path, no server of Amazon."""
    paths = [*folders, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def run(
    template: str, values: Mapping[str, Any], *, folder: Path, modules: Path | None
) -> tuple[Any, dict[str, float]]:
    """Runs a script in a folder; its ``result`` as JSON has it, wall time, CPU time and peak memory."""
    script = _BEGIN + template.format_map(values) + _END
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(modules),
        cwd=folder,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"a script ended with {done.returncode}:\n{template}\n{done.stderr[-4000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    result, end = figures.pop("result"), figures.pop("end")
    return result, {"wall": end - start, **figures}
