//! Events, parsed when a block is decoded.
//!
//! An [`Event`] is typed where this release interprets its fields; all others are [`Event::Other`]. [`EventKind`] is
//! the name of an event. [`Event::from_fields`] parses an event in the spelling of the specification,
//! [`Event::to_fields`] is its opposite and loses nothing.
//!
//! A field that is missing or has another type is [`crate::ErrorKind::BlockCorrupted`]; none has a default.

use serde_json::{Map, Value, json};

use super::event_kind::EventKind;
use super::fields::{
    get, get_text, optional_number, parse_field, require, require_number, require_text,
};
use super::multihash::{DatasetId, Multihash};
use super::time::{self, UtcDateTime};
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};

/// The attribute of a merged block with the head that it was made from.
const COMPACTED_FROM: &str = "pds/compactedFrom";

/// The origin of a dataset's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetKind {
    /// The data comes from outside.
    Root,
    /// The data is computed from other datasets.
    Derivative,
}

impl DatasetKind {
    fn name(self) -> &'static str {
        match self {
            Self::Root => "Root",
            Self::Derivative => "Derivative",
        }
    }
}

/// An event of a chain.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The first event.
    Seed {
        /// The identity of the dataset.
        dataset_id: DatasetId,
        /// The origin of its data.
        dataset_kind: DatasetKind,
    },
    /// Rows of a root dataset, or progress of a source.
    AddData(DataEvent),
    /// Rows of a derivative dataset, or progress of its inputs.
    ExecuteTransform {
        /// What the transform made.
        data: DataEvent,
        /// What the transform has read of each input.
        query_inputs: Vec<Value>,
    },
    /// The schema of the slices that follow, as [`super::schema`] reads it.
    SetDataSchema(Value),
    /// The names of the system columns.
    SetVocab {
        /// The names, with those that the event leaves out.
        vocabulary: Vocabulary,
        /// The event.
        fields: Value,
    },
    /// An event of a later release; its bytes are in its block.
    Unknown {
        /// The number of the event.
        tag: u64,
    },
    /// Another event.
    Other(EventKind, Value),
}

/// What an event says about data.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DataEvent {
    /// The checkpoint before the event.
    pub prev_checkpoint: Option<Multihash>,
    /// The offset of the last row before the event.
    pub prev_offset: Option<u64>,
    /// The new slice, as the event states it; [`DataEvent::slice`] checks it.
    pub new_data: Option<Slice>,
    /// The checkpoint after the event.
    pub new_checkpoint: Option<Checkpoint>,
    /// The watermark after the event.
    pub new_watermark: Option<UtcDateTime>,
    /// The state of the source after the event.
    pub new_source_state: Option<SourceState>,
    /// Further attributes.
    pub extra: Option<Value>,
}

/// A data file of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The logical hash of the rows.
    pub logical_hash: Multihash,
    /// The hash of the bytes, which is the name of the file.
    pub physical_hash: Multihash,
    /// The offset of the first row.
    pub start: u64,
    /// The offset of the last row.
    pub end: u64,
    /// The size of the file in bytes.
    pub size: u64,
}

/// The state of an engine between two transforms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The hash of the bytes, which is the name of the file.
    pub physical_hash: Multihash,
    /// The size of the file in bytes.
    pub size: u64,
}

/// From where a source continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    /// The name of the source.
    pub source_name: String,
    /// The kind of the state.
    pub kind: String,
    /// The state.
    pub value: String,
}

impl Event {
    /// Parses an event whose `kind` has the spelling of the specification.
    pub fn from_fields(fields: Value) -> Result<Self> {
        let kind = EventKind::from_name(get_text(&fields, "kind").unwrap_or_default());
        Ok(match kind {
            EventKind::Seed => Self::Seed {
                dataset_id: parse_field(&fields, "datasetId")?,
                dataset_kind: match require_text(&fields, "datasetKind")? {
                    "Root" => DatasetKind::Root,
                    "Derivative" => DatasetKind::Derivative,
                    other => {
                        let message = format!("unknown kind {other:?} of a dataset");
                        return Err(Error::block_corrupted(message));
                    }
                },
            },
            EventKind::AddData => Self::AddData(DataEvent::from_fields(&fields)?),
            EventKind::ExecuteTransform => {
                let data = DataEvent::from_fields(&fields)?;
                let inputs = require(&fields, "queryInputs")?.as_array();
                let query_inputs = inputs.cloned().unwrap_or_default();
                Self::ExecuteTransform { data, query_inputs }
            }
            EventKind::SetDataSchema => Self::SetDataSchema(fields),
            EventKind::SetVocab => Self::SetVocab {
                vocabulary: Vocabulary::from_fields(&fields),
                fields,
            },
            EventKind::Unknown => Self::Unknown {
                tag: require_number(&fields, "tag")?,
            },
            _ => Self::Other(kind, fields),
        })
    }

