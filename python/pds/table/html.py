"""HTML representations of tables and scans for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

MAX_ROWS = 10
_MAX_CELL_CHARACTERS = 60


def format_snapshot(title: str, manifest: dict[str, Any], schema: pa.Schema) -> str:
    """Return the HTML of a snapshot, made of its manifest and schema alone."""
    entries = [*manifest["segments"], *manifest["data_files"]]
    rows = sum(entry["total_rows"] for entry in entries)
    names = {column["id"]: column["name"] for column in manifest["schema"]["columns"]}
    key = [names[column_id] for column_id in manifest["key"]]
    properties = [f"created {manifest['created_at']}", f"by {manifest['operation']['name']}"]
    if key:
        properties.append(f"key {', '.join(key)}")
    properties.append(f"{rows:,} rows before deletes" if manifest["tombstones"] else f"about {rows:,} rows")
    columns = ((field.name, str(field.type), "" if field.nullable else "not null") for field in schema)
    header = f"<p><b>{escape(title)}</b><br>{escape('; '.join(properties))}</p>"
    return header + _format_table(["column", "type", ""], columns)


def format_rows(rows: pa.Table, *, has_more: bool) -> str:
    """Return the HTML of the first rows of a scan."""
    values = (tuple(row.values()) for row in rows.to_pylist())
    note = f"<p>the first {rows.num_rows} rows</p>" if has_more else f"<p>{rows.num_rows} rows</p>"
    return _format_table(rows.schema.names, values) + note


def _format_table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_format_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _format_cell(value: object) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _MAX_CELL_CHARACTERS else text[: _MAX_CELL_CHARACTERS - 1] + "…")
