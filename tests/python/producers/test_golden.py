"""A pipeline of format 1, as pds wrote it when that format was finished: whatever comes later has to read it.

`python tests/python/producers/test_golden.py` writes it anew: right only as long as the format is not released.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from independent_pipeline import IndependentPipeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GOLDEN = Path(__file__).parents[2] / "golden" / "pipeline-v1"
NOW = dt.timedelta(0)
INT, TEXT, FLOAT = pa.int64(), pa.string(), pa.float64()
PERSON = pa.struct([("name", TEXT), ("born", pa.date32()), ("pay", FLOAT), ("tags", pa.list_(TEXT))])
ORDER = pa.struct([("person", INT), ("total", INT)])
TABLE = pa.schema([pa.field("id", INT, nullable=False), ("word", TEXT)])


def _letters(key: int, values: Iterator[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    for value in values:
        for letter in value["name"] or "":
            yield letter, key


def _number(_value: int, earlier: int | None, state: dict[str, int]) -> int:
    if earlier is not None:
        return earlier
    state["next"] += 1
    return state["next"]


def declare(store: pds.Store, table: pds.Table) -> pds.Pipeline:
    """Sources and stages of every kind."""
    pipeline = pds.Pipeline(store, "pipeline")
    persons = pipeline.source("persons", key=INT, value=PERSON)
    orders = pipeline.source("orders", key=INT, value=ORDER, skip_unchanged=True)
    pipeline.source("notes", key=INT, value=TEXT)
    words = pipeline.source("words", table, key="id", value="word")
    preserve = pds.Preserve(_number, {"next": 100})
    declared = pipeline.producer(
        persons, key=TEXT, value=INT, name="letters", descending=True, preserve=preserve, version=3
    )
    declared(_letters)
    by_person = pipeline.select(orders, key="person", value={"total": "total"}, where="total <> 13", name="by person")
    pipeline.aggregate(
        by_person,
        aggregates={"n": "count", "sum": ("total", "sum"), "mean": ("total", "mean"), "least": ("total", "min")},
        name="totals",
    )
    pays = pipeline.select(persons, key="extract(year from born)", value={"pay": "pay"}, name="pays")
    pipeline.aggregate(pays, aggregates={"pay": ("pay", "sum"), "most": ("pay", "max")}, name="pay by year")
    pipeline.first(by_person, by="total", rows=2, descending=True, name="largest")
    pipeline.distinct(words, name="known words")
    pipeline.flatten(persons, field="tags", name="tags")
    for how in ("inner", "full", "anti"):
        pipeline.join_rows(persons, by_person, how=how, name=f"{how} join")
    return pipeline


def person(number: int, **other: Any) -> dict[str, Any]:
    """One that depends on the number alone."""
    born = dt.date(1980 + number % 7, 1 + number % 12, 1) if number % 5 else None
    pay = None if number % 11 == 0 else number / 7
    return {
        "name": f"ab{'cdefg'[number % 5]}",
        "born": born,
        "pay": pay,
        "tags": ["x", None, "y"][: number % 4],
    } | other


def note(number: int) -> str:
    """A long text that hardly compresses."""
    return "".join(hashlib.sha256(f"{number} {part}".encode()).hexdigest() for part in range(16))


def write_golden(folder: Path) -> None:
    """A history in which runs were merged, keys deleted, and stages removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store = pds.Store(folder.as_uri())
    table = pds.Table.create(store, "table", TABLE, key="id")
    table.append(pa.table({"id": [1, 2, 3], "word": ["one", "two", None]}, schema=TABLE))
    pipeline = declare(store, table)
    pipeline.select("words", key="value", name="by word")
    people = [(number, person(number)) for number in range(60)]
    sold = [(number, {"person": number % 25, "total": number * number % 31}) for number in range(200)]
    notes = [(number, note(number)) for number in range(60)]
    changes = {"persons": people, "orders": sold, "notes": notes}
    built = {name: pds.Changes(rows) for name, rows in changes.items()}
    pipeline.update(**built, idempotency_key="build")
    pipeline.refresh()
    pipeline.tag("built")
    pipeline = declare(store, table)
    pipeline.remove("by word")
    for number in range(140):
        order = pds.Changes([(number, {"person": number % 30, "total": number})])
        pipeline.update(orders=order, idempotency_key=f"order {number}")
    pipeline.compact()
    table.upsert(pa.table({"id": [2, 9], "word": ["zwei", "nine"]}, schema=TABLE))
    table.delete("id = 1")
    pipeline.refresh()
    gone = pds.Changes([(7, person(7, name="z")), (90, person(90))], deletes=[3, 8])
    pipeline.update(persons=gone, orders=pds.Changes(deletes=[11]))
    pipeline.vacuum(NOW)
    pipeline.vacuum(NOW)
    last = [(91, person(91, pay=1e300)), (92, person(92, pay=float("inf"), tags=None))]
    pipeline.update(persons=pds.Changes(last), notes=pds.Changes([(60, "one more")], deletes=[3]))
    expected = {"tags": dict(pipeline.tags), "nodes": _found(pipeline, _read(folder / "pipeline"))}
    (folder / "expected.json").write_text(json.dumps(expected, indent=0, default=str) + "\n")