    /// Returns the event in the spelling of the specification. An event of a later release has its number only.
    pub fn to_fields(&self) -> Value {
        let mut fields = match self {
            Self::Seed {
                dataset_id,
                dataset_kind,
            } => {
                json!({"datasetId": dataset_id.to_string(), "datasetKind": dataset_kind.name()})
            }
            Self::AddData(data) => data.to_fields(),
            Self::ExecuteTransform { data, query_inputs } => {
                let mut fields = data.to_fields();
                fields["queryInputs"] = query_inputs.clone().into();
                fields
            }
            Self::Unknown { tag } => json!({"tag": tag}),
            Self::SetDataSchema(fields)
            | Self::SetVocab { fields, .. }
            | Self::Other(_, fields) => {
                return fields.clone();
            }
        };
        fields["kind"] = self.kind().name().into();
        fields
    }

    /// The name of the event.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Seed { .. } => EventKind::Seed,
            Self::AddData(_) => EventKind::AddData,
            Self::ExecuteTransform { .. } => EventKind::ExecuteTransform,
            Self::SetDataSchema(_) => EventKind::SetDataSchema,
            Self::SetVocab { .. } => EventKind::SetVocab,
            Self::Unknown { .. } => EventKind::Unknown,
            Self::Other(kind, _) => *kind,
        }
    }

    /// What the event says about data; None for an event that carries none.
    pub fn data(&self) -> Option<&DataEvent> {
        match self {
            Self::AddData(data) | Self::ExecuteTransform { data, .. } => Some(data),
            _ => None,
        }
    }

    /// Returns the slice of the event, checked; None if it has none.
    pub fn slice(&self) -> Result<Option<&Slice>> {
        self.data().map_or(Ok(None), DataEvent::slice)
    }

    /// Returns the head that a merged block was made from; None for other blocks.
    pub(super) fn compacted_from(&self) -> Option<Multihash> {
        let extra = self.data()?.extra.as_ref()?;
        get_text(extra, COMPACTED_FROM)?.parse().ok()
    }
}

impl DataEvent {
    fn from_fields(fields: &Value) -> Result<Self> {
        let hash =
            |fields: &Value, name: &str| get(fields, name).map(|_| parse_field(fields, name));
        Ok(Self {
            prev_checkpoint: hash(fields, "prevCheckpoint").transpose()?,
            prev_offset: optional_number(fields, "prevOffset")?,
            new_data: get(fields, "newData").map(Slice::from_fields).transpose()?,
            new_checkpoint: get(fields, "newCheckpoint")
                .map(Checkpoint::from_fields)
                .transpose()?,
            new_watermark: get(fields, "newWatermark")
                .map(|_| require_text(fields, "newWatermark").and_then(time::from_text))
                .transpose()?,
            new_source_state: get(fields, "newSourceState")
                .map(SourceState::from_fields)
                .transpose()?,
            extra: get(fields, "extra").cloned(),
        })
    }

    fn to_fields(&self) -> Value {
        let text = |hash: &Multihash| Value::from(hash.to_string());
        let fields = [
            ("prevCheckpoint", self.prev_checkpoint.as_ref().map(text)),
            ("prevOffset", self.prev_offset.map(Value::from)),
            ("newData", self.new_data.as_ref().map(Slice::to_fields)),
            (
                "newCheckpoint",
                self.new_checkpoint.as_ref().map(Checkpoint::to_fields),
            ),
            (
                "newWatermark",
                self.new_watermark.map(|w| time::to_text(&w).into()),
            ),
            (
                "newSourceState",
                self.new_source_state.as_ref().map(SourceState::to_fields),
            ),
            ("extra", self.extra.clone()),
        ];
        let present = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(present.collect::<Map<_, _>>())
    }

    /// Returns the checked slice, if the event has one.
    pub fn slice(&self) -> Result<Option<&Slice>> {
        let Some(slice) = &self.new_data else {
            return Ok(None);
        };
        // Offsets are Int64 in the data.
        if slice.end < slice.start || i64::try_from(slice.end).is_err() {
            let message = format!(
                "invalid offset interval of a slice: {} to {}",
                slice.start, slice.end
            );
            return Err(Error::block_corrupted(message));
        }
        Ok(Some(slice))
    }

    /// The offset of the last row after the event.
    pub fn last_offset(&self) -> Option<u64> {
        match &self.new_data {
            Some(slice) => Some(slice.end),
            None => self.prev_offset,
        }
    }

    /// The hash of the new checkpoint.
    pub fn checkpoint(&self) -> Option<&Multihash> {
        let checkpoint = self.new_checkpoint.as_ref();
        checkpoint.map(|checkpoint| &checkpoint.physical_hash)
    }

    /// Whether the event carries nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.new_data.is_none()
            && self.new_checkpoint.is_none()
            && self.new_watermark.is_none()
            && self.new_source_state.is_none()
    }

    /// Whether the event has attributes that a merged block would lose.
    pub(super) fn has_own_attributes(&self) -> bool {
        let attributes = self.extra.as_ref().and_then(Value::as_object);
        attributes.is_some_and(|attributes| attributes.keys().any(|key| key != COMPACTED_FROM))
    }

    /// Records the head that a merged block is made from.
    pub(super) fn set_compacted_from(&mut self, head: &Multihash) {
        self.extra = Some(json!({COMPACTED_FROM: head.to_string()}));
    }
}

