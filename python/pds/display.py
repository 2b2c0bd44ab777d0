"""Representations of objects for people: text for terminals, HTML for notebooks.

Everything here is made of what an object has in memory. No function sends a request to a store.
"""

from __future__ import annotations

import dataclasses
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

_MAX_LINES: Final = 50
_MAX_COLUMNS: Final = 20
_MAX_CELL_CHARACTERS: Final = 60
_MAX_TEXT_CHARACTERS: Final = 200
_MAX_REPR_ITEMS: Final = 10


class _BoundedRepr(reprlib.Repr):
    """`repr` with the first items of lists and dicts; `…` stands for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = _MAX_REPR_ITEMS
        self.maxstring = _MAX_TEXT_CHARACTERS
        self.maxother = 20 * _MAX_TEXT_CHARACTERS
        self.maxlevel = 4


bounded_repr = _BoundedRepr().repr


@dataclass(frozen=True)
class Listing:
    """A table of a summary: its first lines are shown, and the number of the others.

    Args:
        headers: The names of the columns.
        rows: The first rows, or all. An iterator can be shown once.
        total: The number of rows.
        noun: What a row is, in the plural.
    """

    headers: Sequence[str]
    rows: Iterable[Sequence[object]]
    total: int
    noun: str

    def lines(self) -> list[list[str]]:
        """Return the cells of the rows that are shown."""
        return [[_shorten(cell) for cell in row[:_MAX_COLUMNS]] for row in islice(self.rows, _MAX_LINES)]

    def rest(self) -> str:
        """Return the line about the rows that are not shown; empty if all are."""
        return f"and {self.total - _MAX_LINES:,} more {self.noun}" if self.total > _MAX_LINES else ""


@dataclass(frozen=True)
class Summary:
    """What is shown of an object.

    Args:
        title: The first line.
        properties: Names and values. Those that are None are left out.
        listings: Tables below them. Those without rows are left out.
    """

    title: str
    properties: Mapping[str, object] = field(default_factory=dict)
    listings: tuple[Listing, ...] = ()

    def _entries(self) -> list[tuple[str, str]]:
        shown = ((name, value) for name, value in self.properties.items() if value is not None)
        return [(name, _shorten(value, _MAX_TEXT_CHARACTERS)) for name, value in shown]

    def to_text(self) -> str:
        """Return the summary as lines of text."""
        entries = self._entries()
        width = max((len(name) for name, _value in entries), default=0)
        lines = [_shorten(self.title, _MAX_TEXT_CHARACTERS)]
        lines += [f"  {name:{width}}  {value}" for name, value in entries]
        for listing in self.listings:
            if not listing.total:
                continue
            rows = [[*listing.headers[:_MAX_COLUMNS]], *listing.lines()]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                lines.append(
                    "  " + "  ".join(f"{cell:{size}}" for cell, size in zip(row, widths, strict=True)).rstrip()
                )
            lines += [f"  {listing.rest()}"] if listing.rest() else []
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the summary as HTML. All texts are escaped."""
        parts = [f"<p><b>{_escape(_shorten(self.title, _MAX_TEXT_CHARACTERS))}</b></p>"]
        entries = self._entries()
        if entries:
            rows = "".join(f"<tr><th>{_escape(name)}</th><td>{_escape(value)}</td></tr>" for name, value in entries)
            parts.append(f"<table><tbody>{rows}</tbody></table>")
        for listing in self.listings:
            if not listing.total:
                continue
            head = "".join(f"<th>{_escape(name)}</th>" for name in listing.headers[:_MAX_COLUMNS])
            body = "".join(_format_row(row) for row in listing.lines())
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
            if listing.rest():
                parts.append(f"<p>{_escape(listing.rest())}</p>")
        return "".join(parts)


class Summarized(ABC):
    """An object that notebooks show as HTML."""

    @abstractmethod
    def _summarize(self) -> Summary:
        """Return the summary, without a request."""

    def _repr_html_(self) -> str:
        return self._summarize().to_html()


