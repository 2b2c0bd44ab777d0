//! Reads the rows of a snapshot that are not deleted and that match a filter.
//!
//! A [`SnapshotReader`] lists the files that may hold such rows, by their statistics, with their
//! deletions. Of a row group it reads the columns of the filter first, the others only if a row is selected.
//!
//! A missing object is an error of the kind `VersionExpired` if a vacuum has removed the version, otherwise
//! `PartCorrupted`; so is a file whose length or number of rows differs from the manifest.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::Table;
use super::foreign_files::with_types_of;
use super::format::{DataFile, TableManifest, corrupted_error};
use super::index_size::estimate_index_bytes;
use super::listing;
use super::object_cache::ObjectCache;
use super::row_group::{ColumnArrays, ResolvedDeletions, RowGroupScan, column_not_read};
use super::segment::to_data_file;
use super::snapshot_file::SnapshotFile;
use super::targets::FileIndex;
use super::tombstone::Deletions;
use super::tombstone_reader::{read_deletions, tombstoned_files};
use crate::error::{Error, ErrorKind, Result};
use crate::files::expr::{FileStatistics, Filter, RowGroupStatistics, constant_column};
use crate::files::key_ranges::KeyRanges;
use crate::files::{OpenPart, RowGroupReader, RowGroupSelection, open_with_indexes, run_blocking};
use crate::files::{TableColumns, field_indices};
use crate::parquet::decode::Chunks;
use crate::parquet::page_selection::RowSelection;
use crate::parquet::types::convert;

/// Number of requests for columns at once.
const CONCURRENT_REQUESTS: usize = 32;
/// How often a file is reopened that was overwritten while it was read.
const MAX_REOPENS: u32 = 3;

/// Reads the rows of a snapshot, all of them or those that match a filter.
#[derive(Debug)]
pub(super) struct SnapshotReader {
    table: Table,
    reader: RowGroupReader,
    pub(super) manifest: Arc<TableManifest>,
    pub(super) columns: TableColumns,
    filter: Option<Arc<Filter>>,
    /// The most rows that are needed of a row group.
    pub(super) row_limit: usize,
    /// The files that may hold matching rows.
    pub(super) files: Vec<SnapshotFile>,
    deletions: BTreeMap<String, Arc<Deletions>>,
    cache: Option<Arc<ObjectCache>>,
}

impl SnapshotReader {
    /// Lists the files that may hold matching rows, and reads their tombstones.
    pub(super) async fn new(
        table: &Table,
        manifest: Arc<TableManifest>,
        filter: Option<Arc<Filter>>,
    ) -> Result<Self> {
        Self::with_cache(table, manifest, filter, None).await
    }

    /// As [`Self::new`]; lists and tombstones are read through the cache of an operation.
    pub(super) async fn with_cache(
        table: &Table,
        manifest: Arc<TableManifest>,
        filter: Option<Arc<Filter>>,
        cache: Option<Arc<ObjectCache>>,
    ) -> Result<Self> {
        let columns = TableColumns::from_manifest(&manifest)?;
        let mut reader = Self::without_files(table, manifest, columns, filter);
        reader.cache = cache;
        reader.files = reader.list_files().await?;
        reader.deletions = reader.read_tombstones().await?;
        Ok(reader)
    }

    /// The files that may hold rows that match a filter.
    pub(super) async fn find_files(
        table: &Table,
        manifest: Arc<TableManifest>,
        filter: Option<Arc<Filter>>,
    ) -> Result<Vec<SnapshotFile>> {
        let columns = TableColumns::from_manifest(&manifest)?;
        let reader = Self::without_files(table, manifest, columns, filter);
        reader.list_files().await
    }

    /// A reader of some files of a snapshot, whose columns may differ from the snapshot's.
    pub(super) async fn with_files(
        table: &Table,
        manifest: Arc<TableManifest>,
        columns: TableColumns,
        files: Vec<SnapshotFile>,
    ) -> Result<Self> {
        let mut reader = Self::without_files(table, manifest, columns, None);
        reader.files = files;
        reader.deletions = reader.read_tombstones().await?;
        Ok(reader)
    }

