//! One stage of an update: from the changed keys of its feeders to the runs that its tables get.
//!
//! 1. The changed source keys are those of the feeders' updates; all keys, for a stage that is new.
//! 2. The function gets the rows of these keys, as the feeders have them in the next version.
//! 3. What it gives, sorted by source key, are the new key mappings. Each old mapping is an instruction to delete a pair.
//! 4. Sorted by target key, with these instructions, it is applied to the content ([`super::apply`]).
//!
//! [`compute_rows`] does the first three for source keys, [`apply_rows`] the last one for target keys. Each may be done for
//! ranges of keys apart.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator};
use arrow_schema::{ArrowError, Field, SchemaRef};
use serde_json::Value;

use super::apply::{Applied, ApplyOptions, Instructions, apply};
use super::diff::{Delta, delta, diff, distinct, keys_only};
use super::emitted::check_emitted;
use super::feeders::FeederTable;
use super::fold::StageFold;
use super::functions::{Produce, Rows};
use super::graph::StageNode;
use super::key_ends::KeyEnds;
use super::layers::{to_arrow, to_error};
use super::lookup::{Keys, StoredTable};
use super::old_rows::{OldRows, OldRowsUse};
use super::operators::{Aggregation, JoinPlan, StageFunction};
use super::pairs::{Pairs, join_rows};
use super::preserve::preserve;
use super::source_keys::{join_source_keys, split_source_keys};
use super::tables::TableShape;
use crate::error::Result;
use crate::files::{BATCH_ROWS, Merge, SortedBatches, Spill, sort_batches};

/// The stored tables of a stage.
#[derive(Debug, Clone)]
pub(super) struct StageTables {
    pub(super) content: StoredTable,
    pub(super) mappings: StoredTable,
    pub(super) update: TableShape,
    /// The rows of the tables in the place of which these are, where its hook is to see them.
    pub(super) replaced: Option<Spill>,
    /// The state of its hook.
    pub(super) state: Option<Value>,
}

/// What a stage makes of changed source keys: instructions for its content, and its key mappings.
#[derive(Debug, Clone)]
pub(super) struct StageRows {
    /// The rows that its function gave, in the order of the content.
    pub(super) upserts: Spill,
    /// The pairs that may have rows now, in the order of the content.
    pub(super) deletes: Spill,
    pub(super) mappings: Delta,
}

/// What instructions change in the content of a stage.
#[derive(Debug, Clone)]
pub(super) struct ContentUpdate {
    pub(super) content: Delta,
    /// The changed target keys and how they changed.
    pub(super) update: Spill,
    /// Rows that the next stages take.
    pub(super) old: Option<OldRows>,
    /// The state of its hook, if it has one.
    pub(super) state: Option<Value>,
}

