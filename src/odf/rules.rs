//! The rules of a chain: which block may follow.
//!
//! A [`ChainState`] is the state of a chain after a block. The next block is checked against the state and then
//! applied to it, by writers and by the verification alike. [`ChainState::check`] holds for every block of a chain;
//! [`ChainState::check_new`] also refuses new blocks that change nothing and schemas that this release cannot use.
//!
//! A violated rule is [`ErrorKind::InvalidAppend`] with the name of the rule as its detail. The rules, their names and
//! their messages are those of the Open Data Fabric's own implementation.

use std::collections::BTreeMap;

use serde_json::Value;

use super::block::Block;
use super::event::{DataEvent, Event, SourceState};
use super::event_kind::EventKind;
use super::evolution;
use super::fields::{get, get_list, get_text, invalid_append, invalid_event, no_op_event};
use super::layout::EVENT;
use super::multihash::Multihash;
use super::schema;
use super::time::UtcDateTime;
use super::transforms::{canonicalize_reference, check_inputs, check_queries, check_query_input};
use super::vocabulary::Vocabulary;
use crate::error::{Error, ErrorKind, Result};

const NO_PROGRESS: &str =
    "Event neither has data nor it advances checkpoint, watermark, or source state";

/// The newest block of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tip {
    /// The hash of the block.
    pub hash: Multihash,
    /// The sequence number of the block.
    pub sequence_number: u64,
    /// The system time of the block.
    pub system_time: UtcDateTime,
}

/// The state of a chain after a block.
#[derive(Debug, Clone, Default)]
pub struct ChainState {
    /// The newest block.
    pub tip: Option<Tip>,
    /// The names of the system columns.
    pub vocabulary: Vocabulary,
    /// The names that they have in the newest slice; None without one.
    vocabulary_of_rows: Option<Vocabulary>,
    /// The last `SetDataSchema`.
    pub schema_event: Option<Value>,
    /// The last event that may carry data.
    pub last_data_event: Option<DataEvent>,
    /// The state of each source.
    pub source_states: BTreeMap<String, SourceState>,
    /// The last event of each kind of which only the last one counts; those of push sources by name.
    settings: BTreeMap<SettingKey, Event>,
    /// The inputs of the last `ExecuteTransform`.
    last_query_inputs: Option<Vec<Value>>,
    /// The tag of an event that this release does not know and that may determine what the data is.
    unreadable_tag: Option<u64>,
}

impl ChainState {
    /// Applies a block to the state. The block is not checked here.
    pub fn apply(&mut self, block: &Block) {
        let event = block.event();
        match event {
            Event::SetVocab { vocabulary, .. } => self.vocabulary = vocabulary.clone(),
            Event::SetDataSchema(fields) => self.schema_event = Some(fields.clone()),
            Event::Unknown { tag } => {
                // The other known events do not determine what the data is.
                if matches!(tag, 0..=2 | 10) || *tag > EVENT.variants.len() as u64 {
                    self.unreadable_tag = Some(*tag);
                }
            }
            Event::AddData(data) => self.apply_data(data),
            Event::ExecuteTransform { data, query_inputs } => {
                self.apply_data(data);
                self.last_query_inputs = Some(query_inputs.clone());
            }
            Event::Seed { .. } | Event::Other(..) => {}
        }
        if let Some(key) = SettingKey::of(event) {
            if let Some(undone) = key.undone() {
                self.settings.remove(&undone);
            }
            self.settings.insert(key, event.clone());
        }
        self.tip = Some(Tip {
            hash: block.hash().clone(),
            sequence_number: block.sequence_number,
            system_time: block.system_time,
        });
    }

    fn apply_data(&mut self, data: &DataEvent) {
        if let Some(state) = &data.new_source_state {
            self.source_states
                .insert(state.source_name.clone(), state.clone());
        }
        if data.new_data.is_some() {
            self.vocabulary_of_rows = Some(self.vocabulary.clone());
        }
        self.last_data_event = Some(data.clone());
    }

    /// Returns [`ErrorKind::FormatNotSupported`] if an event of a later release may determine what the data is.
    pub fn check_readable(&self) -> Result<()> {
        let Some(tag) = self.unreadable_tag else {
            return Ok(());
        };
        let message = format!(
            "the chain has an event of a later release (tag {tag}), which may determine what the data is; \
             upgrade pds"
        );
        Err(Error::new(ErrorKind::FormatNotSupported, message))
    }

    /// Returns the last event of a kind of which only the last one counts.
    fn setting(&self, kind: EventKind) -> Option<&Event> {
        self.settings.get(&SettingKey { kind, source: None })
    }

    /// Returns the offset of the last row; None if there are no rows.
    pub fn last_offset(&self) -> Option<u64> {
        self.last_data_event.as_ref()?.last_offset()
    }

