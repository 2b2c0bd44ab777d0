"""The events of a metadata chain.

Fields have the names of the specification, in snake case. Nested values are dicts in the spelling of the
specification, such as `{"kind": "Sql", "engine": "datafusion", "queries": […]}`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pds import _pds
from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType
from pds.flags import require_bool
from pds.odf.identity import Identity, Multihash

if TYPE_CHECKING:
    import pyarrow as pa

Fields = dict[str, Any]


def format_rfc3339(time: datetime | str) -> str:
    """Return a time as RFC 3339 text in UTC. Text is returned unchanged.

    Raises:
        InvalidInput: The datetime has no time zone, or in UTC its year is not between 1 and 9999.
        InvalidType: The time is neither a datetime nor text.
    """
    if isinstance(time, str):
        return require_text("a time", time)
    if not isinstance(time, datetime):
        raise InvalidType(f"a time must be a datetime or RFC 3339 text, not {type(time).__name__}")
    if time.tzinfo is None:
        raise InvalidInput(f"{time!r} has no time zone; datetime.now(UTC) has one")
    try:
        moment = time.astimezone(UTC)
    except OverflowError as error:
        raise InvalidInput(f"{time!r} is before the year 1 or after the year 9999 in UTC") from error
    return moment.isoformat().replace("+00:00", "Z")


def _to_camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def to_plain(value: Any) -> Any:  # noqa: ANN401 any JSON value
    """Return a value of an event as plain JSON values: times, hashes and identities become text.

    Raises:
        InvalidInput: A text cannot be encoded as UTF-8, or a time has no time zone.
        InvalidType: An event cannot contain a value of this type.
    """
    if isinstance(value, datetime):
        return format_rfc3339(value)
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {require_text("a name in an event", key): to_plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return require_text("a text of an event", value)
    if value is None or isinstance(value, int | float | bool):
        return value
    if isinstance(value, Multihash | Identity):
        return str(value)
    raise InvalidType(f"an event cannot contain a value of type {type(value).__name__}")


def check_source_state(state: object) -> Fields | None:
    """Return the position of a source as plain values.

    Raises:
        InvalidInput: A text cannot be encoded as UTF-8.
        InvalidType: It is not a dict, or has a value of another type than those of JSON.
    """
    if state is None:
        return None
    if not isinstance(state, dict):
        raise InvalidType(f"source_state must be a dict, not {type(state).__name__}")
    fields: Fields = to_plain(state)
    return fields


@dataclass(frozen=True)
class Event:
    """The base class of events. The classes derived from it are the events of the specification."""

    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    @property
    def kind(self) -> str:
        """The name of the event in the specification."""
        return type(self).__name__

    def to_dict(self) -> Fields:
        """Return the event in the spelling of the specification, without fields that are None.

        Raises:
            InvalidInput: A datetime has no time zone.
            InvalidType: An event cannot contain a value of this type.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields = {_to_camel_case(name): to_plain(value) for name, value in values.items() if value is not None}
        return {"kind": self.kind, **fields}

    @staticmethod
    def of(fields: Fields) -> Event:
        """Return the event for a dict in the spelling of the specification.

        Raises:
            InvalidInput: The event has no field of this name, or lacks one.
            InvalidType: The fields are not a dict.
        """
        if not isinstance(fields, dict):
            raise InvalidType(f"the fields of an event must be a dict, not {type(fields).__name__}")
        kind = fields.get("kind", "")
        event_class = Event.kinds.get(kind, UnknownEvent) if isinstance(kind, str) else UnknownEvent
        if event_class is UnknownEvent:
            return UnknownEvent(dict(fields))
        names = {_to_camel_case(field.name): field.name for field in dataclasses.fields(event_class)}
        for key in fields:
            if key != "kind" and key not in names:
                raise InvalidInput(f"unknown field {key!r}; {event_class.__name__} has the fields {sorted(names)}")
        for field in dataclasses.fields(event_class):
            if field.default is dataclasses.MISSING and _to_camel_case(field.name) not in fields:
                raise InvalidInput(f"{event_class.__name__} needs the field {_to_camel_case(field.name)!r}")
        return event_class(**{names[key]: value for key, value in fields.items() if key != "kind"})


