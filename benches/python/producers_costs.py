"""What the modes of ``make bench-producers`` share: folders, clocks and counters, turns, children, tables."""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import runner
from measure import timed

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KIB = 1 << 10
MIB = 1 << 20


class Costs(NamedTuple):
    """What something cost: time in seconds, memory above the level before it, and what it read and wrote."""

    wall: float
    cpu: float
    peak_kib: float
    read: float
    """Bytes: of local files all that the process read, spilled rows too, of a server what it sent."""
    written: float
    """Bytes of the runs that an update wrote."""
    reads: float
    """Requests that read."""
    writes: float
    """Requests that write or delete."""

    @classmethod
    def median_of(cls, rounds: list[Self]) -> Self:
        """Each figure's median."""
        return cls(*map(statistics.median, zip(*rounds, strict=True)))


def measured(work: Callable[[], object], store: pds.Store | None = None) -> Costs:
    """Runs something; what it cost, with the requests to a store."""
    before, read_before = _counters(store), _read_bytes()
    result, figures = timed(work)
    after, read = _counters(store), _read_bytes() - read_before
    requests = {kind: count - before[kind] for kind, count in after.items()}
    if store is not None and not store.url.startswith("file:"):
        read = requests["bytes_read"]
    return Costs(
        figures["wall"],
        figures["cpu"],
        figures["peak_kib"],
        read,
        _written_by(result),
        sum(requests.get(kind, 0) for kind in ("get", "head", "list")),
        sum(requests.get(kind, 0) for kind in ("put", "post", "copy", "delete")),
    )


def _counters(store: pds.Store | None) -> dict[str, int]:
    return {} if store is None else store.metrics()


def _read_bytes() -> int:
    """The bytes that this process has read, of files and all else."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


def _written_by(result: object) -> int:
    stages = result.stages.values() if isinstance(result, pds.UpdateResult) else ()
    return sum(stage.bytes_written for stage in stages)


def in_turn(
    works: Mapping[str, Callable[[int], Callable[[], object]]], rounds: int, stores: Mapping[str, pds.Store]
) -> dict[str, list[Costs]]:
    """Runs each after the other, round after round, of which the first is for warming up.

    What is measured of a round is made ready before the clock runs: its changes, for example.
    """
    costs: dict[str, list[Costs]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, prepare in works.items():
            figures = measured(prepare(number), stores.get(name))
            if number:
                costs[name].append(figures)
    return costs


def ratio(above: list[Costs], below: list[Costs], figure: str = "wall") -> float:
    """The median of the rounds' ratios."""
    pairs = zip(above, below, strict=True)
    return statistics.median(getattr(a, figure) / max(getattr(b, figure), 1e-9) for a, b in pairs)


def run_child(**order: object) -> Costs:
    """Has a process of its own measure something once; see ``producers_child.py``."""
    figures = runner._child("producers_child.py", json.dumps(order))  # noqa: SLF001 of the benchmarks
    return Costs(**figures)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the local disk."""
    with tempfile.TemporaryDirectory(prefix="pds-producers-") as folder:
        yield Path(folder)


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class Table:
    """A table in Markdown that is printed line by line."""

    def __init__(self, *heads: str, texts: int = 0) -> None:
        """Print the heads; the first ``texts`` columns are not numbers."""
        self._columns = len(heads)
        self.add(*heads)
        self.add(*(["---"] * texts), *(["---:"] * (self._columns - texts)))

    def add(self, *cells: Any) -> None:  # noqa: ANN401 as print
        """Print a line."""
        if len(cells) != self._columns:
            raise ValueError(f"{len(cells)} cells in a table of {self._columns} columns")
        print("|", " | ".join(str(cell) for cell in cells), "|", flush=True)
