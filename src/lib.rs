//! The engine of `pds`: Parquet data on object stores, published all or nothing.
//!
//! The layers, each of which uses only those before it:
//! [`error`], [`clock`], [`sync`] (SHA3-256 of several streams, guards), then [`store`] (bytes and conditions),
//! [`parquet`] (Arrow to Parquet and back over sinks and sources of bytes), `files` (Parquet files in a store, their
//! columns, predicates over them, and sorted streams), [`versions`] (snapshots committed by compare-and-swap); beside one
//! another [`dataset`] (parts, manifest, marker), [`table`] (what a table's versions list), [`producers`] (stages that
//! are kept up to date) and [`odf`] (a chain of metadata blocks, each linked to the one before by hash); [`mod@attach`]
//! (chains that record the schemas of tables and datasets).

pub mod attach;
pub mod clock;
pub mod dataset;
pub mod error;
mod files;
pub mod odf;
pub mod parquet;
pub mod producers;
pub mod store;
pub mod sync;
pub mod table;
#[cfg(feature = "testing")]
pub mod testing;
pub mod versions;

pub use crate::error::{Error, ErrorKind, Result};
pub use crate::files::run;