    /// A reader of some files of a newer snapshot. Uses the deletions that this one has read, if the same
    /// tombstone files are about these files.
    pub(super) async fn with_newer_files(
        &self,
        manifest: Arc<TableManifest>,
        files: Vec<SnapshotFile>,
    ) -> Result<Self> {
        let columns = TableColumns::from_manifest(&manifest)?;
        let mut reader = Self::without_files(&self.table, manifest, columns, None);
        reader.files = files;
        let paths: HashSet<&str> = reader.files.iter().map(|f| f.file.path.as_str()).collect();
        let is_needed = |f: &&SnapshotFile| paths.contains(f.file.path.as_str());
        let known_files: Vec<&SnapshotFile> = self.files.iter().filter(is_needed).collect();
        let is_known = known_files.len() == paths.len()
            && tombstoned_files(&self.manifest.tombstones, &FileIndex::of_files(known_files))
                == tombstoned_files(
                    &reader.manifest.tombstones,
                    &FileIndex::of_files(&reader.files),
                );
        reader.deletions = if is_known {
            let known = self.deletions.iter();
            known
                .filter(|(path, _)| paths.contains(path.as_str()))
                .map(|(path, deletions)| (path.clone(), Arc::clone(deletions)))
                .collect()
        } else {
            reader.read_tombstones().await?
        };
        Ok(reader)
    }

    fn without_files(
        table: &Table,
        manifest: Arc<TableManifest>,
        columns: TableColumns,
        filter: Option<Arc<Filter>>,
    ) -> Self {
        Self {
            table: table.clone(),
            reader: RowGroupReader::new(table.store().clone(), CONCURRENT_REQUESTS),
            manifest,
            columns,
            filter,
            row_limit: usize::MAX,
            files: Vec::new(),
            deletions: BTreeMap::new(),
            cache: None,
        }
    }

    /// The files that may hold matching rows.
    async fn list_files(&self) -> Result<Vec<SnapshotFile>> {
        let segments: Vec<DataFile> = self.manifest.segments.iter().map(to_data_file).collect();
        let selected = self.prune_by_filter(&segments).await?;
        let cache = self.cache.as_deref();
        let listed = listing::list_files(&self.table, &self.manifest, &selected, cache).await?;
        let files: Vec<DataFile> = listed.iter().map(|l| l.file.clone()).collect();
        let may_match = self.prune_by_filter(&files).await?;
        let candidates = listed.into_iter().zip(may_match);
        let matching = candidates.filter(|(_, may_match)| *may_match);
        Ok(matching.map(|(listed, _)| listed).collect())
    }

    async fn prune_by_filter(&self, files: &[DataFile]) -> Result<Vec<bool>> {
        match &self.filter {
            None => Ok(vec![true; files.len()]),
            Some(filter) => self.prune_files(filter, files).await,
        }
    }

    async fn prune_files(&self, filter: &Filter, files: &[DataFile]) -> Result<Vec<bool>> {
        let statistics = FileStatistics {
            files,
            columns: &self.columns,
        };
        filter.prune(statistics).await
    }

    /// For each file whether it may hold rows that match `filter`.
    pub(super) async fn prune_listed_files(&self, filter: &Filter) -> Result<Vec<bool>> {
        let files: Vec<DataFile> = self.files.iter().map(|l| l.file.clone()).collect();
        self.prune_files(filter, &files).await
    }

    /// Whether less than all pages may be needed.
    pub(super) fn reads_pages(&self) -> bool {
        match &self.filter {
            Some(filter) => filter.uses_statistics(),
            None => self.row_limit < usize::MAX,
        }
    }

    /// Whether rows are selected by a filter.
    pub(super) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// About how much memory the columns of a row group take that a scan of `projection` reads.
    pub(super) fn memory_bytes(&self, row_group: &RowGroupScan, projection: &[usize]) -> u64 {
        let filter_columns = self.filter.iter().flat_map(|filter| filter.columns());
        let columns: BTreeSet<&usize> = filter_columns.chain(projection).collect();
        let stored_fields = columns.iter().filter_map(|c| row_group.field_mappings[**c]);
        let file = &row_group.part.file;
        let constants = &self.files[row_group.file].file.constants;
        let constants = columns
            .iter()
            .filter_map(|c| constants.get(&self.columns.ids[**c]));
        let rows = row_group.num_rows() as u64;
        let constant_bytes = constants.map(|v| {
            let bytes = v.as_str().map_or(8, str::len) as u64;
            rows.saturating_mul(bytes)
        });
        stored_fields
            .map(|field| file.memory_bytes_of(row_group.group, field))
            .chain(constant_bytes)
            .fold(0, u64::saturating_add)
    }

    /// The deletions of a file.
    pub(super) fn deletions_of(&self, file: usize) -> Option<&Deletions> {
        let path = &self.files[file].file.path;
        self.deletions.get(path).map(AsRef::as_ref)
    }

    async fn read_tombstones(&self) -> Result<BTreeMap<String, Arc<Deletions>>> {
        let cache = self.cache.as_deref();
        read_deletions(&self.table, &self.manifest, &self.files, cache).await
    }

