"""Timestamps of any unit beside `TIMESTAMP '…'` and `now()`: integers are the judge, with statistics and without."""

from __future__ import annotations

import datetime as dt
import operator as op
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable

TICKS = {"s": 1, "ms": 10**3, "us": 10**6}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": op.lt,
    "<=": op.le,
    "=": op.eq,
    ">=": op.ge,
    ">": op.gt,
    "<>": op.ne,
}
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 without a zone
LITERALS = [
    "1969-12-31 23:59:59.999999999",
    "1970-01-01 00:00:00",
    "2024-01-01 00:00:00.000000001",
    "2024-01-01 00:00:00.5",
    "2024-01-01 00:00:01",
    "9999-12-31 23:59:58",
    "9999-12-31 23:59:58.9999999",
]


def seconds_since_1970(text: str) -> int:
    moment = dt.datetime.fromisoformat(text.partition(".")[0])
    return (moment - EPOCH) // dt.timedelta(seconds=1)


def nanoseconds(text: str) -> int:
    fraction = text.partition(".")[2]
    return seconds_since_1970(text) * 10**9 + int(fraction.ljust(9, "0"))


MOMENTS = ["0001-01-01 00:00:00", "1969-12-31 23:59:59", "1970-01-01 00:00:00", "2024-01-01 00:00:00"]
MOMENTS += ["2024-01-01 00:00:01", "9999-12-31 23:59:58", "9999-12-31 23:59:59"]


