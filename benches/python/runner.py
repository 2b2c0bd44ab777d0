"""Runs of single operations in processes of their own, and what stands ready for them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cold
import data
import duckdb_httpfs
import profiles
import pyarrow.parquet as pq
import scripts
from systems import Place

if TYPE_CHECKING:
    from cases import Case
    from wire import Wire

HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Source:
    """A dataset that is read: its shape, and the bytes nobody can do without."""

    rows: int
    columns: int
    needed_bytes: int

    @classmethod
    def of(cls, file: Path, columns: tuple[str, ...] | None) -> Source:
        """What a read of some columns takes of a file: their chunks and the footer."""
        footer = pq.read_metadata(file)
        names = columns or tuple(footer.schema.names)
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        chunks = [g.column(c) for g in groups for c in range(g.num_columns)]
        taken = sum(c.total_compressed_size for c in chunks if c.path_in_schema in names)
        return cls(footer.num_rows, len(names), taken + footer.serialized_size + 8)


@dataclasses.dataclass(frozen=True)
class Bench:
    """The places, and the file for the figures."""

    run: str
    work: Path
    wire: Wire
    results: Path
    # A file for samples of what a measured process does; empty for none.
    profile: str = ""

    def place(self, store: str) -> Place:
        """Where the data of a store lies."""
        if store == "local":
            return Place(folder=str(self.work))
        return Place(server=self.wire.slow if store == "slow" else self.wire.server)

    def record(self, **line: object) -> None:
        """Keeps a line of raw figures."""
        with self.results.open("a") as file:
            file.write(json.dumps({"run": self.run, **line}) + "\n")

    def prepare(self, case: Case, writer: str, readers: list[str]) -> None:
        """Writes the dataset that a case reads, once, and the log that deltalake needs."""
        place, name = self.place(case.store), f"source/{case.data}"
        if not place.files(name).exists():
            _order(case, "write", writer, place, name)
        if "deltalake" not in readers or place.files(f"{name}-delta").exists():
            return
        if place.server:
            files, bucket = place.server.arrow_filesystem(), place.server.bucket
            files.copy_file(f"{bucket}/{name}/data.parquet", f"{bucket}/{name}-delta/data.parquet")
        else:
            place.files(f"{name}-delta").mkdir()
            shutil.copy(place.files(name) / "data.parquet", place.files(f"{name}-delta"))
        _order(case, "convert", "deltalake", place, name)

    def source(self, case: Case) -> Source:
        """The dataset a case reads."""
        columns = data.DATA[case.data].few_columns if case.op == "columns" else None
        file = self.place(case.store).files(f"source/{case.data}") / "data.parquet"
        return Source.of(file, columns)

    def run_once(self, case: Case, system: str, place: Place) -> dict[str, Any]:
        """One run of a system; what it writes is removed before and after."""
        os.sync()  # or the pages of the run before would be written out during this one
        if system == "limit":
            return _child("limits.py", _as_json(case, case.op, system, place, f"source/{case.data}"))
        if case.op == "import":
            return _child("measure_import.py", system)
        if case.op in {"read", "columns"}:
            return self._read_once(case, system, place)
        name = f"{case.op}-{system}"
        place.remove(name)
        try:
            if case.op == "spark":
                return _child("measure_spark.py", system, str(place.files(name)))
            if case.mode == "cold":
                return self._write_cold(case, system, place, name)
            return _order(case, case.op, system, place, name, profile=self.profile)
        finally:
            place.remove(name)

    def _read_once(self, case: Case, system: str, place: Place) -> dict[str, Any]:
        name, source = f"source/{case.data}", self.source(case)
        for file in (*place.files(name).iterdir(), *place.files(f"{name}-delta").glob("*.parquet")):
            file.read_bytes()  # into the page cache
        if case.mode == "cold":
            found, figures = self._cold(scripts.READ, case, system, place, name)
        else:
            figures = _order(case, case.op, system, place, name, profile=self.profile)
            found = [figures["rows"], figures["columns"]]
        if found != [source.rows, source.columns]:
            raise RuntimeError(f"{system} read {found[0]} rows, there are {source.rows}")
        return figures

    def _write_cold(self, case: Case, system: str, place: Place, name: str) -> dict[str, Any]:
        if place.folder:
            place.files(name).mkdir(parents=True)
        _, figures = self._cold(scripts.WRITE, case, system, place, name)
        written = sum(pq.read_metadata(file).num_rows for file in place.files(name).rglob("*.parquet"))
        if written != data.count_rows(case.data):
            raise RuntimeError(f"{system} wrote {written} rows of {data.count_rows(case.data)}")
        return figures

    def _cold(
        self, templates: dict[str, str], case: Case, system: str, place: Place, name: str
    ) -> tuple[Any, dict[str, Any]]:
        values = scripts.values(place, name, case, system)
        modules = cold.modules(system, place.server)
        return cold.run(templates[system], values, folder=self.work, modules=modules)

    def profile_once(self, case: Case, system: str) -> dict[str, float]:
        """The shares of an operation's processor time."""
        file = self.work / "perf.data"
        dataclasses.replace(self, profile=str(file)).run_once(case, system, self.place(case.store))
        return profiles.shares(file)

    def count_once(self, case: Case, system: str) -> dict[str, object]:
        """Requests and bytes of one operation; a small dataset is written once, not often."""
        single = dataclasses.replace(case, op="write") if case.op == "small" else case
        before = self.wire.seen()
        self.run_once(single, system, Place(server=self.wire.counted))
        return self.wire.seen().since(before)


def _child(script: str, *arguments: str, path: Path | None = None) -> dict[str, Any]:
    """Runs a measuring script and returns the object on its last line."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=cold.environment(path, HERE),
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{script} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _order(case: Case, op: str, system: str, place: Place, name: str, profile: str = "") -> dict[str, Any]:
    """Has one operation measured, by the DuckDB that has an S3 client where one is needed."""
    path = duckdb_httpfs.modules(system, place.server)
    return _child("measure.py", _as_json(case, op, system, place, name, profile=profile), path=path)


def _as_json(case: Case, op: str, system: str, place: Place, name: str, **more: str) -> str:
    value = {"data": case.data, "op": op, "system": system, "place": dataclasses.asdict(place), "name": name, **more}
    return json.dumps(value, default=str)