impl Slice {
    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.end.saturating_sub(self.start).saturating_add(1)
    }

    fn from_fields(fields: &Value) -> Result<Self> {
        let interval = require(fields, "offsetInterval")?;
        Ok(Self {
            logical_hash: parse_field(fields, "logicalHash")?,
            physical_hash: parse_field(fields, "physicalHash")?,
            start: require_number(interval, "start")?,
            end: require_number(interval, "end")?,
            size: require_number(fields, "size")?,
        })
    }

    fn to_fields(&self) -> Value {
        json!({
            "logicalHash": self.logical_hash.to_string(),
            "physicalHash": self.physical_hash.to_string(),
            "offsetInterval": {"start": self.start, "end": self.end},
            "size": self.size,
        })
    }
}

impl Checkpoint {
    fn from_fields(fields: &Value) -> Result<Self> {
        Ok(Self {
            physical_hash: parse_field(fields, "physicalHash")?,
            size: require_number(fields, "size")?,
        })
    }

    fn to_fields(&self) -> Value {
        json!({"physicalHash": self.physical_hash.to_string(), "size": self.size})
    }
}

impl SourceState {
    /// Parses the state in the spelling of the specification.
    pub fn from_fields(fields: &Value) -> Result<Self> {
        let known_names = ["sourceName", "kind", "value"];
        let mut names = fields.as_object().into_iter().flat_map(Map::keys);
        if let Some(name) = names.find(|name| !known_names.contains(&name.as_str())) {
            let message = format!(
                "unknown field {name:?}; known fields: {}",
                known_names.join(", ")
            );
            return Err(Error::block_corrupted(message));
        }
        Ok(Self {
            source_name: require_text(fields, "sourceName")?.to_owned(),
            kind: require_text(fields, "kind")?.to_owned(),
            value: require_text(fields, "value")?.to_owned(),
        })
    }

    fn to_fields(&self) -> Value {
        json!({"sourceName": self.source_name, "kind": self.kind, "value": self.value})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data_event() -> Value {
        let hash = Multihash::sha3_256(b"data").to_string();
        json!({
            "kind": "AddData",
            "prevCheckpoint": hash,
            "prevOffset": 0,
            "newData": {
                "logicalHash": hash,
                "physicalHash": hash,
                "offsetInterval": {"start": 1, "end": 2},
                "size": 0,
            },
            "newCheckpoint": {"physicalHash": hash, "size": 0},
            "newWatermark": "2020-01-01T00:00:00.000000001Z",
            "newSourceState": {"sourceName": "", "kind": "k", "value": "v"},
            "extra": {"a": [1, null]},
        })
    }

    /// The pointers to all fields of nested objects.
    fn nested_fields(value: &Value, path: &str) -> Vec<String> {
        let fields = value.as_object().into_iter().flatten();
        let nested = fields.filter(|(_, field)| field.is_object());
        nested
            .flat_map(|(name, field)| {
                let within = format!("{path}/{name}");
                let names = field.as_object().into_iter().flat_map(Map::keys);
                let mut paths: Vec<_> = names.map(|name| format!("{within}/{name}")).collect();
                paths.extend(nested_fields(field, &within));
                paths
            })
            .collect()
    }

    #[test]
    fn nothing_is_lost_and_a_missing_number_is_no_zero() {
        let fields = data_event();
        let event = Event::from_fields(fields.clone()).unwrap();
        assert_eq!(event.to_fields(), fields);
        let paths = nested_fields(&fields, "");
        let required: Vec<_> = paths.iter().filter(|p| !p.starts_with("/extra")).collect();
        assert_eq!(required.len(), 11, "{required:?}");
        for path in required {
            for replacement in [Value::Null, json!([]), json!(-1)] {
                let mut damaged = fields.clone();
                *damaged.pointer_mut(path).unwrap() = replacement;
                let error = Event::from_fields(damaged).unwrap_err();
                assert_eq!(error.kind(), crate::ErrorKind::BlockCorrupted, "{path}");
            }
        }
        for name in ["prevOffset", "prevCheckpoint", "newWatermark"] {
            let mut damaged = fields.clone();
            damaged[name] = json!([]);
            assert!(Event::from_fields(damaged).is_err(), "{name}");
        }
    }

    #[test]
    fn a_slice_whose_end_is_before_its_start_is_refused() {
        let mut fields = data_event();
        fields["newData"]["offsetInterval"]["end"] = json!(0);
        let event = Event::from_fields(fields).unwrap();
        assert_eq!(
            event.slice().unwrap_err().kind(),
            crate::ErrorKind::BlockCorrupted
        );
    }

    #[test]
    fn a_source_state_has_no_other_fields() {
        let fields = json!({"sourceName": "a", "kind": "b", "value": "c", "more": "d"});
        let error = SourceState::from_fields(&fields).unwrap_err();
        assert!(error.message().contains("more"), "{error}");
    }
}
