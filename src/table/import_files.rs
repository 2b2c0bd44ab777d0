//! Creates a table of the Parquet files of another system's table, in whose folder it is, without copying them.
//!
//! The first version of the new table lists the files, and a tombstone file with their deleted rows, so a reader sees all
//! of it or no table. Files stay where they are; a vacuum never removes those that are not named like this table's own.
//!
//! Refused with [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput), before anything is written: files that lack ids
//! by which columns have to be found, types that cannot be widened to the table's, possible nulls in a non-nullable
//! column, and deleted rows that a file does not have.
//!
//! Crash points: before the manifest is created, a tombstone file of base version 0 is left, which a vacuum of a later
//! table removes; after it, the table is there.

use std::collections::{BTreeMap, HashMap, HashSet};

use arrow_schema::Schema;
use futures::{StreamExt, TryStreamExt, stream};
use parquet::schema::types::Type;
use roaring::{RoaringBitmap, RoaringTreemap};
use serde_json::{Value, json};

use super::actions::NewTable;
use super::add_files::CONCURRENT_FILES;
use super::delete::put_tombstones;
use super::foreign_files::{check_types, file_entry, refuse_encrypted};
use super::format::{CommitOperation, DataFile, TableManifest, Tombstones};
use super::partitions::PartitionValues;
use super::tombstone::{Deletions, TombstoneLine, TombstoneScope};
use super::{Snapshot, Staged, Table, TableColumns, names};
use crate::error::{Error, Result};
use crate::files::{OpenPart, field_id, open, with_types_of};
use crate::parquet::file::{ParquetFile, TAIL_BYTES};
use crate::versions::{check_creatable, create_checked, is_not_created};

/// How a column is found in files.
#[derive(Debug, Clone, Default)]
pub struct ImportColumn {
    /// Its names in files that have no field ids; without any, such files are refused if there are ids.
    pub names: Vec<String>,
    /// Its field id, then those of the fields nested in it, each before those within it; empty if it is found by name.
    pub field_ids: Vec<i32>,
}

/// A data file to be imported.
#[derive(Debug, Clone, Default)]
pub struct ImportFile {
    /// The path, relative to the table.
    pub path: String,
    /// The values of columns that the file does not hold, by their names, as text; `None` is null.
    pub constants: BTreeMap<String, Option<String>>,
    deleted_rows: RoaringTreemap,
}

impl ImportFile {
    /// A file with the positions of its deleted rows.
    pub fn new(
        path: String,
        constants: BTreeMap<String, Option<String>>,
        deleted_rows: impl IntoIterator<Item = u64>,
    ) -> Self {
        Self {
            path,
            constants,
            deleted_rows: deleted_rows.into_iter().collect(),
        }
    }
}

/// The table that is imported, for the history.
#[derive(Debug, Clone)]
pub struct ImportSource {
    /// The name of its format.
    pub format: String,
    /// Its version.
    pub version: String,
    /// Its location.
    pub location: String,
}

/// A table that can be created of files: all of them have been checked.
#[derive(Debug)]
pub struct PreparedImport {
    table: Table,
    new_table: NewTable,
    imported: Imported,
}

/// Reads and checks `files`; writes nothing. `columns` are those of the table, in order. A file without rows that are left
/// will not be listed.
pub async fn prepare_import(
    table: &Table,
    new_table: NewTable,
    columns: &[ImportColumn],
    files: &[ImportFile],
) -> Result<PreparedImport> {
    let draft = new_table.draft();
    check_paths(table, files)?;
    check_creatable(table).await?;
    let table_columns = &TableColumns::from_manifest(&draft)?;
    let reads = files.iter().map(|file| async move {
        let read = read_file(table, file, table_columns, columns).await;
        read.map_err(|e| {
            e.context(format!("file {:?}", file.path))
                .with_path(table.path(&file.path))
        })
    });
    // A Vec, because the future of the iterator itself would not be Send.
    let read_tasks: Vec<_> = reads.collect();
    let mut entries = stream::iter(read_tasks).buffered(CONCURRENT_FILES);
    let mut imported = Imported::default();
    while let Some((entry, deletions)) = entries.try_next().await? {
        imported.push(entry, &deletions);
    }
    Ok(PreparedImport {
        table: table.clone(),
        new_table,
        imported,
    })
}