    /// Returns the watermark of the last event that may carry data.
    pub fn watermark(&self) -> Option<UtcDateTime> {
        self.last_data_event.as_ref()?.new_watermark
    }

    /// Returns the hash of the last checkpoint.
    pub fn checkpoint(&self) -> Option<&Multihash> {
        self.last_data_event.as_ref()?.checkpoint()
    }

    /// Returns an event of data that carries on offset, checkpoint and watermark, and changes nothing.
    pub(super) fn next_data_event(&self) -> DataEvent {
        let last_event = self.last_data_event.as_ref();
        DataEvent {
            prev_checkpoint: self.checkpoint().cloned(),
            prev_offset: self.last_offset(),
            new_checkpoint: last_event.and_then(|last| last.new_checkpoint.clone()),
            new_watermark: self.watermark(),
            ..DataEvent::default()
        }
    }

    /// Checks that a new block may be appended: it follows the rules and changes something.
    pub fn check_new(&self, block: &Block) -> Result<()> {
        self.check(block)?;
        let event = block.event();
        match event {
            // Readers depend on a usable schema. Older tools did not check it, so existing blocks may have others.
            Event::SetDataSchema(fields) => self.check_schema_usable(fields),
            Event::AddData(data) => {
                let state = data.new_source_state.as_ref();
                let previous_state = state.and_then(|s| self.source_states.get(&s.source_name));
                if self.has_no_progress(data) && state.is_some() && state == previous_state {
                    return Err(no_op_event(NO_PROGRESS));
                }
                Ok(())
            }
            Event::ExecuteTransform { data, .. } if data.is_empty() => {
                Err(no_op_event("Event is empty"))
            }
            Event::SetVocab { vocabulary, .. } => {
                self.check_vocabulary(vocabulary)?;
                self.check_not_identical(event)
            }
            _ => self.check_not_identical(event),
        }
    }

    /// Checks that this release can write and read data of a schema.
    fn check_schema_usable(&self, event: &Value) -> Result<()> {
        let as_invalid_event = |e: Error| invalid_event(e.message().to_owned()).with_source(e);
        let columns = schema::arrow_from_event(event).map_err(as_invalid_event)?;
        let mut names: Vec<&String> = columns.fields().iter().map(|f| f.name()).collect();
        names.sort();
        let name_count = names.len();
        names.dedup();
        if names.len() < name_count {
            let message = "the schema has two columns of the same name";
            return Err(invalid_event(message));
        }
        let previous_schema = self.schema_event.as_ref().map(schema::logical_from_event);
        if let (Some(Ok(previous_schema)), Some(new)) = (previous_schema, get(event, "schema")) {
            let has_rows = self.last_offset().is_some();
            evolution::check_older_rows(&previous_schema, new, has_rows, &self.vocabulary)?;
        }
        let previous = self.schema_event.as_ref().map(schema::arrow_from_event);
        if let (Some(Ok(previous)), Some(_)) = (previous, self.last_offset()) {
            evolution::check_values_stay(&previous, &columns)?;
        }
        Ok(())
    }

    /// Checks that the system columns have the names that they have in rows: older rows have their operations and
    /// offsets under these. Older releases took other names; the way back is open.
    fn check_vocabulary(&self, vocabulary: &Vocabulary) -> Result<()> {
        let Some(of_rows) = &self.vocabulary_of_rows else {
            return Ok(());
        };
        if [of_rows, &self.vocabulary].contains(&vocabulary) {
            return Ok(());
        }
        let message = format!(
            "the system columns cannot get other names after the first rows; they are {:?}",
            of_rows.names()
        );
        Err(invalid_event(message))
    }

    /// Checks that a block may come next.
    pub fn check(&self, block: &Block) -> Result<()> {
        self.check_sequence(block)?;
        match block.event() {
            Event::AddData(data) => {
                self.check_data(data, &[])?;
                self.check_add_data(data)
            }
            Event::ExecuteTransform { data, query_inputs } => {
                self.check_data(data, query_inputs)?;
                self.check_transform(data, query_inputs)
            }
            Event::SetDataSchema(fields) => self.check_schema(fields),
            Event::Other(EventKind::SetTransform, fields) => {
                check_inputs(fields)?;
                check_queries(get(fields, "transform"))
            }
            Event::Other(
                kind @ (EventKind::SetPollingSource | EventKind::AddPushSource),
                fields,
            ) => self.check_source(*kind, fields),
            _ => Ok(()),
        }
    }

