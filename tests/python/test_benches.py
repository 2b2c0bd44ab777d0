"""The scripts of the benchmarks' cold mode still run, and give what they say; nothing is timed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import data
import numpy as np
import pyarrow as pa
import pytest
import report
import runner
from cases import Case
from tables import cases as table_cases
from tables import rows as table_rows
from tables import runner as table_runner
from tables import scripts as table_scripts
from tables.everyone import BY_KEY

if TYPE_CHECKING:
    from wire import Wire

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
NO_SERVER = cast("Wire", None)
SIZES = table_cases.Sizes(0.001)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own: no data set of a benchmark is made here, and none is left over."""
    monkeypatch.setenv("PDS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path


def check_figures(figures: dict[str, Any]) -> None:
    assert all(figures[name] > 0 for name in ("wall", "cpu", "peak_kib")), figures


@pytest.mark.parametrize("op", ["small", "columns"])
def test_a_dataset_in_a_cold_process(op: str, tmp_path: Path) -> None:
    """What was written or read is compared by `run_once`."""
    bench = runner.Bench("now", tmp_path / "work", NO_SERVER, tmp_path / "results.jsonl")
    bench.work.mkdir()
    case = Case("small", op, "local", "cold")
    if op == "columns":
        bench.prepare(case, "pds", case.systems())
    for system in case.systems():
        check_figures(bench.run_once(case, system, bench.place(case.store)))


@pytest.mark.parametrize(
    "system",
    [pytest.param(key, marks=[] if key == "pds" else pytest.mark.slow) for key in BY_KEY if key != "lance"],
)
def test_a_table_in_a_cold_process(system: str, tmp_path: Path) -> None:
    """Lance is in the environment of the benchmarks only."""
    make_table_rows()
    bench = table_runner.Bench("now", tmp_path / "work", NO_SERVER, tmp_path / "results.jsonl", SIZES)
    bench.work.mkdir()
    run = 0
    for case in table_cases.CASES:
        if case.mode == "cold" and case.what.kind in BY_KEY[system].kinds:
            assert system in table_scripts.BY_KIND[case.what.kind]
            bench.prepare(case.store, system, case.what)
            check_figures(bench.run_once(case, system))
            run += 1
    assert run >= 2


def make_table_rows() -> None:
    """Without TPC-H, whose generator takes longer than the test."""
    chance, count = np.random.default_rng(1), SIZES.rows
    columns = [
        pa.array(np.arange(count)),
        pa.array(chance.integers(0, 10_000, count).astype(np.int32)),
        pa.array(chance.integers(0, 200_000, count)),
        pa.array(chance.random(count)),
        pa.array(chance.integers(8_000, 12_000, count).astype(np.int32), pa.date32()),
        pa.array([f"comment {n % 97}" for n in range(count)]),
    ]
    table = pa.table(dict(zip(table_rows.NAMES, columns, strict=True)))
    target = data.folder() / f"table-{count}-v{table_rows.VERSION}.arrow"
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    assert table_rows.path(count) == target


def test_a_run_of_one_mode_leaves_the_tables_of_the_other(tmp_path: Path) -> None:
    document, results = tmp_path / "benchmarks.md", tmp_path / "results.jsonl"
    shutil.copy(BENCHMARKS, document)
    case = Case("lineitem", "columns", "local", "cold")
    machine = {"cores": 2, "memory_bytes": 2**33, "python": "3.11.0", "wheel_bytes": None}
    versions = {store: {"polars": "1", "duckdb": "2"} for store in ("local", "s3")}
    header = {"run": "2026-01-31T00:00:00", "command": "make x", "machine": machine, "versions": versions}
    walls = {"pds": (2.0, 4.0, 2.0), "polars": (3.0, 5.0, 8.0)}
    lines = [
        {
            "run": header["run"],
            "case": case.key,
            "system": system,
            "round": number,
            "wall": wall,
            "cpu": 1,
            "peak_kib": 1,
        }
        for system, figures in walls.items()
        for number, wall in enumerate(figures)
    ]
    results.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    report.write(document, results)

    sections = re.compile(r"<!-- (.*?) begin -->(.*?)<!-- \1 end -->", re.DOTALL)
    before, after = (dict(sections.findall(file.read_text())) for file in (BENCHMARKS, document))
    assert {name for name in after if after[name] != before[name]} == {"peers cold"}
    cold = after["peers cold"]
    assert "`make x`, 2026-01-31, 3 rounds:\n  lineitem/columns/local/cold" in cold
    assert "### Time, the peer's over that of pds\n\n| data |" in cold
    assert "**1.50** (1.25 to 4.00)" in cold
