//! Results of operations on pipelines: dicts in Python, for the dataclasses of `pds.producers.results`.

use pds::producers::{ChangeCounts, NodeReport, UpdateReport};
use pyo3::prelude::*;

/// What an update did to a source or stage; a dict in Python.
#[derive(Debug, IntoPyObject)]
struct NodeFields {
    name: String,
    keys_in: u64,
    rows_out: u64,
    keys_out: u64,
    read_requests: u64,
    bytes_read: u64,
    files_written: u64,
    bytes_written: u64,
    tasks: u64,
}

/// The outcome of an update; a dict in Python.
#[derive(Debug, IntoPyObject)]
pub(crate) struct UpdateFields {
    version: u64,
    commit_id: String,
    replayed: bool,
    nodes: Vec<NodeFields>,
}

impl From<NodeReport> for NodeFields {
    fn from(report: NodeReport) -> Self {
        Self {
            name: report.name,
            keys_in: report.keys_in,
            rows_out: report.rows_out,
            keys_out: report.keys_out,
            read_requests: report.reads.requests,
            bytes_read: report.reads.bytes,
            files_written: report.files_written,
            bytes_written: report.bytes_written,
            tasks: report.tasks,
        }
    }
}

impl From<UpdateReport> for UpdateFields {
    fn from(report: UpdateReport) -> Self {
        Self {
            version: report.version,
            commit_id: report.commit_id.as_str().to_owned(),
            replayed: report.is_replayed,
            nodes: report.nodes.into_iter().map(NodeFields::from).collect(),
        }
    }
}

/// How many rows and keys of a source or stage an update changes; a dict in Python.
#[derive(Debug, IntoPyObject)]
pub(crate) struct ChangeCountFields {
    name: String,
    keys_added: u64,
    keys_updated: u64,
    keys_deleted: u64,
    rows_added: u64,
    rows_updated: u64,
    rows_deleted: u64,
}

impl From<ChangeCounts> for ChangeCountFields {
    fn from(counts: ChangeCounts) -> Self {
        Self {
            name: counts.name,
            keys_added: counts.keys_added,
            keys_updated: counts.keys_updated,
            keys_deleted: counts.keys_deleted,
            rows_added: counts.rows_added,
            rows_updated: counts.rows_updated,
            rows_deleted: counts.rows_deleted,
        }
    }
}
