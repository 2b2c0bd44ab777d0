//! Open Data Fabric (ODF): the history of a dataset as a chain of metadata blocks, each linked to the one before it
//! by hash. The schema of the data is recorded in the chain.
//!
//! [`block`] defines one block, its bytes and its hash, [`event`] what it says. [`rules`] checks which block may follow
//! in a chain. [`chain`] keeps blocks in a store, [`append`] moves the head by compare-and-swap. [`mod@ingest`] appends
//! rows, [`ingest_tasks`] those of many processes, [`view`] reads a chain as of one block, [`mod@verify`] checks blocks and files, [`mod@compact`] merges small
//! slices, [`mod@vacuum`] removes objects that no reference leads to, and [`attach`] records the schemas of something
//! else, such as those of tables and datasets ([`crate::attach`]).
//!
//! Source: the Open Data Fabric specification and its RFCs 001 to 017.
//!
//! Errors: [`crate::ErrorKind::BlockCorrupted`] (a block or the head is not what was written),
//! [`crate::ErrorKind::InvalidAppend`] (a rule of the chain is violated; `detail` names it),
//! [`crate::ErrorKind::FormatNotSupported`] (an older or a later release wrote the block),
//! [`crate::ErrorKind::CommitConflict`] (other writers appended first).

pub mod append;
pub mod attach;
pub mod block;
pub mod chain;
mod column_bytes;
mod column_times;
pub mod compact;
mod decode;
mod digest;
mod encode;
pub mod event;
mod event_kind;
mod evolution;
mod fields;
mod head;
pub mod ingest;
pub mod ingest_tasks;
mod layout;
mod lease;
pub mod multihash;
mod rows;
pub mod rules;
pub mod schema;
mod slice;
mod slice_columns;
mod time;
mod transforms;
pub mod vacuum;
pub mod verify;
pub mod view;
mod vocabulary;
mod yaml;

pub use self::append::Appended;
pub use self::attach::Attached;
pub use self::block::Block;
pub use self::chain::Chain;
pub use self::compact::{Compacted, compact};
pub use self::event::{DatasetKind, Event, Slice, SourceState};
pub use self::event_kind::EventKind;
pub use self::ingest::{IngestOptions, Ingested, ingest};
pub use self::ingest_tasks::{SharedIngest, SliceTask, TaskSlice, write_task_slice};
pub use self::multihash::{DatasetId, Multihash};
pub use self::time::{UtcDateTime, from_text as parse_time, to_text as format_time};
pub use self::vacuum::{RemovedFiles, vacuum};
pub use self::verify::{ChainVerification, Problem, verify};
pub use self::view::{BlockSelector, ChainView};
pub use self::vocabulary::{Vocabulary, system_fields};
