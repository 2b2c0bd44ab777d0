//! Arrow to Parquet and back: columns encoded and decoded in parallel within one memory limit,
//! over sinks and sources of bytes that know nothing of stores.
//!
//! [`writer`] turns a stream of record batches into files of row groups; [`seal`] is what it adds
//! for integrity; [`mod@file`] opens a file and checks it; [`decode`] turns column chunks into Arrow;
//! [`types`] says which Arrow types Parquet can hold.

mod chunks;
pub mod decode;
mod dictionary;
mod encode;
pub mod file;
mod flat;
pub(crate) mod footer;
mod narrow;
mod nested;
pub mod options;
mod output;
mod pack;
pub(crate) mod pages;
pub(crate) mod projection;
pub mod seal;
mod size;
mod thrift;
pub mod types;
pub mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// Says to the threads of an operation that its caller has gone.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the operation at the next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// An error once cancelled.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "cancelled"));
        }
        Ok(())
    }

    /// Cancels when dropped.
    pub fn guard(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }
}

/// Cancels its operation when it goes out of scope.
#[derive(Debug)]
pub struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The processors this process may use.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The text of a caught panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic")
}
