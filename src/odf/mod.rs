//! Open Data Fabric: a dataset's history as a chain of metadata blocks, each linked to the one before
//! by hash, with the schema of its data among them.
//!
//! [`block`] is one block, its bytes and its hash; [`rules`] says what may follow what; [`chain`] keeps
//! blocks in a store and moves the head by compare-and-swap; [`mod@ingest`] adds rows, [`view`] shows
//! what was there at a block, [`mod@verify`] checks all of it, [`mod@compact`] merges small slices and [`mod@vacuum`] removes
//! what no reference leads to.
//!
//! Source: the Open Data Fabric specification and its RFCs 001 to 017.
//!
//! Errors: [`crate::ErrorKind::BlockCorrupted`] (a block or the head is not what was written),
//! [`crate::ErrorKind::InvalidAppend`] (a rule of the chain, named in `detail`),
//! [`crate::ErrorKind::FormatNotSupported`] (an older or a later release wrote it),
//! [`crate::ErrorKind::CommitConflict`] (others came first).

pub mod block;
pub mod chain;
mod column_bytes;
pub mod compact;
mod decode;
mod digest;
mod encode;
mod evolution;
mod fields;
mod head;
pub mod ingest;
mod layout;
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

pub use self::block::Block;
pub use self::chain::{Appended, Chain, DatasetKind};
pub use self::compact::{Compacted, compact};
pub use self::ingest::{IngestOptions, Ingested, ingest};
pub use self::multihash::{DatasetId, Multihash};
pub use self::slice::Slice;
pub use self::time::{UtcDateTime, from_text as parse_time, to_text as format_time};
pub use self::vacuum::{RemovedFiles, vacuum};
pub use self::verify::{ChainVerification, Problem, verify};
pub use self::view::{BlockSelector, ChainView};
pub use self::vocabulary::Vocabulary;
