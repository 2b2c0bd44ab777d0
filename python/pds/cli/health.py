"""`pds health`: what has accumulated since the last maintenance, and what to run next. No data is read."""

from __future__ import annotations

import itertools
import json
import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pds.cli.codes import OK
from pds.cli.output import print_fields, to_text
from pds.cli.stored_files import list_run_files, list_slices
from pds.cli.thing import PART_FILE, Thing
from pds.defaults import RETENTION
from pds.errors import InvalidInput, VersionExpired
from pds.odf.dataset import _TARGET_BYTES as _SLICE_BYTES
from pds.table.optimize import _TARGET_BYTES as _FILE_BYTES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from pds.table.table import Table

_HISTORY_VERSIONS: Final = 200
"""The newest versions among which the last compaction and the last vacuum are looked for: each is a request."""
_MANY: Final = 10
"""So many files or slices more than needed are worth a rewrite."""
_MANY_RUNS: Final = 3
"""Updates merge runs themselves, so that more are only in large stages."""
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SMALL_TOMBSTONE_BYTES: Final = 1 << 20
"""A compaction merges smaller lists of deleted rows."""
_DELETED_SHARE: Final = 0.2
_IDLE: Final = ("tag", "vacuum")
"""The operations after which no object is needed less than before."""
_MOSTLY_DELETED: Final = 0.5
"""A compaction rewrites files with a larger share of deleted rows."""


@dataclass(frozen=True)
class _Advice:
    """A command that would help, and why."""

    command: str
    reason: str


def show_health(args: argparse.Namespace, options: dict[str, object]) -> int:
    """Print what has accumulated, and the commands that remove it."""
    thing = Thing(args, options)
    describe = {
        "table": _examine_table,
        "dataset": _examine_dataset,
        "pipeline": _examine_pipeline,
        "chain": _examine_chain,
    }
    fields, advice = describe[thing.kind](thing)
    fields = {"kind": thing.kind, "url": thing.url, **fields}
    if args.output == "text":
        nothing = "nothing to do"
        if uncounted := fields.get("uncounted_deletes"):
            nothing = f"not known: only the data can count the rows of {_count(uncounted, 'delete')} by ranges of keys"
        lines = [f"{item.command}  ({item.reason})" for item in advice] or [nothing]
        shown = {name: _with_age(value) for name, value in fields.items()}
        print_fields(shown | {f"next {number}": line for number, line in enumerate(lines, 1)}, "text")
    else:
        print_fields(fields | {"next": [asdict(item) for item in advice]}, args.output)
    return OK


