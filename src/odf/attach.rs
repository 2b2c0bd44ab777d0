//! Chains that record the schemas of something else, so that its history can be read without a data file.
//!
//! A `SchemaSource` has the schemas, and `record_schemas` brings a chain up to date with it. A recorded schema is a
//! `SetDataSchema` with the time of the version that has it, or with the time of the newest block if that is later.
//! The `AddData` after it has no rows; its source state is the number of the version and the id of its commit, as
//! `<version>/<commit id>`. All schemas that are missing are appended in one move of the head, and a new chain comes
//! into being with them. After many versions without another schema such an `AddData` comes alone, for every call reads
//! the versions after the last one.
//!
//! What is missing is decided by the number of the version: clocks of writers differ. The id of the commit tells
//! whether the table is still the same: one that was dropped and created anew begins at version 1 again, and all its
//! versions are missing. A chain of an older release has no ids, or no numbers either; without numbers the versions
//! after the time of the last `SetDataSchema` are missing, and the newest.
//!
//! The chain is read before its source. Of two calls at once, one moves the head, and the other reads both again. A
//! call whose outcome is unknown is repeated without harm.
//!
//! Errors: [`crate::ErrorKind::UnsafeStore`] (the store ignores conditions), [`crate::ErrorKind::CommitConflict`] (every
//! race was lost), [`crate::ErrorKind::CommitStateUnknown`] (the answer of the store was lost), and those of reading the
//! source.

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::Schema;
use chrono::TimeDelta;
use serde_json::Value;

use super::append::{BlockDraft, MIN_RETRY_DELAY};
use super::block::Block;
use super::chain::Chain;
use super::event::{DataEvent, DatasetKind, Event, SourceState};
use super::event_kind::EventKind;
use super::head::{HeadError, HeadUpdate};
use super::lease::WriteLease;
use super::multihash::{DatasetId, Multihash};
use super::rules::ChainState;
use super::schema;
use super::time::UtcDateTime;
use crate::error::Result;
use crate::store::cas::probe_conditional_writes;

/// The source whose state is the version that was recorded last.
const SOURCE_NAME: &str = "pds/table";
const SOURCE_STATE_KIND: &str = "pds/tableVersion";
/// The most versions after the recorded one that are read again by every call.
const MAX_UNRECORDED_VERSIONS: u64 = 32;

/// A chain that is up to date.
#[derive(Debug, Clone)]
pub struct Attached {
    /// The chain.
    pub chain: Chain,
    /// The appended blocks, oldest first; none if nothing was missing.
    pub blocks: Vec<Arc<Block>>,
    /// The number of attempts; above 1 after conflicts with other writers.
    pub attempts: u32,
}

/// What has the schemas that a chain records: a table, a dataset.
pub(crate) trait SchemaSource: Sync {
    /// Reads the versions that are not recorded, oldest first. The first one may be the recorded version itself.
    async fn versions_after(&self, position: &Position) -> Result<Vec<SourceVersion>>;
}

/// Creates a chain of the schemas of a source or brings it up to date, and retries until `timeout` while other writers
/// come first.
pub(crate) async fn record_schemas(
    chain: Chain,
    source: &impl SchemaSource,
    timeout: Duration,
) -> Result<Attached> {
    let clock = chain.store().clock();
    let deadline = clock.monotonic() + timeout;
    let (mut attempts, mut delay) = (0, MIN_RETRY_DELAY);
    loop {
        attempts += 1;
        let lease = WriteLease::new(&chain);
        let head = chain.head().await?;
        let state = match &head {
            Some(head) => chain.state_at(&head.hash).await?,
            None => Arc::default(),
        };
        state.check_readable()?;
        let position = match &head {
            Some(head) => Position::read(&chain, &head.hash, &state).await?,
            None => Position::Start,
        };
        let versions = source.versions_after(&position).await?;
        let make_blocks = |delay| plan_blocks(&state, &position, &versions, delay);
        let planned = chain.draft_new_blocks(make_blocks).await;
        let blocks = planned.map_err(|e| e.with_path(chain.root()))?;
        if head.is_none() {
            probe_conditional_writes(chain.store(), chain.root()).await?;
        }
        let update = chain.move_head(head.as_ref(), blocks, &lease).await;
        if let HeadUpdate::Appended(blocks) = update.map_err(HeadError::into_error)? {
            return Ok(Attached {
                chain,
                blocks,
                attempts,
            });
        }
        if clock.monotonic() >= deadline {
            return Err(chain.timeout_error(timeout));
        }
        delay = chain.back_off(delay).await;
    }
}

/// How far a chain has recorded its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Position {
    /// Nothing is recorded.
    Start,
    /// Everything up to this version is recorded.
    Version(TableVersion),
    /// The schema of this time was recorded without a version.
    Time(UtcDateTime),
}

