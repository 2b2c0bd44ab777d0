"""The errors that a newcomer meets first, by what a newcomer would type; their words are those of a golden file.

`PDS_GOLDEN=write pytest tests/python/test_first_errors.py` writes the file anew, to be read before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[1] / "golden" / "first-errors.txt"
ROWS = pa.table({"id": [1, 2, 3], "city": ["Riga", "Oslo", None]})
# Nothing listens on the port.
REFUSED = {"aws_endpoint": "http://127.0.0.1:9", "aws_region": "r", "max_retries": 0, "retry_timeout": 0.1}
KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "s"}


def _table() -> pds.Table:
    return pds.open_table("./lake/people")


def _merge(rows: pa.Table) -> Any:
    return _table().merge(rows, on="id")


CASES: dict[str, Callable[[], Any]] = {
    'pds.open_table("./lake/nothing")': lambda: pds.open_table("./lake/nothing"),
    'pds.open_table("./lake/dataset")': lambda: pds.open_table("./lake/dataset"),
    'pds.read_dataset("./lake/people")': lambda: pds.read_dataset("./lake/people"),
    'pds.read_dataset("./lake/nothing")': lambda: pds.read_dataset("./lake/nothing"),
    'pds.open_chain("./lake/people")': lambda: pds.open_chain("./lake/people"),
    'pds.write_table("./lake/people", rows)': lambda: pds.write_table("./lake/people", ROWS),
    'pds.write_table("./lake/dataset", rows)': lambda: pds.write_table("./lake/dataset", ROWS),
    'pds.write_dataset("./lake/dataset", rows)': lambda: pds.write_dataset("./lake/dataset", ROWS),
    'pds.Table.create(store, "people", schema)': lambda: pds.Table.create(pds.Store("./lake"), "people", ROWS.schema),
    'write_table(mode="replace")': lambda: pds.write_table("./lake/people", ROWS, mode="replace"),  # type: ignore[arg-type]
    'write_table(key="nope")': lambda: pds.write_table("./lake/new", ROWS, key="nope"),
    'write_table(key="city") of a table with key="id"': lambda: pds.write_table(
        "./lake/people", ROWS, mode="append", key="city"
    ),
    "write_table of a list": lambda: pds.write_table("./lake/new", [{"id": 1}]),  # type: ignore[arg-type]
    "write_table of no columns": lambda: pds.write_table("./lake/new", pa.table({})),
    "write_table of two columns a": lambda: pds.write_table("./lake/new", pa.table([[1], [2]], names=["a", "a"])),
    "append with another column": lambda: _table().append(pa.table({"id": [9], "town": ["x"]})),
    "append with another type": lambda: _table().append(pa.table({"id": ["a"], "city": ["x"]})),
    "append(if_version=77)": lambda: _table().append(ROWS, if_version=77),
    "upsert of two rows of a key": lambda: _table().upsert(pa.table({"id": [1, 1], "city": ["a", "b"]})),
    "upsert without a key": lambda: pds.write_table("./lake/keyless", ROWS).upsert(ROWS),
    "merge without a clause": lambda: _merge(ROWS).execute(),
    "merge of two rows of a key": lambda: (
        _merge(pa.table({"id": [1, 1], "city": ["a", "b"]})).when_matched_update_all().execute()
    ),
    'scan(["nope"])': lambda: _table().scan(["nope"]).to_pyarrow(),
    'scan(where="nope = 1")': lambda: _table().scan(where="nope = 1").to_pyarrow(),
    'scan(where="id >")': lambda: _table().scan(where="id >").to_pyarrow(),
    "scan(where=\"id = 'a'\")": lambda: _table().scan(where="id = 'a'").to_pyarrow(),
    "scan(where=3)": lambda: _table().scan(where=3),  # type: ignore[arg-type]
    "as_of(99)": lambda: _table().as_of(99),
    'as_of("yesterday")': lambda: _table().as_of("yesterday"),
    "restore(55)": lambda: _table().restore(55),
    'vacuum(retention="soon")': lambda: _table().vacuum(retention="soon"),  # type: ignore[arg-type]
    'alter.rename_column("nope", "x")': lambda: _table().alter.rename_column("nope", "x"),
    'alter.add_column("id", …)': lambda: _table().alter.add_column("id", pa.int64()),
    'pds.open_table("ftp://host/t")': lambda: pds.open_table("ftp://host/t"),
    'pds.open_table("")': lambda: pds.open_table(""),
    'pds.open_table("s3://")': lambda: pds.open_table("s3://"),
    'pds.Store("s3://b", aws_regoin="x")': lambda: pds.Store("s3://b", aws_regoin="x"),
    'pds.Store("s3://b", aws_endpoint="localhost:9000")': lambda: pds.Store("s3://b", aws_endpoint="localhost:9000"),
    "a server that does not listen": lambda: pds.Store("s3://b", {**REFUSED, **KEYS}).read_bytes("a"),
    "a host that does not exist": lambda: pds.Store(
        "s3://b", {**REFUSED, **KEYS, "aws_endpoint": "http://nowhere.invalid"}
    ).read_bytes("a"),
    "no credentials": lambda: pds.Store("s3://b", REFUSED).read_bytes("a"),
    "a profile that does not exist": lambda: pds.Store("s3://b", REFUSED, aws_profile="work").read_bytes("a"),
    "a file in the place of the folder": lambda: pds.write_table("./file", ROWS),
    "Store.read_bytes of a missing file": lambda: pds.Store("./lake").read_bytes("nope"),
}


def _describe(call: Callable[[], Any]) -> str:
    with pytest.raises(pds.Error) as caught:
        call()
    error: Any = caught.value
    text = re.sub(r"\d+(\.\d+)?(µs|ms|s)\b", "TIME", str(error))
    text = re.sub(r"in \d+\.\d+ s", "in TIME", text)
    text = re.sub(r"/[^\s'\"]*/(?=lake|file)", "…/", text)
    text = re.sub(r"\.pds-[\w-]+", ".pds-…", text)
    return f"{type(error).__name__}{' (retryable)' if error.retryable else ''}: {text}"


def test_the_errors_that_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is typed, names the thing, and says what to do."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    pds.write_table("./lake/people", ROWS, key="id")
    pds.write_dataset("./lake/dataset", ROWS)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    described = "".join(f"{name}\n    {_describe(call)}\n" for name, call in CASES.items())
    made = set(map(str, tmp_path.rglob("*"))) - set(before)
    assert not {path for path in made if "keyless" not in path}, "an error leaves nothing behind"
    if os.environ.get("PDS_GOLDEN") == "write":
        GOLDEN.write_text(described)
    assert described == GOLDEN.read_text()


def test_a_hint_is_an_attribute_and_the_end_of_the_message(tmp_path: Path) -> None:
    with pytest.raises(pds.NotFound) as caught:
        pds.open_table(tmp_path / "t")
    error: Any = caught.value
    assert error.hint
    assert error.hint in str(error)
    assert not error.retryable
    assert pds.NotFound("x").hint is None  # type: ignore[attr-defined,unused-ignore]
