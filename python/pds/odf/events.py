"""The events of a chain.

Fields are named as in the specification, in snake case; what is nested in them is a dict in the
specification's own spelling, such as `{"kind": "Sql", "engine": "datafusion", "queries": […]}`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pds import _pds
from pds.errors import InvalidInput, InvalidType
from pds.odf.identity import Identity, Multihash

if TYPE_CHECKING:
    import pyarrow as pa

Fields = dict[str, Any]


def rfc3339(moment: datetime | str) -> str:
    """A moment as text; one without a zone is refused."""
    if isinstance(moment, str):
        return moment
    if not isinstance(moment, datetime):
        raise InvalidType(f"a time must be a datetime, not {type(moment).__name__}")
    if moment.tzinfo is None:
        raise InvalidInput(f"{moment!r} has no time zone; datetime.now(UTC) has one")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def plain(value: Any) -> Any:  # noqa: ANN401 what JSON is of
    """A value as it can be written down."""
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Multihash | Identity):
        return str(value)
    raise InvalidType(f"{type(value).__name__} cannot be in an event")


@dataclass(frozen=True)
class Event:
    """An event of a chain. This is the base of those that the specification names."""

    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    @property
    def kind(self) -> str:
        """Its name in the specification."""
        return type(self).__name__

    def to_dict(self) -> Fields:
        """The event in the specification's spelling; what is None is left out."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields = {_camel(name): plain(value) for name, value in given.items() if value is not None}
        return {"kind": self.kind, **fields}

    @staticmethod
    def of(fields: Fields) -> Event:
        """The event that a mapping in the specification's spelling is."""
        kind = Event.kinds.get(fields.get("kind", ""), UnknownEvent)
        if kind is UnknownEvent:
            return UnknownEvent(dict(fields))
        names = {_camel(field.name): field.name for field in dataclasses.fields(kind)}
        for key in fields:
            if key != "kind" and key not in names:
                raise InvalidInput(f"{kind.__name__} has no field {key!r}; there are {sorted(names)}")
        return kind(**{names[key]: value for key, value in fields.items() if key != "kind"})


@dataclass(frozen=True)
class Seed(Event):
    """The first event: which dataset it is, and whether it is a `Root` or a `Derivative`."""

    dataset_id: str
    dataset_kind: str = "Root"


@dataclass(frozen=True)
class SetDataSchema(Event):
    """The columns of the data that follows: logical types, or base64 of Arrow's own flatbuffer."""

    schema: Fields | None = None
    raw_arrow_schema: str | None = None

    @classmethod
    def of_arrow(cls, schema: pa.Schema, *, raw_arrow: bool = False) -> Self:
        """The event of an Arrow schema, which has the system columns already.

        Args:
            schema: All columns.
            raw_arrow: In Arrow's own flatbuffer (RFC-010) and not in logical types (RFC-016).

        Raises:
            InvalidInput: A column has no logical type.
        """
        fields = _pds.schema_event(schema, None, raw_arrow)
        return cls(fields.get("schema"), fields.get("rawArrowSchema"))

    def to_arrow(self) -> pa.Schema:
        """The Arrow schema.

        Raises:
            InvalidInput: It cannot be read.
        """
        return _pds.event_schema(self.to_dict())


@dataclass(frozen=True)
class AddData(Event):
    """Rows, or progress without rows, of a root dataset."""

    prev_checkpoint: str | None = None
    prev_offset: int | None = None
    new_data: Fields | None = None
    new_checkpoint: Fields | None = None
    new_watermark: datetime | str | None = None
    new_source_state: Fields | None = None
    extra: Fields | None = None


@dataclass(frozen=True)
class ExecuteTransform(Event):
    """Rows, or progress without rows, of a derivative dataset."""

    query_inputs: list[Fields]
    prev_checkpoint: str | None = None
    prev_offset: int | None = None
    new_data: Fields | None = None
    new_checkpoint: Fields | None = None
    new_watermark: datetime | str | None = None


@dataclass(frozen=True)
class SetVocab(Event):
    """Other names of the system columns."""

    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


@dataclass(frozen=True)
class SetInfo(Event):
    """What the dataset is about."""

    description: str | None = None
    keywords: list[str] | None = None


@dataclass(frozen=True)
class SetLicense(Event):
    """Under what licence the data may be used."""

    short_name: str
    name: str
    website_url: str
    spdx_id: str | None = None


@dataclass(frozen=True)
class SetAttachments(Event):
    """Texts that belong to the dataset: `{"kind": "Embedded", "items": [{"path": …, "content": …}]}`."""

    attachments: Fields


@dataclass(frozen=True)
class SetTransform(Event):
    """How a derivative dataset is made of others."""

    inputs: list[Fields]
    transform: Fields


@dataclass(frozen=True)
class SetPollingSource(Event):
    """Where a root dataset fetches its data."""

    fetch: Fields
    read: Fields
    merge: Fields
    prepare: list[Fields] | None = None
    preprocess: Fields | None = None


@dataclass(frozen=True)
class AddPushSource(Event):
    """How data that is pushed into a root dataset is read."""

    source_name: str
    read: Fields
    merge: Fields
    preprocess: Fields | None = None


@dataclass(frozen=True)
class DisablePushSource(Event):
    """A push source is used no more."""

    source_name: str


@dataclass(frozen=True)
class DisablePollingSource(Event):
    """The polling source is used no more."""


@dataclass(frozen=True)
class UnknownEvent(Event):
    """An event of a later release: kept with its block, unchanged."""

    fields: Fields

    @property
    def kind(self) -> str:
        """`Unknown`."""
        return "Unknown"

    def to_dict(self) -> Fields:
        """The event's number as `tag`, and the block's bytes in base64 as `manifest`."""
        return dict(self.fields)
