//! Producers: pipelines whose stages keep their results up to date, map and reduce by increments over
//! sorted Parquet.
//!
//! A pipeline is a folder with versions ([`Pipeline`]) of a graph of *sources*, which callers push, and *stages*. A stage
//! is a function ([`Produce`]) from the rows of a source key to rows with target keys. Its result is stored as sorted
//! runs of Parquet files ([`crate::run`]), the newest first; an update ([`update()`]) reads what its keys touch and adds
//! a run for each table. All stages reach the next version by one commit, or none.
//!
//! | table | columns | order | the newest run wins by |
//! | --- | --- | --- | --- |
//! | source | `key`, `value` | key | key |
//! | content | `target_key`, `source_key`, `value` | target key, source key | both |
//! | key mappings | `source_key`, `target_key` | source key, target key | source key |
//!
//! A run that deletes has the column `op` besides: 1 in a row that says that its key, or pair, has no row any more.
//! Rows that are equal in the order are in the order in which they were emitted; every sort and merge is stable.
//!
//! Where to look:
//!
//! | step of an update | modules |
//! | --- | --- |
//! | the declared graph is compared with the stored one | `graph`, `keys`, `function_digest`, `rebuild` |
//! | the changes of sources are checked and sorted | `input`, `staged_changes` |
//! | the stages are computed in the order of the graph | `update`, `plan`, `stage`, `feeders`, `replaced` |
//! | the same, by tasks of an engine | `engine`, `distribute`, `split`, `job` |
//! | stored rows of some keys are read | `lookup`, `layers`, `cursor`, `key_rows`, `key_ends`, `old_rows` |
//! | the same, before it is asked for | `open_runs`, `look_ahead` |
//! | functions compute rows | `functions`, `emitted`, `preserve` |
//! | operators compute rows | `operators`, `fold` (aggregates), `pairs` and `pair_writer` (joins) |
//! | old and new rows are compared, and the difference applied | `diff`, `apply`, `tables` |
//! | what each stage reads is counted | `node_reads` |
//! | what a preview changes is counted | `preview`, `change_counts` |
//! | what one version changed, and what several did together | `changes`, `net_changes` |
//! | the runs are written, merged with older ones and committed | `outputs`, `runs`, `levels`, `splice`, `format` |
//!
//! Errors: [`crate::ErrorKind::InvalidInput`] for graphs, keys and changes that cannot be; those of stages; those of
//! [`crate::versions::commit`]. After any of them, nothing has changed.

mod alter;
mod apply;
mod change_counts;
mod changes;
mod compact;
mod cursor;
mod diff;
mod distribute;
mod emitted;
mod engine;
mod feeders;
mod fold;
mod format;
mod function_digest;
mod functions;
mod graph;
mod input;
mod job;
mod key_ends;
mod key_rows;
mod keys;
mod layers;
mod levels;
mod look_ahead;
mod lookup;
mod names;
mod net_changes;
mod node_reads;
mod old_rows;
mod open_runs;
mod operators;
mod outputs;
mod pair_writer;
mod pairs;
mod plan;
mod preserve;
mod preview;
mod read;
mod rebuild;
mod references;
mod replaced;
mod row_list;
mod runs;
mod sample;
mod source_keys;
mod splice;
mod split;
mod stage;
mod staged_changes;
mod tables;
mod update;
mod update_lease;

pub use self::alter::{remove, rename};
pub use self::change_counts::{ChangeCounts, PreviewedVersions};
pub use self::changes::changes;
pub use self::compact::{CompactOptions, CompactReport, compact};
pub use self::engine::Engine;
pub use self::format::{ConsumedInput, NodeEntry, PipelineManifest, StoredRun, ValueOrder};
pub use self::functions::{
    ChangedFunctionHook, EmittedRows, FunctionDigest, Preserve, PreservePass, Produce, Rows,
};
pub use self::graph::{Graph, Node, SourceNode, StageNode};
pub use self::input::{ChangeScope, Changes, ConsumedStep, PushedRows};
pub use self::job::run_task;
pub use self::net_changes::net_changes;
pub use self::operators::{
    Aggregate, AggregateFunction, Aggregation, First, Flatten, Join, JoinKind, JoinPlan, Operator,
    OrderBy, PlannedOperator, PlannedOrder, Select, SelectedValue, StageFunction,
};
pub use self::preview::{Preview, preview};
pub use self::read::{TableName, open, read, schema};
pub use self::rebuild::{RebuildOptions, check_definitions};
pub use self::runs::RunSizes;
pub use self::splice::NodeReport;
pub use self::staged_changes::{StageOptions, discard_rows, stage_rows};
pub use self::update::{UpdateOptions, UpdateReport, update};

/// A pipeline: a folder of versions of a [`PipelineManifest`], or one in which a pipeline can be created.
pub type Pipeline = crate::versions::Folder<PipelineManifest>;
/// A snapshot of a pipeline and the pointer that named it.
pub type Snapshot = crate::versions::Snapshot<PipelineManifest>;
/// A commit to a pipeline.
pub type Committed = crate::versions::Committed<PipelineManifest>;
type Staged = crate::versions::Staged<PipelineManifest>;