    /// Converts an error in reading an object of the snapshot: if the object is missing, says why.
    pub(super) async fn missing_object_error(&self, path: &str, error: Error) -> Error {
        self.table
            .missing_object_error(self.manifest.version, path, error)
            .await
    }

    /// The row groups of a file that may hold matching rows.
    pub(super) async fn open_row_groups(&self, file: usize) -> Result<Vec<RowGroupScan>> {
        let part = self.open_file(file).await?;
        let row_groups = self.all_row_groups(file, &part)?;
        let may_match = match (&self.filter, row_groups.first()) {
            (Some(filter), Some(row_group)) => {
                let statistics = RowGroupStatistics {
                    part: &part,
                    columns: &self.columns,
                    field_mappings: &row_group.field_mappings,
                };
                filter.prune(statistics).await?
            }
            _ => vec![true; row_groups.len()],
        };
        let candidates = row_groups.into_iter().zip(may_match);
        let matching = candidates.filter(|(_, may_match)| *may_match);
        let matching = matching.map(|(row_group, _)| row_group);
        Ok(matching
            .filter(|row_group| !row_group.is_deleted())
            .collect())
    }

    /// Opens a file and checks that it is the one that the manifest describes.
    pub(super) async fn open_file(&self, file: usize) -> Result<Arc<OpenPart>> {
        let data_file = &self.files[file].file;
        let path = self.table.path(&data_file.path);
        let opened = open_with_indexes(
            self.table.store(),
            &path,
            data_file.tail_bytes(),
            self.index_bytes(data_file),
        );
        let part = match opened.await {
            Ok(part) => part,
            Err(e) => return Err(self.missing_object_error(&data_file.path, e).await),
        };
        check_file(&part, data_file)?;
        let fields = field_indices(&part.file.schema, data_file.columns.as_ref());
        Ok(Arc::new(with_types_of(part, &fields, &self.columns)))
    }

    /// About how many bytes of page indexes are read with a file's footer.
    fn index_bytes(&self, file: &DataFile) -> u64 {
        let columns = self.columns.ids.len();
        if self.reads_pages() {
            estimate_index_bytes(file.total_rows, file.row_group_count, columns)
        } else {
            0
        }
    }

    /// All row groups of a file.
    pub(super) fn all_row_groups(
        &self,
        file: usize,
        part: &Arc<OpenPart>,
    ) -> Result<Vec<RowGroupScan>> {
        let count = part.file.metadata().num_row_groups();
        if count == 0 {
            return Ok(Vec::new());
        }
        let first = self.row_group(file, part, 0)?;
        let row_groups = (0..count).map(|group| RowGroupScan {
            group,
            ..first.clone()
        });
        Ok(row_groups.collect())
    }

    /// One row group of a file, with the file's deletions.
    pub(super) fn row_group(
        &self,
        file: usize,
        part: &Arc<OpenPart>,
        group: usize,
    ) -> Result<RowGroupScan> {
        let names = self.files[file].file.columns.as_ref();
        let field_indices = field_indices(&part.file.schema, names);
        let indices = self
            .columns
            .ids
            .iter()
            .map(|id| field_indices.get(id).copied());
        let field_mappings: Arc<[Option<usize>]> = indices.collect();
        let deletions = self.deletions.get(&self.files[file].file.path);
        let resolved = deletions.map(|d| {
            self.resolve_deletions(part, &field_mappings, d)
                .map(Arc::new)
        });
        Ok(RowGroupScan {
            file,
            group,
            part: Arc::clone(part),
            deletions: resolved.transpose()?,
            field_mappings,
        })
    }

    /// The deletions of a file, and for which row groups the keys have to be read to apply them.
    fn resolve_deletions(
        &self,
        part: &OpenPart,
        field_mappings: &[Option<usize>],
        deletions: &Arc<Deletions>,
    ) -> Result<ResolvedDeletions> {
        let recorded = Arc::clone(deletions);
        if recorded.keys.is_empty() {
            return Ok(ResolvedDeletions {
                recorded,
                key_ranges: None,
            });
        }
        let key = self.columns.schema.field(self.key_position()?);
        let ranges = KeyRanges::new(&recorded.keys, key.data_type())?;
        let statistics = RowGroupStatistics {
            part,
            columns: &self.columns,
            field_mappings,
        };
        let overlaps = statistics.overlaps(&ranges, key.name())?;
        Ok(ResolvedDeletions {
            recorded,
            key_ranges: Some((ranges, overlaps)),
        })
    }

