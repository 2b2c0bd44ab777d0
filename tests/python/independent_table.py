"""Another engine's tables: what docs/format.md says (rules 13 to 27), and nothing of pds, in plain Python.

`newest` and `at` open a snapshot of a folder, `Snapshot.rows` reads it, `check` compares everything in the
folder with the rules, and `Writer` commits as another engine would. Of values it knows no dictionaries: rows
come with the types of the dictionaries' values.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from independent_roaring import roaring_numbers
from independent_xxh3 import xxh3_64

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Json = dict[str, Any]

POINTER = "_latest_manifest"
FORMAT = 2
RECENT_COMMITS = 64
SEAL = b"PDSSEAL1"

_ID = "[0-9a-f]{32}"
_TIMED = rf"\d{{4}}/\d\d/\d\d/\d\d/b(\d{{8,}})-{_ID}"
_DATA = re.compile(rf"data/{_TIMED}\.parquet")
_TOMBSTONE = re.compile(rf"tombstone/{_TIMED}\.del")
_SEGMENT = re.compile(rf"manifest/segments/b(\d{{8,}})-{_ID}\.parquet")
_TRANSACTIONS = re.compile(rf"manifest/transactions/b(\d{{8,}})-{_ID}\.bin")
_MANIFEST = re.compile(r"manifest/v(\d{8}|[1-9]\d{8,})\.json")
_OBJECT_NAMES = (_DATA, _TOMBSTONE, _SEGMENT, _TRANSACTIONS, _MANIFEST)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
COUNTS = ("size_bytes", "footer_size", "row_group_count", "total_rows")
TEXTS = ("path", "min", "max", "null_counts")

# -- one data file ----------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """A data file as it was written: its columns by their ids, one table a row group."""

    created_by: str
    types: dict[int, pa.DataType]
    groups: list[dict[int, pa.ChunkedArray[Any]]]
    lengths: list[int]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


@functools.lru_cache(maxsize=4096)
def _read(path: Path, names: tuple[tuple[str, str], ...], _modified: int) -> _File:
    known = {name: int(i) for i, name in names}
    with pq.ParquetFile(path) as file:
        by_id = [(field.metadata or {}).get(b"PARQUET:field_id") for field in file.schema_arrow]
        ids = [known[f.name] if names else int(i) for f, i in zip(file.schema_arrow, by_id, strict=True)]
        kinds = [_plain_type(field.type) for field in file.schema_arrow]
        meta = file.metadata
        groups = []
        for group in range(meta.num_row_groups):
            columns = file.read_row_group(group).columns
            groups.append({i: column.cast(kind) for i, kind, column in zip(ids, kinds, columns, strict=True)})
        lengths = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        return _File(meta.created_by, dict(zip(ids, kinds, strict=True)), groups, lengths)


def _file(path: Path, entry: Json) -> _File:
    """The file of a manifest's entry; its columns have ids, or the entry says their names."""
    names = tuple((entry.get("columns") or {}).items())
    return _read(path, names, path.stat().st_mtime_ns)


def _bound(value: Any, kind: pa.DataType) -> pa.Scalar[Any]:
    """A bound as rule 14 writes it, or an end of a range of keys."""
    if isinstance(value, str) and not pa.types.is_string(kind):
        return pa.array([value]).cast(kind)[0]
    return pa.scalar(value, kind)


