"""pds tables against their peers: ``make bench-table``.

Every case of ``tables/cases.py`` (an operation on a store) is run by all systems in turn, round
after round (A B C A B C …), each run in a process of its own (``tables/child.py``) on a table as it
was prepared. The cases of a group take turns too, so a scan before deletes and one after are of the
same round. A ratio is made within a round; the tables of ``docs/benchmarks.md`` show the median of
the rounds, the lowest and the highest. Some cases are run in a second mode: a cold process by a
user's script (``cold.py``), from its start to its result. Raw figures go, one JSON object a line, to
``bench/tables.jsonl`` in the cache (``PDS_CACHE``).

    make bench-table                                    everything, five rounds
    make bench-table ARGS='--case scan --store local'   a group or a case; may be given several times
    make bench-table ARGS='--case files-500'            the scan of 500 files, over the slow line
    make bench-table ARGS='--mode cold'                 only cold processes
    make bench-table ARGS='--system pds --system lance --rounds 3'
    make bench-table ARGS='--full'                      1,000 small appends as well
    make bench-table ARGS='--data-scale 0.01'           little data, to try the program
    make bench-table ARGS=--report                      the tables again from the raw figures

A restricted run replaces only the rows of the tables that it measured; one restricted to some
systems, or with another scale, none: its tables are printed.

The same for all: the rows, in memory before the clock starts; zstd level 1 and 1,048,576 rows a row
group where the format is Parquet; the machine's cores; the S3 server, on the same machine, its
folder in memory, or at the end of a line of 30 ms and 20 MiB/s, over which only a scan of 500 files
is measured. Lance and DuckDB's database file have encodings of their own. Every operation
begins with opening the table. Requests and bytes on S3 are counted at the server, in a process that
does nothing else; bytes on the local disk are those of the process's own writes.

Not the same: pyiceberg asks its catalogue on the local disk even where the table is on S3. DuckDB
has no table on S3; what it does there is done with bare Parquet files. Tables of many files are
made of one small file under many names, and what names them is written as each system would have
it: deltalake with a checkpoint, pyiceberg with one manifest, pds in segments.

After an upsert, a merge or a compaction all values of the table are compared with what pyarrow makes
of the same rows (``tables/changes.py``), and the change feed with the rows that came and went. lance
merges in two commits, as it has no delete on a condition; pyiceberg's transaction is a delete and an
upsert, its compaction an overwrite with all rows. DuckDB writes bare Parquet files anew, all rows.
pds and lance leave the old rows of an upsert where they are, so that later reads skip them; the
others write them anew. A change feed have pds, deltalake, which has to be asked for it when the
table is created, and lance: it lists new rows and ids, and the old values are looked up by these.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import data
from tables import report, rows
from tables.cases import CASES, GROUPS, LONG, MODES, OPERATIONS, STORES, Case, Sizes
from tables.everyone import BY_KEY
from tables.figures import Figures
from tables.runner import Bench
from wire import Wire

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
FAILURES = (RuntimeError, subprocess.TimeoutExpired, OSError)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-table", description="pds tables against their peers.")
    parser.add_argument("--rounds", type=int, default=5)
    for name, choices in {"case": [*GROUPS, *OPERATIONS], "store": STORES, "mode": MODES, "system": BY_KEY}.items():
        help_text = f"only this {name}; may be given several times"
        unique = sorted(set(choices))
        parser.add_argument(f"--{name}", action="append", choices=unique, metavar=name.upper(), help=help_text)
    parser.add_argument("--full", action="store_true", help="1,000 small appends as well")
    parser.add_argument("--data-scale", type=float, default=1.0, help="below 1: little data, no figures")
    parser.add_argument("--no-count", action="store_true", help="do not count requests and bytes")
    parser.add_argument("--no-doc", action="store_true", help="print the tables, leave the document as it is")
    parser.add_argument("--report", action="store_true", help="only write the document again")
    return parser.parse_args(argv)


def _groups(options: argparse.Namespace) -> list[list[Case]]:
    """The cases to run, group by group, a store after the other."""
    asked = set(options.case or GROUPS)
    groups = {name for name, op in OPERATIONS.items() if op.group in asked and (options.full or name not in LONG)}
    stores, modes = options.store or STORES, options.mode or MODES
    wanted = [c for c in CASES if c.store in stores and c.mode in modes and c.op in asked | groups]
    keys = dict.fromkeys((case.store, case.what.group) for case in wanted)
    return [[c for c in wanted if (c.store, c.what.group) == key] for key in keys]


def _systems(case: Case, options: argparse.Namespace) -> list[str]:
    asked = options.system or BY_KEY
    needed = {case.what.kind, *(["delete-range"] if case.what.table == "deleted" else [])}
    able = [key for key, kind in BY_KEY.items() if needed <= kind.kinds and case.store in kind.stores]
    return [key for key in able if key in asked and (key != "pds" or _installed())]


def _installed() -> bool:
    """Whether the wheel is there; its sources alone are not enough."""
    return bool(importlib.util.find_spec("pds") and importlib.util.find_spec("pds._pds"))


def _header(argv: Sequence[str], options: argparse.Namespace) -> dict[str, object]:
    machine = {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
    }
    peers = [kind for key, kind in BY_KEY.items() if key != "pds"]
    versions = {store: {kind.package: kind.version(store) for kind in peers} for store in STORES}
    command = "make bench-table" + (f" ARGS={shlex.quote(shlex.join(argv))}" if argv else "")
    more = {"partial": bool(options.system) or not _installed(), "scale": options.data_scale}
    return {"command": command, "machine": machine, "versions": versions, **more}


def _measure(bench: Bench, cases: list[Case], options: argparse.Namespace) -> int:
    """All rounds of a group; who fails at a case is left out of its later rounds."""
    failed: set[tuple[Case, str]] = set()

    def attempt(case: Case, system: str, number: int | None) -> None:
        try:
            bench.prepare(case.store, system, case.what)
            if number is None:
                bench.record(case=case.key, system=system, counted=bench.count_once(case, system))
            else:
                figures = bench.run_once(case, system)
                if number >= 0:
                    bench.record(case=case.key, system=system, round=number, **figures)
        except FAILURES as error:
            traceback.print_exc()
            print(f"{case.key}, {system} failed", flush=True)
            failed.add((case, system))
            bench.record(case=case.key, system=system, error=str(error)[-2000:])

    counting = not options.no_count and cases[0].store != "local"
    first = -max(case.unmeasured for case in cases)
    for number in [*range(first, options.rounds), *([None] if counting else [])]:
        for case in cases:
            if number is not None and number < -case.unmeasured:
                continue
            for system in _systems(case, options):
                if (case, system) not in failed:
                    attempt(case, system, number)
    bench.remove(cases[0].store)
    return len(failed)


def _show(bench: Bench, cases: list[Case], options: argparse.Namespace) -> None:
    """The medians, for the one who waits at the terminal."""
    found = Figures.load(bench.results, bench.sizes.scale, bench.run)
    for case in cases:
        print(f"{case.key}:", flush=True)
        for system in _systems(case, options):
            walls = found.values(case, system, "wall").values()
            if walls:
                cpu, peak = found.median(case, system, "cpu"), found.median(case, system, "peak_kib")
                print(f"  {system:16}{statistics.median(walls):9.4f} s {cpu:8.3f} s CPU {peak:11,.0f} KiB", flush=True)


def main(argv: Sequence[str]) -> int:
    """Runs what was asked for and writes the tables; returns how much failed."""
    options, failed, run = _arguments(argv), 0, None
    sizes = Sizes(options.data_scale)
    results = data.folder() / "tables.jsonl"
    if not options.report:
        run = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        rows.path(sizes.rows)
        with tempfile.TemporaryDirectory(dir=data.folder()) as work, Wire.start() as wire:
            bench = Bench(run, Path(work), wire, results, sizes)
            bench.record(**_header(argv, options))
            for cases in _groups(options):
                failed += _measure(bench, cases, options)
                _show(bench, cases, options)
    trial = options.no_doc or bool(options.system) or sizes.scale != 1
    found = Figures.load(results, sizes.scale, run if trial else None)
    if trial:
        print(*report.sections(found).values(), sep="\n\n")
    else:
        report.write(DOCUMENT, found)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
