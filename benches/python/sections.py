"""Sections of ``docs/benchmarks.md``: what stands between two markers, and how new rows come into it.

Raw figures stay on the machine that measured them, so a run on another one knows only its own. Its
rows replace those of the same name; the others stay, with the run that they are from.
"""

from __future__ import annotations

import re

NAMES = ("what", "data", "operation", "store", "system")
_RUN = re.compile(r"- `.*`, \d{4}-\d\d-\d\d, \d+ rounds:")


def filled(text: str, name: str, lines: list[str]) -> str:
    """The text with a section brought up to date."""
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    pattern = re.compile(f"{re.escape(begin)}\n(.*?){re.escape(end)}", re.DOTALL)
    sections = pattern.findall(text)
    if len(sections) != 1:
        raise ValueError(f"the document has {len(sections)} sections {name!r}")
    old, new = _by_heading(sections[0].splitlines()), _by_heading(lines)
    merged = [_merged(title, old.get(title, []), new.get(title, [])) for title in {**old, **new}]
    body = "\n\n".join("\n".join(part) for part in merged if part)
    return pattern.sub(lambda _: f"{begin}\n\n{body}\n\n{end}", text)


def table(head: list[str], rows: list[list[str]], words: int = 1) -> list[str]:
    """A markdown table, its columns of words to the left, those of figures to the right."""
    if not rows:
        return []
    rule = [*["---"] * words, *["---:"] * (len(head) - words)]
    return ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]


def _by_heading(lines: list[str]) -> dict[str, list[str]]:
    """Lines by the heading above them, without the empty ones at both ends."""
    parts: dict[str, list[str]] = {"": []}
    title = ""
    for line in lines:
        if line.startswith("#"):
            title = line
            parts[title] = []
        else:
            parts[title].append(line)
    return {title: "\n".join(part).strip("\n").splitlines() for title, part in parts.items()}


def _merged(title: str, old: list[str], new: list[str]) -> list[str]:
    lines = new or old
    if old and new:
        lines = _rows(old, new) if new[0].startswith("|") else _runs(old, new)
    return [title, "", *lines] if title and lines else lines


def _rows(old: list[str], new: list[str]) -> list[str]:
    """Two tables of one head as one: rows of the new one take the place of those they are named as."""
    if old[:1] != new[:1]:
        return new
    rows = {_name(new[0], row): row for row in old[2:]}
    rows.update({_name(new[0], row): row for row in new[2:]})
    return [*new[:2], *rows.values()]


def _name(head: str, row: str) -> tuple[str, ...]:
    """The cells that say what was measured; of a target also its first word, as a case may have several."""
    cells = dict(zip((title.split()[0] for title in _cells(head)), _cells(row), strict=True))
    target = cells.get("to", "-").split(maxsplit=1)[0].strip("0123456789.")
    return (*(cells[name].strip() for name in NAMES if name in cells), target)


def _cells(row: str) -> list[str]:
    return row.split("|")[1:-1]


def _runs(old: list[str], new: list[str]) -> list[str]:
    """Machines, the runs on each and what they measured; what was measured again leaves its old run."""
    again = {case for cases in _measured(new).values() for case in cases}
    kept = {run: [case for case in cases if case not in again] for run, cases in _measured(old).items()}
    runs = {**{run: cases for run, cases in kept.items() if cases}, **_measured(new)}
    lines: list[str] = []
    for machine in dict.fromkeys(machine for machine, _ in runs):
        lines += ["", machine, ""] if lines else [machine, ""]
        for (where, run), cases in runs.items():
            if where == machine:
                lines += [run, f"  {', '.join(cases)}"]
    return lines


def _measured(lines: list[str]) -> dict[tuple[str, str], list[str]]:
    """The cases by machine and run."""
    runs: dict[tuple[str, str], list[str]] = {}
    machine = run = ""
    for line in lines:
        if _RUN.fullmatch(line):
            run = line
        elif line.startswith("  "):
            runs.setdefault((machine, run), []).extend(line.strip().split(", "))
        elif line:
            machine = line
    return runs
