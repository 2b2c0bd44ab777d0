//! Verifies every byte that a version of a table consists of.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::DataType;
use arrow_select::concat::concat;
use futures::{StreamExt, stream};
use serde_json::Value;

use super::Table;
use super::format::{DataFile, TableManifest};
use super::snapshot_reader::SnapshotReader;
use crate::error::{Error, ErrorKind, Result};
use crate::files::expr::{Statistics, extreme_value, from_json};
use crate::files::{OpenPart, TableColumns, field_indices_by_id, field_indices_by_name};

/// Number of files that are read at once.
const CONCURRENT_FILES: usize = 4;
/// How often a file is read again that was overwritten while it was read.
const MAX_REREADS: u32 = 3;

/// The findings of a verification; paths are relative to the table, or to the store for a file outside of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of data files, damaged ones included.
    pub files: u64,
    /// Number of rows of the files without damage, deleted ones included.
    pub rows: u64,
    /// Bytes of the files without damage.
    pub bytes: u64,
    /// Objects that are missing or damaged, by path, with the reason.
    pub problems: Vec<(String, String)>,
}

/// Reads the lists of files, the tombstones and all data files of a version. Files are compared with their checksums
/// and their entries in the lists, and all their columns are decoded.
pub async fn verify(table: &Table, manifest: Arc<TableManifest>) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let files = match SnapshotReader::find_files(table, Arc::clone(&manifest), None).await {
        Ok(files) => files,
        Err(e) => {
            report.problems.push(to_problem(table, "", e)?);
            return Ok(report);
        }
    };
    let columns = TableColumns::from_manifest(&manifest)?;
    let open =
        |manifest| SnapshotReader::with_files(table, manifest, columns.clone(), files.clone());
    let reader = match open(Arc::clone(&manifest)).await {
        Ok(reader) => reader,
        Err(e) => {
            report.problems.push(to_problem(table, "", e)?);
            // The files can be read without the deletions.
            let undeleted = TableManifest {
                tombstones: Vec::new(),
                ..(*manifest).clone()
            };
            open(Arc::new(undeleted)).await?
        }
    };
    report.files = reader.files.len() as u64;
    let checks = (0..reader.files.len()).map(|file| {
        let reader = &reader;
        async move { (file, verify_file(table, reader, file).await) }
    });
    let mut checked = stream::iter(checks).buffer_unordered(CONCURRENT_FILES);
    while let Some((file, result)) = checked.next().await {
        let data_file = &reader.files[file].file;
        match result {
            Ok(()) => {
                report.rows += data_file.total_rows;
                report.bytes += data_file.size_bytes;
            }
            Err(e) => report.problems.push(to_problem(table, &data_file.path, e)?),
        }
    }
    report.problems.sort();
    Ok(report)
}

async fn verify_file(table: &Table, reader: &SnapshotReader, file: usize) -> Result<()> {
    let mut rereads = 0;
    loop {
        let part = reader.open_file(file).await?;
        reader.all_row_groups(file, &part)?;
        check_statistics(&part, &reader.files[file].file)?;
        match part.verify(table.store()).await {
            // A retried request wrote the file a second time, with the same content.
            Err(e) if e.kind() == ErrorKind::Conflict && rereads < MAX_REREADS => rereads += 1,
            result => return result,
        }
    }
}

/// Compares the statistics in the list of files, by which scans leave files out, with those in the footer. They may bound
/// more than the values.
fn check_statistics(part: &OpenPart, file: &DataFile) -> Result<()> {
    let schema = part.file.stored_schema();
    let fields = match &file.columns {
        Some(names) => field_indices_by_name(&part.file.schema, names),
        None => field_indices_by_id(&part.file.schema),
    };
    let mut ids = vec![u32::MAX; schema.fields().len()];
    for (id, field) in fields {
        ids[field] = id;
    }
    let stored = Statistics::from_footer(part.file.metadata(), schema, &ids);
    for (field, id) in schema.fields().iter().zip(&ids) {
        let is_within = |listed: &BTreeMap<u32, Value>, stored: &BTreeMap<u32, Value>, largest| {
            let bounds = listed.get(id).zip(stored.get(id));
            bounds.is_none_or(|(listed, stored)| {
                listed == stored || bounds_value(listed, stored, field.data_type(), largest)
            })
        };
        let counts = file.null_counts.get(id).zip(stored.null_counts.get(id));
        let is_counted = counts.is_none_or(|(listed, stored)| listed == stored);
        if !is_counted
            || !is_within(&file.min, &stored.min, false)
            || !is_within(&file.max, &stored.max, true)
        {
            let message = format!(
                "{:?} has other values in column {:?} than the list of files says",
                file.path,
                field.name()
            );
            return Err(Error::new(ErrorKind::PartCorrupted, message));
        }
    }
    Ok(())
}

/// Whether no value is beyond `bound`; true if they cannot be compared.
fn bounds_value(bound: &Value, value: &Value, data_type: &DataType, largest: bool) -> bool {
    let read = |json| from_json(json, data_type).ok();
    let Some((bound, value)) = read(bound).zip(read(value)) else {
        return true;
    };
    let both = concat(&[bound.as_ref(), value.as_ref()]).ok();
    both.and_then(|both| extreme_value(&both, largest))
        .is_none_or(|extreme| extreme.as_ref() == bound.as_ref())
}

/// The object and the reason, for an error that tells of damage; `path` is the object's where the error names none. Other
/// errors stay errors.
fn to_problem(table: &Table, path: &str, error: Error) -> Result<(String, String)> {
    let is_damage = matches!(
        error.kind(),
        ErrorKind::PartCorrupted | ErrorKind::ManifestCorrupted
    );
    if !is_damage {
        return Err(error);
    }
    let named = error.path().filter(|_| path.is_empty()).unwrap_or(path);
    let relative = named.strip_prefix(&format!("{}/", table.root()));
    Ok((
        relative.unwrap_or(named).to_owned(),
        error.message().to_owned(),
    ))
}
