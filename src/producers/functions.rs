//! The functions of stages, as the engine calls them: from sorted streams to rows.

use std::fmt::Debug;

use arrow_array::{RecordBatch, RecordBatchReader};
use serde_json::Value;

use crate::error::Result;

/// Rows that a function reads.
pub type Rows = Box<dyn RecordBatchReader + Send>;
/// Rows that a function gives.
pub type EmittedRows = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// The function of a stage.
pub trait Produce: Debug + Send + Sync {
    /// Gives rows with the columns `source_key`, `target_key` and `value`, the rows of one source key in the order of
    /// emission. `feeds` have the columns `key` and `value` and are in the order of the key: one, in which the values of
    /// a key are feeder by feeder. For a join there is one of each feeder, and before them one with the column `key`
    /// alone: each key that one of the others has. It takes about `memory_bytes` bytes of memory at most.
    fn produce(&self, feeds: Vec<Rows>, memory_bytes: usize) -> Result<EmittedRows>;
}

/// A hook that preserves values.
pub trait Preserve: Debug + Send + Sync {
    /// Begins a pass over the rows that an update emits, in the order of the content, with the state that is stored; None
    /// for the first time. The rows have the columns `target_key`, `source_key`, `value`; `begins`, whether the row is
    /// the first one of its target key; `has_earlier` and `earlier`: the value of the first stored row of the same pair
    /// of target key and source key, else of the same target key.
    fn begin(&self, rows: Rows, state: Option<&Value>) -> Result<Box<dyn PreservePass>>;
}

/// A pass over rows: gives them, in their order, with the columns `target_key`, `source_key` and the new `value`.
pub trait PreservePass: Iterator<Item = Result<RecordBatch>> + Send {
    /// The state after the last row.
    fn state(&mut self) -> Result<Value>;
}

/// A digest of the code of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionDigest {
    /// What compiled the function, such as `python3.12`: only digests of the same are compared.
    pub runtime: String,
    /// The digest.
    pub digest: String,
}

/// Is called for the stages whose function is another than the one that their rows are of.
pub trait ChangedFunctionHook: Debug + Send + Sync {
    /// The function of a stage changed, and its version did not. An error ends the update.
    fn report(&self, stage: &str) -> Result<()>;
}