# -- snapshots --------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """One version of a table."""

    root: Path
    manifest: Json

    @property
    def version(self) -> int:
        """The number."""
        return int(self.manifest["version"])

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return arrow_schema(self.manifest)

    def removed(self, segment: Json) -> list[int]:
        """The places of a segment's files that the snapshot has no more."""
        return roaring_numbers(base64.b64decode(segment["removed"])) if "removed" in segment else []

    def listed(self, segment: Json) -> list[Json]:
        """All data files of a segment, those that were removed included."""
        listed = pq.read_table(self.root / segment["path"]).to_pylist()
        files = []
        for row in listed:
            file = {name: row[name] for name in ("path", *COUNTS)}
            texts = [*TEXTS[1:], *(name for name in ("columns", "constants") if row.get(name))]
            checksum = {"checksum": row["checksum"]} if row.get("checksum") else {}
            files.append(file | {name: json.loads(row[name]) for name in texts} | checksum)
        return files

    def files(self) -> list[Json]:
        """The data files, as a manifest lists them, in order."""
        files = []
        for segment in self.manifest["segments"]:
            gone = set(self.removed(segment))
            files += [file for i, file in enumerate(self.listed(segment)) if i not in gone]
        return files + list(self.manifest["data_files"])

    @functools.cached_property
    def entries(self) -> dict[str, Json]:
        """The data files by their paths."""
        return {file["path"]: file for file in self.files()}

    def opened(self, path: str) -> _File:
        """A data file."""
        return _file(self.root / path, self.entries[path])

    def targets(self, entry: Json) -> list[str]:
        """The data files that a tombstone file is about, as its entry says."""
        paths = list(entry["files"])
        for segment in self.manifest["segments"]:
            positions = entry.get("positions", {}).get(segment["path"])
            if positions is not None:
                listed = self.listed(segment)
                paths += [listed[at]["path"] for at in roaring_numbers(base64.b64decode(positions))]
        return paths

    def tombstone(self, entry: Json) -> list[Json]:
        """The lines of a tombstone file."""
        raw = _decompressed((self.root / entry["path"]).read_bytes())
        return [json.loads(line) for line in raw.decode().splitlines()]

    @functools.cached_property
    def kept(self) -> dict[str, list[list[bool]]]:
        """Of the rows of each file, by row group, whether no line of a tombstone takes them away."""
        lengths = {file["path"]: self.opened(file["path"]).lengths for file in self.files()}
        kept = {path: [[True] * length for length in groups] for path, groups in lengths.items()}
        tombstones = [
            (line, self.targets(entry)) for entry in self.manifest["tombstones"] for line in self.tombstone(entry)
        ]
        for line, targets in tombstones:
            groups = kept.get(line["file"])
            if groups is None or line["file"] not in targets:
                continue
            file = self.opened(line["file"])
            for group, rows in enumerate(groups):
                for row in self.deleted(file, group, line):
                    rows[row] = False
        return kept

    def rows(self) -> pa.Table:
        """What is in it."""
        fields = list(zip([c["id"] for c in self.manifest["schema"]["columns"]], self.schema, strict=True))
        schema = pa.schema([field.with_type(_plain_type(field.type)) for _, field in fields])
        tables = [schema.empty_table()]
        for path, groups in self.kept.items():
            constants = self.entries[path].get("constants", {})
            for stored, kept in zip(self.opened(path).groups, groups, strict=True):
                columns = []
                for field, (i, _) in zip(schema, fields, strict=True):
                    missing = pa.nulls(len(kept), field.type)
                    if str(i) in constants:
                        missing = pa.array([_bound(constants[str(i)], field.type)] * len(kept), field.type)
                    columns.append(stored.get(i, missing).cast(field.type))
                tables.append(pa.table(columns, schema=schema).filter(pa.array(kept)))
        return pa.concat_tables(tables)

    def deleted(self, file: _File, group: int, line: Json) -> list[int]:
        """The rows of a row group that one line of a tombstone takes away."""
        if "pk_min" in line:
            (key,) = self.manifest["key"]
            low, high = (_bound(line[end], file.types[key]) for end in ("pk_min", "pk_max"))
            keys = file.groups[group][key]
            hit = pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))
            return [i for i, is_hit in enumerate(hit.to_pylist()) if is_hit]
        if line["row_group"] != group:
            return []
        if "roaring" in line:
            return roaring_numbers(base64.b64decode(line["roaring"]))
        return list(line.get("deleted_rows", range(file.lengths[group])))


def _decompressed(raw: bytes) -> bytes:
    """What a Zstandard frame holds; other bytes as they are."""
    is_frame = raw.startswith(b"\x28\xb5\x2f\xfd")
    return bytes(pa.CompressedInputStream(pa.BufferReader(raw), "zstd").read()) if is_frame else raw


