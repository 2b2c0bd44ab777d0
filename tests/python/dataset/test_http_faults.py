"""Every fault at every request of a write, an overwrite, a read and a delete.

The retries of object_store are in the path. After each: the old or the new dataset, whole, what is
raised is typed, and nothing is left that no intent names.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import pds
from fault_runs import (
    AT_ONCE,
    DISTINCT,
    ENDLESS,
    FEW_AT_ONCE,
    LASTING,
    PASSING,
    PATIENT,
    UNDER_A_FAULT_THAT_LASTS,
    Run,
    ended,
    is_probe,
    plan,
    run_all,
)
from publish.harness import LEASE_OPTIONS
from scripted_s3 import FAULTS, ScriptedS3

if TYPE_CHECKING:
    from collections.abc import Callable

    from scripted_s3 import Stored

pytestmark = pytest.mark.slow

KEY = "silver/orders"
INTENT = f"prefix/{KEY}/_publish.json"


class Size(NamedTuple):
    """How much a dataset holds."""

    rows: int
    per_file: int | None


# Small parts are kept in memory until they are published, staged ones are uploads of one piece,
# large ones of several.
SIZES = {
    "small": Size(30, None),
    "small parts": Size(60, 30),
    "staged": Size(40_000, 20_000),
    "large": Size(1_200_000, None),
}
# An overwrite leaves another number of parts than there was.
OTHER = {"small": "small parts", "small parts": "small", "staged": "small parts", "large": "small"}


def _table(size: str, version: int) -> pa.Table:
    rows = SIZES[size].rows
    noise = np.random.default_rng(version).random(rows)
    return pa.table({"version": pa.array([version] * rows), "noise": noise})


def _open(server: ScriptedS3, size: str = "small", run: Run | None = None) -> pds.ParquetDatasetStore:
    options = server.options() | LEASE_OPTIONS | (run.options() if run else PATIENT)
    store = pds.Store("s3://bucket/prefix", storage_options=options)
    return pds.ParquetDatasetStore(store, compression="none", max_rows_per_file=SIZES[size].per_file)


class Operation(NamedTuple):
    """What is done: the size of the dataset there is (None: none), and of the new one (None: a delete)."""

    old: str | None
    new: str | None

    def work(self, server: ScriptedS3, run: Run | None = None) -> None:
        """Do it, under a run's faults if there are any."""
        if self.new is None:
            _open(server, run=run).delete_dataset(KEY)
        else:
            _open(server, self.new, run).write_dataset(_table(self.new, 2), KEY, overwrite=self.old is not None)


OPERATIONS = {
    f"{verb} {size}": Operation(old, new)
    for size in SIZES
    for verb, old, new in (
        ("write", None, size),
        ("overwrite", size, size),
        ("overwrite with other parts", OTHER[size], size),
        ("delete", size, None),
    )
}


