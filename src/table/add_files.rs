//! Adds existing Parquet files to a table without rewriting their rows.
//!
//! A file within the table's folder stays where it is, and a vacuum never removes it. Any other file is
//! copied within the store. The columns of such files are found by the names that they have when they are
//! added, because the files hold no column ids. Columns that they do not hold may have values in their paths
//! ([`super::partitions`]).
//!
//! Refused with [`ErrorKind::InvalidInput`]: columns that the table does not have, types that cannot
//! be widened to the table's, nulls in a non-nullable column, the table's own objects, and a file that is
//! overwritten while it is copied. A file that the table lists already is
//! [`ErrorKind::AlreadyExists`]. All files are checked before the first is copied.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use arrow_schema::Schema;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::CopyMode;

use super::actions::{AddFiles, Append};
use super::foreign_files::{check_types, file_entry, refuse_encrypted};
use super::format::{DataFile, TableManifest};
use super::listing::all_files;
use super::partitions::{self, PartitionValues};
use super::{Committed, Snapshot, Staged, Table, names};
use crate::error::{Error, ErrorKind, Result};
use crate::files::{TableColumns, open, with_types_of};
use crate::parquet::file::TAIL_BYTES;
use crate::sync::begun::run_to_end;
use crate::sync::progress::{self, Progress};
use crate::versions::commit::{RunResult, run};
use crate::versions::{Ancestor, Operation, check_idempotency_key, find_replay, remove};

/// The maximum number of files that are opened or copied concurrently.
pub(super) const CONCURRENT_FILES: usize = 16;

/// Adds Parquet files; `paths` are in the table's store. Returns the commit and the files that it added.
pub async fn add_files(
    table: &Table,
    paths: &[String],
    hive_partitioning: bool,
    idempotency_key: Option<&str>,
    timeout: Duration,
) -> Result<(Committed, Vec<DataFile>)> {
    check_idempotency_key(idempotency_key)?;
    let unique_paths: HashSet<&String> = paths.iter().collect();
    if unique_paths.is_empty() || unique_paths.len() < paths.len() {
        return Err(Error::invalid(
            "paths must name at least one file, and no file twice",
        ));
    }
    let (snapshot, replay) = find_replay(table, idempotency_key).await?;
    if let Some(committed) = replay {
        return Ok((committed, Vec::new()));
    }
    let base = snapshot.manifest;
    check_new(table, &base, paths).await?;
    let (files, copied) = import_files(table, &base, paths, hive_partitioning).await?;
    let mut staged = Staged::new(table);
    staged.add(copied);
    let mut operation = AddExisting {
        table,
        paths,
        idempotency_key,
        is_in_place: files
            .iter()
            .any(|file| names::base_version(&file.path).is_none()),
        files,
        ancestor: Ancestor::of(&*base),
        checked_version: base.version,
    };
    match run(table, &mut operation, staged, timeout).await? {
        RunResult::Committed(committed, change) => Ok((committed, change.append.files)),
        RunResult::Replayed(committed) => Ok((committed, Vec::new())),
        RunResult::Unchanged(_) => Err(Error::other("internal error: no files were added")),
    }
}

/// Adds files that were read, and copied where they were not in the table's folder.
struct AddExisting<'a> {
    table: &'a Table,
    paths: &'a [String],
    idempotency_key: Option<&'a str>,
    files: Vec<DataFile>,
    /// Some files stay where they are.
    is_in_place: bool,
    /// The version that the files were read and copied for.
    ancestor: Ancestor,
    /// The version that was last checked not to list the files.
    checked_version: u64,
}

impl Operation<TableManifest> for AddExisting<'_> {
    type Change = AddFiles;

    async fn plan(&mut self, base: &Snapshot, _: &mut Staged) -> Result<Option<AddFiles>> {
        let manifest = &base.manifest;
        // A concurrent commit may have added the same files.
        if self.is_in_place && self.checked_version != manifest.version {
            check_new(self.table, manifest, self.paths).await?;
            self.checked_version = manifest.version;
        }
        Ok(Some(AddFiles {
            append: Append {
                files: self.files.clone(),
                base_version: self.ancestor.version(),
                idempotency_key: self.idempotency_key.map(str::to_owned),
            },
            absent_at_version: self.is_in_place.then_some(manifest.version),
        }))
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key
    }

    fn ancestor(&self) -> Option<&Ancestor> {
        Some(&self.ancestor)
    }
}

/// Checks all files, then copies those outside the table's folder. Returns the table's entries for them,
/// and the paths of the copies relative to the table. Files without rows are left out.
async fn import_files(
    table: &Table,
    base: &TableManifest,
    paths: &[String],
    hive_partitioning: bool,
) -> Result<(Vec<DataFile>, Vec<String>)> {
    let columns = &TableColumns::from_manifest(base)?;
    let progress = progress::current();
    let entries = read_entries(
        table,
        columns,
        paths,
        hive_partitioning,
        progress.as_deref(),
    )
    .await?;
    let clock = table.store().clock();
    let mut files = Vec::new();
    let mut copies: Vec<(&String, DataFile, PartitionValues)> = Vec::new();
    let with_rows = entries
        .into_iter()
        .filter(|(_, file, _)| file.total_rows > 0);
    for (path, mut file, values) in with_rows {
        if let Some(name) = relative_path(table, path) {
            name.clone_into(&mut file.path);
        } else {
            file.path = names::data_file(clock.now(), base.version, clock.new_id());
            copies.push((path, file.clone(), values));
        }
        files.push(file);
    }
    let targets: Vec<String> = copies
        .iter()
        .map(|(_, file, _)| file.path.clone())
        .collect();
    progress::begin_phase("copy");
    let copy_tasks: Vec<_> = copies
        .iter()
        .map(async |(from, file, values)| {
            copy_file(table, from, file, columns, values).await?;
            if let Some(progress) = &progress {
                progress.add_file(file.total_rows, file.size_bytes);
            }
            Ok(())
        })
        .collect();
    if let Err(e) = run_to_end(copy_tasks, CONCURRENT_FILES).await {
        remove(table, &targets).await;
        return Err(e);
    }
    Ok((files, targets))
}

