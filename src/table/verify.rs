//! Verifies every byte that a version of a table consists of.
//!
//! Lists come first, since they say which files there are: segments, transactions and tombstones are compared with
//! their entries in the manifest. Then each data file is read: its checksums are compared, its columns decoded, and its
//! statistics compared with those in the list, by which scans leave it out. Damage is reported
//! ([`VerifyReport::problems`]), and the rest is verified; any other error, such as one of the store, ends the
//! verification. [`split_verification`] verifies the lists and leaves the files to tasks.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_schema::DataType;
use arrow_select::concat::concat;
use futures::{StreamExt, stream};
use object_store::GetOptions;
use serde_json::Value;

use super::format::{DataFile, Segment, TableManifest, Tombstones, corrupted_error};
use super::listing::MAX_SEGMENT_BYTES;
use super::packed_task::check_whole_files;
use super::scan_tasks::{TaskSizes, split_files};
use super::snapshot_reader::SnapshotReader;
use super::tombstone::{Deletions, TombstoneScope};
use super::tombstone_reader::read_file;
use super::{Table, segment};
use crate::error::{Error, ErrorKind, Result};
use crate::files::expr::{Statistics, extreme_value, from_json};
use crate::files::{OpenPart, TableColumns, field_indices_by_id, field_indices_by_name};
use crate::parquet::panic_text;
use crate::sync::progress;
use crate::versions::verify_transactions;

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

/// Tasks of a verification for other processes, and what was found without them.
#[derive(Debug, Clone, Default)]
pub struct VerificationTasks {
    /// As of [`super::split_scan`], with the statistics of the files.
    pub tasks: Vec<Vec<u8>>,
    /// The problems of lists and tombstones.
    pub problems: Vec<(String, String)>,
}

/// Reads the lists of files and of transactions, the tombstones and all data files of a version. Lists are compared with
/// their entries, files with their checksums and entries, and all their columns are decoded.
pub async fn verify(table: &Table, manifest: Arc<TableManifest>) -> Result<VerifyReport> {
    check_whole_files(&manifest)?;
    progress::begin_phase("lists");
    let (sound, problems) = verify_lists(table, &manifest).await?;
    let reader = SnapshotReader::new(table, Arc::new(sound), None).await?;
    let progress = progress::current();
    if let Some(progress) = &progress {
        progress.begin_phase("files");
        progress.expect_files(reader.files.len() as u64);
        let rows = reader.files.iter().map(|f| f.file.total_rows);
        progress.expect_rows(rows.fold(0, u64::saturating_add));
    }
    let mut report = VerifyReport {
        files: reader.files.len() as u64,
        problems,
        ..VerifyReport::default()
    };
    let checks = (0..reader.files.len()).map(|file| {
        let reader = &reader;
        async move { (file, verify_file(table, reader, file).await) }
    });
    let mut checked = stream::iter(checks).buffer_unordered(CONCURRENT_FILES);
    while let Some((file, result)) = checked.next().await {
        let data_file = &reader.files[file].file;
        let is_sound = result.is_ok();
        match result {
            Ok(()) => {
                report.rows = report.rows.saturating_add(data_file.total_rows);
                report.bytes = report.bytes.saturating_add(data_file.size_bytes);
            }
            Err(e) => report.problems.push(to_problem(&data_file.path, e)?),
        }
        if let Some(progress) = &progress {
            if is_sound {
                progress.add_file(data_file.total_rows, data_file.size_bytes);
            } else {
                progress.add_files(1);
            }
        }
    }
    report.problems.sort();
    Ok(report)
}

/// Verifies the lists of a version, and splits its files into tasks that are verified each.
pub async fn split_verification(
    table: &Table,
    manifest: Arc<TableManifest>,
    sizes: TaskSizes,
) -> Result<VerificationTasks> {
    let (sound, problems) = verify_lists(table, &manifest).await?;
    let tasks = split_files(table, Arc::new(sound), sizes).await?;
    Ok(VerificationTasks { tasks, problems })
}

/// The version without its damaged lists and tombstones, and the problems of these.
async fn verify_lists(
    table: &Table,
    manifest: &TableManifest,
) -> Result<(TableManifest, Vec<(String, String)>)> {
    let columns = TableColumns::from_manifest(manifest)?;
    let (mut sound, mut problems) = (manifest.clone(), Vec::new());
    sound.segments.clear();
    sound.tombstones.clear();
    for segment in &manifest.segments {
        match verify_segment(table, &columns, segment).await {
            Ok(()) => sound.segments.push(segment.clone()),
            Err(e) => {
                let error = table.missing_reference_error(manifest, &segment.path, e);
                problems.push(to_problem(&segment.path, error.await)?);
            }
        }
    }
    for list in &manifest.older_transactions {
        if let Err(e) = verify_transactions(table, list).await {
            let error = table.missing_reference_error(manifest, &list.path, e);
            problems.push(to_problem(&list.path, error.await)?);
        }
    }
    for entry in &manifest.tombstones {
        match verify_tombstones(table, manifest, entry).await {
            Ok(()) => sound.tombstones.push(entry.clone()),
            Err(e) => problems.push(to_problem(&entry.path, e)?),
        }
    }
    Ok((sound, problems))
}