impl Position {
    async fn read(chain: &Chain, head: &Multihash, state: &ChainState) -> Result<Self> {
        let recorded = state.source_states.get(SOURCE_NAME);
        let version = recorded
            .filter(|source| source.kind == SOURCE_STATE_KIND)
            .and_then(|source| TableVersion::parse(&source.value));
        if let Some(version) = version {
            return Ok(Self::Version(version));
        }
        let blocks = chain.blocks_back_from(head, None, usize::MAX).await?;
        let last_schema = blocks
            .iter()
            .find(|block| block.kind() == EventKind::SetDataSchema);
        Ok(last_schema.map_or(Self::Start, |block| Self::Time(block.system_time)))
    }
}

/// A version of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableVersion {
    pub(crate) number: u64,
    /// The id of its commit; None in a chain of an older release.
    pub(crate) commit_id: Option<String>,
}

impl TableVersion {
    fn parse(text: &str) -> Option<Self> {
        let (number, commit_id) = match text.split_once('/') {
            Some((number, commit_id)) => (number, Some(commit_id.to_owned())),
            None => (text, None),
        };
        let number = number.parse().ok()?;
        Some(Self { number, commit_id })
    }

    fn to_text(&self) -> String {
        match &self.commit_id {
            Some(commit_id) => format!("{}/{commit_id}", self.number),
            None => self.number.to_string(),
        }
    }

    /// Whether `other`, which has the same number, is another commit: that of a table that was created anew.
    pub(crate) fn is_replaced_by(&self, other: &Self) -> bool {
        self.commit_id.is_some() && self.commit_id != other.commit_id
    }
}

/// The schema of the source at one time.
pub(crate) struct SourceVersion {
    pub(crate) time: UtcDateTime,
    /// The version of a table; None for a dataset.
    pub(crate) version: Option<TableVersion>,
    pub(crate) schema: Schema,
}

/// Makes the blocks of the schemas that differ from the one before them, and the seed of a new chain. `delay` is added to
/// the times.
fn plan_blocks(
    state: &ChainState,
    position: &Position,
    versions: &[SourceVersion],
    delay: TimeDelta,
) -> Result<Vec<Block>> {
    let mut draft = BlockDraft::new(state.clone());
    let mut recorded = state
        .schema_event
        .as_ref()
        .map(schema::arrow_from_event)
        .transpose()?;
    let mut noted = match position {
        Position::Version(version) => Some(version),
        Position::Start | Position::Time(_) => None,
    };
    for source in versions {
        let event = schema::event_from_arrow(&source.schema, true)?;
        // An event may not hold all of a schema, so what it gives back is compared.
        let schema = Some(schema::arrow_from_event(&event)?);
        if schema == recorded {
            continue;
        }
        let tip = draft.state.tip.as_ref();
        let not_before = tip.map_or(source.time, |tip| tip.system_time);
        let time = source.time.max(not_before) + delay;
        if tip.is_none() {
            let seed = Event::Seed {
                dataset_id: DatasetId::generate()?.id,
                dataset_kind: DatasetKind::Root,
            };
            draft.push_without_rows(time, &seed.to_fields())?;
        }
        draft.push_without_rows(time, &event)?;
        if let Some(version) = &source.version {
            draft.push_without_rows(time, &version_event(&draft.state, version))?;
            noted = Some(version);
        }
        recorded = schema;
    }
    let newest = versions.last().and_then(|newest| newest.version.as_ref());
    if let (Some(noted), Some(newest)) = (noted, newest)
        && needs_note(noted, newest, versions)
        && let Some(tip) = draft.state.tip.as_ref()
    {
        let newest_time = versions
            .last()
            .map_or(tip.system_time, |newest| newest.time);
        let time = tip.system_time.max(newest_time) + delay;
        draft.push_without_rows(time, &version_event(&draft.state, newest))?;
    }
    Ok(draft.blocks)
}

/// Whether the newest version is recorded although its schema is that of the version `noted`: the table began anew, or
/// there are many versions between them.
fn needs_note(noted: &TableVersion, newest: &TableVersion, versions: &[SourceVersion]) -> bool {
    let mut read = versions.iter().filter_map(|source| source.version.as_ref());
    let is_replaced =
        |version: &TableVersion| version.number == noted.number && noted.is_replaced_by(version);
    noted.number > newest.number
        || newest.number - noted.number > MAX_UNRECORDED_VERSIONS
        || read.any(is_replaced)
}

/// Makes the event that records the number of a version, and changes nothing else.
fn version_event(state: &ChainState, version: &TableVersion) -> Value {
    let source_state = SourceState {
        source_name: SOURCE_NAME.to_owned(),
        kind: SOURCE_STATE_KIND.to_owned(),
        value: version.to_text(),
    };
    let data = DataEvent {
        new_source_state: Some(source_state),
        ..state.next_data_event()
    };
    Event::AddData(data).to_fields()
}