@dataclass(frozen=True)
class Seed(Event):
    """The first event: the identity of the dataset, and its kind, `Root` or `Derivative`."""

    dataset_id: str
    dataset_kind: str = "Root"


@dataclass(frozen=True)
class SetDataSchema(Event):
    """The schema of the data that follows, as logical types or as an Arrow flatbuffer in base64."""

    schema: Fields | None = None
    raw_arrow_schema: str | None = None

    @classmethod
    def of_arrow(cls, schema: pa.Schema, *, raw_arrow: bool = False) -> Self:
        """Return the event for an Arrow schema.

        Args:
            schema: The schema, including the system columns.
            raw_arrow: Whether to store an Arrow flatbuffer (RFC-010) instead of logical types (RFC-016).

        Raises:
            InvalidInput: A column has a type without a logical type.
        """
        fields = _pds.schema_event(schema, None, require_bool("raw_arrow", raw_arrow))
        return cls(fields.get("schema"), fields.get("rawArrowSchema"))

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema of the event.

        Raises:
            InvalidInput: The event has no valid schema.
        """
        return _pds.event_schema(self.to_dict())


@dataclass(frozen=True)
class AddData(Event):
    """New rows of a root dataset, or progress of its source without rows."""

    prev_checkpoint: str | None = None
    prev_offset: int | None = None
    new_data: Fields | None = None
    new_checkpoint: Fields | None = None
    new_watermark: datetime | str | None = None
    new_source_state: Fields | None = None
    extra: Fields | None = None


@dataclass(frozen=True)
class ExecuteTransform(Event):
    """New rows of a derivative dataset, or progress of its transform without rows."""

    query_inputs: list[Fields]
    prev_checkpoint: str | None = None
    prev_offset: int | None = None
    new_data: Fields | None = None
    new_checkpoint: Fields | None = None
    new_watermark: datetime | str | None = None


@dataclass(frozen=True)
class SetVocab(Event):
    """The names of the system columns."""

    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


@dataclass(frozen=True)
class SetInfo(Event):
    """A description of the dataset and keywords."""

    description: str | None = None
    keywords: list[str] | None = None


@dataclass(frozen=True)
class SetLicense(Event):
    """The license of the data."""

    short_name: str
    name: str
    website_url: str
    spdx_id: str | None = None


@dataclass(frozen=True)
class SetAttachments(Event):
    """Text files that are attached to the dataset: `{"kind": "Embedded", "items": [{"path": …, "content": …}]}`."""

    attachments: Fields


@dataclass(frozen=True)
class SetTransform(Event):
    """The transform that computes a derivative dataset from its inputs."""

    inputs: list[Fields]
    transform: Fields


@dataclass(frozen=True)
class SetPollingSource(Event):
    """The source that a root dataset polls for data."""

    fetch: Fields
    read: Fields
    merge: Fields
    prepare: list[Fields] | None = None
    preprocess: Fields | None = None


@dataclass(frozen=True)
class AddPushSource(Event):
    """A source that pushes data into a root dataset."""

    source_name: str
    read: Fields
    merge: Fields
    preprocess: Fields | None = None


@dataclass(frozen=True)
class DisablePushSource(Event):
    """The end of a push source."""

    source_name: str


@dataclass(frozen=True)
class DisablePollingSource(Event):
    """The end of the polling source."""


@dataclass(frozen=True)
class UnknownEvent(Event):
    """An event of a later release of the specification. Its block keeps it unchanged."""

    fields: Fields

    @property
    def kind(self) -> str:
        """The text `Unknown`."""
        return "Unknown"

    def to_dict(self) -> Fields:
        """Return the number of the event as `tag`, and the bytes of the block in base64 as `manifest`."""
        return dict(self.fields)