impl PreparedImport {
    /// Creates the table. Returns its first snapshot.
    pub async fn commit(self, source: &ImportSource) -> Result<Snapshot> {
        let Self {
            table,
            new_table,
            imported,
        } = self;
        let mut staged = Staged::new(&table);
        let tombstones = match write_tombstones(&table, &imported, &mut staged).await {
            Ok(tombstones) => tombstones,
            Err(e) => {
                staged.remove_all().await;
                return Err(e);
            }
        };
        let create = create_checked(&table, |commit_id, created_at| {
            let manifest = new_table.into_manifest(commit_id, created_at);
            imported.into_version(manifest, tombstones, source)
        });
        let created = Box::pin(create).await;
        if created.as_ref().is_err_and(is_not_created) {
            staged.remove_all().await;
        }
        created
    }
}

/// What the first version lists.
#[derive(Debug, Clone, Default)]
struct Imported {
    files: Vec<DataFile>,
    lines: Vec<TombstoneLine>,
    deleted_rows: u64,
}

impl Imported {
    /// Adds a file unless all of its rows are deleted.
    fn push(&mut self, file: DataFile, deletions: &FileDeletions) {
        if deletions.rows >= file.total_rows {
            return;
        }
        self.deleted_rows += deletions.rows;
        self.lines.extend(deletions.by_group.to_lines(&file.path));
        self.files.push(file);
    }

    fn into_version(
        self,
        mut manifest: TableManifest,
        tombstones: Option<Tombstones>,
        source: &ImportSource,
    ) -> TableManifest {
        let total = |count_of: fn(&DataFile) -> u64| {
            let counts = self.files.iter().map(count_of);
            counts.fold(0, u64::saturating_add)
        };
        manifest.operation = CommitOperation::new(
            "import",
            [
                ("files", json!(self.files.len())),
                ("rows", json!(total(|f| f.total_rows) - self.deleted_rows)),
                ("bytes", json!(total(|f| f.size_bytes))),
                ("deleted_rows", json!(self.deleted_rows)),
                ("source", to_json(source)),
            ],
        );
        manifest.added_at = (!self.files.is_empty()).then_some(manifest.version);
        manifest.data_files = self.files;
        manifest.tombstones = tombstones.into_iter().collect();
        manifest
    }
}

fn to_json(source: &ImportSource) -> Value {
    json!({"format": source.format, "version": source.version, "location": source.location})
}

/// Refuses paths that occur twice, lie outside the folder, or are those of the table's own metadata.
fn check_paths(table: &Table, files: &[ImportFile]) -> Result<()> {
    let mut paths = HashSet::new();
    for ImportFile { path, .. } in files {
        let reason = match path.split('/').next() {
            _ if !paths.insert(path) => "is listed twice",
            _ if !names::is_inside(path) => "is not in the folder of the table",
            Some(names::POINTER | names::MANIFESTS) => "has the name of metadata of pds",
            _ => continue,
        };
        return Err(Error::invalid(format!("file {path:?} {reason}")).with_path(table.root()));
    }
    Ok(())
}

/// Reads a file's footer; returns its entry and its deleted rows.
async fn read_file(
    table: &Table,
    file: &ImportFile,
    columns: &TableColumns,
    import_columns: &[ImportColumn],
) -> Result<(DataFile, FileDeletions)> {
    let path = table.path(&file.path);
    let part = Box::pin(open(table.store(), &path, TAIL_BYTES))
        .await
        .map_err(refuse_encrypted)?;
    let fields = find_columns(&part, columns, import_columns)?;
    let part = with_types_of(part, &fields, columns);
    check_types(&part, columns, &fields)?;
    let values: &PartitionValues = &file.constants;
    let entry = file_entry(&part, columns, &fields, values)?;
    let deletions = FileDeletions::new(&part.file, &file.deleted_rows)?;
    let path = file.path.clone();
    Ok((DataFile { path, ..entry }, deletions))
}

