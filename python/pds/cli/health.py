"""`pds health`: what has accumulated since the last maintenance, and what to run next. No data is read."""

from __future__ import annotations

import itertools
import json
import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pds.cli.codes import OK
from pds.cli.output import print_fields, to_text
from pds.cli.parts import list_run_files, list_slices
from pds.cli.thing import Thing
from pds.errors import InvalidInput, VersionExpired
from pds.odf.dataset import _TARGET_BYTES as _SLICE_BYTES
from pds.table.optimize import _TARGET_BYTES as _FILE_BYTES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pds.table.table import Table

_RETENTION: Final = timedelta(days=7)
"""The default of `pds vacuum`."""
_HISTORY_VERSIONS: Final = 200
"""The newest versions among which the last compaction and the last vacuum are looked for: each is a request."""
_MANY: Final = 10
"""So many files or slices more than needed are worth a rewrite."""
_MANY_RUNS: Final = 3
"""Updates merge runs themselves, so that more are only in large stages."""
_DELETED_SHARE: Final = 0.2
_MOSTLY_DELETED: Final = 0.5
"""A compaction rewrites files with a larger share of deleted rows."""


@dataclass(frozen=True)
class Advice:
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
        lines = [f"{item.command}  ({item.reason})" for item in advice] or ["nothing to do"]
        shown = {name: _with_age(value) for name, value in fields.items()}
        print_fields(shown | {f"next {number}": line for number, line in enumerate(lines, 1)}, "text")
    else:
        print_fields(fields | {"next": [asdict(item) for item in advice]}, args.output)
    return OK


def _examine_table(thing: Thing) -> tuple[dict[str, Any], list[Advice]]:
    table = thing.table()
    files = table.files()
    sizes, row_counts = (list[Any](files[name].to_pylist()) for name in ("size_bytes", "total_rows"))
    total_rows = sum(row_counts)
    manifest = table._parse_manifest()  # noqa: SLF001 of the package
    deleted, uncounted = _count_deleted(table, manifest, total_rows)
    share = deleted / total_rows if deleted and total_rows else 0.0
    column, overlap, is_exact = _measure_overlap(table, manifest)
    combined, saved = _count_combined(sizes, _FILE_BYTES)
    sorts = f"pds optimize {shlex.quote(thing.url)} --sort"
    advice = []
    if saved >= _MANY or share > _MOSTLY_DELETED or len(manifest["tombstones"]) > _MANY:
        reasons = (
            (f"{combined} small files become {combined - saved}", saved >= _MANY),
            (f"{share:.0%} of the rows are deleted", share > _MOSTLY_DELETED),
            (f"{len(manifest['tombstones'])} objects list deleted rows", len(manifest["tombstones"]) > _MANY),
        )
        reason = ", ".join(text for text, applies in reasons if applies)
        advice.append(Advice(f"pds optimize {shlex.quote(thing.url)}", reason))
    elif share >= _DELETED_SHARE and column is not None:
        advice.append(Advice(sorts, f"{share:.0%} of the rows are deleted; this rewrites all files"))
    elif manifest["sort_by"] and is_exact and overlap is not None and overlap > _MANY:
        advice.append(Advice(sorts, f"a value of {column} may be in {overlap} of {len(sizes)} files"))
    versions, expired = _examine_versions(table.version, manifest["oldest_version"], lambda v: _time_of(table, v))
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
        **_find_last(table.history(_HISTORY_VERSIONS)),
    }
    return fields, advice + _advise_vacuum(thing, expired)


def _count_deleted(table: Table, manifest: dict[str, Any], total_rows: int) -> tuple[int | None, int]:
    """Return the deleted rows, and how many tombstones have ranges of keys, whose rows only the data can count."""
    uncounted = sum(entry["deleted_rows"] is None for entry in manifest["tombstones"])
    return (None if uncounted else total_rows - table.scan().count()), uncounted


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


