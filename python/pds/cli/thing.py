"""What lies at a URL, and which version of it an argument names."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pds.by_url import find_kind, open_parent
from pds.dataset import ParquetDatasetStore
from pds.errors import (
    InvalidInput,
    NotFound,
)
from pds.odf import Dataset
from pds.producers.pipeline import Pipeline
from pds.table.table import Table

if TYPE_CHECKING:
    from collections.abc import Container


class Thing:
    """What lies at a URL."""

    def __init__(self, url: str, options: dict[str, object]) -> None:
        self.url = url
        self.store, self.path = open_parent(url, options, None)
        kind = find_kind(self.store, self.path)
        if kind is None:
            raise NotFound(f"nothing at {url!r} is a table, dataset, pipeline or chain", path=self.path)
        self.kind: str = kind

    def refuse(self, what: str) -> InvalidInput:
        """Return the error of a command that is not for this kind."""
        return InvalidInput(f"{self.url!r} is a {self.kind}, which {what}")

    def table(self, as_of: str | None = None) -> Table:
        """Return the table; raise an InvalidInput for another kind."""
        if self.kind != "table":
            raise self.refuse("has no such command; it is for tables")
        table = Table(self.store, self.path)
        return table if as_of is None else table.as_of(to_version(as_of, table.tags, table.version))

    def refuse_versions(self, as_of: str | None) -> None:
        """Refuse `--as-of` for what has one version."""
        if as_of is not None:
            raise self.refuse("has no versions to look at")

    def pipeline(self) -> Pipeline:
        """Return the pipeline."""
        return Pipeline(self.store, self.path)

    def datasets(self) -> ParquetDatasetStore:
        """Return the datasets of its folder."""
        return ParquetDatasetStore(self.store)

    def chain(self) -> Dataset:
        """Return the chain."""
        return Dataset(self.store, self.path)


def to_version(text: str, tags: Container[str], newest: int) -> int | datetime | str:
    """Return what a text names: a tag, a version, or a time with a time zone.

    Raises:
        InvalidInput: It is the name of a tag and the number of another version, or a time without a time zone.
    """
    is_number = text.isascii() and text.isdigit()
    if text in tags:
        if is_number and int(text) <= newest:
            raise InvalidInput(f"{text} is a version, and the name of a tag; rename the tag")
        return text
    if is_number:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    if when.tzinfo is None:
        raise InvalidInput(f"the time {text!r} has no time zone; append Z for UTC")
    return when


def to_pipeline_version(as_of: str | None, pipeline: Pipeline) -> int | str:
    """Return the version of a pipeline that a text names: the newest one for None.

    Raises:
        InvalidInput: It is a time; or as for `to_version`.
    """
    newest = pipeline.version
    if as_of is None:
        return newest
    version = to_version(as_of, pipeline.tags, newest)
    if isinstance(version, datetime):
        raise InvalidInput("a pipeline is read at a version or a tag, not at a time")
    return version
