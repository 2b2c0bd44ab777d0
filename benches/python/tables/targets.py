"""What was to be reached, beside what was measured."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

from tables.cases import FILES, SCANNED_FILES, STORES, WRITERS, Case
from tables.everyone import BY_KEY, PEERS, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tables.figures import Figures

FLAT = 1.5
AFTER_DELETES = 1.2
RANGE_BYTES = 10 * 1024
READ_AHEAD = 10.0
FEW, MANY = FILES[0], FILES[-1]


@dataclasses.dataclass(frozen=True)
class Target:
    """The time of the best of some peers over that of pds, to be at least so much."""

    op: str
    least: float
    peers: Sequence[str] = tuple(TABLES)


TARGETS = [
    Target("append-6m", 1.2),
    Target("scan-range", 1.0),
    Target("scan-full", 1.0),
    Target("delete-range", 2.0, ["lance"]),
    Target("delete-random", 1.0),
    Target("appends-100", 1.0),
    # Bare files count here: they have the same rows afterwards.
    *(Target(op, 1.0, PEERS) for op in ("upsert-random", "upsert-range", "merge", "compact", "feed")),
    Target(f"open-{MANY}", 5.0),
    Target(f"commit-{MANY}", 5.0),
    Target(f"writers-{WRITERS[-1]}", 1.0),
    Target(f"scan-{SCANNED_FILES}", 1.0),
]


def rows(found: Figures) -> list[list[str]]:
    """All targets that were measured: what, store, best peer, to reach, measured, reached."""
    listed: list[list[str] | None] = []
    for store in STORES:
        listed += [_time(found, target, store) for target in TARGETS]
        listed += [_range_bytes(found, store)]
        listed += [_fewer_bytes(found, store, "delete-random"), _fewer_bytes(found, store, "appends-100")]
        listed += [_after_deletes(found, store, op) for op in ("scan-range", "scan-full")]
        listed += [_flat(found, store, op) for op in ("open", "commit")]
        listed.append(_landed(found, store))
        listed.append(_read_ahead(found, store))
    return [row for row in listed if row]


def _row(case: Case, what: str, *cells: str, reached: bool) -> list[str]:
    return [case.what.title + what, STORES[case.store], *cells, "yes" if reached else "**no**"]


def _time(found: Figures, target: Target, store: str) -> list[str] | None:
    case = Case(target.op, store)
    ratios = {peer: found.ratios(case, peer, "wall") for peer in target.peers}
    medians = {peer: statistics.median(values) for peer, values in ratios.items() if values}
    if not medians:
        return None
    best = min(medians, key=lambda peer: medians[peer])
    got = medians[best]
    cells = (BY_KEY[best].title, f"at least {target.least:.1f} times as fast", f"{got:.2f} times")
    return _row(case, "", *cells, reached=got >= target.least)


def _range_bytes(found: Figures, store: str) -> list[str] | None:
    case = Case("delete-range", store)
    ours = found.bytes_written(case, "pds")
    if ours is None:
        return None
    cells = ("-", f"at most {shown_bytes(RANGE_BYTES)}", shown_bytes(ours))
    return _row(case, ", bytes written", *cells, reached=ours <= RANGE_BYTES)


def _fewer_bytes(found: Figures, store: str, op: str) -> list[str] | None:
    case = Case(op, store)
    ours = found.bytes_written(case, "pds")
    theirs = {peer: found.bytes_written(case, peer) for peer in TABLES}
    known = {peer: size for peer, size in theirs.items() if size is not None}
    if ours is None or not known:
        return None
    best = min(known, key=lambda peer: known[peer])
    cells = (BY_KEY[best].title, f"at most {shown_bytes(known[best])}", shown_bytes(ours))
    return _row(case, ", bytes written", *cells, reached=ours <= known[best])


def _after_deletes(found: Figures, store: str, op: str) -> list[str] | None:
    after, before = Case(f"{op}-deleted", store), Case(op, store)
    ratios = found.against_itself(after, before, "pds")
    if not ratios:
        return None
    got = statistics.median(ratios)
    cells = ("-", f"at most {AFTER_DELETES:.1f} times its time before", f"{got:.2f} times")
    return _row(after, "", *cells, reached=got <= AFTER_DELETES)


def _flat(found: Figures, store: str, op: str) -> list[str] | None:
    """With the figures of different rounds, as many files are a group of their own."""
    many, few = Case(f"{op}-{MANY}", store), Case(f"{op}-{FEW}", store)
    ours = [found.median(case, "pds", "wall") for case in (many, few)]
    if ours[0] is None or not ours[1]:
        return None
    got = ours[0] / ours[1]
    cells = ("-", f"flat: at most {FLAT:.1f} times that of {FEW} files", f"{got:.2f} times")
    return _row(many, "", *cells, reached=got <= FLAT)


def _landed(found: Figures, store: str) -> list[str] | None:
    case = Case(f"writers-{WRITERS[-1]}", store)
    landed, appends = found.values(case, "pds", "landed"), found.values(case, "pds", "appends")
    if not landed:
        return None
    wrong = [number for number in landed if landed[number] != appends[number]]
    cells = ("-", "every append lands", f"in {len(landed) - len(wrong)} of {len(landed)} rounds")
    return _row(case, "", *cells, reached=not wrong)


def _read_ahead(found: Figures, store: str) -> list[str] | None:
    case = Case(f"scan-{SCANNED_FILES}", store)
    ratios = found.against_itself(Case(f"scan-{SCANNED_FILES}-by-two", store), case, "pds")
    if not ratios:
        return None
    got = statistics.median(ratios)
    cells = ("-", f"at least {READ_AHEAD:.1f} times as fast", f"{got:.2f} times")
    return _row(case, ", against two at a time", *cells, reached=got >= READ_AHEAD)


def shown_bytes(size: float) -> str:
    """In the largest unit that leaves a digit before the point."""
    if size >= 2**20:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / 2**10:,.1f} KiB"