/// Finds the columns in a file: the index of the field by the id of the column.
fn find_columns(
    part: &OpenPart,
    columns: &TableColumns,
    import_columns: &[ImportColumn],
) -> Result<HashMap<u32, usize>> {
    let schema = &part.file.schema;
    let fields: Vec<Vec<i32>> = (0..schema.fields().len())
        .map(|index| nested_field_ids(part.file.stored_type(index)))
        .collect();
    let has_ids = fields.iter().any(|ids| !ids.is_empty());
    let mut indices = HashMap::new();
    let named = columns.schema.fields().iter().zip(columns.ids.iter());
    for ((column, id), import) in named.zip(import_columns) {
        if import.field_ids.is_empty() || !has_ids {
            if !import.field_ids.is_empty() && import.names.is_empty() {
                let message = "it has no field ids, by which the columns of the table are found";
                return Err(Error::invalid(message));
            }
            let mut named_fields = import
                .names
                .iter()
                .filter_map(|name| schema.index_of(name).ok());
            match named_fields.next() {
                Some(index) => drop(indices.insert(*id, index)),
                None => refuse_lookalike(schema, |_| true, import, column.name())?,
            }
            continue;
        }
        let is_column = |index: &usize| {
            field_id(part.file.stored_type(*index)).as_ref() == import.field_ids.first()
        };
        let Some(index) = (0..fields.len()).find(is_column) else {
            // Other readers find it by its name.
            refuse_lookalike(
                schema,
                |index| fields[index].is_empty(),
                import,
                column.name(),
            )?;
            continue;
        };
        if fields[index] != import.field_ids {
            let message = format!(
                "column {:?} has other nested fields in the file: its ids are {:?}, not {:?}; rewrite the file",
                column.name(),
                fields[index],
                import.field_ids
            );
            return Err(Error::invalid(message));
        }
        indices.insert(*id, index);
    }
    Ok(indices)
}

/// Refuses a file without a column that has a field which others may take for it: of the same name, in any case.
fn refuse_lookalike(
    schema: &Schema,
    may_be: impl Fn(usize) -> bool,
    import: &ImportColumn,
    column: &str,
) -> Result<()> {
    let is_alike = |field: &str| {
        let is_name = |name: &str| name.to_lowercase() == field.to_lowercase();
        match import.names.as_slice() {
            // A column with names in files may have the name of one that was dropped.
            [] => is_name(column),
            names => names.iter().any(|name| is_name(name)),
        }
    };
    let fields = schema.fields().iter().enumerate();
    let alike = fields
        .filter(|(index, _)| may_be(*index))
        .find(|(_, field)| is_alike(field.name()));
    let Some((_, field)) = alike else {
        return Ok(());
    };
    Err(Error::invalid(format!(
        "column {column:?} is not in the file, but a field {:?}, which other readers may take for it; rewrite the file",
        field.name()
    )))
}

/// The ids of a field and of those nested in it, each before those within it.
fn nested_field_ids(field: &Type) -> Vec<i32> {
    let mut ids: Vec<i32> = field_id(field).into_iter().collect();
    if field.is_group() {
        ids.extend(
            field
                .get_fields()
                .iter()
                .flat_map(|nested| nested_field_ids(nested)),
        );
    }
    ids
}

/// The deleted rows of a file.
#[derive(Debug)]
struct FileDeletions {
    by_group: Deletions,
    rows: u64,
}

impl FileDeletions {
    /// Sorts positions into row groups. Refuses those beyond the end.
    fn new(file: &ParquetFile, positions: &RoaringTreemap) -> Result<Self> {
        if let Some(last) = positions.max().filter(|last| *last >= file.rows()) {
            let message = format!("row {last} is deleted, and it has {} rows", file.rows());
            return Err(Error::invalid(message));
        }
        let mut by_group = Deletions::default();
        let (mut begin, mut left) = (0_u64, positions.iter().peekable());
        for (group, metadata) in (0_u32..).zip(file.metadata().row_groups()) {
            let end = begin + metadata.num_rows().unsigned_abs();
            let too_many = |_| Error::invalid("a row group has more than 4,294,967,295 rows");
            let mut rows = RoaringBitmap::new();
            while let Some(position) = left.next_if(|position| *position < end) {
                rows.insert(u32::try_from(position - begin).map_err(too_many)?);
            }
            if !rows.is_empty() {
                let is_whole = rows.len() == end - begin;
                by_group.add(&if is_whole {
                    TombstoneScope::RowGroup(group)
                } else {
                    TombstoneScope::Rows(group, rows)
                });
            }
            begin = end;
        }
        Ok(Self {
            by_group,
            rows: positions.len(),
        })
    }
}

/// Writes the tombstone file; `None` if no row is deleted.
async fn write_tombstones(
    table: &Table,
    imported: &Imported,
    staged: &mut Staged,
) -> Result<Option<Tombstones>> {
    if imported.lines.is_empty() {
        return Ok(None);
    }
    let written = put_tombstones(table, 0, &imported.lines, staged).await?;
    let files: HashSet<&String> = imported.lines.iter().map(|line| &line.file).collect();
    let mut files: Vec<String> = files.into_iter().cloned().collect();
    files.sort_unstable();
    Ok(Some(Tombstones {
        files,
        deleted_rows: Some(imported.deleted_rows),
        ..written
    }))
}
