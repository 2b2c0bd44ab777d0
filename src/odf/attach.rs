//! Chains of tables and datasets: [`attach_table`] and [`attach_dataset`] record the history of a schema, so that it can
//! be read without a data file.
//!
//! The chain of a table is in its folder `_odf`, that of a dataset in `_odf/<key>` of its store. A recorded schema is a
//! `SetDataSchema` with the time of the version that has it, or with the time of the newest block if that is later.
//! The `AddData` after it has no rows; its source state is the number of the version. All schemas that are missing are
//! appended in one move of the head, and a new chain comes into being with them.
//!
//! What is missing is decided by the number of the version: clocks of writers differ. A chain of an older release has
//! no numbers; for it the versions after the time of the last `SetDataSchema` are missing, and the newest.
//!
//! The chain is read before its source. Of two calls at once, one moves the head, and the other reads both again. A
//! call whose outcome is unknown is repeated without harm.
//!
//! Errors: [`crate::ErrorKind::NotFound`] (no table, no dataset), [`crate::ErrorKind::UnsafeStore`] (the store ignores conditions),
//! [`crate::ErrorKind::CommitConflict`] (every race was lost), [`crate::ErrorKind::CommitStateUnknown`] (the answer of the store was
//! lost), and those of reading the source.

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::Schema;
use chrono::{DateTime, NaiveDateTime, TimeDelta};
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
use super::time::{self, UtcDateTime};
use crate::dataset::{open_dataset, read_manifest};
use crate::error::{Error, Result};
use crate::store::cas::probe_conditional_writes;
use crate::store::{Store, path};
use crate::table::format::TableManifest;
use crate::table::{Table, TableColumns, map_versions};

const FOLDER: &str = "_odf";
/// The source whose state is the version that was recorded last.
const SOURCE_NAME: &str = "pds/table";
const SOURCE_STATE_KIND: &str = "pds/tableVersion";

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

/// Creates the chain of a table or brings it up to date, and retries until `timeout` while other writers come first.
pub async fn attach_table(table: &Table, timeout: Duration) -> Result<Attached> {
    let chain = Chain::new(table.store().clone(), &table.path(FOLDER))?;
    record(chain, &Source::Table(table), timeout).await
}

/// As [`attach_table`], for the dataset `key` of a store of datasets.
pub async fn attach_dataset(store: &Store, key: &str, timeout: Duration) -> Result<Attached> {
    let chain = Chain::new(store.clone(), &path::join(FOLDER, key))?;
    record(chain, &Source::Dataset { store, key }, timeout).await
}

async fn record(chain: Chain, source: &Source<'_>, timeout: Duration) -> Result<Attached> {
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
enum Position {
    /// Nothing is recorded.
    Start,
    /// Everything up to this version is recorded.
    Version(u64),
    /// The schema of this time was recorded without a version.
    Time(UtcDateTime),
}

impl Position {
    async fn read(chain: &Chain, head: &Multihash, state: &ChainState) -> Result<Self> {
        let recorded = state.source_states.get(SOURCE_NAME);
        let version = recorded
            .filter(|source| source.kind == SOURCE_STATE_KIND)
            .and_then(|source| source.value.parse().ok());
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

/// The schema of the source at one time.
struct SourceVersion {
    time: UtcDateTime,
    /// The version of a table.
    number: Option<u64>,
    schema: Schema,
}

impl SourceVersion {
    fn of_table(manifest: &TableManifest) -> Result<Self> {
        let micros = manifest.created_at.as_micros();
        let out_of_range = || Error::invalid(format!("timestamp out of range: {micros} µs"));
        Ok(Self {
            time: DateTime::from_timestamp_micros(micros).ok_or_else(out_of_range)?,
            number: Some(manifest.version),
            schema: TableColumns::from_manifest(manifest)?
                .schema
                .as_ref()
                .clone(),
        })
    }
}

enum Source<'a> {
    Table(&'a Table),
    Dataset { store: &'a Store, key: &'a str },
}

impl Source<'_> {
    /// Returns the versions that are not recorded, oldest first.
    async fn versions_after(&self, position: &Position) -> Result<Vec<SourceVersion>> {
        match self {
            Self::Table(table) => table_versions_after(table, position).await,
            Self::Dataset { store, key } => {
                // A dataset that does not exist is not found; opening it says that it is incomplete.
                read_manifest(store, key).await?;
                let dataset = open_dataset(store, key).await?;
                Ok(vec![SourceVersion {
                    time: parse_utc(&dataset.manifest().created_at_utc)?,
                    number: None,
                    schema: dataset.schema().as_ref().clone(),
                }])
            }
        }
    }
}

async fn table_versions_after(table: &Table, position: &Position) -> Result<Vec<SourceVersion>> {
    let newest = table.newest().await?.manifest;
    let limit = match position {
        Position::Version(recorded) if *recorded <= newest.version => newest.version - recorded,
        // A table that was set back, or created anew, is recorded from its oldest version on.
        _ => newest.version,
    };
    let is_missing = |manifest: &TableManifest| match position {
        Position::Time(recorded) => {
            manifest.created_at.as_micros() > recorded.timestamp_micros()
                || manifest.version == newest.version
        }
        Position::Start | Position::Version(_) => true,
    };
    let read =
        |manifest: &TableManifest| is_missing(manifest).then(|| SourceVersion::of_table(manifest));
    let versions = map_versions(table, &newest, limit, read).await?;
    versions.into_iter().rev().flatten().collect()
}

/// Parses a time of a manifest of a dataset; one without a zone is UTC.
fn parse_utc(text: &str) -> Result<UtcDateTime> {
    match text.parse::<NaiveDateTime>() {
        Ok(without_zone) => Ok(without_zone.and_utc()),
        Err(_) => time::from_text(text),
    }
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
    let recorded = state.schema_event.as_ref();
    let mut recorded = recorded.map(schema::arrow_from_event).transpose()?;
    for version in versions {
        let event = schema::event_from_arrow(&version.schema, true)?;
        // What a chain gives back is compared, for not everything of a schema may come back from it.
        let schema = Some(schema::arrow_from_event(&event)?);
        if schema == recorded {
            continue;
        }
        let tip = draft.state.tip.as_ref();
        let not_before = tip.map_or(version.time, |tip| tip.system_time);
        let time = version.time.max(not_before) + delay;
        if tip.is_none() {
            let seed = Event::Seed {
                dataset_id: DatasetId::generate()?.id,
                dataset_kind: DatasetKind::Root,
            };
            draft.push(time, &seed.to_fields())?;
        }
        draft.push(time, &event)?;
        if let Some(number) = version.number {
            draft.push(time, &version_event(&draft.state, number))?;
        }
        recorded = schema;
    }
    let newest = versions.last().and_then(|newest| newest.number);
    let was_set_back = matches!((position, newest), (Position::Version(v), Some(n)) if *v > n);
    if let (Some(number), Some(tip)) = (newest, draft.state.tip.as_ref())
        && was_set_back
        && draft.blocks.is_empty()
    {
        let time = tip.system_time + delay;
        draft.push(time, &version_event(&draft.state, number))?;
    }
    Ok(draft.blocks)
}

/// Makes the event that records the number of a version, and changes nothing else.
fn version_event(state: &ChainState, number: u64) -> Value {
    let source_state = SourceState {
        source_name: SOURCE_NAME.to_owned(),
        kind: SOURCE_STATE_KIND.to_owned(),
        value: number.to_string(),
    };
    let data = DataEvent {
        new_source_state: Some(source_state),
        ..state.next_data_event()
    };
    Event::AddData(data).to_fields()
}
