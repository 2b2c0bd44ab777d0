"""From raw figures to the tables of ``docs/benchmarks.md``: ratios, counts and MiB, no seconds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import best
import limit_report
import targets
from cases import CASES, OPERATIONS, STORES, Case
from data import DATA
from figures import Figures
from sections import filled, table
from systems import BY_KEY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 2**20
NONE = "-"
PEERS = [key for key in BY_KEY if key != "pds"]
TITLES = {**{key: kind.title for key, kind in BY_KEY.items()}, "spark": "df.write.parquet"}


def write(document: Path, results: Path) -> None:
    """Fills the sections between the markers; rows without figures are left alone."""
    found = Figures.load(results)
    text = document.read_text()
    for name, lines in {
        "setup": _setup(found, "warm"),
        "targets": targets.table(found),
        "best": _best(found),
        "wall": _ratios(found, "wall"),
        "cpu": _ratios(found, "cpu"),
        "memory": _memory(found),
        "wire": _wire(found),
        "small": _requests(found),
        "other": _other(found),
        "cold": _cold(found),
        "limit": _limit(found),
    }.items():
        if lines:
            text = filled(text, f"peers {name}", lines)
    document.write_text(text)


def _title(case: Case) -> list[str]:
    data = case.data if case.data in DATA else ""
    return [data, OPERATIONS[case.op], STORES[case.store]]


def _rows(found: Figures, cells: Callable[[Case, str], str], names: list[str], mode: str = "warm") -> list[list[str]]:
    rows = []
    for case in CASES:
        if case.mode != mode or case.op in {"spark", "import"} or case not in found:
            continue
        rows.append([*_title(case), *(cells(case, name) for name in names)])
    return rows


def _best(found: Figures, mode: str = "warm") -> list[str]:
    titles, rows = {peer: TITLES[peer] for peer in PEERS}, []
    for case in (case for case in CASES if case.mode == mode and case.data in DATA | {"stream": None}):
        cells = best.cells(lambda peer, figure, case=case: found.ratios(case, peer, figure), titles)
        rows += [[*_title(case), *cells]] if cells else []
    return table(["data", "operation", "store", *best.HEAD], rows, 4)


def _head(names: list[str]) -> list[str]:
    return ["data", "operation", "store", *(TITLES[name] for name in names)]


def _ratios(found: Figures, figure: str, mode: str = "warm") -> list[str]:
    def cell(case: Case, name: str) -> str:
        ratios = found.ratios(case, name, figure)
        if not ratios:
            return NONE
        middle = statistics.median(ratios)
        return f"**{middle:.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"

    return table(_head(PEERS), _rows(found, cell, PEERS, mode), 3)


def _memory(found: Figures, mode: str = "warm") -> list[str]:
    def cell(case: Case, name: str) -> str:
        value = found.median(case, name, "peak_kib")
        return NONE if value is None else f"{value / 1024:,.0f}"

    names = ["pds", *PEERS]
    return table(_head(names), _rows(found, cell, names, mode), 3)


def _cold(found: Figures) -> list[str]:
    """Everything of the cold mode, with its headings."""
    tables = {
        "Against the best peer": _best(found, "cold"),
        "Time, the peer's over that of pds": _ratios(found, "wall", "cold"),
        "Processor time, the peer's over that of pds": _ratios(found, "cpu", "cold"),
        "Peak memory of the process, MiB": _memory(found, "cold"),
    }
    return _under_headings(_setup(found, "cold"), tables)


def _limit(found: Figures) -> list[str]:
    """Everything of the limit mode, with its headings."""
    return _under_headings(_setup(found, "limit"), limit_report.tables(found))


def _under_headings(setup: list[str], tables: dict[str, list[str]]) -> list[str]:
    shown = {title: rows for title, rows in tables.items() if rows}
    return setup and [*setup, *(line for title, rows in shown.items() for line in ("", f"### {title}", "", *rows))]


def _wire(found: Figures) -> list[str]:
    def cell(case: Case, name: str) -> str:
        seen = found.counted(case, name)
        if seen is None:
            return NONE
        moved = max(seen["sent"], seen["received"]) / MIB
        return f"{sum(seen['requests'].values())}, {moved:,.{1 if moved >= 1 else 2}f}"

    names = ["pds", *PEERS]
    rows = [row for row in _rows(found, cell, names) if any(c != NONE for c in row[3:])]
    return table(_head(names), rows, 3)


def _requests(found: Figures) -> list[str]:
    """Which requests it takes, everybody's; the prose explains them."""
    rows = []
    for case in (c for c in CASES if c.data in {"small", "lineitem"} and c.counts):
        for name in ("pds", *PEERS):
            seen = found.counted(case, name)
            if seen:
                kinds = (f"{n} {kind}" for kind, n in sorted(seen["requests"].items()))
                rows.append([case.data, OPERATIONS[case.op], TITLES[name], ", ".join(kinds)])
    return table(["data", "operation", "system", "requests"], rows, 4)


def _other(found: Figures) -> list[str]:
    rows = []
    for case in CASES:
        if case.op in {"spark", "import"} and case in found:
            for name in case.systems()[1:]:
                ratios = found.ratios(case, name, "wall")
                if ratios:
                    middle = f"**{statistics.median(ratios):.2f}**"
                    spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
                    title = BY_KEY[name].package if case.op == "import" else TITLES[name]
                    rows.append([f"{OPERATIONS[case.op]}, {title}", f"{middle} {spread}"])
    return table(["what", "times the time of pds"], rows)


def _setup(found: Figures, mode: str) -> list[str]:
    """Machine and versions once, then the commands and what each measured."""
    runs = defaultdict(list)
    for case in CASES:
        if case.mode == mode and case in found:
            runs[found.header(case)["run"], _surroundings(found.header(case))].append(case)
    lines: list[str] = []
    for surroundings in dict.fromkeys(where for _, where in runs):
        lines += ["", surroundings, ""] if lines else [surroundings, ""]
        for (run, where), cases in runs.items():
            if where == surroundings:
                keys = [case.key for case in cases]
                command = found.header(cases[0])["command"]
                lines.append(f"- `{command}`, {run[:10]}, {found.rounds(keys)} rounds:")
                lines.append(f"  {', '.join(keys)}")
    return lines


def _surroundings(header: dict[str, Any]) -> str:
    machine, versions = header["machine"], header["versions"]
    names = {BY_KEY[key].package: version for key, version in versions["local"].items()}
    listed = ", ".join(f"{package} {version}" for package, version in names.items())
    return (
        f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB of memory; "
        f"Python {machine['python']}, {listed}; on S3, DuckDB {versions['s3']['duckdb']}."
    )
