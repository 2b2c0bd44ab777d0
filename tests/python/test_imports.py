"""Nothing is imported that the caller did not ask for."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
import pds.table

if TYPE_CHECKING:
    from pathlib import Path

# What costs time, or is a package of its own that only some users have.
HEAVY = ("pandas", "polars", "dagster", "pyspark", "duckdb", "pyarrow.parquet", "pyarrow.dataset", "pyarrow.acero")
SETUP = """
import sys
import pyarrow as pa
import pds
rows = pa.ipc.open_stream(sys.argv[1]).read_all()
store = pds.Store("memory://")
ds = pds.ParquetDatasetStore(store, max_rows_per_file=2)
before = set(sys.modules)
"""
CALLS = {
    "write": "ds.write_dataset(rows, 'a')",
    "stream": "ds.write_dataset(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()), 'a')",
    "read": "ds.write_dataset(rows, 'a'); assert ds.read_dataset('a').equals(rows)",
    "columns": "ds.write_dataset(rows, 'a'); ds.read_dataset('a', columns=['n'])",
    "scan": "ds.write_dataset(rows, 'a'); assert ds.scan_dataset('a').read_all().equals(rows)",
    "part": "m = ds.write_dataset(rows, 'a'); ds.read_part('a', m, 0).read_all()",
    "begin": "w = ds.begin_write('a'); w.publish(w.prepare(rows), rows.schema)",
    "keep": "ds.write_dataset(rows, 'a'); ds.verify_dataset('a'); ds.list_datasets(); ds.delete_dataset('a')",
    "store": "store.write('x', b'1'); store.read_bytes('x'); store.read('x').read(); list(store.list_files())",
    "table": "t = pds.Table.create(store, 't', rows.schema); t.append(rows); t.scan().to_pyarrow()",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_imports_nothing_heavy(call: str, tmp_path: Path) -> None:
    # Made here, because making arrays of Python values imports pandas.
    file = tmp_path / "rows.arrows"
    rows = pa.table({"n": [1, 2, 3], "s": ["a", "b", None]})
    with pa.ipc.new_stream(str(file), rows.schema) as sink:
        sink.write_table(rows)
    program = f"""{SETUP}
{CALLS[call]}
loaded = {{name for name in {HEAVY!r} if name in set(sys.modules) - before}}
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program, file], check=True)


# What took a third of the time of a first read, and is needed only by filters, charts, listings.
SPARED = (
    "asyncio",
    "concurrent.futures",
    "http",
    "pyarrow.compute",
    "pyarrow.fs",
    "pydoc",
    "ssl",
    "urllib.request",
    "xml",
)
# What only tables, notebooks and errors need.
SPARED_BY_DATASETS = ("html", "json", "pathlib", "urllib.parse")
DATASET_CALLS = ("read", "scan a dataset", "write")
FIRST_CALLS = {
    "read": "assert pds.read_dataset('a', ['n']).num_rows and 'pds.table' not in sys.modules",
    "scan a dataset": "pds.scan_dataset('a', where='n > 1').read_all()",
    "write": "pds.write_dataset('b', rows)",
    "open": "pds.open_table('t')",
    "scan": "pds.open_table('t').scan(['n'], where='n = 1').to_pyarrow()",
    "append": "pds.open_table('t').append(rows)",
    "create": "pds.write_table('u', rows, key='n')",
}


def _modules_of(program: str, folder: Path) -> set[str]:
    """What a process has imported at its end. remote-store is hidden: it imports what it likes."""
    whole = f"import sys; sys.modules['remote_store'] = None\n{program}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", whole], check=True, capture_output=True, text=True, cwd=folder)
    return set(done.stdout.split())


def test_a_first_call_imports_little_beside_pyarrow(tmp_path: Path) -> None:
    setup = "import pyarrow as pa; rows = pa.ipc.open_stream('rows').read_all()"
    rows = pa.table({"n": [1, 2, 3]})
    with pa.ipc.new_stream(str(tmp_path / "rows"), rows.schema) as sink:
        sink.write_table(rows)
    pds.write_dataset(tmp_path / "a", rows)
    pds.write_table(tmp_path / "t", rows)
    needed = _modules_of(setup, tmp_path)
    for name, call in FIRST_CALLS.items():
        loaded = _modules_of(f"{setup}\nimport pds\n{call}", tmp_path) - needed
        spared = {*SPARED, *SPARED_BY_DATASETS} if name in DATASET_CALLS else set(SPARED)
        assert not loaded & spared, (name, loaded & spared)


def test_a_store_needs_no_pyarrow() -> None:
    program = """
import sys
import pds
with pds.Store("memory://") as store:
    store.write("a", b"x")
    try:
        store.read_bytes("b")
    except pds.NotFound:
        pass
assert "pyarrow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "imports",
    [
        "import pds; from remote_store.ext import parquet",
        "from remote_store.ext import parquet; import pds",
        "import pds; pds.ParquetDatasetStore; pds.DatasetIncomplete; from remote_store.ext import parquet",
        "import remote_store, pds.errors; from remote_store.ext import parquet",
    ],
)
def test_clauses_for_remote_store_catch_errors_of_pds(imports: str) -> None:
    """Whatever is imported first."""
    program = f"""
{imports}
import pickle
import pds
store = pds.Store("memory://")
ds = pds.ParquetDatasetStore(store)
store.write("bad/manifest.json", b"x")
store.write("bad/_SUCCESS", b"")
for call, kind in ((lambda: ds.read_dataset("a"), parquet.DatasetIncomplete),
                   (lambda: ds.read_dataset("bad"), parquet.ManifestCorrupted),
                   (lambda: pds.DatasetManifest.from_json("x"), parquet.ManifestCorrupted)):
    try:
        call()
    except kind as error:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert getattr(sys.modules[type(error).__module__], type(error).__name__) is type(error)
    else:
        raise AssertionError(kind)
assert issubclass(pds.PartCorrupted, parquet.DatasetIncomplete)
assert issubclass(pds.DatasetIncomplete, parquet.DatasetIncomplete)
"""
    subprocess.run([sys.executable, "-c", f"import sys\n{program}"], check=True)


def test_a_package_has_its_names_and_no_others() -> None:
    """Each is looked up in a module when it is first used."""
    names = {name: getattr(pds.table, name).__name__ for name in dir(pds.table)}
    assert names == {name: name for name in pds.table.__all__}
    assert vars(pds.table).keys() >= names.keys()
    with pytest.raises(AttributeError, match=r"module 'pds\.table' has no attribute 'nothing'"):
        _ = pds.table.nothing


def test_all_errors_have_one_base_class() -> None:
    assert pds.Error is pds.RemoteStoreError
    for name in pds.errors.__all__:
        assert issubclass(getattr(pds, name), pds.Error), name
