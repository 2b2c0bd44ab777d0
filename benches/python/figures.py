"""The raw figures: of each case, those of the last run in which all systems took part."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cases import Case

Line = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Figures:
    """Lines by case, and what is known of their runs."""

    by_case: dict[str, list[Line]]
    headers: dict[str, Line]

    @classmethod
    def load(cls, path: Path) -> Figures:
        """Reads a file of raw figures."""
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        headers = {line["run"]: line for line in lines if "command" in line}
        partial = {run for run, line in headers.items() if line.get("partial")}
        runs: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            if "case" in line and line["run"] not in partial:
                runs[line["case"]][line["run"]].append(line)
        last = {}
        for case, by_run in runs.items():
            with_pds = [found for found in by_run.values() if any(_is_pds(f) for f in found)]
            if with_pds:
                last[case] = with_pds[-1]
        return cls(last, headers)

    def __contains__(self, case: Case) -> bool:
        return case.key in self.by_case

    def header(self, case: Case) -> Line:
        """The run a case is from."""
        return self.headers[self.by_case[case.key][0]["run"]]

    def rounds(self, keys: Iterable[str]) -> int:
        """The fewest rounds any of some cases has."""
        return min(1 + max(f.get("round", 0) for f in self.by_case[key]) for key in keys)

    def values(self, case: Case, system: str, figure: str) -> dict[int, float]:
        """A figure by round."""
        lines = self.by_case.get(case.key, [])
        mine = (f for f in lines if f["system"] == system and figure in f)
        return {f["round"]: f[figure] for f in mine}

    def median(self, case: Case, system: str, figure: str) -> float | None:
        """The median over the rounds."""
        values = self.values(case, system, figure)
        return statistics.median(values.values()) if values else None

    def ratios(self, case: Case, peer: str, figure: str) -> list[float]:
        """A peer's figure over that of pds, round by round."""
        ours, theirs = self.values(case, "pds", figure), self.values(case, peer, figure)
        return [theirs[number] / ours[number] for number in ours if number in theirs]

    def counted(self, case: Case, system: str) -> Line | None:
        """Requests and bytes of one operation."""
        for line in self.by_case.get(case.key, []):
            if line["system"] == system and "counted" in line:
                seen: Line = line["counted"]
                return seen
        return None

    def stages(self, case: Case, system: str) -> dict[str, float]:
        """The shares of the processor time; empty where they were not measured."""
        lines = (f for f in self.by_case.get(case.key, []) if f["system"] == system and "stages" in f)
        return next((f["stages"] for f in lines), {})

    def needed_bytes(self, case: Case) -> int | None:
        """The bytes that a read cannot do without."""
        lines = (f for f in self.by_case.get(case.key, []) if "needed_bytes" in f)
        return next((f["needed_bytes"] for f in lines), None)


def _is_pds(line: Line) -> bool:
    return line["system"] == "pds" and "wall" in line