def arrow_schema(manifest: Json) -> pa.Schema:
    """The columns of a manifest."""
    return pa.ipc.read_schema(pa.py_buffer(_decompressed(base64.b64decode(manifest["arrow_schema"]))))


def manifest_path(version: int) -> str:
    """Where a version's manifest is."""
    return f"manifest/v{version:08}.json"


def at(root: Path, version: int) -> Snapshot:
    """A version of the table in a folder."""
    manifest = json.loads((root / manifest_path(version)).read_bytes())
    if manifest["format"] > FORMAT:
        raise ValueError(f"format {manifest['format']} is too new")
    return Snapshot(root, manifest)


def newest(root: Path) -> Snapshot:
    """The newest version."""
    pointer = json.loads((root / POINTER).read_bytes())
    snapshot = at(root, pointer["version"])
    if snapshot.manifest["commit_id"] != pointer["commit_id"]:
        raise ValueError("the pointer is of another manifest")
    return snapshot


def versions(root: Path) -> list[int]:
    """All versions whose manifest is there, and that were not committed after the pointer."""
    found = (int(path.stem[1:]) for path in (root / "manifest").glob("v*.json"))
    return sorted(version for version in found if version <= newest(root).version)


def objects(root: Path) -> set[str]:
    """All names there are."""
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    # What was there before it was added is nobody's to remove.
    return {name for name in found if not name.startswith("in/")}


def named(root: Path) -> set[str]:
    """The pointer, the manifests and all that they name but the files that are removed from segments."""
    found = {POINTER}
    for snapshot in [at(root, version) for version in versions(root)]:
        found |= {manifest_path(snapshot.version), *(file["path"] for file in snapshot.files())}
        lists = (snapshot.manifest.get(name, []) for name in ("segments", "tombstones", "older_transactions"))
        found |= {entry["path"] for entry in itertools.chain(*lists)}
    return {name for name in found if not name.startswith("in/")}


# -- what the rules say -----------------------------------------------------------


def check(root: Path) -> list[str]:
    """What of a table is not as the rules say. All versions are looked at."""
    snapshots = {version: at(root, version) for version in versions(root)}
    faults = [*_pointer_faults(root), *_name_faults(root)]
    for version, snapshot in snapshots.items():
        before = snapshots.get(version - 1)
        made = itertools.chain(
            _chain_faults(snapshot, before),
            _reference_faults(snapshot, snapshots),
            _schema_faults(snapshot),
            _file_faults(snapshot, before),
            _tombstone_faults(snapshot, before),
        )
        faults += [f"version {version}: {fault}" for fault in made]
    commits = [snapshot.manifest["commit_id"] for snapshot in snapshots.values()]
    if len(set(commits)) != len(commits):
        faults.append("two versions have one commit id")
    kept = range(newest(root).manifest["oldest_version"], newest(root).version + 1)
    faults += [f"version {version} is not there" for version in {*kept} - {*snapshots}]
    return faults


def _pointer_faults(root: Path) -> Iterator[str]:
    manifest = newest(root).manifest
    if (root / POINTER).read_bytes() != pointer_bytes(manifest):
        yield f"the pointer is {(root / POINTER).read_bytes()!r}"


def pointer_bytes(manifest: Json) -> bytes:
    """The pointer to a manifest: members as in rule 13, and no spaces."""
    pointer = {"format": manifest["format"], "version": manifest["version"], "commit_id": manifest["commit_id"]}
    pointer |= {"manifest": manifest_path(manifest["version"]), "oldest_version": manifest["oldest_version"]}
    return json.dumps(pointer, separators=(",", ":")).encode()


def _name_faults(root: Path) -> Iterator[str]:
    names = objects(root)
    for name in names:
        if name != POINTER and not any(p.fullmatch(name) for p in _OBJECT_NAMES):
            yield f"there is {name}"
    ids = [match[0] for name in names if (match := re.search(rf"{_ID}(?=\.)", name))]
    if len(set(ids)) != len(ids):
        yield "two objects have one id"
    places = [len(set(digits)) for digits in zip(*ids, strict=True)]
    if len(ids) > RECENT_COMMITS and min(places) < 2:
        yield "ids are not random"


