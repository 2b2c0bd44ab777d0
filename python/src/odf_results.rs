//! Results of operations on chains: dicts in Python, for the dataclasses of `pds.odf.results`.

use pds::odf::{Appended, format_time};
use pds::odf::{ChainVerification, ChainView, Compacted, Ingested, RemovedFiles, Slice};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::odf::BlockHandle;
use crate::table_results::Problems;

/// What a chain says of its dataset at a block.
#[derive(Debug, IntoPyObject)]
pub(crate) struct FactFields {
    /// The hash of the block; empty without blocks.
    block: String,
    /// The names of the columns of offset, operation, system time and event time.
    system_columns: [String; 4],
    last_offset: Option<u64>,
    /// RFC 3339.
    watermark: Option<String>,
}

impl From<&ChainView> for FactFields {
    fn from(view: &ChainView) -> Self {
        let state = &view.state;
        let tip = state.tip.as_ref();
        Self {
            block: tip.map_or_else(String::new, |tip| tip.hash.to_string()),
            system_columns: state.vocabulary.names().map(str::to_owned),
            last_offset: state.last_offset(),
            watermark: state.watermark().map(|w| format_time(&w)),
        }
    }
}

/// The blocks of an append, oldest first.
#[derive(Debug, IntoPyObject)]
pub(crate) struct AppendFields {
    blocks: Vec<BlockHandle>,
    attempts: u32,
}

impl From<Appended> for AppendFields {
    fn from(appended: Appended) -> Self {
        Self {
            blocks: BlockHandle::from_blocks(appended.blocks),
            attempts: appended.attempts,
        }
    }
}

/// A slice of an ingest.
#[derive(Debug, IntoPyObject)]
struct SliceFields {
    first_offset: u64,
    last_offset: u64,
    bytes: u64,
    logical_hash: String,
    physical_hash: String,
}

impl From<Slice> for SliceFields {
    fn from(slice: Slice) -> Self {
        Self {
            first_offset: slice.start,
            last_offset: slice.end,
            bytes: slice.size,
            logical_hash: slice.logical_hash.to_string(),
            physical_hash: slice.physical_hash.to_string(),
        }
    }
}

/// The blocks and the slice of an ingest.
#[derive(Debug, IntoPyObject)]
pub(crate) struct IngestFields {
    appended: AppendFields,
    slice: Option<SliceFields>,
}

impl From<Ingested> for IngestFields {
    fn from(ingested: Ingested) -> Self {
        Self {
            appended: ingested.appended.into(),
            slice: ingested.slice.map(SliceFields::from),
        }
    }
}

/// The fields of `pds.odf.results.VerifyResult`, and the problems.
#[derive(Debug, IntoPyObject)]
pub(crate) struct ChainVerifyFields {
    blocks: u64,
    slices: u64,
    rows: u64,
    problems: Problems,
}

impl From<ChainVerification> for ChainVerifyFields {
    fn from(report: ChainVerification) -> Self {
        let problems = report.problems.into_iter().map(|p| (p.path, p.message));
        Self {
            blocks: report.blocks,
            slices: report.slices,
            rows: report.rows,
            problems: problems.collect(),
        }
    }
}

/// The fields of `pds.odf.results.CompactResult`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct ChainCompactFields {
    before: String,
    after: String,
    slices_before: u64,
    slices_after: u64,
}

impl From<Compacted> for ChainCompactFields {
    fn from(compacted: Compacted) -> Self {
        Self {
            before: compacted.head_before.to_string(),
            after: compacted.head_after.to_string(),
            slices_before: compacted.slices_before,
            slices_after: compacted.slices_after,
        }
    }
}

/// The fields of `pds.odf.results.VacuumResult`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct ChainVacuumFields {
    files: Vec<String>,
    bytes: u64,
}

impl From<RemovedFiles> for ChainVacuumFields {
    fn from(removed: RemovedFiles) -> Self {
        Self {
            files: removed.files,
            bytes: removed.bytes,
        }
    }
}

/// The fields of `pds.odf.Identity`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct IdentityFields<'py> {
    pub(crate) id: String,
    pub(crate) private_key: Bound<'py, PyBytes>,
}

/// The spellings of an identity.
#[derive(Debug, IntoPyObject)]
pub(crate) struct DatasetIdFields {
    /// The canonical text, in base 16.
    pub(crate) id: String,
    pub(crate) did_key: String,
}

/// What a multihash says.
#[derive(Debug, IntoPyObject)]
pub(crate) struct MultihashFields<'py> {
    pub(crate) code: u64,
    pub(crate) digest: Bound<'py, PyBytes>,
    pub(crate) base16: String,
    pub(crate) base58: String,
}
