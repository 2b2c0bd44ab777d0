"""Tables of many versions: history, check and vacuum hold no more than the names of what is there."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
VERSIONS = 20_000
# The files that a version lists, each in as many versions.
LISTED_FILES = 8
# The newest version has the files of all the others too.
SEGMENT_FILES = 4096

# Calls a method on an empty table and on the other; prints by how much the peak grew, the requests, and what was found.
MEASURED = """
import gc, json, sys
import pds

def peak():
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

def call(name):
    return getattr(pds.Table(store, name), what)()

url, what = json.loads(sys.argv[1])
store = pds.Store(url)
call("empty")
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
before, sent = peak(), store.metrics()["requests"]
found = call("large")
grown, sent = peak() - before, store.metrics()["requests"] - sent
if what == "history":
    said = [[entry["version"], entry["operation"]["name"]] for entry in found]
elif what == "check":
    said = [found.version, found.missing, found.mismatched, found.orphans]
else:
    said = [found.oldest_version, found.files, found.manifests]
print(json.dumps([grown, sent, said]))
"""


def _write_object(root: Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def _write_segment(root: Path, number: int, paths: list[str], entry: dict[str, Any]) -> dict[str, Any]:
    """A list of data files in an object of its own; its entry in the manifest."""
    texts = {name: json.dumps(entry[name]) for name in ("min", "max", "null_counts")}
    numbers = {name: entry[name] for name in ("footer_size", "row_group_count", "total_rows")} | {"size_bytes": 4}
    fields = [pa.field(name, pa.string(), nullable=False) for name in ("path", *texts)]
    fields += [pa.field(name, pa.uint64(), nullable=False) for name in numbers]
    rows = [{"path": path} | texts | numbers for path in paths]
    path = f"manifest/segments/b00000002-{number:032x}.parquet"
    (root / path).parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), root / path)
    size = (root / path).stat().st_size
    return {"path": path, "size_bytes": size, "data_files": len(paths), "total_rows": len(paths) * entry["total_rows"]}


def _fill(root: Path) -> None:
    """Write the versions of a table that has two, without its commits."""
    manifest = json.loads((root / "manifest" / "v00000002.json").read_text())
    entry = manifest["data_files"][0]
    folder, name = entry["path"].rsplit("/", 1)
    paths = [f"{folder}/b{version:08}-{version:032x}{name[name.index('.') :]}" for version in range(2, VERSIONS)]
    for path in paths:
        _write_object(root, path, "rows")
    commits = [manifest["recent_commits"][0], manifest["commit_id"]]
    created_at = dt.datetime.fromisoformat(manifest["created_at"])
    for version in range(3, VERSIONS + 1):
        commits.append(f"{version:032x}")
        listed = [entry["path"], *paths[: version - 2]][-LISTED_FILES:]
        manifest |= {
            "version": version,
            "previous": version - 1,
            "commit_id": commits[-1],
            "created_at": (created_at + dt.timedelta(milliseconds=version)).isoformat(timespec="microseconds"),
            "data_files": [entry | {"path": path, "size_bytes": 4} for path in listed],
            "recent_commits": commits[-2:-66:-1],
        }
        if version == VERSIONS:
            older = paths[:-LISTED_FILES]
            segments = [older[start : start + SEGMENT_FILES] for start in range(0, len(older), SEGMENT_FILES)]
            manifest["segments"] = [_write_segment(root, *segment, entry) for segment in enumerate(segments)]
        _write_object(root, f"manifest/v{version:08}.json", json.dumps(manifest))
    pointer = json.loads((root / "_latest_manifest").read_text())
    pointer |= {"version": VERSIONS, "commit_id": commits[-1], "manifest": f"manifest/v{VERSIONS:08}.json"}
    _write_object(root, "_latest_manifest", json.dumps(pointer))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> pds.Store:
    root: Path = tmp_path_factory.mktemp("versions")
    store = pds.Store(root.as_uri())
    data = pa.table({f"c{i}": [i] for i in range(6)})
    for name in ("empty", "large"):
        pds.Table.create(store, name, data.schema).append(data)
    _fill(root / "large")
    return store


def _find(store: pds.Store, what: str) -> Any:
    """What a method says of the large table; it grows little, and reads each manifest once."""
    argument = json.dumps([store.url, what])
    done = subprocess.run([sys.executable, "-c", MEASURED, argument], check=True, capture_output=True, text=True)
    grown, requests, said = json.loads(done.stdout)
    assert grown < 64 * MIB
    assert VERSIONS - 2 < requests < VERSIONS + 40
    return said


@pytest.mark.slow
def test_the_history_of_many_versions_is_small(store: pds.Store) -> None:
    said = _find(store, "history")
    operations = itertools.chain(itertools.repeat("append", VERSIONS - 1), ["create"])
    assert said == [[version, name] for version, name in zip(range(VERSIONS, 0, -1), operations, strict=True)]


@pytest.mark.slow
def test_the_check_of_many_versions_is_small(store: pds.Store) -> None:
    said = _find(store, "check")
    assert said == [VERSIONS, [], [], []]


@pytest.mark.slow
def test_the_vacuum_of_many_versions_is_small(store: pds.Store) -> None:
    said = _find(store, "vacuum")
    assert said == [1, [], []]
