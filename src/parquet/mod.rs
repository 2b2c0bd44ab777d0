//! Conversion between Arrow and Parquet, over sinks and sources of bytes. Nothing here depends on a store.
//!
//! [`writer`] encodes a stream of record batches as files of row groups, its columns in parallel and within a
//! memory limit. [`seal`] is the block of checksums that it adds to each file. [`mod@file`] opens a file and checks
//! it. [`decode`] decodes column chunks to Arrow arrays. [`types`] defines which Arrow types Parquet supports.

pub(crate) mod arrays;
mod checked_pages;
mod chunks;
pub mod decode;
mod deltas;
mod dictionary;
mod distinct;
mod encode;
mod expansion;
pub mod file;
mod flat;
pub(crate) mod footer;
mod int96;
pub(crate) mod narrow;
pub(crate) mod nested;
pub mod options;
mod output;
mod pack;
mod page_checksums;
pub(crate) mod page_index;
pub(crate) mod page_selection;
pub(crate) mod pages;
mod pending;
pub(crate) mod plain_values;
pub(crate) mod projection;
mod readable;
pub(crate) mod required;
pub(crate) mod row_ranges;
pub mod seal;
pub(crate) mod size;
mod text;
mod thrift;
pub mod types;
mod unknown_formats;
pub mod writer;
pub(crate) mod written_schema;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, ErrorKind, Result};

/// A flag that tells the threads of an operation to stop, because its caller was dropped.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Sets the flag; the threads stop at their next [`Self::check`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns an error of the kind [`ErrorKind::Cancelled`] once the flag is set.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "operation cancelled"));
        }
        Ok(())
    }

    /// Returns a guard that cancels the operation when it is dropped.
    pub fn guard(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }
}

/// Cancels an operation when it is dropped.
#[derive(Debug)]
pub struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The number of processors that this process may use, read once; 1 if it is not known.
pub fn default_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// The message of a caught panic; `panic` if its payload is not a string.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic")
}

#[cfg(test)]
mod hand_made;