def _examine_table(thing: Thing) -> tuple[dict[str, Any], list[_Advice]]:
    table = thing.table()
    files = table.files()
    sizes, row_counts = (list[Any](files[name].to_pylist()) for name in ("size_bytes", "total_rows"))
    total_rows = sum(row_counts)
    manifest = table._parse_manifest()  # noqa: SLF001 of the package
    deleted, uncounted = _count_deleted(thing, table, manifest, total_rows)
    share = deleted / total_rows if deleted and total_rows else 0.0
    column, overlap, is_exact = _measure_overlap(table, manifest)
    combined, saved = _count_combined(sizes, _FILE_BYTES)
    history = table.history(_HISTORY_VERSIONS)
    tombstones = sum(entry["size_bytes"] < _SMALL_TOMBSTONE_BYTES for entry in manifest["tombstones"])
    reasons = (
        (saved >= _MANY, f"{combined} small files become {combined - saved}"),
        (share > _MOSTLY_DELETED, f"{share:.0%} of the rows are deleted"),
        (tombstones > _MANY, f"{tombstones} small objects list deleted rows"),
    )
    optimize, advice = _make_command(thing, "optimize"), []
    if any(applies for applies, _ in reasons):
        advice.append(_Advice(optimize, ", ".join(reason for applies, reason in reasons if applies)))
    elif share >= _DELETED_SHARE and column is not None:
        advice.append(
            _Advice(
                _make_command(thing, "optimize", "--sort"),
                f"{share:.0%} of the rows are deleted; this rewrites all files",
            )
        )
    elif manifest["sort_by"] and is_exact and overlap is not None and overlap > _MANY and not _is_sorted(history):
        advice.append(
            _Advice(
                _make_command(thing, "optimize", "--sort"),
                f"a value of {column} may be in {overlap} of {len(sizes)} files",
            )
        )
    versions, expired = _examine_versions(manifest, history, lambda version: _time_of(table, version))
    fields = {
        "version": table.version,
        "rows": None if deleted is None else total_rows - deleted,
        "deleted_rows": deleted,
        "deleted_share": None if deleted is None else round(share, 4),
        "uncounted_deletes": uncounted,
        "files": len(sizes),
        "small_files": sum(size < _FILE_BYTES // 2 for size in sizes),
        "bytes": sum(sizes),
        "tombstones": len(manifest["tombstones"]),
        "overlap_column": column,
        "overlap": overlap,
        **versions,
        **_find_last(history),
    }
    return fields, advice + _advise_vacuum(thing, expired)


def _count_deleted(thing: Thing, table: Table, manifest: dict[str, Any], total_rows: int) -> tuple[int | None, int]:
    """Return the deleted rows, and how many tombstones have ranges of keys, whose rows only the data can count."""
    unknown = [entry["path"] for entry in manifest["tombstones"] if entry["deleted_rows"] is None]
    uncounted = sum(_has_key_ranges(thing.store.read_bytes(f"{thing.path}/{path}")) for path in unknown)
    return (None if uncounted else total_rows - table.scan().count()), uncounted


def _has_key_ranges(tombstones: bytes) -> bool:
    if tombstones.startswith(_ZSTD_MAGIC):
        with pa.input_stream(pa.py_buffer(tombstones), compression="zstd") as lines:
            tombstones = lines.read()
    return b'"pk_min"' in tombstones


def _measure_overlap(table: Table, manifest: dict[str, Any]) -> tuple[str | None, int | None, bool]:
    """Return the column, the most files that one of its values may be in, and whether each file was looked at."""
    leading = [*manifest["sort_by"], *manifest["key"]]
    if not leading:
        return None, None, False
    names = {entry["id"]: entry["name"] for entry in manifest["schema"]["columns"]}
    column: str = names[leading[0]]
    try:
        layout = table.layout(column)
    except InvalidInput:
        # Manifests have no statistics of this type.
        return column, None, False
    return column, layout.overlap, not manifest["segments"]


def _count_combined(sizes: Sequence[int], target_bytes: int) -> tuple[int, int]:
    """Return how many files a compaction would combine, and how many fewer there would be: it combines neighbors."""
    groups, group_bytes = [0], 0
    for size in sizes:
        is_small = size < target_bytes // 2
        if not is_small or group_bytes + size > target_bytes:
            groups.append(0)
            group_bytes = 0
        if is_small:
            groups[-1] += 1
            group_bytes += size
    combined = [count for count in groups if count > 1]
    return sum(combined), sum(combined) - len(combined)


def _examine_dataset(thing: Thing) -> tuple[dict[str, Any], list[_Advice]]:
    manifest = thing.datasets().read_manifest(thing.path)
    sizes = {file.name: file.size for file in thing.store.list_files(thing.path)}
    parts = [sizes.get(part) for part in manifest.parts]
    unlisted = [name for name in sizes if name.endswith(".parquet") and name not in set(manifest.parts)]
    # Files that others have put into the folder stay: a clean removes what a writer has named.
    removable = [name for name in unlisted if PART_FILE.fullmatch(name)]
    advice = []
    if None in parts:
        missing = parts.count(None)
        reason = f"{_count(missing, 'part')} {'is' if missing == 1 else 'are'} missing"
        advice.append(_Advice(_make_command(thing, "verify"), reason))
    if removable:
        command = _add_options(thing, ["pds", "dataset", "clean", thing.store.url, thing.path])
        reason = f"{_count(len(removable), 'part')} not in the manifest: a writer was killed, or is writing"
        advice.append(_Advice(command, reason))
    return {
        "created": manifest.created_at_utc,
        "rows": manifest.row_count,
        "parts": len(parts),
        "missing_parts": parts.count(None),
        "unlisted_parts": len(unlisted),
        "small_parts": sum(size is not None and size < _FILE_BYTES // 2 for size in parts),
        "bytes": sum(size or 0 for size in parts),
    }, advice


def _examine_pipeline(thing: Thing) -> tuple[dict[str, Any], list[_Advice]]:
    pipeline = thing.pipeline()
    newest = pipeline.as_of(pipeline.version)
    manifest = json.loads(newest._handle.manifest())  # noqa: SLF001 of the package
    files = list_run_files(newest)
    runs: dict[tuple[str, str], set[str]] = {}
    for file in files:
        runs.setdefault((file["stage"], file["content"]), set()).add(file["run"])
    most_runs = max(map(len, runs.values()), default=0)
    advice = []
    if most_runs > _MANY_RUNS:
        reason = f"a stage has {most_runs} runs, which each read merges"
        advice.append(_Advice(_make_command(thing, "optimize"), reason))

    def time_of(version: int) -> datetime:
        older = json.loads(newest._handle.at(version).manifest())  # noqa: SLF001 of the package
        return datetime.fromisoformat(older["created_at"])

    history = pipeline.history(_HISTORY_VERSIONS)
    versions, expired = _examine_versions(manifest, history, time_of)
    return {
        "version": newest.version,
        "stages": len(newest.names),
        "runs": sum(map(len, runs.values())),
        "most_runs": most_runs,
        "files": len(files),
        "bytes": sum(file["size_bytes"] for file in files),
        **versions,
        **_find_last(history),
    }, advice + _advise_vacuum(thing, expired)


def _examine_chain(thing: Thing) -> tuple[dict[str, Any], list[_Advice]]:
    chain = thing.chain()
    blocks = chain.log()
    slices = list_slices(blocks)
    sizes = [file["size_bytes"] for file in slices]
    combined, saved = _count_combined(sizes, _SLICE_BYTES)
    advice = []
    if saved >= _MANY:
        reason = "rewrites blocks: their hashes change, and copies of the chain no longer continue it; "
        reason += f"{combined} small slices become about {combined - saved}"
        advice.append(_Advice(_make_command(thing, "optimize"), reason))
    last_offset = chain.last_offset
    return {
        "head": chain.head,
        "blocks": len(blocks),
        "last_block": blocks[0].system_time,
        "watermark": chain.watermark,
        "rows": 0 if last_offset is None else last_offset + 1,
        "slices": len(slices),
        "small_slices": sum(size < _SLICE_BYTES // 2 for size in sizes),
        "bytes": sum(sizes),
    }, advice


def _time_of(table: Table, version: int) -> datetime:
    micros = table._handle.at(version).created_at  # noqa: SLF001 of the package
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _examine_versions(
    manifest: dict[str, Any], history: list[dict[str, Any]], time_of: Callable[[int], datetime]
) -> tuple[dict[str, Any], bool]:
    """Return the versions that can be read, and whether a vacuum would remove one with rows that no later one has."""
    newest, first = manifest["version"], manifest["oldest_version"]
    tagged = {version for version in (manifest.get("tags") or {}).values() if version < first}
    oldest = min(tagged | {first})
    fields: dict[str, Any] = {"versions": newest - first + 1 + len(tagged), "oldest_version": oldest}
    fields["oldest_created"] = None
    cutoff = _now() - RETENTION
    # Each version was replaced by the next one. A vacuum is a version, too: by itself it is no reason for another one.
    is_expired = any(
        entry["version"] > first and entry["created_at"] < cutoff and entry["operation"]["name"] not in _IDLE
        for entry in history
    )
    try:
        fields["oldest_created"] = time_of(oldest)
        is_expired = is_expired or (history[-1]["version"] > first + 1 and time_of(first + 1) < cutoff)
    except VersionExpired:
        # A vacuum runs.
        is_expired = False
    return fields, is_expired


def _make_command(thing: Thing, verb: str, *flags: str) -> str:
    return _add_options(thing, ["pds", verb, thing.url, *flags])


def _add_options(thing: Thing, command: list[str]) -> str:
    """Return the command with the names of the options of the store, whose values may be secrets."""
    options = [text for name in thing.option_names for text in ("--option", f"{name}=VALUE")]
    return shlex.join([*command, *options])


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _advise_vacuum(thing: Thing, is_expired: bool) -> list[_Advice]:  # noqa: FBT001 of this module
    reason = f"versions were replaced more than {RETENTION.days} days ago"
    return [_Advice(_make_command(thing, "vacuum"), reason)] if is_expired else []


def _find_last(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return when files were last combined, and when a vacuum last removed something; None if it was long ago."""
    last: dict[str, Any] = {"last_compaction": None, "last_vacuum": None}
    operations = {"compact": "last_compaction", "sort": "last_compaction", "vacuum": "last_vacuum"}
    for entry, (name, field) in itertools.product(history, operations.items()):
        if entry["operation"]["name"] == name and last[field] is None:
            last[field] = entry["created_at"]
    return last


def _is_sorted(history: list[dict[str, Any]]) -> bool:
    """Return whether the files are those of a sort: what overlaps then is one value in many files."""
    names = (entry["operation"]["name"] for entry in history)
    return next((name for name in names if name not in ("tag", "untag", "vacuum")), None) == "sort"


def _with_age(value: Any) -> Any:  # noqa: ANN401 any value of a field
    if not isinstance(value, datetime):
        return value
    days = (_now() - value) / timedelta(days=1)
    return f"{to_text(value)}  ({days:.1f} days ago)"


def _now() -> datetime:
    return datetime.now(UTC)
