"""One operation on a table in a process of its own; started by ``runner.py``, not by hand.

The argument is a JSON object with the keys of ``Order``; the last line of the output is one with
the figures. Imports, loading the rows, and every method once on a few rows in a scratch folder come
before the clock. Memory is the peak of the resident set above its level just before, so a scan's
result is part of it and the rows that are written are not. What was written on a local disk is
counted by the system, as bytes of the calls that write.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
import pyarrow.compute as pc
from systems import Place

from tables import changes, rows
from tables.cases import SMALL_ROWS, Sizes
from tables.everyone import BY_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tables.base import TableSystem

Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Order:
    """What to do: a system, a kind of operation and the name of the table it finds."""

    system: str
    kind: str
    name: str
    place: Place
    home: str
    sizes: Sizes
    size: int = 0  # of which the kind says the meaning
    warm: bool = True
    verify: bool = True

    @classmethod
    def parse(cls, text: str) -> Order:
        """The order of a parent process."""
        value = json.loads(text)
        return cls(**{**value, "place": Place.parse(value["place"]), "sizes": Sizes(**value["sizes"])})


def _written_bytes() -> int:
    found = re.search(r"^wchar: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    if not found:
        raise RuntimeError("/proc/self/io has no wchar")
    return int(found[1])


def _timed(order: Order, operation: Callable[[], object]) -> tuple[Any, Figures]:
    before = _written_bytes()
    result, figures = measure.timed(operation)
    if order.place.server:
        return result, figures
    return result, {**figures, "written_bytes": _written_bytes() - before}


def _check(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise RuntimeError(f"{what}: {found} and not {wanted}")


def _row_count(system: TableSystem, name: str) -> int:
    return system.scan(name, ["id"], None).num_rows


def _append(order: Order, system: TableSystem) -> Figures:
    """One commit of all rows or half of them, or many small ones."""
    sizes = order.sizes
    if order.kind == "append":
        batches = [rows.load(sizes.rows, sizes.rows // order.size)]
    else:
        batches = rows.small(sizes.rows, 1 if order.kind == "commit" else sizes.appends(order.size))
    _, figures = _timed(order, lambda: system.append_all(order.name, batches))
    if order.verify and order.kind != "commit":
        _check("rows", _row_count(system, order.name), sum(b.num_rows for b in batches))
    return figures


def _predicate(order: Order, kind: str) -> tuple[str, int]:
    """A predicate and the rows it leaves of a table that nothing was deleted from."""
    sizes = order.sizes
    if kind == "delete-range":
        first, last = sizes.deleted
        return f"id >= {first} AND id <= {last}", sizes.loaded - (last - first + 1)
    keys = rows.left(sizes.rows, sizes.loaded, (-1, -1))
    return f"r < {rows.RANDOM_BELOW}", len(keys)


def _delete(order: Order, system: TableSystem) -> Figures:
    predicate, left = _predicate(order, order.kind)
    _, figures = _timed(order, lambda: system.delete(order.name, predicate))
    if order.verify:
        _check("rows", _row_count(system, order.name), left)
    return figures


def _change(order: Order, system: TableSystem) -> Figures:
    """An upsert or a merge; then all values of the table are compared."""
    source = changes.make_source(order.sizes, order.kind)
    operation = system.merge if order.kind == "merge" else system.upsert
    _, figures = _timed(order, lambda: operation(order.name, source))
    if order.verify:
        changes.check_equal(system.scan(order.name, None, None), changes.expected_rows(order.sizes, order.kind))
    return figures


def _compact(order: Order, system: TableSystem) -> Figures:
    _, figures = _timed(order, lambda: system.compact(order.name))
    if order.verify:
        table = system.open(order.name)
        files = system.count_files(table)
        system.close(table)
        _check("fewer files", files < order.sizes.pieces, wanted=True)
        figures["files_left"] = files
        changes.check_equal(system.scan(order.name, None, None), changes.expected_rows(order.sizes, order.kind))
    return figures


def _feed(order: Order, system: TableSystem) -> Figures:
    feed, figures = _timed(order, lambda: system.changes(order.name, changes.FEED_COMMITS))
    if order.verify:
        changes.check_equal(feed, changes.expected_feed(order.sizes))
    return figures


def _scan(order: Order, system: TableSystem) -> Figures:
    """``size`` says whether the deletes came before."""
    sizes = order.sizes
    columns, keys = rows.asked(order.kind, sizes)
    found, figures = _timed(order, lambda: system.scan(order.name, columns, keys))
    wanted = rows.left(sizes.rows, sizes.loaded, sizes.deleted if order.size else None)
    if keys:
        wanted = wanted[(wanted >= keys[0]) & (wanted <= keys[1])]
    _check("rows", found.num_rows, len(wanted))
    _check("sum of the keys", sum(chunk.to_numpy().sum() for chunk in found["id"].chunks), wanted.sum())
    _check("columns", len(found.column_names), len(columns or rows.NAMES))
    return figures


def _scan_files(order: Order, system: TableSystem) -> Figures:
    """``size`` is the number of files, which all have the same rows."""
    (each,) = rows.small(order.sizes.rows, 1)
    expected = order.size * each.num_rows

    def operation() -> pa.Table:
        if order.kind == "scan-by-two":
            return system.scan_by_two(order.name)
        return system.scan(order.name, None, None)

    scanned, figures = _timed(order, operation)
    _check("rows", scanned.num_rows, expected)
    _check("sum of the keys", pc.sum(scanned["id"]).as_py(), order.size * pc.sum(each["id"]).as_py())
    _check("columns", scanned.column_names, each.column_names)
    return figures


def _open(order: Order, system: TableSystem) -> Figures:
    """``size`` is the number of files."""
    counting = order.kind == "count"

    def operation() -> tuple[object, list[str], int]:
        table = system.open(order.name)
        return table, system.column_names(table), system.count_files(table) if counting else 0

    (_, columns, files), figures = _timed(order, operation)
    _check("columns", columns, list(rows.NAMES))
    _check("files", files, order.size if counting else 0)
    return figures


def _write_among_others(order: Order, system: TableSystem) -> Figures:
    """``size`` is this process's number; it says that it is ready and waits for the others."""
    count = order.sizes.writer_appends
    batches = rows.small(order.sizes.rows, count, start=order.size * count)
    print("ready", flush=True)
    sys.stdin.readline()
    counts, figures = _timed(order, lambda: system.append_among_others(order.name, batches))
    return {**figures, **counts}


