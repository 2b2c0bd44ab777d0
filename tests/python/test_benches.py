"""The scripts of the benchmarks' cold mode still run, and give what they say; nothing is timed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import data
import limit_report
import numpy as np
import pages_of_file
import process_tree
import profiles
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import report
import runner
from cases import Case
from figures import Figures
from tables import cases as table_cases
from tables import changes as table_changes
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


@pytest.mark.parametrize("op", ["read", *(pytest.param(op, marks=pytest.mark.slow) for op in ("write", "columns"))])
def test_a_dataset_beside_the_limit(op: str, tmp_path: Path) -> None:
    bench = runner.Bench("now", tmp_path / "work", NO_SERVER, tmp_path / "results.jsonl")
    bench.work.mkdir()
    case = Case("small", op, "local", "limit")
    bench.prepare(case, "pds", case.systems())
    figures = {system: bench.run_once(case, system, bench.place(case.store)) for system in case.systems()}
    limit = figures["limit"]
    assert limit["wall"] >= limit["store_wall"] > 0
    assert limit["cpu"] == pytest.approx(sum(limit[f"{part}_cpu"] for part in limit_report.PARTS))


@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False}, {"use_dictionary": False, "data_page_version": "2.0"}]
)
def test_pages_are_those_that_the_footer_counts(options: dict[str, Any], tmp_path: Path) -> None:
    """A header is as long before and after compression, so the footer's two sizes differ as those of the bodies do."""
    count, path = 200_000, tmp_path / "data.parquet"
    numbers = np.random.default_rng(7).integers(0, 1_000, count)
    table = pa.table({"n": numbers, "s": [f"text {n}" if n % 5 else None for n in numbers.tolist()]})
    pq.write_table(table, path, compression="zstd", row_group_size=count // 2, **options)
    footer, codec = pq.read_metadata(path), pa.Codec("zstd")
    columns = [footer.row_group(group).column(n) for group in range(2) for n in range(2)]
    for column, (offset, size) in zip(columns, pages_of_file.chunks(path, None), strict=True):
        pages = list(pages_of_file.pages(path, offset, size))
        assert len(pages) > 1
        saved = sum(page.plain_size - len(page.body) for page in pages)
        assert saved == column.total_uncompressed_size - column.total_compressed_size
        assert all(codec.decompress(page.body, page.plain_size).size == page.plain_size for page in pages)
    assert pages_of_file.chunks(path, ["s"]) == pages_of_file.chunks(path, None)[1::2]


@pytest.mark.parametrize(
    ("sample", "stage"),
    [
        ("7f12 HUF_decompress4X1_usingDTable_internal_fast (/x/pds/_pds.abi3.so)", "zstd"),
        ("7f12 <parquet::encodings::rle::RleDecoder>::get_batch::<i32> (/x/pds/_pds.abi3.so)", "Parquet"),
        ("7f12 crc32fast::specialized::pclmulqdq::calculate (/x/pds/_pds.abi3.so)", "hashes"),
        ("7f12 __memmove_avx512_unaligned_erms (/usr/lib/x86_64-linux-gnu/libc.so.6)", "copies"),
        ("ffff clear_page_erms ([kernel.kallsyms])", "memory"),
        ("ffff rep_movs_alternative ([kernel.kallsyms])", "kernel: files and sockets"),
        ("7f12 [unknown] (/x/python3.11)", "others"),
    ],
)
def test_a_sample_is_for_a_stage(sample: str, stage: str) -> None:
    assert profiles.stage(sample) == stage
    assert stage in profiles.NAMES


def test_the_limit_is_shown_over_the_time_of_each_system(tmp_path: Path) -> None:
    case = Case("wide", "read", "s3", "limit")
    limit = {"wall": 1, "cpu": 3, "zstd_cpu": 1.5, "memory_cpu": 0.9, "store_cpu": 0.6}
    figures = {"pds": {"wall": 4, "cpu": 6}, "polars": {"wall": 2, "cpu": 3}, "limit": limit}
    header = {"run": "now", "command": "make x", "machine": {"cores": 2}}
    lines = [header, *({"run": "now", "case": case.key, "system": s, "round": 0, **f} for s, f in figures.items())]
    lines.append({"run": "now", "case": case.key, "system": "pds", "stages": {"zstd": 0.6, "others": 0.4}})
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    limits, stages = limit_report.tables(Figures.load(tmp_path / "results.jsonl")).values()
    assert limits[2] == "| wide | read whole | S3 server | 25% | 50% | 25% | 15% | 10% | 50% |"
    assert stages[2] == "| wide | read whole | S3 server | 25% | 60% | 0% | 0% | 0% | 0% | 0% | 0% | 0% | 40% |"


def test_processor_time_is_that_of_all_processes_below() -> None:
    """A child that has ended, and one of its children."""
    work = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    command = [
        sys.executable,
        "-c",
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])\n{work}",
    ]
    before = process_tree.cpu_seconds()
    with subprocess.Popen([*command[:2], f"{command[2]}input()"], stdin=subprocess.PIPE) as child:
        alive = 0.0
        for _ in range(600):
            alive = process_tree.cpu_seconds(child.pid)
            if alive >= 0.6:
                break
            time.sleep(0.05)
        assert alive >= 0.6
        child.communicate(b"\n")
    assert process_tree.cpu_seconds() - before >= 0.6


# Lance is in the environment of the benchmarks only.
each_system = pytest.mark.parametrize(
    "system",
    [pytest.param(key, marks=[] if key == "pds" else pytest.mark.slow) for key in BY_KEY if key != "lance"],
)


@each_system
def test_a_table_in_a_cold_process(system: str, tmp_path: Path) -> None:
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


@each_system
def test_a_changed_table_has_the_rows_of_the_oracle(system: str, tmp_path: Path) -> None:
    """`run_once` compares all values."""
    make_table_rows()
    bench = table_runner.Bench("now", tmp_path / "work", NO_SERVER, tmp_path / "results.jsonl", SIZES)
    bench.work.mkdir()
    changes = [op for op, what in table_cases.OPERATIONS.items() if what.group in {"change", "compact", "feed"}]
    able = [op for op in changes if table_cases.OPERATIONS[op].kind in BY_KEY[system].kinds]
    assert {"upsert-random", "upsert-range", "merge"} <= set(able)
    for op in able:
        case = table_cases.Case(op, "local")
        bench.prepare(case.store, system, case.what)
        assert bench.run_once(case, system)["wall"] > 0


def test_the_oracle_sees_a_wrong_value_and_a_wrong_row() -> None:
    make_table_rows()
    for expected in (table_changes.expected_rows(SIZES, "merge"), table_changes.expected_feed(SIZES)):
        rows = expected.take(np.random.default_rng(2).permutation(expected.num_rows))
        table_changes.check_equal(rows, expected)
        other = rows.set_column(3, rows.schema.field(3), [rows.column(3).take(np.arange(rows.num_rows)[::-1])])
        with pytest.raises(RuntimeError, match=r"column l_extendedprice has other values"):
            table_changes.check_equal(other, expected)
        with pytest.raises(RuntimeError, match=rf"^{expected.num_rows - 1} rows and not"):
            table_changes.check_equal(rows.slice(1), expected)


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
    case = Case("lineitem", "read", "local", "cold")
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
    assert "`make x`, 2026-01-31, 3 rounds:\n  lineitem/read/local/cold" in cold
    assert "### Time, the peer's over that of pds\n\n| data |" in cold
    assert "**1.50** (1.25 to 4.00)" in cold
