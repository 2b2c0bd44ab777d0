//! Lookups of the next stages that an update sends while a stage waits for its own.
//!
//! A stage looks up the target keys of its rows in its content, which tells it what they change. Then the stages behind it
//! look up the changed ones in their tables. Few keys are looked up there at the same time, so that the update waits for
//! both together: the rows are dropped, and the next stages find the pages among those that are kept.

use super::diff::{distinct, keys_only};
use super::graph::{Node, StageNode};
use super::key_rows::SplitKeys;
use super::layers::to_error;
use super::operators::StageFunction;
use super::plan::Plan;
use super::stage::StageRows;
use super::tables::TableShape;
use crate::error::Result;
use crate::files::{Merge, SortedBatches, Spill};
use crate::run::concerns_file;

/// The target keys of more rows are not looked up ahead: lookups of those that do not change read pages in vain, which
/// then costs more than a wait, and of many keys fewer pages are kept.
const MAX_ROWS: u64 = 16;

/// Lookups that were sent.
pub(super) struct LookAhead(Vec<SortedBatches>);

impl LookAhead {
    /// Waits until they are read.
    pub(super) fn finish(self) -> Result<()> {
        for mut batches in self.0 {
            let failed = batches.find_map(|batch| batch.map_err(to_error).err());
            left_to_others(failed.map_or(Ok(()), Err))?;
        }
        Ok(())
    }
}

impl Plan {
    /// Looks up the target keys of a stage's rows in the tables of the stages behind it. `content` is its content.
    pub(super) fn look_ahead(
        &self,
        stage: &StageNode,
        content: &TableShape,
        rows: &StageRows,
    ) -> Result<LookAhead> {
        let mut lookups = LookAhead(Vec::new());
        let is_local = self.pipeline.store().local().is_some();
        if is_local || rows.upserts.rows() + rows.deletes.rows() > MAX_ROWS {
            return Ok(lookups);
        }
        let memory_bytes = self.memory_bytes / 64;
        let keys = target_keys(content, rows, memory_bytes)?;
        for node in self.graph.nodes() {
            let Node::Stage(next) = node else { continue };
            let is_fed = next.feeders.len() == 1 && next.feeders.contains(&stage.name);
            if !is_fed || next.source_key.is_some() || self.is_whole(next) {
                continue;
            }
            let sources = self.sources_of(node);
            let table = match next.function {
                StageFunction::Produce(_) => self.mappings(node, sources.as_ref()),
                StageFunction::Fold(_) => self.content(node, sources.as_ref()),
                StageFunction::Join(_) => continue,
            };
            let split = table.split_by_runs(&keys, memory_bytes);
            if let Some(SplitKeys { few, .. }) = left_to_others(split)? {
                lookups.0.extend(table.look_up_runs(&few)?);
            }
        }
        Ok(lookups)
    }
}

/// What was read. A file that cannot be read is left to the lookup that needs it, if there is one.
fn left_to_others<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(e) if concerns_file(&e) => Ok(None),
        read => read.map(Some),
    }
}

/// The target keys of rows, each once.
fn target_keys(content: &TableShape, rows: &StageRows, memory_bytes: usize) -> Result<Spill> {
    let first = |batches: SortedBatches| -> SortedBatches {
        Box::new(batches.map(|batch| batch?.project(&[0])))
    };
    let streams = [
        first(rows.upserts.read().map_err(to_error)?),
        first(keys_only(&rows.deletes)?),
    ];
    let batch_rows = usize::try_from(MAX_ROWS).unwrap_or(usize::MAX);
    let merge = Merge::new(streams, &content.keys(1)?, batch_rows).map_err(to_error)?;
    distinct(Box::new(merge), content, 1, 0, memory_bytes)
}
