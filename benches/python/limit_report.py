"""The tables of the limit mode: how near a system is to what nobody can do without, and where its time goes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import profiles
from cases import CASES, LIMITED, OPERATIONS, STORES, Case
from sections import table

if TYPE_CHECKING:
    from figures import Figures

PARTS = ("zstd", "memory", "store")


def tables(found: Figures) -> dict[str, list[str]]:
    """Both, by their headings."""
    cases = [case for case in CASES if case.mode == "limit" and case in found]
    head = ["data", "operation", "store"]
    limits = [[*_title(case), *_limit(found, case)] for case in cases]
    stages = [[*_title(case), *cells] for case in cases if (cells := _stages(found, case))]
    parts = [f"CPU: {part}" for part in (*PARTS, "all three")]
    return {
        "The limit over the time": table([*head, *LIMITED, *parts], limits, 3),
        "Where the time of pds goes": table([*head, "waiting", *profiles.NAMES], stages, 3),
    }


def _title(case: Case) -> list[str]:
    return [case.data, OPERATIONS[case.op], STORES[case.store]]


def _limit(found: Figures, case: Case) -> list[str]:
    """The limit over the time of each system; then the processor time of each part over that of pds."""
    pairs = [("wall", system, "wall") for system in LIMITED]
    pairs += [*((f"{part}_cpu", "pds", "cpu") for part in PARTS), ("cpu", "pds", "cpu")]
    return [_share(found, case, *pair) for pair in pairs]


def _share(found: Figures, case: Case, figure: str, system: str, of: str) -> str:
    limits, values = found.values(case, "limit", figure), found.values(case, system, of)
    shares = [limits[number] / values[number] for number in limits if number in values]
    return f"{statistics.median(shares):.0%}" if shares else "-"


def _stages(found: Figures, case: Case) -> list[str]:
    """Of the processor time; waiting is what of the time of all cores was not used."""
    stages = found.stages(case, "pds")
    walls, cpus = (found.values(case, "pds", figure) for figure in ("wall", "cpu"))
    if not stages or not walls:
        return []
    cores = found.header(case)["machine"]["cores"]
    used = statistics.median(cpus[number] / walls[number] / cores for number in walls)
    return [f"{max(0.0, 1 - used):.0%}", *(f"{stages.get(name, 0):.0%}" for name in profiles.NAMES)]