/// Reads the footers of all files. Those in the table's folder are done then.
async fn read_entries<'a>(
    table: &Table,
    columns: &TableColumns,
    paths: &'a [String],
    hive_partitioning: bool,
    progress: Option<&Progress>,
) -> Result<Vec<(&'a String, DataFile, PartitionValues)>> {
    if let Some(progress) = progress {
        progress.begin_phase("read footers");
        progress.expect_files(paths.len() as u64);
    }
    let reads = paths.iter().map(|path| async move {
        let values = if hive_partitioning {
            partitions::parse(relative_path(table, path).unwrap_or(path))?
        } else {
            BTreeMap::new()
        };
        let file = Box::pin(read_file_entry(table, path, columns, &values)).await?;
        let is_in_place = relative_path(table, path).is_some() && file.total_rows > 0;
        if let Some(progress) = progress.filter(|_| is_in_place) {
            progress.add_file(file.total_rows, file.size_bytes);
        }
        Ok::<_, Error>((path, file, values))
    });
    // A Vec, because the future of the iterator itself would not be Send.
    let read_tasks: Vec<_> = reads.collect();
    stream::iter(read_tasks)
        .buffered(CONCURRENT_FILES)
        .try_collect()
        .await
}

/// Copies a file to its path in the table, and checks that the copy is what was read before.
async fn copy_file(
    table: &Table,
    from: &str,
    file: &DataFile,
    columns: &TableColumns,
    values: &PartitionValues,
) -> Result<()> {
    let to = table.path(&file.path);
    table.store().copy(from, &to, CopyMode::Overwrite).await?;
    // The source may have been overwritten since it was read.
    let mut entry = Box::pin(read_file_entry(table, &to, columns, values)).await?;
    entry.path.clone_from(&file.path);
    if entry == *file {
        return Ok(());
    }
    let message = format!("file {from:?} was overwritten while it was copied; add it again");
    Err(Error::invalid(message).with_path(from))
}

/// The path relative to the table; None for a file outside its folder.
fn relative_path<'a>(table: &Table, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(table.root())?.strip_prefix('/')
}

/// Refuses the table's own objects, and files that the table lists already.
async fn check_new(table: &Table, base: &TableManifest, paths: &[String]) -> Result<()> {
    let relative_paths: HashSet<&str> = paths
        .iter()
        .filter_map(|path| relative_path(table, path))
        .collect();
    if relative_paths.is_empty() {
        return Ok(());
    }
    let files = all_files(table, base).await?;
    let mut listed_paths = files.iter().map(|file| file.file.path.as_str());
    let is_own = |path: &&str| {
        let folder = path.split('/').next();
        folder == Some(names::POINTER)
            || folder == Some(names::MANIFESTS)
            || names::base_version(path).is_some()
    };
    if let Some(path) = relative_paths.iter().copied().find(is_own) {
        let message = format!("{path:?} is an object of the table itself and cannot be added");
        return Err(Error::invalid(message).with_path(table.path(path)));
    }
    if let Some(path) = listed_paths.find(|path| relative_paths.contains(path)) {
        let message = format!("file {path:?} is already in the table");
        return Err(Error::new(ErrorKind::AlreadyExists, message).with_path(table.path(path)));
    }
    Ok(())
}

/// Reads a file's footer and returns its entry for the table, with an empty path.
async fn read_file_entry(
    table: &Table,
    path: &str,
    columns: &TableColumns,
    values: &PartitionValues,
) -> Result<DataFile> {
    let with_path = |e: Error| e.with_path(path);
    let part = open(table.store(), path, TAIL_BYTES)
        .await
        .map_err(|e| with_path(refuse_encrypted(e)))?;
    let fields = match_columns(&part.file.schema, columns).map_err(with_path)?;
    let part = with_types_of(part, &fields, columns);
    check_types(&part, columns, &fields).map_err(with_path)?;
    file_entry(&part, columns, &fields, values).map_err(with_path)
}

/// Matches a file's columns to the table's by name: the index of the field by the id of the column.
fn match_columns(file: &Schema, columns: &TableColumns) -> Result<HashMap<u32, usize>> {
    let mut fields = HashMap::new();
    for (field_index, field) in file.fields().iter().enumerate() {
        let name = field.name();
        let Some((index, _)) = columns.schema.column_with_name(name) else {
            let column_names: Vec<&String> =
                columns.schema.fields().iter().map(|f| f.name()).collect();
            let message = format!("unknown column {name:?}; the table has {column_names:?}");
            return Err(Error::invalid(message));
        };
        if fields.insert(columns.ids[index], field_index).is_some() {
            let message = format!("column {name:?} occurs twice in the file");
            return Err(Error::invalid(message));
        }
    }
    Ok(fields)
}
