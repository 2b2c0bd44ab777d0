//! Results of operations on tables: dicts in Python, for the dataclasses of `pds.table.results`.

use pds::versions::vacuum::VacuumReport;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The data files of a snapshot, a list for each property; a dict in Python.
#[derive(Debug, IntoPyObject)]
pub(crate) struct FileListFields {
    pub(crate) path: Vec<String>,
    pub(crate) size_bytes: Vec<u64>,
    pub(crate) row_group_count: Vec<u64>,
    pub(crate) total_rows: Vec<u64>,
}

/// The fields of `pds.table.results.ScanPlan`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct ScanPlanFields {
    pub(crate) files: u64,
    pub(crate) files_read: u64,
    pub(crate) row_groups: u64,
    pub(crate) row_groups_read: u64,
    pub(crate) rows_read: u64,
    pub(crate) tombstones_read: u64,
}

/// The fields of `pds.table.results.CheckResult`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct CheckFields {
    pub(crate) version: u64,
    pub(crate) missing: Vec<String>,
    pub(crate) mismatched: Vec<String>,
    pub(crate) orphans: Vec<String>,
}

/// Damaged objects by path, with the reason.
pub(crate) type Problems = Vec<(String, String)>;

/// The fields of `pds.table.results.VerifyResult`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct VerifyFields {
    pub(crate) version: u64,
    pub(crate) files: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) problems: Problems,
}

/// The tasks of a verification, and the damaged lists.
#[derive(Debug, IntoPyObject)]
pub(crate) struct SplitVerificationFields<'py> {
    pub(crate) tasks: Vec<Bound<'py, PyBytes>>,
    pub(crate) problems: Problems,
}

/// The first round of a sort by tasks: the ids of the columns, and a task for each group of files.
#[derive(Debug, IntoPyObject)]
pub(crate) struct SortPlanFields<'py> {
    pub(crate) by: Vec<u32>,
    pub(crate) tasks: Vec<Bound<'py, PyBytes>>,
}

/// The second round of a sort by tasks: all files of the first, and a range of keys for each task.
#[derive(Debug, IntoPyObject)]
pub(crate) struct RangePlanFields<'py> {
    pub(crate) runs: Bound<'py, PyBytes>,
    pub(crate) ranges: Vec<Bound<'py, PyBytes>>,
}

/// What a list of staged files holds.
#[derive(Debug, IntoPyObject)]
pub(crate) struct StagedSizeFields {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// The fields of `pds.table.results.ExportResult`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct DeltaExportFields {
    pub(crate) version: u64,
    pub(crate) versions: u64,
    pub(crate) bytes: u64,
}

/// The fields of `pds.table.results.IcebergExportResult`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct IcebergExportFields {
    pub(crate) version: u64,
    pub(crate) versions: u64,
    pub(crate) bytes: u64,
    pub(crate) metadata_location: String,
}

/// The fields of `pds.table.results.VacuumResult`.
#[derive(Debug, IntoPyObject)]
pub(crate) struct VacuumFields {
    oldest_version: u64,
    files: Vec<String>,
    manifests: Vec<String>,
    bytes: u64,
}

/// What a vacuum is to remove; each manifest with its ETag.
#[derive(Debug, IntoPyObject)]
pub(crate) struct ExpiredFields {
    pub(crate) oldest_version: u64,
    pub(crate) files: Vec<String>,
    pub(crate) manifests: Vec<String>,
    pub(crate) e_tags: Vec<Option<String>>,
    pub(crate) bytes: u64,
    /// Of the vacuum.
    pub(crate) version: u64,
    pub(crate) commit_id: String,
}

impl From<VacuumReport> for VacuumFields {
    fn from(report: VacuumReport) -> Self {
        Self {
            oldest_version: report.oldest_version,
            files: report.files,
            manifests: report.manifests,
            bytes: report.bytes,
        }
    }
}
