"""Tables and scans as notebooks show them."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

SHOWN_ROWS = 10
_LONGEST = 60


def table_html(title: str, manifest: dict[str, Any], schema: pa.Schema) -> str:
    """What a snapshot is, without reading more."""
    lists = [*manifest["segments"], *manifest["data_files"]]
    rows = sum(listed["total_rows"] for listed in lists)
    identities = {column["id"]: column["name"] for column in manifest["schema"]["columns"]}
    key = [identities[column] for column in manifest["key"]]
    facts = [f"created {manifest['created_at']}", f"by {manifest['operation']['name']}"]
    if key:
        facts.append(f"key {', '.join(key)}")
    facts.append(f"{rows:,} rows before deletes" if manifest["tombstones"] else f"about {rows:,} rows")
    columns = ((field.name, str(field.type), "" if field.nullable else "not null") for field in schema)
    return f"<p><b>{escape(title)}</b><br>{escape('; '.join(facts))}</p>" + grid(["column", "type", ""], columns)


def rows_html(rows: pa.Table, *, more: bool) -> str:
    """The first rows of a scan."""
    shown = (tuple(row.values()) for row in rows.to_pylist())
    note = f"<p>the first {rows.num_rows} rows</p>" if more else f"<p>{rows.num_rows} rows</p>"
    return grid(rows.schema.names, shown) + note


def grid(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """An HTML table."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