def _read(root: Path) -> IndependentPipeline:
    return IndependentPipeline(lambda name: (root / name).read_bytes())


def _found(pipeline: pds.Pipeline, other: IndependentPipeline) -> dict[str, Any]:
    """All that can be read of the pipeline; another reader finds the same rows."""
    found = {}
    for name, node in other.nodes.items():
        tables, rows = {"content": pipeline[name].read()}, {"content": other.content(name)}
        if node["feeders"]:
            tables["changes"] = pipeline[name].changes()
        if node["feeders"] and "join" not in node["definition"].get("operator", {}):
            tables["mappings"] = pipeline[name].key_mappings()
            rows["mappings"] = other.key_mappings(name)
        for table, listed in rows.items():
            assert _plain(tables[table].to_pylist()) == _plain(dict(enumerate(row)) for row in listed), (name, table)
        schema = [[field.name, str(field.type)] for field in pipeline[name].read().schema]
        found[name] = {"schema": schema} | {table: _plain(tables[table].to_pylist()) for table in tables}
    return found


def _plain(rows: Iterable[dict[Any, Any]]) -> Any:
    return json.loads(json.dumps([list(row.values()) for row in rows], default=str))


@pytest.fixture
def golden(local_store: pds.Store, tmp_path: Path) -> Path:
    """A copy of the pipeline and its table in the local store."""
    root = tmp_path / "store"
    for name in ("pipeline", "table"):
        shutil.copytree(GOLDEN / name, root / name)
    return root / "pipeline"


def test_the_golden_pipeline_is_read(local_store: pds.Store, golden: Path) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())
    pipeline = declare(local_store, pds.Table(local_store, "table"))
    assert dict(pipeline.tags) == expected["tags"]
    assert _found(pipeline, _read(golden)) == expected["nodes"]
    assert pipeline.check().ok
    built = pipeline.as_of("built")["orders"].read()
    assert built["value"].combine_chunks().field("total").to_pylist() == [n * n % 31 for n in range(200)]


def test_the_golden_pipeline_goes_on(local_store: pds.Store, golden: Path) -> None:
    """As if everything had been computed from the newest rows of the sources."""
    table = pds.Table(local_store, "table")
    pipeline = declare(local_store, table)
    replay = pipeline.update(orders=pds.Changes(deletes=[0]), idempotency_key="order 3")
    assert replay.replayed
    table.append(pa.table({"id": [20], "word": ["new"]}, schema=TABLE))
    changed = {
        "persons": pds.Changes([(5, person(6)), (100, person(3))], deletes=[0, 90]),
        "orders": pds.Changes([(1, {"person": 5, "total": 3})], deletes=[0, 2]),
    }
    pipeline.update(**changed)
    pipeline.refresh()
    anew = declare(pds.Store("memory://"), table)
    for name in ("persons", "orders", "notes"):
        anew.update(**{name: pds.Changes(pipeline[name].read())})
    anew.refresh()
    for name in _read(golden).nodes:
        mine, theirs = pipeline[name].read(), anew[name].read()
        if name == "letters":  # numbers that were given before stay
            mine, theirs = mine.drop(["value"]), theirs.drop(["value"])
        assert mine.equals(theirs), name


def test_the_golden_pipeline_has_all_of_the_format(golden: Path) -> None:
    manifest = _read(golden).manifest
    assert manifest["format"] == 1
    assert manifest["older_transactions"]
    assert [*manifest["removed"]] == ["by word"]
    nodes = manifest["nodes"]
    operators = {name for node in nodes for name in node.get("definition", {}).get("operator", {})}
    assert operators == {"aggregate", "distinct", "first", "flatten", "join", "select"}
    assert any(node.get("consumed") for node in nodes)
    assert any(len(node["content"]) > 1 for node in nodes)
    assert any(run["has_deletes"] for node in nodes for run in node["content"])
    assert any(node.get("state") for node in nodes)


if __name__ == "__main__":
    write_golden(GOLDEN)
