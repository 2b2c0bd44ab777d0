"""Updates of a pipeline beside those of pathway, which keeps all rows in the memory of a process that has to go on.

    python -m venv ENVIRONMENT && ENVIRONMENT/bin/pip install pathway
    make bench-producers ARGS='--pathway ENVIRONMENT/bin/python'

It is in no lock file of the project.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
from producers_costs import MIB, Table, measured, scratch
from producers_registry import GRAPHS
from producers_sums import change_orders, count_countries, order_files

import pds

UPDATES = (1, 100, 10_000)


def compare(python: Path, sizes: list[int], rounds: int) -> None:
    """Prints the ratios, and what is kept between updates."""
    table = Table(
        "rows", "changed", "pathway / pds", "build: pathway / pds", "MiB in memory between updates, pathway",
        "pds", "MiB in files, pds",
    )  # fmt: skip
    for rows in sizes:
        with scratch() as folder:
            _measure(python, rows, rounds, folder, table)


def _measure(python: Path, rows: int, rounds: int, folder: Path, table: Table) -> None:
    graph = GRAPHS["sums"]
    store = pds.Store((folder / "lake").as_uri())
    pipeline = graph.open(store, rows)
    build = measured(lambda: pipeline.update(graph.all_rows(rows)), store)
    stored = build.written / MIB
    files = [str(order_files(rows)["orders"])]
    own: dict[int, list[float]] = {keys: [] for keys in UPDATES}
    for number in range(rounds):
        for keys in UPDATES:
            changes = change_orders(rows, keys, number)
            files.append(str(folder / f"changes-{number}-{keys}.parquet"))
            pq.write_table(changes["orders"].upserts, files[-1])
            own[keys].append(measured(lambda c=changes: pipeline.update(c), store).wall)
    order = {"files": files, "countries": count_countries(rows)}
    script = str(Path(__file__).with_name("producers_pathway_child.py"))
    done = subprocess.run(
        [python, script, json.dumps(order)], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    content = pipeline["by_country"].read().group_by("target_key").aggregate([("value", "sum")])
    if dict(map(tuple, figures["sums"])) != dict(zip(*content.to_pydict().values(), strict=True)):
        raise SystemExit("pathway and the pipeline have other sums")
    first, *updates = figures["seconds"]
    for at, keys in enumerate(UPDATES):
        ratio = statistics.median(updates[at :: len(UPDATES)]) / statistics.median(own[keys])
        table.add(
            f"{rows:,}", f"{keys:,}", f"{ratio:.2f}", f"{first / build.wall:.2f}", f"{figures['mib'][-1]:,.0f}",
            "none", f"{stored:,.0f}",
        )  # fmt: skip
