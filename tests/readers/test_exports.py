"""What Spark and chDB read of tables that are exported to Delta and Iceberg, and what they refuse.

`make test-readers` runs this, with `PDS_READERS`: the folder of the environment and the jars of these systems.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pds
from delta_readers import copy_up_to
from exported_tables import SCHEMA, change_at_random, rows_of
from iceberg_readers import metadata_files, snapshots

READERS = Path(os.environ["PDS_READERS"])
# ClickHouse has no null tuples.
FLAT = [name for name in SCHEMA.names if name != "nested"]


class Answers:
    """Jobs for the readers' process, and what it answered."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._jobs: list[dict[str, Any]] = []
        self._errors: list[str | None] = []

    def ask(self, reader: str, query: str, **job: Any) -> int:
        """Adds a job; returns its number."""
        target = str(self._scratch / f"{len(self._jobs)}.arrow")
        self._jobs.append({"reader": reader, "query": query, "target": target, **job})
        return len(self._jobs) - 1

    def run(self) -> None:
        self._scratch.mkdir()
        done = subprocess.run(
            [READERS / "venv/bin/python", Path(__file__).parent / "read_exports.py", READERS / "jars"],
            input="\n".join(map(json.dumps, self._jobs)),
            # chDB reads no files outside of the folder in which it runs.
            cwd=self._scratch.parent,
            env={**os.environ, "PYSPARK_PYTHON": str(READERS / "venv/bin/python"), "SPARK_LOCAL_IP": "127.0.0.1"},
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        self._errors = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("null", '"'))]
        assert len(self._errors) == len(self._jobs), done.stderr[-5000:]

    def rows(self, number: int) -> pa.Table:
        """The rows of a job that went well."""
        assert self._errors[number] is None, (self._jobs[number], self._errors[number])
        return pa.ipc.open_file(self._jobs[number]["target"]).read_all()

    def error(self, number: int) -> str:
        """The error of a job that was refused."""
        error = self._errors[number]
        assert error is not None, self._jobs[number]
        return error


def make_table(folder: Path, seed: int) -> pds.Table:
    """A table after random operations, each of which was exported."""
    table = pds.Table.create(pds.Store(folder), "t", SCHEMA, key=["id"], sort_by=["id"], exports=["delta", "iceberg"])
    rng, ids = random.Random(seed), [0]
    for _ in range(14):
        change_at_random(table, rng, ids)
    return table


def compare(answers: Answers, expected: list[tuple[int, pa.Table]]) -> None:
    for number, rows in expected:
        read = answers.rows(number).select(range(rows.num_columns))
        assert read.column_names == rows.column_names
        assert rows_of(read.cast(rows.schema)) == rows_of(rows), number


def where_of(table: pds.Table) -> str:
    return f"id >= {table.scan().count() // 3} AND price < {table.scan().count()}"


@pytest.mark.parametrize("seed", range(2))
def test_spark_reads_every_version(tmp_path: Path, seed: int) -> None:
    table, folder = make_table(tmp_path, seed), tmp_path / "t"
    answers, expected = Answers(tmp_path / "answers"), []
    metadata = metadata_files(folder)[table.version]
    for version in range(1, table.version + 1):
        for where in (None, where_of(table)):
            rows = table.as_of(version).scan(where=where).to_pyarrow()
            condition = where or "true"
            query = f"SELECT * FROM delta.`{folder}` VERSION AS OF {version} WHERE {condition}"
            expected.append((answers.ask("spark", query), rows))
            query = f"SELECT * FROM exported WHERE {condition}"
            snapshot = str(snapshots(metadata)[version])
            # Spark reads a snapshot with the columns that it had.
            expected.append((answers.ask("spark", query, iceberg=str(folder), snapshot=snapshot), rows))
    answers.run()
    compare(answers, expected)


@pytest.mark.parametrize("seed", range(2))
def test_chdb_reads_every_version(tmp_path: Path, seed: int) -> None:
    table, folder = make_table(tmp_path, seed), tmp_path / "t"
    answers, expected = Answers(tmp_path / "answers"), []
    for version in range(1, table.version + 1):
        older = table.as_of(version)
        names = [name for name in older.schema.names if name != "nested"]
        columns = ", ".join(f'"{name}"' for name in names)
        copy = copy_up_to(folder, version, tmp_path / f"log {version}")
        for where in (None, where_of(table)):
            rows = older.scan(names, where=where).to_pyarrow()
            query = f"SELECT {columns} FROM deltaLakeLocal('{copy}') WHERE {where or 'true'}"
            expected.append((answers.ask("chdb", query), rows))
    rows = table.scan(names).to_pyarrow()
    expected.append((answers.ask("chdb", f"SELECT {columns} FROM icebergLocal('{folder}')"), rows))
    answers.run()
    compare(answers, expected)


def test_spark_cannot_write(tmp_path: Path) -> None:
    table, folder = make_table(tmp_path, 1), tmp_path / "t"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    answers = Answers(tmp_path / "answers")
    delta, iceberg = f"delta.`{folder}`", "folder.t"
    statements = [
        *(
            f"{verb} {delta}{rest}"
            for verb, rest in (("DELETE FROM", " WHERE id = 1"), ("OPTIMIZE", ""), ("VACUUM", ""))
        ),
        f"INSERT INTO {delta} SELECT * FROM {delta}",
        f"ALTER TABLE {delta} ADD COLUMNS (more INT)",
        f"INSERT INTO {iceberg} SELECT * FROM {iceberg}",
        f"DELETE FROM {iceberg} WHERE id = 1",
        f"ALTER TABLE {iceberg} ADD COLUMN more INT",
        "CALL folder.system.expire_snapshots(table => 't', retain_last => 1)",
        "CALL folder.system.remove_orphan_files(table => 't')",
    ]
    numbers = [answers.ask("spark", statement, warehouse=str(tmp_path)) for statement in statements]
    read = answers.ask("spark", f"SELECT count(*) AS n FROM {iceberg}", warehouse=str(tmp_path))
    answers.run()
    assert answers.rows(read)["n"].to_pylist() == [table.scan().count()]
    for number in numbers:
        assert answers.error(number)
    # An INSERT of Delta leaves files that nobody lists.
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not table.verify().problems
