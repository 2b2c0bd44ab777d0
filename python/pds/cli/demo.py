"""`pds demo`: a table, a dataset and a pipeline in a folder. What it prints is what it runs."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pds.cli.codes import OK
from pds.cli.output import print_line
from pds.errors import InvalidInput

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True)
class _Step:
    """A step: lines of Python, and then commands of the shell, in which `LAKE` is the folder."""

    title: str
    code: str = ""
    commands: tuple[str, ...] = ()


_STEPS: Final = (
    _Step(
        "Write a table. It appears together with its rows.",
        """\
import pyarrow as pa
import pds
people = pds.write_table(f"{lake}/people", pa.table({"id": [1, 2, 3], "city": ["Riga", "Oslo", "Lima"]}), key="id")
print(people.scan().count(), "rows in version", people.version)""",
    ),
    _Step(
        "Update a row and insert another one, then delete a row. Each is one commit.",
        """\
people.upsert(pa.table({"id": [3, 4], "city": ["Quito", "Bonn"]}))
people.delete("id = 2")""",
        ("head LAKE/people",),
    ),
    _Step(
        "Read the table as it was, and what changed since.",
        """\
print(people.as_of(1).scan(["city"]).to_pyarrow()["city"].to_pylist())""",
        ("diff LAKE/people 1 --columns id,city", "history LAKE/people -n 1"),
    ),
    _Step(
        "Write a dataset: readers see all of its files or none.",
        """\
pds.write_dataset(f"{lake}/cities", pa.table({"city": ["Riga", "Oslo"], "country": ["LV", "NO"]}))
print(pds.read_dataset(f"{lake}/cities").num_rows, "rows")""",
        ("verify LAKE/cities",),
    ),
    _Step(
        "Declare a pipeline: sales by city, and their sums, which updates bring up to date.",
        """\
pipeline = pds.open_pipeline(f"{lake}/sales")
pipeline.source("sales", key=pa.string(), value=pa.struct([("amount", pa.int64())]))
pipeline.aggregate("sales", aggregates={"total": ("amount", "sum")}, name="totals")
update = pipeline.update(sales=pds.Changes([("Riga", {"amount": 5}), ("Riga", {"amount": 2}), ("Oslo", {"amount": 7})]))
print(pipeline["totals"].read().num_rows, "totals in version", update.version)""",
    ),
    _Step(
        "Change the sales of one city: the other one is not computed again.",
        """\
update = pipeline.update(sales=pds.Changes([("Oslo", {"amount": 9})]))
print("cities whose total was computed:", update.stages["totals"].keys_in)""",
        ("head LAKE/sales --stage totals -o ndjson",),
    ),
    _Step("See what lies in the folder, and whether there is something to do.", "", ("ls LAKE", "health LAKE/people")),
)


def run_demo(args: argparse.Namespace, _options: dict[str, object]) -> int:
    """Run the steps, and print them."""
    if args.folder is None:
        with tempfile.TemporaryDirectory(prefix="pds-demo-") as lake:
            code = _run_steps(lake)
        print_line(f"{lake} was removed. `pds demo FOLDER` leaves a folder to look at.")
        return code
    folder = Path(args.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{args.folder!r} is not an empty folder; pass one that is new or empty")
    code = _run_steps(args.folder)
    print_line(f"All of it is in {args.folder}; remove the folder when you have looked at it.")
    return code


def _run_steps(lake: str) -> int:
    from pds.cli import main  # noqa: PLC0415 the command imports this module

    names: dict[str, Any] = {"lake": lake}
    print_line(f">>> lake = {lake!r}\n")
    for number, step in enumerate(_STEPS, 1):
        print_line(f"{number}. {step.title}\n")
        for line in step.code.splitlines():
            print_line(f">>> {line}")
            exec(line, names)  # noqa: S102 the lines are above
        for command in step.commands:
            argv = [word.replace("LAKE", lake) for word in command.split()]
            print_line(f"$ pds {shlex.join(argv)}")
            code = main(argv)
            if code != OK:
                return code
        print_line("")
    return OK
