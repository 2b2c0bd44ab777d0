"""One measured operation in a process of its own; started by ``peers.py``, not by hand.

The argument is a JSON object with the keys of ``Order``; the last line of the output is one with
the figures. Everything that is not the operation happens before the clock runs: imports, loading
the data, a write and a read of a few rows in a scratch folder for what libraries load late.
Connections are not warmed. Memory is the peak of the resident set over the operation, above its
level just before; for a read, the result is part of it.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import data
import profiles
import pyarrow as pa
from systems import BY_KEY, Delta, Place, System

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_REPEATS = 20


@dataclasses.dataclass(frozen=True)
class Order:
    """What to do: names of cases.py, the place and the key to use there."""

    data: str
    op: str
    system: str
    place: Place
    name: str
    # A file for samples of what the process does meanwhile (profiles.py); empty for none.
    profile: str = ""


def _resident_kib(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    if not found:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return int(found[1])


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(operation: Callable[[], object], profile: str = "") -> tuple[object, dict[str, float]]:
    """Runs an operation; its result and wall time, CPU time and peak memory above the start."""
    if profile:
        with profiles.recorded(profile):
            return timed(operation)
    gc.collect()
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at the present level
    level, cpu, start = _resident_kib("VmRSS"), _cpu_seconds(), time.perf_counter()
    result = operation()
    wall = time.perf_counter() - start
    cpu = _cpu_seconds() - cpu
    peak = max(0, _resident_kib("VmHWM") - level)
    return result, {"wall": wall, "cpu": cpu, "peak_kib": peak}


def _warm_up(system: type[System]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        system(Place(folder=scratch)).warm_up(data.load("small").slice(0, 8))


def _small(system: System, rows: object, name: str) -> dict[str, float]:
    """The first write of a process, then the median of many more over the open connection."""
    _, figures = timed(lambda: system.write(rows, f"{name}/first"))
    walls = []
    for number in range(SMALL_REPEATS):
        start = time.perf_counter()
        system.write(rows, f"{name}/{number}")
        walls.append(time.perf_counter() - start)
    return {**figures, "first_wall": figures["wall"], "wall": statistics.median(walls)}


def run(order: Order) -> dict[str, float]:
    """Carries an order out."""
    kind = BY_KEY[order.system]
    _warm_up(kind)
    system = kind(order.place)
    if isinstance(system, Delta) and order.op == "convert":
        system.convert(order.name)
        return {}
    if order.op in {"read", "columns"}:
        columns = list(data.DATA[order.data].few_columns) if order.op == "columns" else None
        result, figures = timed(lambda: system.read_source(order.name, columns), order.profile)
        rows, width = system.shape(result)
        return {**figures, "rows": rows, "columns": width}
    if order.op == "stream":
        reader = data.stream()
        return timed(lambda: system.write_stream(reader, order.name))[1]
    table = system.adopt(data.load(order.data))
    if order.op == "small":
        return _small(system, table, order.name)
    return timed(lambda: system.write(table, order.name), order.profile)[1]


def main() -> None:
    """Reads the order, prints the figures."""
    value = json.loads(sys.argv[1])
    order = Order(**{**value, "place": Place.parse(value["place"])})
    print(json.dumps(run(order)), flush=True)
    os._exit(0)  # what libraries do at the end of a process, some of them badly, is not compared


if __name__ == "__main__":
    main()
