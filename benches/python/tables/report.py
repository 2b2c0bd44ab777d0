"""From raw figures to the tables of ``docs/benchmarks.md``: ratios, counts and bytes, no seconds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

import best
from sections import filled, table

from tables import targets
from tables.cases import CASES, STORES, Case
from tables.everyone import BY_KEY, PEERS
from tables.targets import shown_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tables.figures import Figures

NONE = "-"
EVERYONE = ["pds", *PEERS]


def sections(found: Figures) -> dict[str, str]:
    """What stands between the markers of each section; nothing of a mode that was not measured."""
    warm = [
        ("", _setup(found, "warm")),
        ("### To reach", table(_TARGET_HEAD, targets.rows(found), 3)),
        ("### Against the best peer", _best(found, "warm")),
        ("### Time, a peer's over that of pds", _table(PEERS, _ratio(found, "wall"))),
        ("### Several processes appending: what landed", _table(EVERYONE, _landed(found))),
        ("### CPU time, a peer's over that of pds", _table(PEERS, _ratio(found, "cpu"))),
        ("### Peak memory, MiB", _table(EVERYONE, _memory(found))),
        ("### Written to the local disk", _table(EVERYONE, _written(found))),
        ("### Requests, and bytes to and from the S3 server", _table(EVERYONE, _requests(found))),
    ]
    cold = [
        ("", _setup(found, "cold")),
        ("#### Against the best peer", _best(found, "cold")),
        ("#### Time, a peer's over that of pds", _table(PEERS, _ratio(found, "wall"), "cold")),
        ("#### CPU time, a peer's over that of pds", _table(PEERS, _ratio(found, "cpu"), "cold")),
        ("#### Peak memory, MiB", _table(EVERYONE, _memory(found), "cold")),
    ]
    texts = {"tables": _text(warm), "tables cold": _text(cold)}
    return {name: text for name, text in texts.items() if text}


def _text(parts: list[tuple[str, list[str]]]) -> str:
    return "\n\n".join("\n".join([*([title, ""] if title else []), *lines]) for title, lines in parts if lines)


_TARGET_HEAD = ["what", "store", "best peer", "to reach", "measured", "reached"]


def write(document: Path, found: Figures) -> None:
    """Fills the sections between the markers; rows without figures are left alone."""
    text = document.read_text()
    for name, lines in sections(found).items():
        text = filled(text, name, lines.splitlines())
    document.write_text(text)


def _table(names: list[str], cell: Callable[[Case, str], str], mode: str = "warm") -> list[str]:
    """A row for every case that has anything to show."""
    rows = []
    for case in (case for case in CASES if case.mode == mode):
        cells = [cell(case, name) for name in names]
        if any(c != NONE for c in cells):
            rows.append([case.what.title, STORES[case.store], *cells])
    head = ["operation", "store", *(BY_KEY[name].title for name in names)]
    return table(head, rows, 2)


def _best(found: Figures, mode: str) -> list[str]:
    titles, rows = {peer: BY_KEY[peer].title for peer in PEERS}, []
    for case in (case for case in CASES if case.mode == mode):
        cells = best.cells(lambda peer, figure, case=case: found.ratios(case, peer, figure), titles)
        rows += [[case.what.title, STORES[case.store], *cells]] if cells else []
    return table(["operation", "store", *best.HEAD], rows, 3)


def _ratio(found: Figures, figure: str) -> Callable[[Case, str], str]:
    def cell(case: Case, name: str) -> str:
        ratios = found.ratios(case, name, figure)
        if not ratios:
            return "failed" if found.failed(case, name) else NONE
        middle = statistics.median(ratios)
        return f"**{middle:.2f}** ({min(ratios):.2f} to {max(ratios):.2f}){_fewer(found, case, name)}"

    return cell


def _fewer(found: Figures, case: Case, name: str) -> str:
    """A note where a system could not be given as many files as the others."""
    files, most = found.median(case, name, "files"), found.median(case, "pds", "files")
    return f" with {files:,.0f} files" if files and most and files != most else ""


def _memory(found: Figures) -> Callable[[Case, str], str]:
    def cell(case: Case, name: str) -> str:
        value = found.median(case, name, "peak_kib")
        return NONE if value is None else f"{value / 1024:,.0f}"

    return cell


def _written(found: Figures) -> Callable[[Case, str], str]:
    def cell(case: Case, name: str) -> str:
        value = found.median(case, name, "written_bytes")
        return NONE if value is None or not case.what.changes else shown_bytes(value)

    return cell


def _requests(found: Figures) -> Callable[[Case, str], str]:
    def cell(case: Case, name: str) -> str:
        seen = found.counted(case, name)
        if seen is None:
            return NONE
        kinds = " ".join(f"{count} {kind}" for kind, count in sorted(seen["requests"].items()))
        return f"{kinds}; {shown_bytes(seen['sent'])} to, {shown_bytes(seen['received'])} from"

    return cell


def _landed(found: Figures) -> Callable[[Case, str], str]:
    """Of the worst round; conflicts are what the retries around an append saw."""

    def cell(case: Case, name: str) -> str:
        landed, appends = found.values(case, name, "landed"), found.values(case, name, "appends")
        if not landed:
            failed = case.what.kind == "writers" and found.failed(case, name)
            return "failed" if failed else NONE
        worst = min(landed, key=lambda number: landed[number] - appends[number])
        conflicts = found.values(case, name, "conflicts")[worst]
        errors = found.values(case, name, "errors")[worst]
        return f"{landed[worst]:g} of {appends[worst]:g}, {conflicts:g} conflicts, {errors:g} given up"

    return cell


def _setup(found: Figures, mode: str) -> list[str]:
    """Machine and versions once, then the commands and what each measured."""
    runs: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in CASES:
        if case.mode == mode and case in found:
            runs[found.header(case)["run"], _surroundings(found, case)].append(case)
    lines: list[str] = []
    for surroundings in dict.fromkeys(where for _, where in runs):
        lines += ["", surroundings, ""] if lines else [surroundings, ""]
        for (run, where), cases in runs.items():
            if where == surroundings:
                command = found.header(cases[0])["command"]
                lines.append(f"- `{command}`, {run[:10]}, {found.rounds(cases)} rounds:")
                lines.append(f"  {', '.join(case.key for case in cases)}")
    return lines


def _surroundings(found: Figures, case: Case) -> str:
    header = found.header(case)
    machine, versions = header["machine"], header["versions"]
    listed = ", ".join(f"{package} {version}" for package, version in versions["local"].items())
    return (
        f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB of memory; "
        f"Python {machine['python']}, {listed}; on S3, DuckDB {versions['s3']['duckdb']}."
    )
