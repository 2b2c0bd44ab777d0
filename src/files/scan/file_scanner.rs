//! Reads the rows of listed files that are not deleted and that match a filter.
//!
//! A [`FileScanner`] has the files that may hold such rows, with their deletions. What lists them is its [`FileSource`].
//! Of a row group it reads the columns of the filter first, the others only if a row is selected.
//!
//! A missing file is an error of the source; a file whose length or number of rows differs from its entry is an error of
//! the kind `PartCorrupted`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::deletions::Deletions;
use super::index_size::estimate_index_bytes;
use super::row_group::{ColumnArrays, ResolvedDeletions, RowGroupScan, column_not_read};
use super::stored_types::with_types_of;
use crate::error::{Error, ErrorKind, Result, corrupted_error};
use crate::files::expr::{FileStatistics, Filter, RowGroupStatistics, constant_column};
use crate::files::key_ranges::KeyRanges;
use crate::files::{
    DataFile, FileChecksum, FileShare, OpenPart, RowGroupReader, RowGroupSelection, TableColumns,
    field_indices, open_with_indexes, run_blocking,
};
use crate::parquet::decode::Chunks;
use crate::parquet::page_selection::RowSelection;
use crate::parquet::types::convert;
use crate::store::Store;

/// Number of requests for columns at once.
const CONCURRENT_REQUESTS: usize = 32;
/// How often a file is reopened that was overwritten while it was read.
const MAX_REOPENS: u32 = 3;

/// What lists files, such as a version of a table.
pub(crate) trait FileSource: std::fmt::Debug + Send + Sync + 'static {
    /// A file in the list.
    type Listed: std::fmt::Debug + Send + Sync + 'static;

    /// The entry of a file.
    fn entry(file: &Self::Listed) -> &DataFile;

    /// The store of the files.
    fn store(&self) -> &Store;

    /// The path in the store of a file, of which entries have the path relative to the list.
    fn path(&self, relative: &str) -> String;

    /// The share of a file that is read, by its path relative to the list; None for all of the file.
    fn share_of(&self, path: &str) -> Option<FileShare>;

    /// Converts an error in reading a file: if the file is missing, says why.
    fn missing_object_error<'a>(&'a self, path: &'a str, error: Error) -> BoxFuture<'a, Error>;
}

/// Reads the rows of listed files, all of them or those that match a filter.
#[derive(Debug)]
pub(crate) struct FileScanner<S: FileSource> {
    pub(crate) source: S,
    reader: RowGroupReader,
    pub(crate) columns: TableColumns,
    filter: Option<Arc<Filter>>,
    /// The id of the key column, if the key is one column.
    key: Option<u32>,
    /// The most rows that are needed of a row group.
    pub(crate) row_limit: usize,
    /// The files that may hold matching rows.
    pub(crate) files: Vec<S::Listed>,
    /// The deletions in files, by path.
    pub(crate) deletions: BTreeMap<String, Arc<Deletions>>,
}

impl<S: FileSource> FileScanner<S> {
    /// A scanner without files.
    pub(crate) fn from_source(
        source: S,
        columns: TableColumns,
        filter: Option<Arc<Filter>>,
        key: Option<u32>,
    ) -> Self {
        Self {
            reader: RowGroupReader::new(source.store().clone(), CONCURRENT_REQUESTS),
            source,
            columns,
            filter,
            key,
            row_limit: usize::MAX,
            files: Vec::new(),
            deletions: BTreeMap::new(),
        }
    }

    /// The entry of a file, by position in [`Self::files`].
    pub(crate) fn data_file(&self, file: usize) -> &DataFile {
        S::entry(&self.files[file])
    }

    /// Those of some files that may hold matching rows.
    pub(crate) async fn select_files(&self, listed: Vec<S::Listed>) -> Result<Vec<S::Listed>> {
        let files: Vec<DataFile> = listed.iter().map(|l| S::entry(l).clone()).collect();
        let may_match = self.prune_by_filter(&files).await?;
        let candidates = listed.into_iter().zip(may_match);
        let matching = candidates.filter(|(_, may_match)| *may_match);
        Ok(matching.map(|(listed, _)| listed).collect())
    }