    /// Checks the seed, the link, the sequence number and the system time.
    fn check_sequence(&self, block: &Block) -> Result<()> {
        let is_seed = block.kind() == EventKind::Seed;
        let previous = block.prev_block_hash.as_ref();
        if is_seed && (previous.is_some() || self.tip.is_some()) {
            let message = "Attempt to append seed block to a non-empty chain";
            return Err(invalid_append("AppendingSeedBlockToNonEmptyChain", message));
        }
        if !is_seed && previous.is_none() {
            let message =
                "First block has to be a seed, perhaps new block does not link to the previous";
            return Err(invalid_append("FirstBlockMustBeSeed", message));
        }
        let number = block.sequence_number;
        let Some(tip) = &self.tip else {
            if previous.is_some() {
                return Err(invalid_append(
                    "PrevBlockNotFound",
                    "Invalid previous block",
                ));
            }
            if number != 0 {
                let message = format!("Block sequence has to start with zero, not {number}");
                return Err(invalid_append("SequenceIntegrity", message));
            }
            return Ok(());
        };
        if previous != Some(&tip.hash) {
            return Err(invalid_append(
                "PrevBlockNotFound",
                "Invalid previous block",
            ));
        }
        if Some(number) != tip.sequence_number.checked_add(1) {
            let message = format!(
                "Block {} with sequence number {} cannot be followed by block with sequence number {number}",
                tip.hash, tip.sequence_number
            );
            return Err(invalid_append("SequenceIntegrity", message));
        }
        if block.system_time < tip.system_time {
            let message = "System time has to be monotonically non-decreasing";
            return Err(invalid_append("SystemTimeIsNotMonotonic", message));
        }
        Ok(())
    }

    /// Checks the rules of all data: offsets, watermark, schema, checkpoint.
    fn check_data(&self, data: &DataEvent, query_inputs: &[Value]) -> Result<()> {
        let prev_offset = data.prev_offset;
        if let Some(slice) = &data.new_data {
            let (start, end) = (slice.start, slice.end);
            let expected = prev_offset.map_or(Some(0), |offset| offset.checked_add(1));
            if Some(start) != expected {
                let expected_text = expected.map_or("none".to_owned(), |o| o.to_string());
                let message = format!("Expected offset {expected_text} but got {start}");
                return Err(invalid_append("OffsetsAreNotSequential", message));
            }
            if end < start {
                return Err(invalid_event("Invalid offset interval"));
            }
        }
        if data.is_empty() && query_inputs.is_empty() {
            return Err(no_op_event("Event is empty"));
        }
        let before = self.watermark();
        let after = data.new_watermark;
        if before.is_some_and(|before| after.is_none_or(|after| after < before)) {
            let message = "Watermark has to be monotonically increasing";
            return Err(invalid_append("WatermarkIsNotMonotonic", message));
        }
        if prev_offset != self.last_offset() {
            let message = "Carried prev offset does not correspond to the last offset in the chain";
            return Err(invalid_event(message));
        }
        if data.new_data.is_some() && self.schema_event.is_none() {
            let message = "SetDataSchema event must be present before adding data";
            return Err(invalid_event(message));
        }
        if data.prev_checkpoint.as_ref() != self.checkpoint() {
            let message =
                "Input checkpoint does not correspond to the last checkpoint in the chain";
            return Err(invalid_event(message));
        }
        Ok(())
    }

    /// Whether an event has no data and leaves checkpoint and watermark as they are.
    fn has_no_progress(&self, data: &DataEvent) -> bool {
        data.new_data.is_none()
            && data.checkpoint() == self.checkpoint()
            && data.new_watermark == self.watermark()
    }

    fn check_add_data(&self, data: &DataEvent) -> Result<()> {
        let last_event = self.last_data_event.as_ref();
        let previous_state = last_event.and_then(|last| last.new_source_state.as_ref());
        if self.has_no_progress(data) && data.new_source_state.as_ref() == previous_state {
            return Err(no_op_event(NO_PROGRESS));
        }
        Ok(())
    }

    fn check_transform(&self, data: &DataEvent, inputs: &[Value]) -> Result<()> {
        let ids = |inputs: &[Value], name: &str| -> Vec<String> {
            inputs
                .iter()
                .map(|input| canonicalize_reference(get_text(input, name).unwrap_or_default()))
                .collect()
        };
        let declared = match (
            self.setting(EventKind::SetTransform),
            &self.last_query_inputs,
        ) {
            (Some(Event::Other(_, transform)), _) => {
                ids(&get_list(transform, "inputs"), "datasetRef")
            }
            (_, Some(last_inputs)) => ids(last_inputs, "datasetId"),
            (_, None) => {
                let message = "ExecuteTransform must be preceded by SetTransform event";
                return Err(invalid_event(message));
            }
        };
        if ids(inputs, "datasetId") != declared {
            let message =
                "Inputs must be listed in same order as initially declared in SetTransform event";
            return Err(invalid_event(message));
        }
        for (before, now) in self.last_query_inputs.iter().flatten().zip(inputs) {
            check_query_input(before, now)?;
        }
        let advances = inputs
            .iter()
            .any(|input| get(input, "newBlockHash").is_some());
        if self.has_no_progress(data) && !advances {
            let message = "Event neither has data nor it advances inputs, checkpoint, or watermark";
            return Err(no_op_event(message));
        }
        Ok(())
    }

