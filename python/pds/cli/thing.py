"""What lies at a URL, and which version of it an argument names."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pds.by_url import open_parent
from pds.dataset import ParquetDatasetStore
from pds.errors import InvalidInput, NotFound
from pds.kinds import find_kind
from pds.odf import Dataset
from pds.producers.pipeline import Pipeline
from pds.table.table import Table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Container


ALL: Final = ("table", "dataset", "pipeline", "chain")
KINDS_OF: Final[dict[str, tuple[str, ...]]] = {
    "check": ("table",),
    "diff": ("table",),
    "drop": ("table", "dataset"),
    "export": ("table",),
    "files": ALL,
    "head": ALL,
    "health": ALL,
    "history": ("table", "pipeline", "chain"),
    "optimize": ("table", "pipeline", "chain"),
    "restore": ("table",),
    "scan": ALL,
    "schema": ALL,
    "show": ALL,
    "tag": ("table", "pipeline"),
    "vacuum": ("table", "pipeline", "chain"),
    "verify": ("table", "dataset", "chain"),
}
"""The kinds of things that each command is for."""
_INSTEAD: Final = {
    ("check", "pipeline"): "the process that declares it calls Pipeline.check",
    ("diff", "pipeline"): "read the changes of a stage with Python",
    ("vacuum", "dataset"): "`pds dataset clean` removes what killed writers left",
    ("verify", "pipeline"): "the process that declares it calls Pipeline.check",
}
PART_FILE: Final = re.compile(r"data\.parquet|part-[0-9]{5,}\.parquet")
"""The names that writers of datasets give to parts."""


class Thing:
    """What lies at a URL.

    Raises:
        NotFound: Nothing lies there.
        InvalidInput: The command is not for things of this kind.
    """

    def __init__(self, args: argparse.Namespace, options: dict[str, object]) -> None:
        self.url: str = args.url
        self.option_names = list(options)
        self.store, self.path = open_parent(self.url, options, None)
        kind = find_kind(self.store, self.path)
        if kind is None:
            raise NotFound(f"nothing at {self.url!r} is a table, dataset, pipeline or chain", path=self.path)
        self.kind: str = kind
        if kind not in KINDS_OF[args.verb]:
            raise self._refuse_verb(args.verb)

    def _refuse_verb(self, verb: str) -> InvalidInput:
        kinds = ", ".join(f"{kind}s" for kind in KINDS_OF[verb])
        reason = f"{self.url!r} is a {self.kind}, and `pds {verb}` is for {kinds}"
        if (verb, self.kind) in _INSTEAD:
            reason += f"; {_INSTEAD[verb, self.kind]}"
        verbs = ", ".join(name for name, kinds in KINDS_OF.items() if self.kind in kinds)
        return InvalidInput(f"{reason}. The commands for a {self.kind}: {verbs}")

    def refuse(self, what: str) -> InvalidInput:
        """Return the error of an argument that is not for this kind."""
        return InvalidInput(f"{self.url!r} is a {self.kind}, which {what}")

    def table(self, as_of: str | None = None) -> Table:
        """Return the table."""
        table = Table(self.store, self.path)
        return table if as_of is None else table.as_of(to_known_version(as_of, table.tags, table.version))

    def refuse_versions(self, as_of: str | None) -> None:
        """Refuse `--as-of` where the newest version is the only one that can be looked at."""
        if as_of is not None:
            one = "has no versions" if self.kind == "dataset" else "is described at its newest block"
            raise self.refuse(f"{one}: leave out --as-of")

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


def to_known_version(text: str, tags: Container[str], newest: int) -> int | datetime | str:
    """Return what a text names, as `to_version` does.

    Raises:
        InvalidInput: It is no number, no time and no tag; or as for `to_version`.
    """
    version = to_version(text, tags, newest)
    if isinstance(version, str) and version not in tags:
        raise InvalidInput(f"{text!r} is not a version, a time or a tag")
    return version


def to_pipeline_version(as_of: str | None, pipeline: Pipeline) -> int | str:
    """Return the version of a pipeline that a text names: the newest one for None.

    Raises:
        InvalidInput: It is a time; or as for `to_version`.
    """
    newest = pipeline.version
    if as_of is None:
        return newest
    version = to_known_version(as_of, pipeline.tags, newest)
    if isinstance(version, datetime):
        raise InvalidInput("a pipeline is read at a version or a tag, not at a time")
    return version