def make_table(unit: str, zone: str | None) -> tuple[pds.Table, list[int | None]]:
    """A table with a file for each row, and its times in nanoseconds."""
    ticks = [seconds_since_1970(moment) * TICKS[unit] for moment in MOMENTS]
    ticks += [ticks[3] + 1, ticks[1] - 1]
    kind = pa.timestamp(unit, zone)
    data = pa.table({"id": range(len(ticks) + 1), "at": pa.array([*ticks, None], kind)})
    data = data.append_column("same", data["at"])
    table = pds.Table.create(pds.Store("memory://"), "t", data.schema)
    for row in range(data.num_rows):
        table.append(data.slice(row, 1))
    return table, [*(tick * 10**9 // TICKS[unit] for tick in ticks), None]


def find(table: pds.Table, where: str) -> list[int]:
    rows = [
        sorted(table.scan(["id"], where=where, use_stats=uses).to_pyarrow()["id"].to_pylist()) for uses in (True, False)
    ]
    assert rows[0] == rows[1], where
    return rows[0]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("unit", TICKS)
def test_literals_are_compared_exactly(unit: str, zone: str | None) -> None:
    table, times = make_table(unit, zone)

    def expected(holds: Callable[[int], bool]) -> list[int]:
        return [row for row, time in enumerate(times) if time is not None and holds(time)]

    for text in LITERALS:
        literal, limit = f"TIMESTAMP '{text}'", nanoseconds(text)
        for sql, compare in COMPARISONS.items():
            assert find(table, f"at {sql} {literal}") == expected(lambda time: compare(time, limit)), (sql, text)  # noqa: B023
            assert find(table, f"{literal} {sql} at") == expected(lambda time: compare(limit, time)), (sql, text)  # noqa: B023
        equal = expected(lambda time: time == limit)  # noqa: B023
        assert find(table, f"at IS NOT DISTINCT FROM {literal}") == equal
        assert find(table, f"at IS DISTINCT FROM {literal}") == [row for row in range(len(times)) if row not in equal]
        assert find(table, f"at BETWEEN {literal} AND same") == expected(lambda time: time >= limit)  # noqa: B023
        assert find(table, f"at NOT BETWEEN {literal} AND same") == expected(lambda time: time < limit)  # noqa: B023
        assert find(table, f"at BETWEEN TIMESTAMP '1950-01-01' AND {literal}") == expected(
            lambda time: -631_152_000 * 10**9 <= time <= limit  # noqa: B023
        )


@pytest.mark.parametrize("unit", TICKS)
def test_lists_of_literals(unit: str) -> None:
    table, times = make_table(unit, None)
    values = {nanoseconds(text) for text in LITERALS}
    listed = ", ".join(f"TIMESTAMP '{text}'" for text in LITERALS)
    inside = [row for row, time in enumerate(times) if time in values]
    outside = [row for row, time in enumerate(times) if time is not None and time not in values]
    assert find(table, f"at IN ({listed})") == inside
    assert find(table, f"at NOT IN ({listed})") == outside
    assert find(table, f"at IN ({listed}, NULL)") == inside
    assert find(table, f"at NOT IN ({listed}, NULL)") == []
    assert find(table, f"at IN ({listed}, same)") == sorted([*inside, *outside])
    assert find(table, f"at NOT IN ({listed}, same)") == []
    far = "TIMESTAMP '9999-12-31 23:59:58.9999999'"
    assert find(table, f"at IN ({far})") == []
    assert find(table, f"at NOT IN ({far})") == sorted([*inside, *outside])
    assert find(table, f"at NOT IN ({far}, NULL)") == []


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", TICKS)
def test_now_beside_far_times(unit: str, zone: str | None) -> None:
    table, times = make_table(unit, zone)
    now = (dt.datetime.now(dt.UTC) - EPOCH.replace(tzinfo=dt.UTC)) // dt.timedelta(seconds=1) * 10**9
    later = [row for row, time in enumerate(times) if time is not None and time > now]
    earlier = [row for row, time in enumerate(times) if time is not None and time < now]
    assert len(later) == 2
    for where in (
        "at > now()",
        "current_timestamp < at",
        "at BETWEEN now() AND same",
        "at > now() + INTERVAL '1 day'",
        "at > TIMESTAMP '9999-12-31 00:00:00' - INTERVAL '1 hour'",
        "now() < TIMESTAMP '9999-12-31 00:00:00' AND at > now()",
    ):
        assert find(table, where) == later, where
    for where in ("now() - at < INTERVAL '0 seconds'", "at - TIMESTAMP '2024-02-01' > INTERVAL '0 seconds'"):
        with pytest.raises(pds.InvalidInput):
            find(table, where)
    assert find(table, "at < now() - INTERVAL '1 hour'") == earlier
    assert find(table, "NOT at BETWEEN now() AND same") == earlier
    table.delete("at > now()")
    assert [row for row in find(table, "id >= 0") if row in later] == []


@pytest.mark.parametrize("unit", [*TICKS, "ns"])
def test_now_and_differences_have_nanoseconds(memory_store: pds.Store, unit: str) -> None:
    """Rows that a filter of such numbers deletes are lost: `now()` and differences are never in another unit."""
    ticks = {**TICKS, "ns": 10**9}[unit]
    base = seconds_since_1970("2024-01-01 00:00:00")
    data = pa.table({"id": [0, 1, 2], "at": pa.array([base * ticks, base * ticks + 1, None], pa.timestamp(unit))})
    table = pds.Table.create(memory_store, "t", data.schema)
    table.append(data)
    begin = int(dt.datetime.now(dt.UTC).timestamp()) * 10**9
    hour = 3600 * 10**9
    assert find(table, f"CAST(now() AS BIGINT) BETWEEN {begin} AND {begin + hour}") == [0, 1, 2]
    age = f"CAST(now() - at AS BIGINT) BETWEEN {begin - base * 10**9 - 10**9} AND {begin - base * 10**9 + hour}"
    assert find(table, age) == [0, 1]
    assert find(table, f"CAST(at - TIMESTAMP '2024-01-01' AS BIGINT) = {10**9 // ticks}") == [1]
    assert find(table, "at - TIMESTAMP '2024-01-01' >= INTERVAL '1 nanosecond'") == [1]
    longer = [1] if unit != "ns" else []
    assert find(table, "at - TIMESTAMP '2024-01-01' > INTERVAL '100 nanoseconds'") == longer
    table.delete(f"CAST(now() - at AS BIGINT) < {10**15}")
    assert find(table, "id >= 0") == [0, 1, 2]


def test_nanoseconds_beside_far_literals(memory_store: pds.Store) -> None:
    ticks = [-(2**63), -1, 0, 1_704_067_200 * 10**9, 2**63 - 1]
    data = pa.table({"id": range(6), "at": pa.array([*ticks, None], pa.timestamp("ns"))})
    table = pds.Table.create(memory_store, "t", data.schema)
    table.append(data)
    for text in ("0001-01-01 00:00:00", *LITERALS):
        literal, limit = f"TIMESTAMP '{text}'", nanoseconds(text)
        for sql, compare in COMPARISONS.items():
            expected = [row for row, tick in enumerate(ticks) if compare(tick, limit)]
            assert find(table, f"at {sql} {literal}") == expected, (sql, text)
            assert find(table, f"NOT at {sql} {literal}") == [row for row in range(5) if row not in expected]
        below = [row for row, tick in enumerate(ticks) if 0 <= tick <= limit]
        assert find(table, f"at BETWEEN TIMESTAMP '1970-01-01' AND {literal}") == below
        equal = [row for row, tick in enumerate(ticks) if tick == limit]
        assert find(table, f"at IN ({literal})") == equal
        assert find(table, f"at IN ({literal}, TIMESTAMP '1970-01-01')") == sorted({*equal, 2})
        assert find(table, f"at NOT IN ({literal})") == [row for row in range(5) if row not in equal]
        assert find(table, f"at IS NOT DISTINCT FROM {literal}") == equal
    assert find(table, "at < DATE '9999-12-31'") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_far_dates(kind: pa.DataType) -> None:
    days = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(9999, 12, 31)]
    data = pa.table({"id": range(6), "day": pa.array([*days, None], kind)})
    table = pds.Table.create(pds.Store("memory://"), "t", data.schema)
    table.append(data)
    for text in (*LITERALS, "2024-01-01 00:00:00"):
        limit = nanoseconds(text)
        for sql, compare in COMPARISONS.items():
            own = [(day - dt.date(1970, 1, 1)).days * 86_400 * 10**9 for day in days]
            expected = [row for row, time in enumerate(own) if compare(time, limit)]
            assert find(table, f"day {sql} TIMESTAMP '{text}'") == expected, (sql, text)
        equal = [row for row, time in enumerate(own) if time == limit]
        assert find(table, f"day IN (TIMESTAMP '{text}')") == equal, text
    assert find(table, "day > now()") == [4]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_merge_assigns_times(memory_store: pds.Store, unit: str, zone: str | None) -> None:
    kind = pa.timestamp(unit, zone)
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("at", kind)]), key="id")
    table.append(pa.table({"id": [1, 2], "at": pa.array([0, None], kind)}))
    ticks = {**TICKS, "ns": 10**9}[unit]
    begin = int(dt.datetime.now(dt.UTC).timestamp())
    for value in ("now()", "current_timestamp", "CASE WHEN source.id > 0 THEN now() END", "coalesce(NULL, now())"):
        table.merge(pa.table({"id": [1, 3]})).when_matched_update({"at": value}).when_not_matched_insert(
            {"id": "source.id", "at": value}
        ).execute()
        end = dt.datetime.now(dt.UTC).timestamp()
        found = table.scan(["at"], where="id <> 2").to_pyarrow()["at"].cast(pa.int64()).to_pylist()
        assert all(begin <= time / ticks <= end for time in found), value
    assert len(found) == 2


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_merge_compares_all_of_now(memory_store: pds.Store, unit: str, zone: str | None) -> None:
    """Only the value is cut to the unit and has the zone of the column: conditions are those of a filter."""
    kind = pa.timestamp(unit, zone)
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("seen", kind)]), key="id")
    ticks = {**TICKS, "ns": 10**9}[unit]

    def assign(value: str) -> list[int]:
        table.overwrite(pa.table({"id": [1, 2], "seen": pa.array([0, 0], kind)}))
        hour = dt.timedelta(hours=1)
        moments = [dt.datetime.now(dt.UTC) - hour / 10**6, dt.datetime.now(dt.UTC) + hour]
        source = pa.table({"id": [1, 2], "at": pa.array(moments, pa.timestamp("us", "UTC"))})
        table.merge(source).when_matched_update({"seen": value}).execute()
        rows = table.scan().to_pyarrow().sort_by("id")
        return [int(tick) for tick in rows["seen"].cast(pa.int64()).to_pylist()]

    begin = int(dt.datetime.now(dt.UTC).timestamp())
    for value in (
        "CASE WHEN source.at <= now() THEN now() ELSE target.seen END",
        "CASE WHEN source.id = 1 AND CAST(now() AS DATE) = current_date THEN now() ELSE target.seen END",
        f"CASE WHEN source.id = 1 AND CAST(now() AS BIGINT) > {begin * 10**9} THEN now() ELSE target.seen END",
        "CASE WHEN source.id = 1 AND now() = now() THEN coalesce(NULL, now()) ELSE target.seen END",
        "CASE WHEN source.at > now() THEN target.seen ELSE greatest(now(), target.seen) END",
    ):
        seen = assign(value)
        assert begin <= seen[0] / ticks <= dt.datetime.now(dt.UTC).timestamp(), value
        assert seen[1] == 0, value


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_merge_assigns_literals_that_fit(memory_store: pds.Store, unit: str) -> None:
    kind = pa.timestamp(unit)
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("at", kind)]), key="id")
    table.append(pa.table({"id": [1], "at": pa.array([0], kind)}))
    for digits, text in enumerate(["2024-01-01 00:00:01", "2024-01-01 00:00:00.25", "2024-01-01 00:00:00.000001"]):
        for value in (f"TIMESTAMP '{text}'", f"CASE WHEN source.id = 1 THEN TIMESTAMP '{text}' END"):
            merge = table.merge(pa.table({"id": [1]})).when_matched_update({"at": value})
            if digits > {"s": 0, "ms": 1, "us": 2, "ns": 2}[unit]:
                version = table.refresh().version
                with pytest.raises(pds.InvalidInput, match='column "at": a time has digits'):
                    merge.execute()
                assert table.refresh().version == version
            else:
                merge.execute()
                stored = table.scan().to_pyarrow()["at"].cast(pa.int64()).to_pylist()
                assert stored == [nanoseconds(text) * {**TICKS, "ns": 10**9}[unit] // 10**9]
    if unit == "us":
        for value in ("TIMESTAMP '2024-01-01 00:00:00.000000001'", "TIMESTAMP '9999-12-31 00:00:00'"):
            merge = table.merge(pa.table({"id": [1]})).when_matched_update({"at": value})
            if "9999" not in value:
                with pytest.raises(pds.InvalidInput, match='column "at": a time has digits'):
                    merge.execute()
                continue
            merge.execute()
        assert table.scan().to_pyarrow()["at"].to_pylist() == [dt.datetime(9999, 12, 31)]  # noqa: DTZ001 without a zone


@pytest.mark.parametrize("unit", TICKS)
def test_what_is_compared_is_not_known_before_its_literals_are(unit: str) -> None:
    """The type of `greatest` or CASE depends on the literals in it, so a literal beside it is not left out."""
    table, times = make_table(unit, None)
    far = "TIMESTAMP '9999-12-31 23:59:58'"
    at_far = [row for row, time in enumerate(times) if time == nanoseconds("9999-12-31 23:59:58")]
    others = [row for row, time in enumerate(times) if time is not None and row not in at_far]
    for value in (
        "greatest(at, TIMESTAMP '0002-01-01')",
        "CASE WHEN id = -1 THEN TIMESTAMP '2020-01-01' ELSE at END",
        "coalesce(at, NULL)",
    ):
        assert find(table, f"{value} = {far} AND at IS NOT NULL") == at_far, value
        assert find(table, f"{value} IN ({far}) AND at IS NOT NULL") == at_far, value
        assert find(table, f"{value} NOT IN ({far}) AND at IS NOT NULL") == others, value


def test_texts_beside_a_timestamp_are_timestamps(memory_store: pds.Store) -> None:
    """They are compared as times, whichever operand of a BETWEEN or IN the timestamp is."""
    texts = ["2020-01-01T00:00:00", "2020-01-01T06:00:00", None]
    moments = [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 6), None]  # noqa: DTZ001 without a zone
    rows = pa.table({"id": range(3), "text": texts})
    for name, unit in {"at": "us", "nanos": "ns"}.items():
        rows = rows.append_column(name, pa.array(moments, pa.timestamp(unit)))
    table = pds.Table.create(memory_store, "t", rows.schema)
    table.append(rows)
    assert find(table, "text NOT BETWEEN TIMESTAMP '2019-01-01' AND '2020-01-01 12:00:00'") == []
    assert find(table, "text BETWEEN TIMESTAMP '2019-01-01' AND '2020-01-01 03:00:00'") == [0]
    assert find(table, "'2020-01-01' BETWEEN text AND at") == [0]
    assert find(table, "at IN (text, nanos)") == [0, 1]
    assert find(table, "at BETWEEN text AND nanos") == [0, 1]
    assert find(table, "at NOT BETWEEN text AND nanos") == []
    table.delete("text NOT BETWEEN TIMESTAMP '2019-01-01' AND '2020-01-01 12:00:00'")
    assert table.scan().count() == 3


def test_texts_beside_an_assigned_now_are_in_utc(memory_store: pds.Store) -> None:
    kind = pa.timestamp("ns", "Europe/Berlin")
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("at", kind)]), key="id")
    table.append(pa.table({"id": [0, 1], "at": pa.array([0, 1], kind)}))
    value = "CASE WHEN target.id = 1 THEN target.at WHEN target.id = 0 THEN '2020-07-01 00:00:00' ELSE now() END"
    table.merge(pa.table({"id": [0, 1]})).when_matched_update({"at": value}).execute()
    stored = table.scan().to_pyarrow().sort_by("id")["at"].cast(pa.int64()).to_pylist()
    assert stored == [seconds_since_1970("2020-07-01 00:00:00") * 10**9, 1]