    /// For each of some entries whether it may describe matching rows.
    pub(crate) async fn prune_by_filter(&self, files: &[DataFile]) -> Result<Vec<bool>> {
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
    pub(crate) async fn prune_listed_files(&self, filter: &Filter) -> Result<Vec<bool>> {
        let files: Vec<DataFile> = self.files.iter().map(|l| S::entry(l).clone()).collect();
        self.prune_files(filter, &files).await
    }

    /// Whether less than all pages may be needed.
    pub(crate) fn reads_pages(&self) -> bool {
        match &self.filter {
            Some(filter) => filter.uses_statistics(),
            None => self.row_limit < usize::MAX,
        }
    }

    /// Whether rows are selected by a filter.
    pub(crate) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// About how much memory the columns of a row group take that a scan of `projection` reads.
    pub(crate) fn memory_bytes(&self, row_group: &RowGroupScan, projection: &[usize]) -> u64 {
        let filter_columns = self.filter.iter().flat_map(|filter| filter.columns());
        let columns: BTreeSet<&usize> = filter_columns.chain(projection).collect();
        let stored_fields = columns.iter().filter_map(|c| row_group.field_mappings[**c]);
        let file = &row_group.part.file;
        let constants = &self.data_file(row_group.file).constants;
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
    pub(crate) fn deletions_of(&self, file: usize) -> Option<&Deletions> {
        let path = &self.data_file(file).path;
        self.deletions.get(path).map(AsRef::as_ref)
    }

    /// Converts an error in reading a file: if the file is missing, says why.
    pub(crate) async fn missing_object_error(&self, path: &str, error: Error) -> Error {
        self.source.missing_object_error(path, error).await
    }

    /// The row groups of a file, or of its share, that may hold matching rows.
    pub(crate) async fn open_row_groups(&self, file: usize) -> Result<Vec<RowGroupScan>> {
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
        let live = matching.filter(|row_group| !row_group.is_deleted());
        Ok(self.take_share(file, live.collect()))
    }

    /// Opens a file and checks that it is the one that its entry describes.
    pub(crate) async fn open_file(&self, file: usize) -> Result<Arc<OpenPart>> {
        let data_file = self.data_file(file);
        let path = self.source.path(&data_file.path);
        let opened = open_with_indexes(
            self.source.store(),
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
    pub(crate) fn all_row_groups(
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
    pub(crate) fn row_group(
        &self,
        file: usize,
        part: &Arc<OpenPart>,
        group: usize,
    ) -> Result<RowGroupScan> {
        let names = self.data_file(file).columns.as_ref();
        let field_indices = field_indices(&part.file.schema, names);
        let indices = self
            .columns
            .ids
            .iter()
            .map(|id| field_indices.get(id).copied());
        let field_mappings: Arc<[Option<usize>]> = indices.collect();
        let deletions = self.deletions.get(&self.data_file(file).path);
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
    pub(crate) async fn read_ranges(
        &self,
        row_group: &RowGroupScan,
        ranges: Vec<Range<u64>>,
    ) -> Result<Chunks> {
        let store = self.source.store();
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
                    let path = &self.data_file(row_group.file).path;
                    return Err(self.missing_object_error(path, e).await);
                }
            }
        }
    }

    /// The filter that rows have to match.
    pub(crate) fn filter(&self) -> Option<&Arc<Filter>> {
        self.filter.as_ref()
    }

    /// Reads columns of the selected rows in their types; a column that the file lacks has the value of the file's entry,
    /// or is null.
    pub(crate) async fn read_columns(
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
                    let path = &self.data_file(row_group.file).path;
                    return Err(self.missing_object_error(path, e).await);
                }
            }
        };
        let schema = Arc::clone(&self.columns.schema);
        let ids = Arc::clone(&self.columns.ids);
        let constants = self.data_file(row_group.file).constants.clone();
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
    pub(crate) fn key_id(&self) -> Option<u32> {
        self.key
    }

    /// The position of the key column.
    pub(crate) fn key_position(&self) -> Result<usize> {
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

/// Refuses a file that is not the one that its entry describes: rows would be lost or added.
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
        return check_checksum(part, file);
    }
    let message = format!(
        "{:?} has {length} bytes, {rows} rows and {groups} row groups; the manifest expects {} bytes, {} rows and \
         {} row groups",
        file.path, file.size_bytes, file.total_rows, file.row_group_count
    );
    Err(Error::new(ErrorKind::PartCorrupted, message).with_path(&part.path))
}

/// Refuses a file of the same size that is another one.
fn check_checksum(part: &OpenPart, file: &DataFile) -> Result<()> {
    let checksum = FileChecksum(part.file.checksum);
    match file.checksum {
        Some(listed) if listed != checksum => {
            let message = format!(
                "{:?} is another file than the one that was listed: it has the checksum {checksum}; the manifest \
                 expects {listed}",
                file.path
            );
            Err(Error::new(ErrorKind::PartCorrupted, message).with_path(&part.path))
        }
        _ => Ok(()),
    }
}
