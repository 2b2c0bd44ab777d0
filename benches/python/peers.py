"""pds against its peers: ``make bench-peers``.

Every case of ``cases.py`` (a data set, an operation, a store) is run by all systems in turn, round
after round (A B C A B C …), each run in a process of its own (``measure.py``), so that a mood of
the machine hits all alike. A ratio is made within a round; the tables of ``docs/benchmarks.md``
show the median of the rounds. Raw figures go, one JSON object a line, to ``bench/results.jsonl`` in
the cache (``PDS_CACHE``). Some cases are run in two more modes: a cold process by a user's script
(``cold.py``), from its start to its result; and beside the limit, what nobody can do without
(``limits.py``), with samples of what pds does where ``perf`` is to be had (``profiles.py``).

    make bench-peers                                    everything, five rounds: about two hours and a half
    make bench-peers ARGS='--data lineitem --op write --store local'
    make bench-peers ARGS='--mode cold'                 only cold processes
    make bench-peers STRIP= ARGS='--mode limit'         only beside the limit, by a wheel with its symbols
    make bench-peers ARGS='--rounds 3 --system pds --system polars'
    make bench-peers ARGS=--report                      the tables again from the raw figures

A restricted run replaces only the rows of the tables that it measured, one restricted to some
systems none. Where the wheel is not installed, the peers run among themselves.

The same for all: the rows, in memory before the clock starts; zstd level 1; 1,048,576 rows a row
group; the machine's cores; the S3 server, on the same machine, its folder in memory. What is read
was written by pds, and everyone reads the same ``data.parquet``. What cannot be the same is said in
``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import data
import profiles
import report
from cases import CASES, MODES, OPERATIONS, STORES, Case
from runner import Bench
from systems import BY_KEY
from wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers", description="pds against its peers.")
    parser.add_argument("--rounds", type=int, default=5)
    for name, choices in {
        "data": {case.data for case in CASES},
        "op": OPERATIONS,
        "store": STORES,
        "mode": MODES,
        "system": {key for case in CASES for key in case.systems()},
    }.items():
        help_text = f"only this {name}; may be given several times"
        parser.add_argument(f"--{name}", action="append", choices=sorted(choices), help=help_text)
    parser.add_argument("--no-count", action="store_true", help="do not count requests and bytes")
    parser.add_argument("--no-doc", action="store_true", help="leave the document as it is")
    parser.add_argument("--report", action="store_true", help="only write the document again")
    return parser.parse_args(argv)


def _chosen(options: argparse.Namespace) -> list[tuple[Case, list[str]]]:
    """The cases to run, each with its systems; pds where it is installed."""
    installed = _installed()
    chosen = []
    for case in CASES:
        asked = [options.data, options.op, options.store, options.mode]
        given = [case.data, case.op, case.store, case.mode]
        if any(a and g not in a for a, g in zip(asked, given, strict=True)):
            continue
        names = [s for s in case.systems() if not options.system or s in options.system]
        names = [s for s in names if s != "pds" or installed]
        if names:
            chosen.append((case, names))
    return chosen


def _machine() -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    wheels = sorted((DOCUMENT.parents[1] / "dist").glob("*.whl"))
    return {
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "python": platform.python_version(),
        "wheel_bytes": wheels[-1].stat().st_size if wheels else None,
    }


def _measure(bench: Bench, case: Case, names: list[str], options: argparse.Namespace) -> None:
    done: dict[str, list[dict[str, float]]] = defaultdict(list)
    extra: dict[str, object] = {}
    if case.op in {"read", "columns"} or case.mode == "limit":
        bench.prepare(case, "pds" if _installed() else "remote-store", names)
        extra = {"needed_bytes": bench.source(case).needed_bytes}
    for number in range(-case.unmeasured, options.rounds):
        for name in names:
            with _named(case, name):
                figures = bench.run_once(case, name, bench.place(case.store))
            if number < 0:
                continue
            done[name].append(figures)
            bench.record(case=case.key, round=number, system=name, **figures, **extra)
    for name in names if case.counts and not options.no_count else []:
        with _named(case, name):
            counted = bench.count_once(case, name)
        bench.record(case=case.key, system=name, counted=counted, **extra)
    if case.mode == "limit" and "pds" in names and profiles.available():
        with _named(case, "pds"):
            stages = bench.profile_once(case, "pds")
        if stages:
            bench.record(case=case.key, system="pds", stages=stages)
        else:
            print("the wheel has no symbols that say where its time goes: make bench-peers STRIP=", flush=True)
    print(f"{case.key}:", flush=True)
    for name, figures in done.items():
        print(f"  {name:20} {_shown(figures)}", flush=True)


def _shown(figures: list[dict[str, float]]) -> str:
    """The medians, for the one who waits at the terminal."""
    form = {"wall": "{:8.3f} s", "cpu": "{:8.3f} s CPU", "peak_kib": "{:9,.0f} KiB"}
    return "".join(
        text.format(statistics.median(f[name] for f in figures)) for name, text in form.items() if name in figures[0]
    )


def _installed() -> bool:
    """Whether the wheel is there; its sources alone are not enough."""
    return bool(importlib.util.find_spec("pds") and importlib.util.find_spec("pds._pds"))


@contextlib.contextmanager
def _named(case: Case, system: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in {case.key}, {system}")
        raise


def main(argv: Sequence[str]) -> int:
    """Runs what was asked for and writes the tables; returns how many cases failed."""
    options, failed = _arguments(argv), 0
    results = data.folder() / "results.jsonl"
    if not options.report:
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        with tempfile.TemporaryDirectory(dir=data.folder()) as work, Wire.start() as wire:
            bench = Bench(now, Path(work), wire, results)
            command = "make bench-peers" + (f" ARGS={shlex.quote(shlex.join(argv))}" if argv else "")
            versions = {
                store: {key: kind.version(store) for key, kind in BY_KEY.items() if key != "pds"}
                for store in ("local", "s3")
            }
            about = {"machine": _machine(), "versions": versions}
            bench.record(command=command, partial=bool(options.system), **about)
            for case, names in _chosen(options):
                try:
                    _measure(bench, case, names, options)
                except (RuntimeError, subprocess.TimeoutExpired):
                    traceback.print_exc()
                    failed += 1
    if not options.no_doc:
        report.write(DOCUMENT, results)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