    /// Reads ranges of bytes of a row group's file.
    pub(super) async fn read_ranges(
        &self,
        row_group: &RowGroupScan,
        ranges: Vec<Range<u64>>,
    ) -> Result<Chunks> {
        let store = self.table.store();
        let mut part = Arc::clone(&row_group.part);
        let mut reopened = 0;
        loop {
            match part.read_ranges(store, ranges.clone()).await {
                Ok(chunks) => return Ok(chunks),
                Err(e) if e.kind() == ErrorKind::Conflict && reopened < MAX_REOPENS => {
                    reopened += 1;
                    part = self.open_file(row_group.file).await?;
                }
                Err(e) => {
                    let path = &self.files[row_group.file].file.path;
                    return Err(self.missing_object_error(path, e).await);
                }
            }
        }
    }

    /// The filter that rows have to match.
    pub(super) fn filter(&self) -> Option<&Arc<Filter>> {
        self.filter.as_ref()
    }

    /// Reads columns of the selected rows in the table's types; a column that the file lacks has the value of the file's entry, or
    /// is null.
    pub(super) async fn read_columns(
        &self,
        row_group: &RowGroupScan,
        projection: &[usize],
        selection: &RowSelection,
    ) -> Result<ColumnArrays> {
        let present = row_group.stored_fields(projection);
        let rows = selection.num_rows();
        let mut group = RowGroupSelection {
            part: Arc::clone(&row_group.part),
            index: row_group.group,
            projection: present
                .iter()
                .map(|(_, field_index)| *field_index)
                .collect(),
            rows: (rows < row_group.num_rows()).then(|| selection.clone()),
        };
        let mut reopened = 0;
        let mut field_arrays = loop {
            match self.reader.read(group.clone()).await {
                Ok(field_arrays) => break field_arrays,
                // A retried request wrote the file a second time, with the same content.
                Err(e) if e.kind() == ErrorKind::Conflict && reopened < MAX_REOPENS => {
                    reopened += 1;
                    group.part = self.open_file(row_group.file).await?;
                }
                Err(e) => {
                    let path = &self.files[row_group.file].file.path;
                    return Err(self.missing_object_error(path, e).await);
                }
            }
        };
        let schema = Arc::clone(&self.columns.schema);
        let ids = Arc::clone(&self.columns.ids);
        let constants = self.files[row_group.file].file.constants.clone();
        let projection = projection.to_vec();
        run_blocking(move || {
            let mut column_arrays = ColumnArrays::new();
            for column in projection {
                let field = schema.field(column);
                let stored = present.iter().find(|(c, _)| *c == column);
                let stored_arrays = if let Some((_, field_index)) = stored {
                    field_arrays
                        .remove(field_index)
                        .ok_or_else(column_not_read)?
                } else {
                    let value = constants.get(&ids[column]);
                    constant_column(value, field.data_type(), rows)?
                };
                let unconverted = stored_arrays.iter();
                let converted = unconverted.map(|a| convert(a, field.data_type(), field.name()));
                column_arrays.insert(column, converted.collect::<Result<_>>()?);
            }
            Ok(column_arrays)
        })
        .await
    }

    /// The id of the key column, if the key is one column.
    pub(super) fn key_id(&self) -> Option<u32> {
        match self.manifest.key.as_slice() {
            [id] => Some(*id),
            _ => None,
        }
    }

    /// The position of the key column.
    pub(super) fn key_position(&self) -> Result<usize> {
        let position_of = |id| {
            self.columns
                .ids
                .iter()
                .position(|column_id| *column_id == id)
        };
        let position = self.key_id().and_then(position_of);
        position.ok_or_else(|| {
            let reason = "it deletes by key, and the table has no key of one column";
            corrupted_error("a tombstone", reason)
        })
    }
}

/// Refuses a file that is not the one that the manifest describes: rows would be lost or added.
fn check_file(part: &OpenPart, file: &DataFile) -> Result<()> {
    let (length, rows) = (part.file.length, part.file.rows());
    let groups = part.file.metadata().num_row_groups() as u64;
    // External files are listed without their row groups.
    let listed_groups = if file.row_group_count == 0 {
        groups
    } else {
        file.row_group_count
    };
    if (length, rows, groups) == (file.size_bytes, file.total_rows, listed_groups) {
        return Ok(());
    }
    let message = format!(
        "{:?} has {length} bytes, {rows} rows and {groups} row groups; the manifest expects {} bytes, {} rows and \
         {} row groups",
        file.path, file.size_bytes, file.total_rows, file.row_group_count
    );
    Err(Error::new(ErrorKind::PartCorrupted, message).with_path(&part.path))
}