/// The keys that the updates of the feeders change, each once.
pub(super) fn changed_keys(
    feeders: &[FeederTable<'_>],
    memory_bytes: usize,
) -> Result<Option<Spill>> {
    let Some(first) = feeders.first() else {
        return Ok(None);
    };
    let shape = first.columns.update();
    let streams = feeders
        .iter()
        .filter_map(|feeder| feeder.changed)
        .map(|changed| {
            let batches = changed.read().map_err(to_error)?;
            Ok(Box::new(batches.map(|batch| batch?.project(&[0]))) as SortedBatches)
        });
    let streams = streams.collect::<Result<Vec<_>>>()?;
    let merge = Merge::new(streams, &shape.keys(1)?, BATCH_ROWS).map_err(to_error)?;
    distinct(Box::new(merge), &shape, 1, 0, memory_bytes).map(Some)
}

/// Computes the rows of some source keys.
pub(super) fn compute_rows(
    stage: &StageNode,
    tables: &StageTables,
    feeders: &[FeederTable<'_>],
    keys: Keys<'_>,
    memory_bytes: usize,
) -> Result<StageRows> {
    let spill_bytes = memory_bytes / 64;
    let content = &tables.content.shape;
    let Produced {
        rows: produced,
        deletes,
        mappings,
    } = match &stage.function {
        StageFunction::Produce(function) => by_source_key(tables, keys, memory_bytes, || {
            produce(stage, &**function, tables, feeders, keys, memory_bytes)
        })?,
        StageFunction::Fold(aggregation) => by_source_key(tables, keys, memory_bytes, || {
            fold(stage, aggregation, tables, feeders, keys, spill_bytes)
        })?,
        StageFunction::Join(join) => {
            join_by_pairs(stage, join, tables, feeders, keys, memory_bytes)?
        }
    };
    let as_they_are = |batch: &RecordBatch| Ok(batch.columns().to_vec());
    let upserts = sorted(
        &produced,
        &content.schema,
        as_they_are,
        content,
        memory_bytes,
    )?;
    Ok(StageRows {
        upserts: Spill::collect(&content.schema, upserts, spill_bytes).map_err(to_error)?,
        deletes,
        mappings,
    })
}

/// Applies instructions to the content of a stage, both in its order. `old` is what is set aside of the rows that it reads.
pub(super) fn apply_rows(
    stage: &StageNode,
    tables: &StageTables,
    upserts: Spill,
    deletes: &Spill,
    old: OldRowsUse,
    memory_bytes: usize,
) -> Result<ContentUpdate> {
    let spill_bytes = memory_bytes / 64;
    let (upserts, new_state) = match &stage.preserve {
        None => (upserts, None),
        Some(hook) => {
            let (upserts, new_state) = preserve(
                stage,
                &**hook,
                &tables.content,
                &upserts,
                tables.replaced.as_ref(),
                tables.state.as_ref(),
                spill_bytes,
            )?;
            (upserts, Some(new_state))
        }
    };
    let instructions = Instructions {
        deletes,
        upserts: &upserts,
    };
    let options = ApplyOptions {
        skip_unchanged: stage.skip_unchanged,
        old,
    };
    let Applied {
        content,
        update,
        old,
    } = apply(
        &tables.content,
        &tables.update,
        &instructions,
        options,
        spill_bytes,
    )?;
    Ok(ContentUpdate {
        content,
        update,
        old,
        state: new_state,
    })
}

/// What a stage makes of changed keys.
struct Produced {
    /// The rows, with the columns of the content, in no order.
    rows: Spill,
    /// The pairs that may have rows now, in the order of the content.
    deletes: Spill,
    mappings: Delta,
}

/// Rows of which each source key is computed anew: its old rows are those of its old mappings.
fn by_source_key(
    tables: &StageTables,
    keys: Keys<'_>,
    memory_bytes: usize,
    compute: impl FnOnce() -> Result<Spill>,
) -> Result<Produced> {
    let spill_bytes = memory_bytes / 64;
    let shape = &tables.mappings.shape;
    // Asked for before the function runs, so that the answer is there when it has ended.
    let stored = if maps_groups(tables, keys) {
        None
    } else {
        Some(tables.mappings.read(keys, shape.schema.fields().len())?)
    };
    let rows = compute()?;
    let old_mappings = match stored {
        Some(mappings) => mappings,
        None => mappings_of_groups(tables, keys)?,
    };
    let old_mappings =
        Spill::collect(&shape.schema, old_mappings, spill_bytes).map_err(to_error)?;
    let mappings = update_mappings(tables, &old_mappings, &rows, memory_bytes)?;
    let content = &tables.content.shape;
    let pairs = Arc::new(content.schema.project(&[0, 1]).map_err(to_error)?);
    let source_key = pairs.field(1).clone();
    let to_pairs = move |mappings: &RecordBatch| pairs_of_mappings(mappings, &source_key);
    let deletes = sorted(&old_mappings, &pairs, to_pairs, content, memory_bytes)?;
    Ok(Produced {
        rows,
        deletes: distinct(deletes, content, 2, 0, spill_bytes)?,
        mappings,
    })
}

/// Whether the rows of some keys say what their mappings are: a group has one row, and its key is its source key. They are
/// read anyway.
fn maps_groups(tables: &StageTables, keys: Keys<'_>) -> bool {
    let content = &tables.content.shape;
    let has_state = content.visible < content.schema.fields().len();
    has_state && matches!(keys, Keys::Of(_))
}

/// The key mappings of stored groups.
fn mappings_of_groups(tables: &StageTables, keys: Keys<'_>) -> Result<SortedBatches> {
    let schema = Arc::clone(&tables.mappings.shape.schema);
    let groups = tables.content.read(keys, 2)?;
    Ok(Box::new(groups.map(move |batch| {
        let batch = batch?;
        let columns = [1, 0].map(|at| Arc::clone(batch.column(at)));
        RecordBatch::try_new(Arc::clone(&schema), columns.into())
    })))
}

/// Joins: there are no mappings, since the target key is that of the feeders.
fn join_by_pairs(
    stage: &StageNode,
    join: &JoinPlan,
    tables: &StageTables,
    feeders: &[FeederTable<'_>],
    keys: Keys<'_>,
    memory_bytes: usize,
) -> Result<Produced> {
    let spill_bytes = memory_bytes / 64;
    let content = &tables.content;
    let Pairs { upserts, deletes } = join_rows(stage, join, content, feeders, keys, spill_bytes)?;
    let deletes = match keys {
        Keys::All | Keys::In(_) => content.read(keys, 2)?,
        Keys::Of(_) => {
            let pairs = Arc::new(content.shape.schema.project(&[0, 1]).map_err(to_error)?);
            let first_two = |batch: &RecordBatch| Ok(batch.columns()[..2].to_vec());
            sorted(&deletes, &pairs, first_two, &content.shape, memory_bytes)?
        }
    };
    Ok(Produced {
        rows: upserts,
        deletes: distinct(deletes, &content.shape, 2, 0, spill_bytes)?,
        mappings: Delta {
            rows: Spill::collect(&tables.mappings.shape.schema, [], 0).map_err(to_error)?,
            has_deletes: false,
        },
    })
}

/// Columns made of rows, with this schema, in the order of a table that has them first.
fn sorted(
    rows: &Spill,
    schema: &SchemaRef,
    columns: impl Fn(&RecordBatch) -> Result<Vec<ArrayRef>, ArrowError> + Send + 'static,
    shape: &TableShape,
    memory_bytes: usize,
) -> Result<SortedBatches> {
    let target = Arc::clone(schema);
    let batches = rows.read().map_err(to_error)?.map(move |batch| {
        let columns = columns(&batch?)?;
        RecordBatch::try_new(Arc::clone(&target), columns)
    });
    let input: Rows = Box::new(RecordBatchIterator::new(batches, Arc::clone(schema)));
    Ok(Box::new(sort_batches(
        input,
        &shape.sort_columns(2),
        memory_bytes / 4,
    )?))
}

/// The key mappings of rows of the content: source key and target key, and the order of the values if they have one.
fn mappings_of_rows(rows: &RecordBatch, has_order: bool) -> Result<Vec<ArrayRef>, ArrowError> {
    let (target, source) = (Arc::clone(rows.column(0)), rows.column(1));
    if !has_order {
        return Ok(vec![Arc::clone(source), target]);
    }
    let (source, order) = split_source_keys(source)?;
    Ok(vec![source, target, order])
}

/// The pairs of the content that key mappings name.
fn pairs_of_mappings(
    mappings: &RecordBatch,
    source_key: &Field,
) -> Result<Vec<ArrayRef>, ArrowError> {
    let (source, target) = (mappings.column(0), Arc::clone(mappings.column(1)));
    let source = match mappings.columns().get(2) {
        Some(order) => join_source_keys(source, order, source_key)?,
        None => Arc::clone(source),
    };
    Ok(vec![target, source])
}

/// The run of the key mappings: all of each source key that has others than before.
fn update_mappings(
    tables: &StageTables,
    old: &Spill,
    produced: &Spill,
    memory_bytes: usize,
) -> Result<Delta> {
    let shape = &tables.mappings.shape;
    let spill_bytes = memory_bytes / 64;
    let has_order = shape.visible < shape.schema.fields().len();
    let to_mappings = move |rows: &RecordBatch| mappings_of_rows(rows, has_order);
    let new = sorted(produced, &shape.schema, to_mappings, shape, memory_bytes)?;
    let new = Spill::collect(&shape.schema, new, spill_bytes).map_err(to_error)?;
    if old.rows() == 0 {
        return Ok(Delta {
            rows: new,
            has_deletes: false,
        });
    }
    let rows = || new.read().map_err(to_error);
    let changes = diff(old.read().map_err(to_error)?, rows()?, shape, spill_bytes)?;
    delta(&changes, rows()?, shape, spill_bytes)
}

/// What the function gives for the rows of some keys, with the columns of the content.
fn produce(
    stage: &StageNode,
    function: &dyn Produce,
    tables: &StageTables,
    feeders: &[FeederTable<'_>],
    keys: Keys<'_>,
    memory_bytes: usize,
) -> Result<Spill> {
    let spill_bytes = memory_bytes / 64;
    let feeds = feeders.iter().map(|feeder| {
        let schema = feeder.columns.pairs();
        let rows = match (stage.first_rows, keys) {
            (Some(limit), Keys::Of(keys)) => feeder.feed_first(keys, limit, spill_bytes)?,
            _ => feeder.feed(keys)?,
        };
        Ok(Box::new(RecordBatchIterator::new(rows, schema)) as Rows)
    });
    let feeds = feeds.collect::<Result<Vec<Rows>>>()?;
    let order = feeders[0].columns.source();
    let feeds = match feeds.len() {
        _ if stage.join => feeds_of_join(feeds, &order, spill_bytes)?,
        1 => feeds,
        _ => vec![merge(feeds, &order)?],
    };
    let rows = function.produce(feeds, memory_bytes / 4)?;
    let schema = Arc::clone(&tables.content.shape.schema);
    let order = stage.order_by.as_deref();
    let emitted = order.map_or_else(|| Arc::clone(&schema), |order| order.emitted(&schema));
    let cancel = &tables.content.cancel;
    let batches = rows.map(|batch| {
        cancel.check()?;
        let rows = check_emitted(&batch?, stage, &emitted)?;
        let Some(order) = order else { return Ok(rows) };
        let ordered = order.with_order(&rows, &schema);
        ordered.map_err(|e| e.context(format!("stage {:?}", stage.name)))
    });
    let batches = batches.map(|batch| batch.map_err(to_arrow));
    let produced: Result<Spill, ArrowError> = Spill::collect(&schema, batches, spill_bytes);
    produced.map_err(to_error)
}

/// What the changes of some keys make of their stored groups, with the columns of the content.
fn fold(
    stage: &StageNode,
    aggregation: &Aggregation,
    tables: &StageTables,
    feeders: &[FeederTable<'_>],
    keys: Keys<'_>,
    spill_bytes: usize,
) -> Result<Spill> {
    let order = feeders[0].columns.source();
    let all_rows = |keys: Keys<'_>| -> Result<SortedBatches> {
        let feeds = feeders.iter().map(|feeder| feeder.feed(keys));
        merge_batches(feeds.collect::<Result<_>>()?, &order)
    };
    let content = &tables.content;
    let columns = content.shape.schema.fields().len();
    let mut fold = StageFold::new(stage, aggregation, content, &order, spill_bytes)?;
    let Keys::Of(changed) = keys else {
        fold.fold_rows(all_rows(keys)?)?;
        return fold.finish();
    };
    let fold_changes = |fold: &mut StageFold<'_>, keys: &Spill| {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        for feeder in feeders {
            let (before, after) = feeder.feed_changes(spill_bytes)?;
            removed.push(before);
            added.push(after);
        }
        let stored = content.read(Keys::Of(keys), columns)?;
        let (removed, added) = (
            merge_batches(removed, &order)?,
            merge_batches(added, &order)?,
        );
        fold.fold_changes(keys_only(keys)?, stored, removed, added)
    };
    let mut unresolved = fold_changes(&mut fold, changed)?;
    if let [feeder] = feeders
        && unresolved.rows() > 0
        && aggregation.has_order()
    {
        let split = feeder.table.split_keys(&unresolved, spill_bytes)?;
        unresolved = split.few;
        if split.many.rows() > 0 {
            fold.fold_rows(all_rows(Keys::Of(&unresolved))?)?;
            fold.set_ends(KeyEnds::new(feeder, spill_bytes)?);
            unresolved = fold_changes(&mut fold, &split.many)?;
        }
    }
    if unresolved.rows() > 0 {
        fold.fold_rows(all_rows(Keys::Of(&unresolved))?)?;
    }
    fold.finish()
}

/// The rows of several feeds by key, those of one key feed by feed.
fn merge(feeds: Vec<Rows>, order: &TableShape) -> Result<Rows> {
    let feeds = feeds.into_iter().map(|feed| feed as SortedBatches);
    let merged = merge_batches(feeds.collect(), order)?;
    Ok(Box::new(RecordBatchIterator::new(
        merged,
        Arc::clone(&order.schema),
    )))
}

fn merge_batches(mut feeds: Vec<SortedBatches>, order: &TableShape) -> Result<SortedBatches> {
    if feeds.len() == 1
        && let Some(feed) = feeds.pop()
    {
        return Ok(feed);
    }
    let merge = Merge::new(feeds, &order.keys(1)?, BATCH_ROWS).map_err(to_error)?;
    Ok(Box::new(merge))
}

/// The feeds of a join: the keys that any of them has, in their order, then the feeds, set aside so that they can be
/// read in any order.
fn feeds_of_join(feeds: Vec<Rows>, order: &TableShape, spill_bytes: usize) -> Result<Vec<Rows>> {
    let feeds = feeds.into_iter().map(|feed| {
        let schema = feed.schema();
        Spill::collect(&schema, feed, spill_bytes).map_err(to_error)
    });
    let feeds = feeds.collect::<Result<Vec<Spill>>>()?;
    let keys = feeds.iter().map(|feed| {
        let batches = feed.read().map_err(to_error)?;
        Ok(Box::new(batches.map(|batch| batch?.project(&[0]))) as SortedBatches)
    });
    let keys = keys.collect::<Result<Vec<SortedBatches>>>()?;
    let keys = Merge::new(keys, &order.keys(1)?, BATCH_ROWS).map_err(to_error)?;
    let keys = distinct(Box::new(keys), order, 1, 0, spill_bytes)?;
    let schema = Arc::new(order.schema.project(&[0]).map_err(to_error)?);
    let mut readers: Vec<Rows> = vec![Box::new(RecordBatchIterator::new(
        keys_only(&keys)?,
        schema,
    ))];
    for feed in &feeds {
        let batches = feed.read().map_err(to_error)?;
        readers.push(Box::new(RecordBatchIterator::new(
            batches,
            Arc::clone(feed.schema()),
        )));
    }
    Ok(readers)
}
