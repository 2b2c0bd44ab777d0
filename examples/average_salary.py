"""The average salary by age range, in two stages and in three, and declared, which needs no function in Python.

python examples/average_salary.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator

PERSON = pa.struct([("age", pa.int16()), ("salary", pa.int64())])
PARTIAL = pa.struct([("count", pa.int64()), ("sum", pa.int64())])
BUCKET = pa.struct([("decade", pa.int16()), ("bucket", pa.int16())])
BUCKETS = 64


def declare(store: pds.Store) -> pds.Pipeline:
    """Declare both forms in one graph."""
    p = pds.Pipeline(store, "salaries")
    persons = p.source("persons", key=pa.int64(), value=PERSON)

    @p.producer(persons, key=pa.int16(), value=pa.int64())
    def salaries_by_decade(_: int, persons: Iterator[dict[str, int]]) -> Iterator[tuple[int, int]]:
        for person in persons:
            yield person["age"] // 10 * 10, person["salary"]

    @p.producer(salaries_by_decade, key=pa.int16(), value=pa.float64())
    def average_by_decade(decade: int, salaries: Iterator[int]) -> Iterator[tuple[int, float]]:
        count = total = 0
        for salary in salaries:
            count, total = count + 1, total + salary
        yield decade, total / count

    # A change reads one bucket of its decade, and a row for each other one.
    @p.producer(persons, key=BUCKET, value=pa.int64())
    def salaries_by_bucket(person_id: int, persons: Iterator[dict[str, int]]) -> Iterator[tuple[tuple[int, int], int]]:
        for person in persons:
            yield (person["age"] // 10 * 10, person_id % BUCKETS), person["salary"]

    @p.producer(salaries_by_bucket, key=pa.int16(), value=PARTIAL)
    def sums_by_bucket(key: tuple[int, int], salaries: Iterator[int]) -> Iterator[tuple[int, dict[str, int]]]:
        count = total = 0
        for salary in salaries:
            count, total = count + 1, total + salary
        yield key[0], {"count": count, "sum": total}

    @p.producer(sums_by_bucket, key=pa.int16(), value=pa.float64())
    def average_of_sums(decade: int, partials: Iterator[dict[str, int]]) -> Iterator[tuple[int, float]]:
        listed = list(partials)
        yield decade, sum(partial["sum"] for partial in listed) / sum(partial["count"] for partial in listed)

    # Without Python. A change reads what it replaces in its decade, and the stored sums.
    p.select(persons, key="age / 10 * 10", value="salary", name="salaries")
    p.aggregate("salaries", aggregates={"average": ("value", "mean")}, name="averages")
    return p


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        p = declare(pds.Store(Path(folder).as_uri()))
        persons = [(n, {"age": 20 + n % 40, "salary": 1000 + n * 37 % 501}) for n in range(10_000)]
        p.update(persons=pds.Changes(persons))

        def averages(stage: str) -> dict[int, float]:
            return {row["target_key"]: round(row["value"], 2) for row in p[stage].read().to_pylist()}

        print("averages:", averages("average_by_decade"))
        p.update(persons=pds.Changes([(17, {"age": 37, "salary": 90_000})], deletes=[18]))
        print("updated: ", averages("average_by_decade"))
        print("in three stages:", averages("average_of_sums") == averages("average_by_decade"))
        declared = p["averages"].read().to_pylist()
        means = {row["target_key"]: round(row["value"]["average"], 2) for row in declared}
        print("declared:", means == averages("average_by_decade"))


if __name__ == "__main__":
    main()