/// Compares a list of files with its entry in the manifest.
async fn verify_segment(table: &Table, columns: &TableColumns, segment: &Segment) -> Result<()> {
    let path = table.path(&segment.path);
    let options = GetOptions::default();
    let (bytes, _) = table
        .store()
        .get_at_most(&path, options, MAX_SEGMENT_BYTES)
        .await?;
    let differs = |what: &str| {
        corrupted_error(
            &segment.path,
            &format!("{what} differ from those in the manifest"),
        )
    };
    if bytes.len() as u64 != segment.size_bytes {
        return Err(differs("its bytes"));
    }
    let files = segment::decode(&bytes, segment)?;
    let rows = files.iter().map(|file| file.total_rows);
    if rows.fold(0, u64::saturating_add) != segment.total_rows {
        return Err(differs("its rows"));
    }
    for (field, id) in columns.schema.fields().iter().zip(columns.ids.iter()) {
        for (bounds, largest) in [(&segment.min, false), (&segment.max, true)] {
            let Some(bound) = bounds.get(id) else {
                continue;
            };
            let own = |file: &DataFile| {
                if largest {
                    file.max.get(id)
                } else {
                    file.min.get(id)
                }
                .cloned()
            };
            let is_within = |value| bounds_value(bound, &value, field.data_type(), largest);
            if !files.iter().filter_map(own).all(is_within) {
                return Err(differs("its bounds"));
            }
        }
    }
    Ok(())
}

/// Reads a tombstone file, and whether it deletes more rows than were counted.
async fn verify_tombstones(
    table: &Table,
    manifest: &TableManifest,
    entry: &Tombstones,
) -> Result<()> {
    let lines = read_file(table, manifest, entry, None).await?;
    let counts = lines.iter().map(|line| match &line.deleted {
        TombstoneScope::Rows(_, rows) => Some(rows.len()),
        TombstoneScope::RowGroup(_) | TombstoneScope::Keys(..) => None,
    });
    let rows: Option<u64> = counts.sum();
    match rows.zip(entry.deleted_rows) {
        // It counts rows of files, too, that have left with all of their rows.
        Some((rows, counted)) if rows > counted => {
            let reason = format!("it deletes {rows} rows, the manifest says {counted}");
            Err(corrupted_error(&entry.path, &reason))
        }
        _ => Ok(()),
    }
}

async fn verify_file(table: &Table, reader: &SnapshotReader, file: usize) -> Result<()> {
    let data_file = &reader.files[file].file;
    let mut rereads = 0;
    loop {
        let part = reader.open_file(file).await?;
        reader.all_row_groups(file, &part)?;
        check_deletions(&part, reader.deletions_of(file))?;
        // Bounds that are none of the type make arrow-rs panic.
        let check = AssertUnwindSafe(|| check_statistics(&part, data_file));
        std::panic::catch_unwind(check).unwrap_or_else(|panic| {
            let reason = panic_text(panic.as_ref());
            Err(Error::new(ErrorKind::PartCorrupted, reason))
        })?;
        match part.verify(table.store()).await {
            // A retried request wrote the file a second time, with the same content.
            Err(e) if e.kind() == ErrorKind::Conflict && rereads < MAX_REREADS => rereads += 1,
            Err(e) => return Err(reader.missing_object_error(&data_file.path, e).await),
            Ok(()) => return Ok(()),
        }
    }
}

/// Whether the file has the rows that tombstones delete.
fn check_deletions(part: &OpenPart, deletions: Option<&Deletions>) -> Result<()> {
    let groups = part.file.metadata().row_groups();
    let rows_of = |group: u32| {
        let group = groups.get(usize::try_from(group).ok()?)?;
        Some(group.num_rows().unsigned_abs())
    };
    let Some(deletions) = deletions else {
        return Ok(());
    };
    let mut of_rows = deletions.rows.iter();
    let mut of_groups = deletions.groups.iter();
    let fit = of_groups.all(|group| rows_of(*group).is_some())
        && of_rows.all(|(group, rows)| {
            let last = rows.max().map_or(0, u64::from);
            rows_of(*group).is_some_and(|count| rows.is_empty() || last < count)
        });
    if fit {
        return Ok(());
    }
    let message = "a tombstone deletes rows that the file does not have";
    Err(Error::new(ErrorKind::PartCorrupted, message))
}

/// Compares the statistics in the list of files, by which scans leave files out, with those in the footer. They may bound
/// more than the values.
fn check_statistics(part: &OpenPart, file: &DataFile) -> Result<()> {
    let schema = part.file.stored_schema();
    let fields = match &file.columns {
        Some(names) => {
            let fields = field_indices_by_name(&part.file.schema, names);
            if fields.len() < names.len() {
                let message = format!("{:?} lacks columns that the list of files names", file.path);
                return Err(Error::new(ErrorKind::PartCorrupted, message));
            }
            fields
        }
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
        let is_bounded = !file.knows_bounds(*id, field.data_type())
            || (is_within(&file.min, &stored.min, false)
                && is_within(&file.max, &stored.max, true));
        if !is_counted || !is_bounded {
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

/// The object and the reason, for an error that tells of damage. Other errors stay errors.
fn to_problem(path: &str, error: Error) -> Result<(String, String)> {
    let is_damage = matches!(
        error.kind(),
        ErrorKind::PartCorrupted | ErrorKind::ManifestCorrupted | ErrorKind::TooLarge
    );
    if is_damage {
        Ok((path.to_owned(), error.message().to_owned()))
    } else {
        Err(error)
    }
}
