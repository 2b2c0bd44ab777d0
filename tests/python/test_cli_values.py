"""Values that `pds scan` prints, read back by other readers of CSV and JSON."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import random
import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pc
import pytest

import pds
from pds.cli import output

if TYPE_CHECKING:
    from pathlib import Path

    from tests.python.conftest import Run

AT = dt.datetime(2026, 11, 27, 12, 30, 0, 123456, tzinfo=dt.UTC)
TEXTS = [
    "",
    None,
    "NULL",
    "null",
    "NA",
    " a ",
    'say "x"',
    ",",
    "a\nb",
    "a\r\nb",
    "\r",
    "'",
    "\\n",
    "ü日本😀",
    "#",
    "\ufeff",
]
FLAT = pa.table(
    {
        "text": TEXTS,
        "number": pa.array([2**63 - 1, -(2**63), 2**53 + 1, *[None] * 13], pa.int64()),
        "unsigned": pa.array([2**64 - 1, 0, *[None] * 14], pa.uint64()),
        "price": pa.array([Decimal("12345678901234567890.12"), Decimal("-0.01"), *[None] * 14], pa.decimal128(38, 2)),
        "flag": pa.array([True, False, *[None] * 14]),
        "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), *[None] * 14]),
        "at": pa.array([AT, *[None] * 15], pa.timestamp("us", "UTC")),
        "local": pa.array([AT.replace(tzinfo=None), *[None] * 15], pa.timestamp("us")),
        "ratio": pa.array([0.1, 1e300, -0.0, 5e-324, *[None] * 12]),
    }
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def scan(run: Run, url: str, form: str, *argv: str) -> str:
    code, out, err = run("scan", url, "-o", form, *argv)
    assert (code, err) == (0, "")
    return out


def test_pyarrow_reads_the_csv(run: Run) -> None:
    pds.write_table("t", FLAT)
    convert = pc.ConvertOptions(
        column_types=FLAT.schema,
        null_values=[""],
        true_values=["True"],
        false_values=["False"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = pc.ParseOptions(newlines_in_values=True)
    text = scan(run, "t", "csv").encode()
    assert pc.read_csv(io.BytesIO(text), convert_options=convert, parse_options=parse).equals(FLAT)


def test_duckdb_reads_the_csv(run: Run, tmp_path: Path) -> None:
    pds.write_table("t", FLAT)
    (tmp_path / "t.csv").write_bytes(scan(run, "t", "csv").encode())
    types = ["VARCHAR", "BIGINT", "UBIGINT", "DECIMAL(38,2)", "BOOLEAN", "DATE", "TIMESTAMPTZ", "TIMESTAMP", "DOUBLE"]
    columns = dict(zip(FLAT.column_names, types, strict=True))
    # DuckDB takes a lone carriage return for a line end while it looks for the dialect.
    options = "header=true, auto_detect=false, allow_quoted_nulls=false, quote='\"', escape='\"', new_line='\\n'"
    duckdb.sql("SET TimeZone = 'UTC'")
    query = f"FROM read_csv('t.csv', columns={columns}, {options})"
    assert duckdb.sql(query).to_arrow_table().cast(FLAT.schema).equals(FLAT)


@pytest.mark.parametrize("values", [[None, 2, None], ["a", None, "", "b", None]])
def test_a_single_column_with_nulls(run: Run, tmp_path: Path, values: list[int | str | None]) -> None:
    """A null is an empty line: a reader must not skip it. In quotes it would be an empty text."""
    pds.write_dataset("d", pa.table({"x": values}))
    (tmp_path / "d.csv").write_text(text := scan(run, "d", "csv"))
    parse = pc.ParseOptions(ignore_empty_lines=False)
    convert = pc.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    read = pc.read_csv(io.BytesIO(text.encode()), parse_options=parse, convert_options=convert)
    assert read["x"].to_pylist() == values
    assert pl.read_csv("d.csv")["x"].to_list() == values
    query = "FROM read_csv('d.csv', header=true, allow_quoted_nulls=false)"
    assert [value for (value,) in duckdb.sql(query).fetchall()] == values
    # pandas makes a null of an empty text, too.
    printed = pd.read_csv("d.csv", skip_blank_lines=False)["x"]
    assert [None if is_null else value for value, is_null in zip(printed, printed.isna(), strict=True)] == [
        value or None for value in values
    ]


def test_the_help_says_what_a_null_of_a_single_column_is(run: Run) -> None:
    for verb in ("scan", "export", "import"):
        assert "a null of a single column is an empty line" in " ".join(run(verb, "--help")[1].split())


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_json_is_read_back(run: Run, form: str) -> None:
    pds.write_table("t", FLAT)
    out = scan(run, "t", form)
    rows = json.loads(out) if form == "json" else [json.loads(line) for line in out.split("\n")[:-1]]
    for name in ("text", "number", "unsigned", "flag", "ratio"):
        assert [row[name] for row in rows] == FLAT[name].to_pylist()
    assert [row["price"] and Decimal(row["price"]) for row in rows] == FLAT["price"].to_pylist()
    assert [row["at"] and dt.datetime.fromisoformat(row["at"]) for row in rows] == FLAT["at"].to_pylist()
    assert [row["day"] and dt.date.fromisoformat(row["day"]) for row in rows] == FLAT["day"].to_pylist()


def test_duckdb_reads_the_json_lines(run: Run, tmp_path: Path) -> None:
    pds.write_table("t", FLAT)
    (tmp_path / "t.ndjson").write_text(scan(run, "t", "ndjson"))
    types = ["VARCHAR", "BIGINT", "UBIGINT", "DECIMAL(38,2)", "BOOLEAN", "DATE", "TIMESTAMPTZ", "TIMESTAMP", "DOUBLE"]
    columns = dict(zip(FLAT.column_names, types, strict=True))
    duckdb.sql("SET TimeZone = 'UTC'")
    read = duckdb.sql(f"FROM read_json('t.ndjson', format='newline_delimited', columns={columns})").to_arrow_table()
    assert read.cast(FLAT.schema).equals(FLAT)


def test_nested_values_are_json_in_every_format(run: Run) -> None:
    rows = pa.table(
        {
            "list": [[1, None], [], None],
            "struct": [{"a": 'x,"y"\n', "b": [1.5]}, {"a": None, "b": None}, None],
            "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "bytes": [[b"\x00\xff"], [None], None],
        }
    )
    pds.write_dataset("d", rows)
    expected = [
        {**row, "map": row["map"] and [list(pair) for pair in row["map"]], "bytes": row["bytes"] and _hex(row["bytes"])}
        for row in rows.to_pylist()
    ]
    assert json.loads(scan(run, "d", "json")) == expected
    parse = pc.ParseOptions(newlines_in_values=True)
    convert = pc.ConvertOptions(column_types=dict.fromkeys(rows.column_names, pa.string()), strings_can_be_null=True)
    read = pc.read_csv(io.BytesIO(scan(run, "d", "csv").encode()), parse_options=parse, convert_options=convert)
    assert [{name: text and json.loads(text) for name, text in row.items()} for row in read.to_pylist()] == expected


def _hex(values: list[bytes | None]) -> list[str | None]:
    return [value if value is None else value.hex() for value in values]


def test_numbers_that_json_does_not_have_are_texts(run: Run) -> None:
    values = [float("nan"), float("inf"), float("-inf")]
    pds.write_table("t", pa.table({"x": values, "y": [[value] for value in values]}))
    out = scan(run, "t", "json")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    rows = json.loads(out, parse_constant=refuse)
    assert [str(float(row["x"])) for row in rows] == [row["x"] for row in rows] == ["nan", "inf", "-inf"]
    assert [row["y"] for row in rows] == [["nan"], ["inf"], ["-inf"]]


def test_random_texts_survive(run: Run) -> None:
    chance = random.Random(20261128)
    alphabet = 'a,"\n\r\t \\ü'
    texts = ["".join(chance.choices(alphabet, k=chance.randrange(6))) or None for _ in range(500)]
    pds.write_dataset("d", pa.table({"n": range(500), "x": texts}))
    convert = pc.ConvertOptions(column_types={"x": pa.string()}, strings_can_be_null=True, null_values=[""])
    options = {"convert_options": convert, "parse_options": pc.ParseOptions(newlines_in_values=True)}
    assert pc.read_csv(io.BytesIO(scan(run, "d", "csv").encode()), **options)["x"].to_pylist() == texts
    assert [row["x"] for row in json.loads(scan(run, "d", "json"))] == texts


@pytest.mark.parametrize("form", ["json", "ndjson", "csv"])
def test_a_name_that_occurs_twice_is_refused(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A JSON object would lose a value. Tables and datasets have no such names."""
    with pytest.raises(pds.InvalidInput, match="'a'"):
        output.print_rows(["a", "b", "a"], [(1, 2, 3)], form)
    assert capsys.readouterr().out == ""


