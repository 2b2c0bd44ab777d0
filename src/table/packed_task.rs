//! The bytes of a scan task: a manifest as JSON, compressed with zstd.
//!
//! A task that reads shares of files names these in a line before the manifest. A process that does not know this line,
//! such as one with an earlier version of pds, refuses the task: it would read rows that other tasks read, too.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read;

use serde::{Deserialize, Serialize};

use super::Versioned;
use super::format::{FileShare, TableManifest};
use crate::error::{Error, Result};

/// The most bytes of a task before it is compressed.
const MAX_TASK_BYTES: u64 = 256 << 20;
const ZSTD_LEVEL: i32 = 3;
/// How the line with the shares begins. A manifest begins otherwise, whatever its fields.
const SHARES_BEGIN: &[u8] = b"{\"shares\":{";

/// The line before the manifest of a task that reads shares of files.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SharesLine {
    /// The shares by the path of the file.
    shares: BTreeMap<String, FileShare>,
}

#[derive(Deserialize)]
struct TaskVersion {
    version: u64,
}

/// The bytes of a task.
pub(super) fn pack(task: &TableManifest) -> Result<Vec<u8>> {
    let unpackable = || Error::other("a task cannot be packed");
    let mut json = Vec::new();
    if !task.shares.is_empty() {
        let shares = task.shares.clone();
        let line = serde_json::to_vec(&SharesLine { shares });
        json = line.map_err(|e| unpackable().with_source(e))?;
        json.push(b'\n');
    }
    json.extend_from_slice(&task.to_bytes());
    if json.len() as u64 > MAX_TASK_BYTES {
        let message = format!(
            "a task lists {} files, more than a task can; split the scan into more",
            task.data_files.len()
        );
        return Err(Error::invalid(message));
    }
    let packed = zstd::bulk::compress(&json, ZSTD_LEVEL);
    let mut packed = packed.map_err(|e| unpackable().with_source(e))?;
    packed.shrink_to_fit();
    Ok(packed)
}

/// The manifest of a task, whose files are read as a whole. [`crate::ErrorKind::InvalidInput`] for bytes that are none,
/// and for a task that [`parse_scan_task`] alone may read.
pub fn parse_task(task: &[u8]) -> Result<TableManifest> {
    let manifest = parse_scan_task(task)?;
    check_whole_files(&manifest)?;
    Ok(manifest)
}

/// As [`parse_task`], also of a task that reads shares of files, for a scan, a count or a delete of its rows.
pub fn parse_scan_task(task: &[u8]) -> Result<TableManifest> {
    let mut json = Vec::new();
    let decoder = zstd::Decoder::new(task).map_err(|e| invalid(&e))?;
    let mut decoder = decoder.take(MAX_TASK_BYTES);
    decoder.read_to_end(&mut json).map_err(|e| invalid(&e))?;
    let (shares, json) = parse_shares(&json)?;
    let version: TaskVersion = serde_json::from_slice(json).map_err(|e| invalid(&e))?;
    let manifest = TableManifest::parse(json, version.version);
    let manifest = manifest.map_err(|e| invalid(&e.message()))?;
    Ok(TableManifest { shares, ..manifest })
}

/// The shares of a task, and the JSON of its manifest.
fn parse_shares(json: &[u8]) -> Result<(BTreeMap<String, FileShare>, &[u8])> {
    if !json.starts_with(SHARES_BEGIN) {
        return Ok((BTreeMap::new(), json));
    }
    let end = json.iter().position(|byte| *byte == b'\n');
    let (line, manifest) = json.split_at(end.unwrap_or(json.len()));
    let line: SharesLine = serde_json::from_slice(line).map_err(|e| {
        invalid(&format!(
            "{e}; install the same version of pds where tasks are made and where they run"
        ))
    })?;
    if !line.shares.values().all(|share| share.is_valid()) {
        return Err(invalid(&"a file has no share of this number"));
    }
    Ok((line.shares, manifest))
}

fn invalid(reason: &dyn Display) -> Error {
    Error::invalid(format!("these bytes are not a scan task: {reason}"))
}

/// Refuses a task that reads shares of files, for what is about whole files.
pub(super) fn check_whole_files(task: &TableManifest) -> Result<()> {
    let Some((path, share)) = task.shares.first_key_value() else {
        return Ok(());
    };
    let message = format!(
        "this task has one of {} shares of {path:?}, and can only be read, counted or searched by a filter; other \
         changes and verifications make tasks of whole files",
        share.count
    );
    Err(Error::invalid(message))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{DataType, Field, Schema};
    use chrono::DateTime;

    use super::*;
    use crate::table::actions::NewTable;

    fn task(shares: &[(u32, u32)]) -> TableManifest {
        let schema = Schema::new(vec![Field::new("a", DataType::Int64, true)]);
        let columns = NewTable::new(&Arc::new(schema), &[], &[]).unwrap();
        let mut task = columns.into_manifest(7, DateTime::UNIX_EPOCH);
        let shares = shares.iter().enumerate().map(|(file, (index, count))| {
            let share = FileShare {
                index: *index,
                count: *count,
            };
            (format!("data/{file}\n.parquet"), share)
        });
        task.shares = shares.collect();
        task
    }

    fn as_earlier_versions_parse(packed: &[u8]) -> serde_json::Result<u64> {
        let json = zstd::decode_all(packed).unwrap();
        serde_json::from_slice(&json).map(|task: TaskVersion| task.version)
    }

    #[test]
    fn shares_are_those_that_were_packed() {
        for shares in [&[][..], &[(0, 1)], &[(6, 7), (0, 2)]] {
            let task = task(shares);
            let packed = pack(&task).unwrap();
            assert_eq!(parse_scan_task(&packed).unwrap(), task);
            assert_eq!(parse_task(&packed).is_ok(), shares.is_empty());
        }
    }

    #[test]
    fn what_does_not_know_shares_refuses_them() {
        assert!(as_earlier_versions_parse(&pack(&task(&[])).unwrap()).is_ok());
        assert!(as_earlier_versions_parse(&pack(&task(&[(1, 3)])).unwrap()).is_err());
        let error = parse_task(&pack(&task(&[(1, 3)])).unwrap()).unwrap_err();
        assert!(error.message().contains("one of 3 shares"), "{error:?}");
    }

    #[test]
    fn shares_that_no_file_has_are_refused() {
        for share in [(0, 0), (3, 3), (9, 3)] {
            let error = parse_scan_task(&pack(&task(&[share])).unwrap()).unwrap_err();
            assert!(error.message().contains("no share"), "{error:?}");
        }
        let mut json = b"{\"shares\":{},\"more\":1}\n".to_vec();
        json.extend_from_slice(&task(&[]).to_bytes());
        let packed = zstd::bulk::compress(&json, ZSTD_LEVEL).unwrap();
        let error = parse_scan_task(&packed).unwrap_err();
        assert!(error.message().contains("same version of pds"), "{error:?}");
    }
}
