"""Delta and Iceberg tables on object stores that become tables where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pytest
from deltalake.exceptions import DeltaError
from pyiceberg.catalog.sql import SqlCatalog

import pds
from exported_tables import make_rows, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3Server


@pytest.fixture(
    params=[pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure)],
)
def place(request: pytest.FixtureRequest, s3_prefix: str) -> tuple[str, dict[str, str]]:
    """The URL of an empty folder of an object store, and its options."""
    server = request.getfixturevalue(f"{request.param}_server")
    return server.url(f"{s3_prefix}/a folder/ä=1"), server.options()


def test_a_delta_table_is_imported_where_it_is(place: tuple[str, dict[str, str]]) -> None:
    url, options = place
    for first in range(0, 60, 10):
        rows = make_rows(range(first, first + 10))
        deltalake.write_deltalake(url, rows, mode="append", partition_by=["name"], storage_options=options)
    delta = deltalake.DeltaTable(url, storage_options=options)
    delta.delete("id % 7 = 3")
    expected = rows_of(delta.to_pyarrow_table())
    table = pds.import_delta(url, take_over=True, storage_options=options)
    assert rows_of(table.scan().to_pyarrow()) == expected
    assert rows_of(table.scan(where="name = 'name 8'").to_pyarrow()) == [row for row in expected if row[1] == "name 8"]
    table.delete("id < 20")
    table.append(make_rows(range(100, 103)))
    table.optimize.compact()
    reopened = pds.open_table(url, storage_options=options)
    assert [row[0] for row in rows_of(reopened.scan().to_pyarrow())] == [
        *(row[0] for row in expected if row[0] >= 20),
        *range(100, 103),
    ]
    # The other table is as it was, and nobody writes it.
    delta = deltalake.DeltaTable(url, storage_options=options)
    assert rows_of(delta.to_pyarrow_table()) == expected
    with pytest.raises(DeltaError, match="pds-readOnly"):
        delta.delete("id = 1")
    pds.Table.drop(reopened.store, reopened.path)
    assert rows_of(deltalake.DeltaTable(url, storage_options=options).to_pyarrow_table()) == expected


@pytest.mark.s3
def test_an_iceberg_table_is_imported_where_it_is(s3_server: S3Server, s3_prefix: str, tmp_path: Path) -> None:
    options = s3_server.options()
    properties = {
        "s3.endpoint": s3_server.endpoint,
        "s3.access-key-id": s3_server.access_key,
        "s3.secret-access-key": s3_server.secret_key,
        "s3.region": s3_server.region,
    }
    warehouse = s3_server.url(s3_prefix)
    catalog = SqlCatalog("s3", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse, **properties)
    catalog.create_namespace("ns")
    iceberg = catalog.create_table("ns.t", make_rows(range(1)).schema)
    for first in range(0, 60, 20):
        iceberg.append(make_rows(range(first, first + 20)))
    iceberg.delete("id < 7")
    expected = rows_of(iceberg.scan().to_arrow())
    with pytest.warns(UserWarning, match="expire snapshots"):
        table = pds.import_iceberg(iceberg, storage_options=options)
    assert rows_of(table.scan().to_pyarrow()) == expected
    table.delete("id = 30")
    table.append(make_rows(range(100, 102)))
    ids = [row[0] for row in rows_of(pds.open_table(iceberg.location(), storage_options=options).scan().to_pyarrow())]
    assert ids == [*(row[0] for row in expected if row[0] != 30), 100, 101]
    assert rows_of(catalog.load_table("ns.t").scan().to_arrow()) == expected
    catalog.engine.dispose()
