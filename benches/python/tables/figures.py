"""The raw figures: of each case, those of the last run in which all systems took part."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tables.cases import Case

Line = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Figures:
    """Lines by case, and what is known of their runs."""

    by_case: dict[str, list[Line]]
    headers: dict[str, Line]

    @classmethod
    def load(cls, path: Path, scale: float, run: str | None = None) -> Figures:
        """Reads the figures of a scale: of all runs of all systems, or of one run whatever it was."""
        lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
        headers = {line["run"]: line for line in lines if "command" in line}
        wanted = {
            key
            for key, line in headers.items()
            if line["scale"] == scale and (key == run if run else not line["partial"])
        }
        runs: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            if "case" in line and line["run"] in wanted:
                runs[line["case"]][line["run"]].append(line)
        last = {}
        for case, by_run in runs.items():
            with_pds = [found for found in by_run.values() if any(_is_pds(line) for line in found)]
            last[case] = (with_pds or list(by_run.values()))[-1]
        return cls(last, headers)

    def __contains__(self, case: Case) -> bool:
        return case.key in self.by_case

    def header(self, case: Case) -> Line:
        """The run a case is from."""
        return self.headers[self.by_case[case.key][0]["run"]]

    def rounds(self, cases: list[Case]) -> int:
        """The fewest rounds any of some cases has."""
        return min(1 + max(f.get("round", 0) for f in self.by_case[case.key]) for case in cases)

    def values(self, case: Case, system: str, figure: str) -> dict[int, float]:
        """A figure by round."""
        lines = self.by_case.get(case.key, [])
        return {f["round"]: f[figure] for f in lines if f["system"] == system and "round" in f and figure in f}

    def median(self, case: Case, system: str, figure: str) -> float | None:
        """The median over the rounds."""
        values = self.values(case, system, figure)
        return statistics.median(values.values()) if values else None

    def ratios(self, case: Case, peer: str, figure: str) -> list[float]:
        """A peer's figure over that of pds, round by round."""
        ours, theirs = self.values(case, "pds", figure), self.values(case, peer, figure)
        return [theirs[n] / ours[n] for n in ours if n in theirs and ours[n] > 0]

    def against_itself(self, after: Case, before: Case, system: str) -> list[float]:
        """The time of one case over that of another, round by round."""
        first, second = self.values(before, system, "wall"), self.values(after, system, "wall")
        return [second[n] / first[n] for n in first if n in second]

    def counted(self, case: Case, system: str) -> Line | None:
        """Requests and bytes of one operation."""
        lines = (f for f in self.by_case.get(case.key, []) if f["system"] == system and "counted" in f)
        return next((f["counted"] for f in lines), None)

    def failed(self, case: Case, system: str) -> bool:
        """Whether it was tried and did not work."""
        return any(f["system"] == system and "error" in f for f in self.by_case.get(case.key, []))

    def bytes_written(self, case: Case, system: str) -> float | None:
        """What was written to the disk, or sent to the server."""
        if case.store == "local":
            return self.median(case, system, "written_bytes")
        seen = self.counted(case, system)
        return seen["sent"] if seen else None


def _is_pds(line: Line) -> bool:
    return line["system"] == "pds" and "wall" in line