    fn check_schema(&self, event: &Value) -> Result<()> {
        schema::arrow_from_event(event)
            .map_err(|e| invalid_event(e.message().to_owned()).with_source(e))?;
        // What follows is not asked of the older form, rawArrowSchema.
        let (Some(new), Some(previous_event)) = (get(event, "schema"), &self.schema_event) else {
            return Ok(());
        };
        let was_raw = get(previous_event, "rawArrowSchema").is_some();
        // Some types of a rawArrowSchema have no logical type.
        let Ok(previous_schema) = schema::logical_from_event(previous_event) else {
            return Ok(());
        };
        let difference = evolution::compare_schemas(&previous_schema, new, was_raw);
        if !difference.has_changes {
            return Err(no_op_event("New schema is identical to the current"));
        }
        if difference.forbidden_changes.is_empty() {
            return Ok(());
        }
        let message = format!(
            "New schema is not compatible with the current schema. {}",
            difference.forbidden_changes.join("; ")
        );
        Err(invalid_event(message))
    }

    fn check_source(&self, kind: EventKind, event: &Value) -> Result<()> {
        if let Some(transform) = get(event, "preprocess") {
            check_queries(Some(transform))?;
        }
        let read = get(event, "read");
        let has_read_field = |name: &str| read.and_then(|read| get(read, name)).is_some();
        if has_read_field("schema") && has_read_field("ddlSchema") {
            return Err(invalid_event(
                "Cannot specify both DDL and ODF schemas at once",
            ));
        }
        if kind == EventKind::AddPushSource && self.setting(EventKind::SetPollingSource).is_some() {
            let message = "Cannot add a push source while polling source is still active";
            return Err(invalid_event(message));
        }
        let has_push = self
            .settings
            .keys()
            .any(|key| key.kind == EventKind::AddPushSource);
        if kind == EventKind::SetPollingSource && has_push {
            let message = "Cannot add a polling source while some push sources are still active";
            return Err(invalid_event(message));
        }
        let fetch = get(event, "fetch");
        let is_ethereum = fetch.and_then(|f| get_text(f, "kind")) == Some("EthereumLogs");
        let has_fetch_field = |name: &str| fetch.and_then(|f| get(f, name)).is_some();
        if is_ethereum && !has_fetch_field("chainId") && !has_fetch_field("nodeUrl") {
            return Err(invalid_event("Eth source must specify chainId or nodeUrl"));
        }
        Ok(())
    }

    /// Refuses an event that is identical to the last one of its key.
    fn check_not_identical(&self, event: &Event) -> Result<()> {
        let before = SettingKey::of(event).and_then(|key| self.settings.get(&key));
        if before == Some(event) {
            return Err(no_op_event("Event is identical to the current"));
        }
        Ok(())
    }
}

/// The key under which the last event of its kind is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SettingKey {
    kind: EventKind,
    /// The name of a push source.
    source: Option<String>,
}

impl SettingKey {
    /// Returns None for kinds of which all events count.
    fn of(event: &Event) -> Option<Self> {
        let kind = event.kind();
        let source = match kind {
            EventKind::AddPushSource | EventKind::DisablePushSource => match event {
                Event::Other(_, fields) => get_text(fields, "sourceName").map(str::to_owned),
                _ => None,
            },
            EventKind::Seed
            | EventKind::SetVocab
            | EventKind::SetAttachments
            | EventKind::SetInfo
            | EventKind::SetLicense
            | EventKind::SetTransform
            | EventKind::SetPollingSource
            | EventKind::DisablePollingSource => None,
            EventKind::AddData
            | EventKind::ExecuteTransform
            | EventKind::SetDataSchema
            | EventKind::Unknown => return None,
        };
        Some(Self { kind, source })
    }

    /// The key of the event that an event of this key undoes.
    fn undone(&self) -> Option<Self> {
        let kind = match self.kind {
            EventKind::SetPollingSource => EventKind::DisablePollingSource,
            EventKind::DisablePollingSource => EventKind::SetPollingSource,
            EventKind::AddPushSource => EventKind::DisablePushSource,
            EventKind::DisablePushSource => EventKind::AddPushSource,
            _ => return None,
        };
        let source = self.source.clone();
        Some(Self { kind, source })
    }
}