def _chain_faults(snapshot: Snapshot, before: Snapshot | None) -> Iterator[str]:
    new, version = snapshot.manifest, snapshot.version
    if (
        new["format"] not in range(1, FORMAT + 1)
        or new["previous"] != (version - 1 or None)
        or not new["operation"]["name"]
    ):
        yield f"{new['format']=}, {new['previous']=}, {new['operation']=}"
    if not re.fullmatch(_ID, new["commit_id"]) or not _MOMENT.fullmatch(new["created_at"]):
        yield f"{new['commit_id']=}, {new['created_at']=}"
    if len(new["recent_commits"]) != min(RECENT_COMMITS, version - 1) or not 1 <= new["oldest_version"] <= version:
        yield f"{new['recent_commits']=}, {new['oldest_version']=}"
    moments = [new[name] or 0 for name in ("columns_restored_at", "restored_at", "added_at")]
    if moments[0] > moments[1] or max(moments) > version:
        yield f"restored and added at {moments}"
    if before is not None:
        yield from _step_faults(new, before.manifest)


def _reference_faults(snapshot: Snapshot, all_: dict[int, Snapshot]) -> Iterator[str]:
    """What a manifest says of other versions that is not so."""
    new, version = snapshot.manifest, snapshot.version
    for past, commit in zip(range(version - 1, 0, -1), new["recent_commits"], strict=False):
        if past in all_ and all_[past].manifest["commit_id"] != commit:
            yield f"version {past} was not committed as {commit}"
    for done in [*new["transactions"].values(), *_older_transactions(snapshot).values()]:
        if done["version"] in all_ and done["version"] >= new["oldest_version"]:
            made = all_[done["version"]].manifest
            if done != {name: made[name] for name in ("version", "commit_id", "created_at")}:
                yield f"transaction {done} is not {made['commit_id']}"
    for tag, tagged in new["tags"].items():
        # Of older versions' tags those that were deleted since may name what was vacuumed.
        if tagged not in all_ and version == max(all_):
            yield f"tag {tag} names no version: {tagged}"