def test_the_change_columns_are_no_columns_of_the_table(run: Run) -> None:
    table = pds.write_table("t", pa.table({"id": [1], "_change_type": ["mine"]}))
    table.append(pa.table({"id": [2], "_change_type": ["mine"]}))
    code, out, err = run("diff", "t", "1", "-o", "json")
    assert (code, out) == (2, "")
    assert "_change_type" in err


def _shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    pds_command = f"{sys.executable} -m pds"
    shell = ["bash", "-o", "pipefail", "-c", command.replace("pds ", f"{pds_command} ")]
    return subprocess.run(shell, capture_output=True, check=False, env=os.environ | environment)


def test_a_pipe_that_closes_early_is_quiet() -> None:
    pds.write_table("big", pa.table({"x": ["y" * 100] * 100_000}))
    done = _shell("pds scan big -o csv | head -1")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"x\n", b"")


@pytest.mark.parametrize("argv", ["--help", "--version", "completion bash"])
def test_what_only_prints_is_quiet_too(argv: str) -> None:
    done = _shell(f"(sleep 0.2; pds {argv}) | true")
    assert done.stderr == b""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("argv", ["--help", "scan --help", "dataset delete --help", "--version", "completion bash"])
def test_a_full_disk_is_one_line(argv: str, unbuffered: str) -> None:
    done = _shell(f"pds {argv} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (1, b"pds: [Errno 28] No space left on device\n")


def test_a_locale_without_unicode() -> None:
    pds.write_table("日本", FLAT.select(["text"]))
    done = _shell("pds scan 日本 -o ndjson", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line)["text"] for line in done.stdout.decode().split("\n")[:-1]] == TEXTS
    done = _shell("pds scan nichts-ü", LC_ALL="C")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