class _Case:
    """An operation on a state of the bucket, to be repeated under faults."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.old = None if operation.old is None else _table(operation.old, 1)
        self.new = None if operation.new is None else _table(operation.new, 2)
        with ScriptedS3() as server:
            if operation.old is not None:
                _open(server, operation.old).write_dataset(self.old, KEY)
            self.before: dict[str, Stored] = server.save()
            server.restart()
            operation.work(server)
            self.requests = list(server.seen)
            self.after = set(server.snapshot())

    def judge(self, server: ScriptedS3, run: Run) -> None:
        """One run; what is left is whole, and the next writer finds a clean house."""
        server.restart(run.faults())
        error = ended(lambda: self.operation.work(server, run))
        server.restart()
        if error is None and run.lasts and run.fault == "404" and self.new is None:
            # A store that says of everything that it is not there has nothing to delete.
            error = pds.NotFound("told so")
        if not run.lasts:
            if run.fault in PASSING:
                assert error is None, repr(error)
            self._check_leaks(server, error)
        ds = _open(server)
        with contextlib.suppress(pds.DatasetIncomplete, pds.NotFound):
            # A reader may have to wait for somebody who may write, but never sees a mixture.
            self._check_content(ds, error)
        ds.clean_dataset(KEY, older_than=0)
        if ds.dataset_exists(KEY):
            self._check_content(ds, error)
        elif error is None:
            assert self.new is None, "reported as done, and it is not there"
        else:
            assert self.old is None or self.new is None, f"after {error!r} there is neither the old nor the new"
        assert INTENT not in server.snapshot()
        ds.write_dataset(_table("small", 3), KEY, overwrite=True)
        assert ds.read_dataset(KEY).equals(_table("small", 3))
        names = {key.rpartition("/")[2] for key in server.snapshot()}
        assert names == {"data.parquet", "manifest.json", "_SUCCESS"}
        ds.delete_dataset(KEY)
        assert server.snapshot() == {}

    def _check_content(self, ds: pds.ParquetDatasetStore, error: Exception | None) -> None:
        found = ds.read_dataset(KEY)
        allowed = [self.new] if error is None else [self.old, self.new]
        assert any(table is not None and found.equals(table) for table in allowed), f"a mixture, after {error!r}"

    def _check_leaks(self, server: ScriptedS3, error: Exception | None) -> None:
        """What nobody sees is there only as long as an intent names it, to be carried out or dropped."""
        objects = {key: content for key, content in server.snapshot().items() if not is_probe(key)}
        intent = objects.pop(INTENT, b"").decode()
        if error is None:
            assert not intent
            assert set(objects) == self.after
        # Nobody can abort an upload whose name was lost on its way; it holds nothing.
        uploads = {
            u.key
            for name, u in server.bucket.uploads.items()
            if u.pieces and name not in intent and not is_probe(u.key)
        }
        assert not uploads, f"uploads of {uploads} are left after {error!r}"
        hidden = [key for key in objects if "/.pds-" in key and key.rpartition("/")[2] not in intent]
        assert not hidden, f"{hidden} are left after {error!r}"


SMALL = [name for name in OPERATIONS if not name.endswith("large")]


def _at_once(name: str) -> int:
    return AT_ONCE if name in SMALL else FEW_AT_ONCE


@pytest.mark.parametrize("name", SMALL)
def test_one_fault(name: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, DISTINCT, lasts=False), case.before, case.judge)


@pytest.mark.parametrize(
    "name", ["write small", "overwrite staged", "overwrite with other parts small", "delete staged"]
)
def test_a_fault_that_lasts(name: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, ("403", "404", "412", "drop after"), lasts=True), case.before, case.judge)


def test_a_store_that_died_is_waited_for_once() -> None:
    """However many parts wait for it: an operation ends soon after its store did."""
    options = LEASE_OPTIONS | UNDER_A_FAULT_THAT_LASTS
    with ScriptedS3() as server:
        store = pds.Store("s3://bucket/prefix", storage_options=server.options() | options)
        ds = pds.ParquetDatasetStore(store, compression="none", max_rows_per_file=10)
        ds.write_dataset(_table("small", 1), "warm/up")
        # The claim, the listing, then six parts at once.
        server.restart(dict.fromkeys(range(2, ENDLESS), "stall"))
        with pytest.raises(pds.BackendUnavailable):
            ds.write_dataset(_table("small parts", 1), KEY)
        sent = [request for request in server.seen if request.verb == "put" and request.key == INTENT]
        assert any(request.key.endswith("part-00005.parquet") for request in server.seen)
        assert len(sent) <= 3, sent


@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_any_fault(name: str, fault: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, [fault], lasts=False), case.before, case.judge, _at_once(name))


@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", LASTING)
def test_any_fault_that_lasts(name: str, fault: str) -> None:
    case = _Case(OPERATIONS[name])
    run_all(plan(case.requests, [fault], lasts=True), case.before, case.judge, _at_once(name))


def test_403_is_told_apart() -> None:
    with ScriptedS3() as server:
        server.restart({0: "403"})
        with pytest.raises(pds.PermissionDenied):
            _open(server).write_dataset(_table("small", 1), KEY, overwrite=True)
        server.restart(dict.fromkeys(range(500), "503"))
        with pytest.raises(pds.BackendUnavailable):
            _open(server).write_dataset(_table("small", 1), KEY, overwrite=True)


def test_an_error_says_what_was_tried() -> None:
    with ScriptedS3() as server:
        server.restart(dict.fromkeys(range(500), "drop"))
        with pytest.raises(pds.BackendUnavailable) as raised:
            _open(server).write_dataset(_table("small", 1), KEY)
    assert KEY in str(raised.value)
    assert any(word in str(raised.value) for word in ("retries", "tries", "attempts"))
    assert "secret" not in str(raised.value)


READS: dict[str, Callable[[pds.ParquetDatasetStore], object]] = {
    "read": lambda ds: ds.read_dataset(KEY),
    "scan": lambda ds: ds.scan_dataset(KEY).read_all(),
    "columns": lambda ds: ds.read_dataset(KEY, columns=["noise"]),
    "verify": lambda ds: ds.verify_dataset(KEY),
    "manifest": lambda ds: ds.read_manifest(KEY),
    "exists": lambda ds: ds.dataset_exists(KEY),
    "list": lambda ds: ds.list_datasets(),
}


@pytest.mark.parametrize("name", READS)
def test_one_fault_of_a_read(name: str) -> None:
    with ScriptedS3() as server:
        _open(server).write_dataset(_table("small", 2), KEY)
        before = server.save()
        server.restart()
        expected = READS[name](_open(server))
        requests = list(server.seen)

    def judge(server: ScriptedS3, run: Run) -> None:
        server.restart(run.faults())
        found: list[object] = []
        error = ended(lambda: found.append(READS[name](_open(server, run=run))))
        if error is not None:
            assert run.fault not in PASSING, repr(error)
            return
        # A 404 is an answer: there is no dataset then.
        assert found[0] == expected or (run.fault == "404" and not found[0])

    run_all(plan(requests, FAULTS, lasts=False), before, judge)
