"""Two faults in a row: the answer of a conditional write is lost, and the read back is answered wrongly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from fault_runs import ended
from fault_runs import impatient_store as store
from pds import odf
from scripted_s3 import ScriptedS3
from scripted_s3.faults import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripted_s3.bucket import Request

pytestmark = pytest.mark.sampled(2)

ROWS = pa.table({"at": pa.array([1, 2, 3], pa.timestamp("ms", "UTC")), "id": [1, 2, 3]})


def _append(server: ScriptedS3) -> tuple[Callable[[], object], Callable[[], int]]:
    table = pds.Table.create(store(server), "t", ROWS.schema)
    table.append(ROWS)
    return lambda: table.append(ROWS), lambda: pds.Table(store(server), "t").scan().to_pyarrow().num_rows


def _ingest(server: ScriptedS3) -> tuple[Callable[[], object], Callable[[], int]]:
    dataset = odf.Dataset.create(store(server), "d")
    dataset.ingest(ROWS, event_time="at")
    return (
        lambda: dataset.ingest(ROWS, event_time="at"),
        lambda: odf.Dataset(store(server), "d").scan().to_pyarrow().num_rows,
    )


@pytest.mark.parametrize("lost", ["drop after", "500 after", "stall after"])
@pytest.mark.parametrize("wrong", ["404", "403", "500"])
@pytest.mark.parametrize(("begin", "name"), [(_append, "_latest_manifest"), (_ingest, "refs/head")])
def test_a_wrong_answer_to_the_read_back_loses_nothing(
    begin: Callable[[ScriptedS3], tuple[Callable[[], object], Callable[[], int]]], name: str, wrong: str, lost: str
) -> None:
    with ScriptedS3() as server:
        work, count = begin(server)
        put = server.on("put", name, lost, times=1)

        def is_read_back(request: Request) -> bool:
            return put.hit.is_set() and request.method == "GET" and request.key.endswith(name)

        server.add(Rule(is_read_back, wrong, times=1))
        error = ended(work)
        # What is not known may be there; what is there has all its rows.
        assert isinstance(error, pds.CommitStateUnknown | None), repr(error)
        assert put.hit.is_set()
        server.restart()
        assert count() in ((ROWS.num_rows, 2 * ROWS.num_rows) if error else (2 * ROWS.num_rows,))