def _older_transactions(snapshot: Snapshot) -> dict[bytes, Json]:
    """The commits with an idempotency key in the lists of rule 27, by the beginnings of their keys' hashes."""
    found: dict[bytes, Json] = {}
    for entry in snapshot.manifest.get("older_transactions", []):
        raw = (snapshot.root / entry["path"]).read_bytes()
        records = [raw[start : start + 48] for start in range(0, len(raw), 48)]
        listed = {}
        for record in records:
            version, micros = struct.unpack("<Qq", record[32:])
            created_at = datetime.fromtimestamp(micros // 10**6, UTC).replace(microsecond=micros % 10**6)
            moment = created_at.isoformat(timespec="microseconds").replace("+00:00", "Z")
            listed[record[:16]] = {"version": version, "commit_id": record[16:32].hex(), "created_at": moment}
        stated = (entry["size_bytes"], entry["transactions"], entry["last_version"])
        last = max(done["version"] for done in listed.values())
        if stated != (len(raw), len(listed), last) or list(listed) != sorted(listed) or found.keys() & listed.keys():
            raise ValueError(f"{entry} has {len(listed)} commits up to {last}")
        found |= listed
    return found


def transaction(snapshot: Snapshot, key: str) -> Json | None:
    """The commit with an idempotency key."""
    done = snapshot.manifest["transactions"].get(key)
    return done or _older_transactions(snapshot).get(hashlib.sha3_256(key.encode()).digest()[:16])


def _step_faults(new: Json, old: Json) -> Iterator[str]:
    """What cannot follow one another."""
    if new["created_at"] <= old["created_at"]:
        yield f"created at {new['created_at']}, its previous at {old['created_at']}"
    if new["recent_commits"] != [old["commit_id"], *old["recent_commits"]][:RECENT_COMMITS]:
        yield f"recent commits {new['recent_commits']}"
    for name in ("oldest_version", "gc_floor", "format"):
        if new[name] < old[name]:
            yield f"{name} fell from {old[name]} to {new[name]}"
    if new["schema"]["last_id"] < old["schema"]["last_id"]:
        yield f"last_id fell from {old['schema']['last_id']} to {new['schema']['last_id']}"
    for name in ("restored_at", "columns_restored_at", "added_at"):
        if new[name] not in (old[name], new["version"]):
            yield f"{name} went from {old[name]} to {new[name]}"
    came = {file["path"] for file in new["data_files"]} - {file["path"] for file in old["data_files"]}
    in_place = new["operation"]["name"] == "add_files" and not all(map(_DATA.fullmatch, came))
    if (new["restored_at"] == new["version"]) != (new["operation"]["name"] == "restore" or in_place):
        yield f"{new['operation']}, but restored at {new['restored_at']}"
    if new["columns_restored_at"] == new["version"] and new["arrow_schema"] == old["arrow_schema"]:
        yield "the columns were not restored"


_SIMPLE: dict[str, pa.DataType] = {
    "Boolean": pa.bool_(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Utf8": pa.string(),
    "LargeUtf8": pa.large_string(),
    "Binary": pa.binary(),
    "Date32": pa.date32(),
    "Timestamp(µs)": pa.timestamp("us"),
    'Timestamp(µs, "UTC")': pa.timestamp("us", "UTC"),
}
_NAMES = {kind: name for name, kind in _SIMPLE.items()}


def type_name(kind: pa.DataType) -> str:
    """The text of a type in a manifest, of those that are used here."""
    if isinstance(kind, pa.Decimal128Type):
        return f"Decimal128({kind.precision}, {kind.scale})"
    if isinstance(kind, pa.DictionaryType):
        return f"Dictionary({type_name(kind.index_type)}, {type_name(kind.value_type)})"
    if isinstance(kind, pa.ListType):
        return f"List({type_name(kind.value_type)})"
    if isinstance(kind, pa.StructType):
        return f"Struct({', '.join(f'{json.dumps(field.name)}: {type_name(field.type)}' for field in kind)})"
    return _NAMES[kind]


def _schema_faults(snapshot: Snapshot) -> Iterator[str]:
    columns, exact = snapshot.manifest["schema"]["columns"], snapshot.schema
    if [(c["name"], c["type"]) for c in columns] != [(field.name, type_name(field.type)) for field in exact]:
        yield f"schema {columns} is not {exact}"
    ids = [column["id"] for column in columns]
    if len(set(ids)) != len(ids) or not 1 <= min(ids) <= max(ids) <= snapshot.manifest["schema"]["last_id"]:
        yield f"ids {ids}"
    if not {*snapshot.manifest["key"], *snapshot.manifest["sort_by"]} <= {*ids}:
        yield "a column of the key is not there"
    if snapshot.manifest["format"] > 1:
        yield from _stored_faults(snapshot.manifest["schema"], exact)


def stored_name(column: Json) -> str:
    """A column's name in data files."""
    return str(column.get("stored", column["name"]))


def _stored_faults(schema: Json, exact: pa.Schema) -> Iterator[str]:
    retired = schema.get("retired", {})
    names = [*map(stored_name, schema["columns"]), *retired.values()]
    if len({name.lower() for name in names}) != len(names):
        yield f"two columns have had one name in data files: {sorted(names)}"
    ids = [column["id"] for column in schema["columns"]] + [int(i) for i in retired]
    ids += [i for column in schema["columns"] for i in column.get("ids", [])]
    if len(set(ids)) != len(ids) or max(ids) > schema["last_id"]:
        yield f"ids {ids}, the last one {schema['last_id']}"
    for column, field in zip(schema["columns"], exact, strict=True):
        if len(column.get("ids", [])) != _nested_count(field.type):
            yield f"{column} has ids for another number of nested fields than {field.type}"
        versions = [narrow["version"] for narrow in column.get("widened", [])]
        if versions != sorted({*versions}) or any(n["from"] == column["type"] for n in column.get("widened", [])):
            yield f"{column} was widened strangely"


def _nested_count(kind: pa.DataType) -> int:
    """How many fields there are within a type, as Parquet counts them."""
    if isinstance(kind, pa.RunEndEncodedType | pa.DictionaryType):
        return _nested_count(kind.value_type)
    if pa.types.is_map(kind):
        return 2 + _nested_count(kind.key_type) + _nested_count(kind.item_type)
    inner = [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return len(inner) + sum(map(_nested_count, inner))


def _file_faults(snapshot: Snapshot, before: Snapshot | None) -> Iterator[str]:
    files = snapshot.files()
    paths = [file["path"] for file in files]
    if len(set(paths)) != len(paths):
        yield "a file is listed twice"
    for segment in snapshot.manifest["segments"]:
        if not _SEGMENT.fullmatch(segment["path"]):
            yield f"a segment is {segment['path']}"
        yield from _segment_faults(snapshot, segment)
    for file in files:
        path = snapshot.root / file["path"]
        yield from _entry_faults(path, path.stat().st_mtime_ns, json.dumps(file))
    if before is not None:
        yield from _new_file_faults(snapshot, before)


def _new_file_faults(snapshot: Snapshot, before: Snapshot) -> Iterator[str]:
    old = before.manifest
    for path in {*snapshot.entries} - {*before.entries}:
        name = _DATA.fullmatch(path)
        # A file in its place is found by the names of its columns.
        if not name and "columns" in snapshot.entries[path]:
            continue
        if name is None or int(name[1]) >= snapshot.version:
            yield f"a file is {path}"
        elif snapshot.manifest["restored_at"] != snapshot.version and int(name[1]) < old["gc_floor"]:
            yield f"{path} began below {old['gc_floor']}"
        if (
            snapshot.manifest["operation"]["name"] not in ("compact", "sort")
            and snapshot.manifest["added_at"] != snapshot.version
        ):
            yield f"{path} came, but rows were added at {snapshot.manifest['added_at']}"


def _segment_faults(snapshot: Snapshot, segment: Json) -> Iterator[str]:
    listed = snapshot.listed(segment)
    counted = ((snapshot.root / segment["path"]).stat().st_size, len(listed), sum(f["total_rows"] for f in listed))
    if counted != (segment["size_bytes"], segment["data_files"], segment["total_rows"]):
        yield f"{segment['path']} has {counted}"
    types = {
        c["id"]: _plain_type(f.type)
        for c, f in zip(snapshot.manifest["schema"]["columns"], snapshot.schema, strict=True)
    }
    for end, is_less in (("min", pc.less_equal), ("max", pc.greater_equal)):
        for i, bound in segment[end].items():
            if int(i) not in types:
                continue
            outer = _bound(bound, types[int(i)])
            for inner in [_bound(file[end][i], types[int(i)]) for file in listed if i in file[end]]:
                if not is_less(outer, inner).as_py():
                    yield f"{end} of column {i} in {segment['path']} is {bound}, one of its files' {inner}"
    for i, nulls in segment["null_counts"].items():
        if nulls != sum(file["null_counts"].get(i, 0) for file in listed):
            yield f"{nulls} nulls of column {i} in {segment['path']}"
    gone = snapshot.removed(segment)
    if len(gone) >= len(listed) or max(gone, default=0) >= len(listed):
        yield f"removed from {segment['path']} are {gone}"


@functools.lru_cache(maxsize=1 << 16)
def _entry_faults(path: Path, _modified: int, entry: str) -> list[str]:
    """What an entry says of its file that is not so."""
    listed = json.loads(entry)
    file = _file(path, listed)
    said = {name: listed[name] for name in COUNTS}
    found = {
        "size_bytes": path.stat().st_size,
        "footer_size": said["footer_size"] and _tail(path),
        "row_group_count": len(file.lengths),
        "total_rows": sum(file.lengths),
    }
    faults = [] if said == found else [f"{path}: {said} said, {found} found"]
    if listed.get("checksum", _checksum(path)) != _checksum(path):
        faults.append(f"{path}: its checksum is {_checksum(path)} and not {listed['checksum']}")
    if listed["min"].keys() != listed["max"].keys():
        faults.append(f"{path}: a bound has no other end")
    for i in {*listed["min"], *listed["null_counts"]}:
        if int(i) not in file.types:
            constant = listed.get("constants", {}).get(i)
            bounds = {listed[end].get(i) for end in ("min", "max")}
            nulls = said["total_rows"] if constant is None else 0
            if not bounds <= {constant, None} or listed["null_counts"].get(i) != nulls:
                faults.append(f"{path}: column {i} is {constant}, its bounds are {bounds}")
            continue
        kind = file.types[int(i)]
        chunks: list[Any] = [chunk for group in file.groups for chunk in group[int(i)].chunks]
        column: Any = pa.chunked_array(chunks, kind)  # type: ignore[call-overload]
        if listed["null_counts"].get(i, column.null_count) != column.null_count:
            faults.append(f"{path}: column {i} has {column.null_count} nulls")
        for end, exact in pc.min_max(column).items() if i in listed["min"] else ():
            if pa.types.is_floating(kind) or not _bound(listed[end][i], kind).equals(exact):
                faults.append(f"{path}: {end} of column {i} is {exact} and not {listed[end][i]}")
    return faults


def _tail(path: Path) -> int:
    """Bytes of the footer and of the seal before it."""
    data = path.read_bytes()
    size = 8 + struct.unpack("<I", data[-8:-4])[0]
    rest = data[: len(data) - size]
    if rest.endswith(SEAL):
        size += struct.unpack("<I", rest[-20:-16])[0]
        return size if data[len(data) - size :].startswith(SEAL) else -1
    return -1 if pq.read_metadata(path).created_by.startswith("pds ") else size


def _checksum(path: Path) -> str:
    """The hash of the seal, or that of the footer if there is none."""
    data = path.read_bytes()
    footer = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    is_sealed = data[:footer].endswith(SEAL)
    checksum = int.from_bytes(data[footer - 16 : footer - 8], "little") if is_sealed else xxh3_64(data[footer:])
    return f"{checksum:016x}"


def _tombstone_faults(snapshot: Snapshot, before: Snapshot | None) -> Iterator[str]:
    for entry in snapshot.manifest["tombstones"]:
        path, lines = snapshot.root / entry["path"], snapshot.tombstone(entry)
        named = {line["file"] for line in lines} & snapshot.kept.keys()
        if not _TOMBSTONE.fullmatch(entry["path"]) or path.stat().st_size != entry["size_bytes"]:
            yield f"{entry} is of {path.stat().st_size} bytes"
        targets = snapshot.targets(entry)
        if not named or set(targets) != named:
            yield f"{entry} names {named}"
        if entry.get("positions", {}).keys() - {segment["path"] for segment in snapshot.manifest["segments"]}:
            yield f"{entry} names segments that are not there"
        for line in lines:
            if line["file"] in named:
                yield from _line_faults(snapshot, line)
    new = snapshot.manifest
    if before is None or new["operation"]["name"] not in ("delete", "overwrite", "upsert"):
        return
    old = {entry["path"] for entry in before.manifest["tombstones"]}
    counts = [entry["deleted_rows"] for entry in new["tombstones"] if entry["path"] not in old]
    gone = sum(_count(kept) - _count(snapshot.kept.get(path, [])) for path, kept in before.kept.items())
    if counts not in ([], [None], [gone]):
        yield f"{counts} rows were deleted, which are {gone}"


def _count(kept: list[list[bool]]) -> int:
    return sum(sum(rows) for rows in kept)


def _line_faults(snapshot: Snapshot, line: Json) -> Iterator[str]:
    file = snapshot.opened(line["file"])
    how = {*line} - {"file"}
    if how not in ({"row_group"}, {"row_group", "deleted_rows"}, {"row_group", "roaring"}, {"pk_min", "pk_max"}):
        yield f"a line is {line}"
    if line.get("row_group", 0) >= len(file.lengths):
        yield f"{line} is of no row group"
    for group, length in enumerate(file.lengths):
        rows = snapshot.deleted(file, group, line)
        if rows != sorted(set(rows)) or (rows and rows[-1] >= length):
            yield f"{line} has rows {rows} of {length}"
