"""`format("pds")` and `pds.spark` in the older Spark that the readers need, by executors of its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import pds
import pyspark_pds

READERS = Path(os.environ["PDS_READERS"])
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def ids(path: Path) -> list[int]:
    found: list[int] = pds.open_table(path).scan(["id"]).to_pyarrow()["id"].to_pylist()
    return sorted(found)


@pytest.mark.timeout(900)
def test_tables_and_streams(tmp_path: Path) -> None:
    for name in ("source", "appended", "streamed"):
        pds.Table.create(pds.Store(tmp_path), name, SCHEMA)
    source = pds.open_table(tmp_path / "source")
    for number in range(4):
        source.append(pa.table({"id": [number], "name": [f"n{number}"]}, SCHEMA))
    # The engine is one of the stable ABI. Only pds: what else lies beside it is of another environment.
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in (pds, pyspark_pds):
        (packages / package.__name__).symlink_to(Path(package.__path__[0]).resolve())
    python = str(READERS / "venv/bin/python")
    script = Path(__file__).parent / "spark_tables.py"
    done = subprocess.run(
        [python, script, tmp_path],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PYTHONPATH": str(packages),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers["version"].startswith("4.1.")
    for read in ("format", "task function", "feed"):
        assert answers[read] == [0, 1, 2, 3], read
    assert answers["filtered"] == [3]
    assert ids(tmp_path / "copied") == ids(tmp_path / "appended") == [0, 1, 2, 3]
    assert answers["commits"] == [1, 1, 0]
    assert ids(tmp_path / "streamed") == ids(tmp_path / "source") == [0, 1, 2, 3, 100, 101]
    assert "maxFilesPerTrigger" in answers["limited"]
    assert "Spark 4.2" in answers["limited"]