def _prepare(order: Order, system: TableSystem) -> Figures:
    """Makes the table that cases begin with; ``size`` is a number of files."""
    sizes = order.sizes
    if order.kind == "prepare-files":
        system.build(order.name, rows.small(sizes.rows, 1)[0], order.size)
        return {}
    (system.create_with_feed if order.kind == "prepare-evolved" else system.create)(order.name, rows.schema(sizes))
    if order.kind in {"prepare-loaded", "prepare-deleted", "prepare-evolved"}:
        system.append_all(order.name, [rows.load(sizes.rows, sizes.loaded)])
    if order.kind == "prepare-pieces":
        loaded, count = rows.load(sizes.rows, sizes.loaded), sizes.pieces
        edges = [number * sizes.loaded // count for number in range(count + 1)]
        batches = [loaded.slice(first, last - first) for first, last in itertools.pairwise(edges)]
        system.append_all(order.name, [batch.combine_chunks() for batch in batches])
    if order.kind == "prepare-evolved":
        system.upsert(order.name, changes.make_source(sizes, "upsert-random"))
        system.delete(order.name, _predicate(order, "delete-range")[0])
    if order.kind == "prepare-deleted":
        for kind in ("delete-range", "delete-random"):
            system.delete(order.name, _predicate(order, kind)[0])
    return {}


def _rows(order: Order, system: TableSystem) -> Figures:
    return {"rows": _row_count(system, order.name)}


TASKS: dict[str, Callable[[Order, TableSystem], Figures]] = {
    "append": _append,
    "appends": _append,
    "commit": _append,
    "compact": _compact,
    "count": _open,
    "delete-random": _delete,
    "delete-range": _delete,
    "feed": _feed,
    "lookup": _scan,
    "merge": _change,
    "open": _open,
    "rows": _rows,
    "scan-by-two": _scan_files,
    "scan-files": _scan_files,
    "scan-full": _scan,
    "scan-range": _scan,
    "upsert-random": _change,
    "upsert-range": _change,
    "writers": _write_among_others,
    **{f"prepare-{table}": _prepare for table in ("empty", "loaded", "deleted", "pieces", "evolved", "files")},
}


def run(order: Order) -> Figures:
    """Carries an order out."""
    kind = BY_KEY[order.system]
    if order.warm:
        few = rows.load(order.sizes.rows, SMALL_ROWS).slice(0, 8)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            kind(Place(folder=str(folder / "place")), folder / "home").warm_up(few)
    return TASKS[order.kind](order, kind(order.place, Path(order.home)))


def main() -> None:
    """Reads the order, prints the figures."""
    print(json.dumps(run(Order.parse(sys.argv[1]))), flush=True)
    os._exit(0)  # what libraries do at the end of a process, some of them badly, is not compared


if __name__ == "__main__":
    main()