def _examine_dataset(thing: Thing) -> tuple[dict[str, Any], list[Advice]]:
    manifest = thing.datasets().read_manifest(thing.path)
    sizes = {file.name: file.size for file in thing.store.list_files(thing.path)}
    parts = [sizes.get(part) for part in manifest.parts]
    unlisted = [name for name in sizes if name.endswith(".parquet") and name not in set(manifest.parts)]
    advice = []
    if None in parts:
        command = f"pds verify {shlex.quote(thing.url)}"
        advice.append(Advice(command, f"{parts.count(None)} parts are missing"))
    if unlisted:
        command = f"pds dataset clean {shlex.quote(thing.store.url)} {shlex.quote(thing.path)}"
        advice.append(Advice(command, f"{len(unlisted)} parts are not listed: a writer was killed, or is writing"))
    return {
        "created": manifest.created_at_utc,
        "rows": manifest.row_count,
        "parts": len(parts),
        "missing_parts": parts.count(None),
        "unlisted_parts": len(unlisted),
        "small_parts": sum(size is not None and size < _FILE_BYTES // 2 for size in parts),
        "bytes": sum(size or 0 for size in parts),
    }, advice


def _examine_pipeline(thing: Thing) -> tuple[dict[str, Any], list[Advice]]:
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
        advice.append(Advice(f"pds optimize {shlex.quote(thing.url)}", reason))

    def time_of(version: int) -> datetime:
        older = json.loads(newest._handle.at(version).manifest())  # noqa: SLF001 of the package
        return datetime.fromisoformat(older["created_at"])

    versions, expired = _examine_versions(newest.version, manifest["oldest_version"], time_of)
    return {
        "version": newest.version,
        "stages": len(newest.names),
        "runs": sum(map(len, runs.values())),
        "most_runs": most_runs,
        "files": len(files),
        "bytes": sum(file["size_bytes"] for file in files),
        **versions,
        **_find_last(pipeline.history(_HISTORY_VERSIONS)),
    }, advice + _advise_vacuum(thing, expired)


def _examine_chain(thing: Thing) -> tuple[dict[str, Any], list[Advice]]:
    chain = thing.chain()
    blocks = chain.log()
    slices = list_slices(blocks)
    sizes = [file["size_bytes"] for file in slices]
    combined, saved = _count_combined(sizes, _SLICE_BYTES)
    advice = []
    if saved >= _MANY:
        reason = f"{combined} small slices become about {combined - saved}; the hashes of blocks change"
        advice.append(Advice(f"pds optimize {shlex.quote(thing.url)}", reason))
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


def _examine_versions(newest: int, oldest: int, time_of: Any) -> tuple[dict[str, Any], bool]:  # noqa: ANN401 a function
    """Return the versions, and whether a vacuum would remove one: it was replaced longer ago than the retention."""
    fields: dict[str, Any] = {"versions": newest - oldest + 1, "oldest_version": oldest, "oldest_created": None}
    try:
        fields["oldest_created"] = time_of(oldest)
        is_expired = oldest < newest and time_of(oldest + 1) < _now() - _RETENTION
    except VersionExpired:
        # A vacuum runs.
        is_expired = False
    return fields, is_expired


def _advise_vacuum(thing: Thing, is_expired: bool) -> list[Advice]:  # noqa: FBT001 of this module
    reason = f"versions were replaced more than {_RETENTION.days} days ago"
    return [Advice(f"pds vacuum {shlex.quote(thing.url)}", reason)] if is_expired else []


def _find_last(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return when files were last combined, and when a vacuum last removed something; None if it was long ago."""
    last: dict[str, Any] = {"last_compaction": None, "last_vacuum": None}
    operations = {"compact": "last_compaction", "sort": "last_compaction", "vacuum": "last_vacuum"}
    for entry, (name, field) in itertools.product(history, operations.items()):
        if entry["operation"]["name"] == name and last[field] is None:
            last[field] = entry["created_at"]
    return last


def _with_age(value: Any) -> Any:  # noqa: ANN401 any value of a field
    if not isinstance(value, datetime):
        return value
    days = (_now() - value) / timedelta(days=1)
    return f"{to_text(value)}  ({days:.1f} days ago)"


def _now() -> datetime:
    return datetime.now(UTC)