class Result(Summarized):
    """A dataclass that is the result of an operation: `print` shows its fields line by line, and so do notebooks.

    Lists of it are shown in part, in `repr` too.
    """

    def _summarize(self) -> Summary:
        return summarize_fields(self)

    def __str__(self) -> str:
        return self._summarize().to_text()

    def __repr__(self) -> str:
        values = (f"{name}={bounded_repr(value)}" for name, value in _fields(self).items())
        return f"{type(self).__qualname__}({', '.join(values)})"


def summarize_fields(result: Any) -> Summary:  # noqa: ANN401 any dataclass
    """Return the summary of a dataclass: its fields, with a listing for each collection."""
    properties: dict[str, object] = {}
    if isinstance(ok := getattr(result, "ok", None), bool):
        properties["ok"] = ok
    listings = []
    for name, value in _fields(result).items():
        if isinstance(value, Mapping):
            if not value:
                continue
            listings.append(_list_pairs(name, value))
        elif isinstance(value, list | tuple):
            listings.append(list_items(name, value, len(value)))
        else:
            properties[name] = value
            continue
        properties[name] = f"{len(value):,}"
    return Summary(type(result).__name__, properties, tuple(listings))


def list_columns(schema: pa.Schema) -> Listing:
    """Return the listing of the columns of a schema."""
    rows = ((column.name, column.type, "" if column.nullable else "not null") for column in schema)
    return Listing(("column", "type", ""), rows, len(schema), "columns")


def list_names(header: str, names: Sequence[str]) -> Listing:
    """Return the listing of names."""
    return Listing((header,), ((name,) for name in names), len(names), f"{header}s")


def _fields(result: Any) -> dict[str, Any]:  # noqa: ANN401 any dataclass
    return {entry.name: getattr(result, entry.name) for entry in dataclasses.fields(result)}


def _list_pairs(name: str, values: Mapping[Any, Any]) -> Listing:
    """Return the listing of keys with their values: with a column for each field, of dataclasses of one type."""
    first = list(islice(values.items(), _MAX_LINES))
    types = {type(value) for _key, value in first}
    if len(types) == 1 and dataclasses.is_dataclass(record := types.pop()):
        headers = [name, *(entry.name for entry in dataclasses.fields(record))]
        return Listing(headers, [(key, *_fields(value).values()) for key, value in first], len(values), name)
    return Listing([name, ""], first, len(values), name)


def list_items(name: str, items: Iterable[Any], count: int) -> Listing:
    """Return the listing of items: of dataclasses with a column for each field."""
    first = list(islice(items, _MAX_LINES))
    if first and dataclasses.is_dataclass(first[0]):
        headers = [entry.name for entry in dataclasses.fields(first[0])]
        return Listing(headers, [list(_fields(item).values()) for item in first], count, name)
    if first and isinstance(first[0], tuple):
        return Listing([name, *[""] * (len(first[0]) - 1)], first, count, name)
    return Listing([name], [(item,) for item in first], count, name)


def _escape(text: str) -> str:
    from html import escape  # noqa: PLC0415 only notebooks need it

    return escape(text)


def _format_row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{_escape(cell)}</td>' for cell in cells)}</tr>"


def _shorten(value: object, limit: int = _MAX_CELL_CHARACTERS) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, str):
        # More than is shown need not be looked at.
        text = value[: limit + 1]
    else:
        text = str(value) if not isinstance(value, list | tuple | dict | set) else bounded_repr(value)
    text = " ".join(text.splitlines())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shorten_names(names: Sequence[str]) -> str:
    """Return names as a list, of which the first ones are shown."""
    shown = ", ".join(repr(_shorten(name)) for name in islice(names, _MAX_REPR_ITEMS))
    rest = len(names) - _MAX_REPR_ITEMS
    return f"[{shown}, … {rest:,} more]" if rest > 0 else f"[{shown}]"
