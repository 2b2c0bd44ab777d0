//! Row groups of a snapshot, and which of their rows are left: not deleted, and meant by a filter.
//!
//! Files and row groups that cannot hold such rows are not read. Of the others the columns of the
//! filter come first; the rest only where a row is left.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;

use super::Table;
use super::filter::Filter;
use super::format::{DataFile, Manifest, Tombstones, corrupted};
use super::listing::{self, ListedFile};
use super::pruning::{FileStatistics, RowGroupStatistics};
use super::ranges::KeyRanges;
use super::schema::{Columns, roots_by_id, roots_by_name};
use super::segment::as_file;
use super::tombstone::{self, Deletions};
use super::unit::{Deleted, Read, Selection, Unit, Work, batches, not_read};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::decode::slice_arrays;
use crate::parquet::file::TAIL_BYTES;
use crate::parquet::types::convert;
use crate::part::{OpenPart, RowGroupReader, RowGroupSelection, open, run_blocking};

/// Tombstone files read at once.
const CONCURRENT_TOMBSTONES: usize = 16;
/// No file ends with less, whatever its manifest says.
const MIN_FOOTER_BYTES: u64 = 64;
/// How often a file is opened again that was written again meanwhile.
const MAX_REOPENED: u32 = 3;
/// A footer above this is read in two requests.
const MAX_FOOTER_BYTES: u64 = 16 << 20;

/// The rows of a snapshot, all or those of a filter.
#[derive(Debug)]
pub(super) struct Rows {
    table: Table,
    reader: RowGroupReader,
    pub(super) manifest: Arc<Manifest>,
    pub(super) columns: Columns,
    filter: Option<Arc<Filter>>,
    /// The files that may hold rows.
    pub(super) files: Vec<ListedFile>,
    deletions: BTreeMap<String, Arc<Deletions>>,
}

impl Rows {
    /// Reads what the tombstones of the files that are left say.
    pub(super) async fn new(
        table: &Table,
        manifest: Arc<Manifest>,
        filter: Option<Arc<Filter>>,
    ) -> Result<Self> {
        let columns = Columns::of(&manifest)?;
        let mut rows = Self::over(table, manifest, columns, filter);
        rows.files = rows.list().await?;
        rows.deletions = rows.read_tombstones().await?;
        Ok(rows)
    }

    /// Some files of a snapshot, with other columns than it may have.
    pub(super) async fn of(
        table: &Table,
        manifest: Arc<Manifest>,
        columns: Columns,
        files: Vec<ListedFile>,
    ) -> Result<Self> {
        let mut rows = Self::over(table, manifest, columns, None);
        rows.files = files;
        rows.deletions = rows.read_tombstones().await?;
        Ok(rows)
    }

    fn over(
        table: &Table,
        manifest: Arc<Manifest>,
        columns: Columns,
        filter: Option<Arc<Filter>>,
    ) -> Self {
        Self {
            table: table.clone(),
            reader: RowGroupReader::new(table.store().clone()),
            manifest,
            columns,
            filter,
            files: Vec::new(),
            deletions: BTreeMap::new(),
        }
    }

    /// The files that may hold rows.
    async fn list(&self) -> Result<Vec<ListedFile>> {
        let segments: Vec<DataFile> = self.manifest.segments.iter().map(as_file).collect();
        let wanted = self.may_hold(&segments).await?;
        let listed = listing::files(&self.table, &self.manifest, &wanted).await?;
        let files: Vec<DataFile> = listed.iter().map(|l| l.file.clone()).collect();
        let may = self.may_hold(&files).await?;
        let left = listed.into_iter().zip(may).filter(|(_, may)| *may);
        Ok(left.map(|(listed, _)| listed).collect())
    }

    async fn may_hold(&self, files: &[DataFile]) -> Result<Vec<bool>> {
        match &self.filter {
            None => Ok(vec![true; files.len()]),
            Some(filter) => self.prune(filter, files).await,
        }
    }

    async fn prune(&self, filter: &Filter, files: &[DataFile]) -> Result<Vec<bool>> {
        let known = FileStatistics {
            files,
            columns: &self.columns,
        };
        filter.prune(known).await
    }

    /// Which of the files may hold rows for which a filter holds.
    pub(super) async fn files_for(&self, filter: &Filter) -> Result<Vec<bool>> {
        let files: Vec<DataFile> = self.files.iter().map(|l| l.file.clone()).collect();
        self.prune(filter, &files).await
    }

    /// What is deleted of a file.
    pub(super) fn deletions_of(&self, file: usize) -> Option<&Deletions> {
        let path = &self.files[file].file.path;
        self.deletions.get(path).map(AsRef::as_ref)
    }

    async fn read_tombstones(&self) -> Result<BTreeMap<String, Arc<Deletions>>> {
        let paths = self.files.iter().map(|f| f.file.path.as_str());
        let wanted: HashSet<&str> = paths.collect();
        let touching = self.manifest.tombstones.iter();
        let touching = touching.filter(|t| t.files.iter().any(|f| wanted.contains(f.as_str())));
        let lines = self.read_lines(touching.collect()).await?;
        let by_file = Deletions::by_file(&lines);
        Ok(by_file.into_iter().map(|(f, d)| (f, Arc::new(d))).collect())
    }

    /// The lines of some of the snapshot's tombstone files.
    pub(super) async fn read_lines(&self, of: Vec<&Tombstones>) -> Result<Vec<tombstone::Line>> {
        let reads = of.into_iter().map(|found| async move {
            let path = self.table.path(&found.path);
            let store = self.table.store();
            let read = store.get_at_most(&path, GetOptions::default(), tombstone::MAX_BYTES);
            match read.await {
                Ok((bytes, _)) => {
                    let parsed = tombstone::parse(&bytes, &found.path);
                    let mut lines = parsed.map_err(|e| e.with_path(&path))?;
                    // What is said of files that have left does not count, though one may be back.
                    let files: HashSet<&str> = found.files.iter().map(String::as_str).collect();
                    lines.retain(|line| files.contains(line.file.as_str()));
                    Ok(lines)
                }
                Err(e) => Err(self.gone(&found.path, e).await),
            }
        });
        let reads: Vec<_> = reads.collect();
        let lines: Vec<Vec<tombstone::Line>> = stream::iter(reads)
            .buffered(CONCURRENT_TOMBSTONES)
            .try_collect()
            .await?;
        Ok(lines.into_iter().flatten().collect())
    }

    /// Why an object that the snapshot names is not there.
    async fn gone(&self, path: &str, error: Error) -> Error {
        self.table.gone(self.manifest.version, path, error).await
    }

    /// The row groups of a file that may hold rows.
    pub(super) async fn open(&self, file: usize) -> Result<Vec<Unit>> {
        let part = self.part(file).await?;
        let units = self.every_unit(file, &part)?;
        let may = match (&self.filter, units.first()) {
            (Some(filter), Some(unit)) => {
                let known = RowGroupStatistics {
                    part: &part,
                    columns: &self.columns,
                    field_mappings: &unit.roots,
                };
                filter.prune(known).await?
            }
            _ => vec![true; units.len()],
        };
        let units = units.into_iter().zip(may).filter(|(_, may)| *may);
        let units = units.map(|(unit, _)| unit);
        Ok(units.filter(|unit| !unit.is_deleted()).collect())
    }

    /// A file, opened.
    pub(super) async fn part(&self, file: usize) -> Result<Arc<OpenPart>> {
        let described = &self.files[file].file;
        let path = self.table.path(&described.path);
        let tail = match described.footer_size {
            0 => TAIL_BYTES,
            known => known.clamp(MIN_FOOTER_BYTES, MAX_FOOTER_BYTES),
        };
        let part = match open(self.table.store(), &path, tail).await {
            Ok(part) => Arc::new(part),
            Err(e) => return Err(self.gone(&described.path, e).await),
        };
        check(&part, described)?;
        Ok(part)
    }

    /// All row groups of a file.
    pub(super) fn every_unit(&self, file: usize, part: &Arc<OpenPart>) -> Result<Vec<Unit>> {
        let count = part.file.metadata().num_row_groups();
        if count == 0 {
            return Ok(Vec::new());
        }
        let unit = self.unit(file, part, 0)?;
        let units = (0..count).map(|group| Unit {
            group,
            ..unit.clone()
        });
        Ok(units.collect())
    }

    /// A row group of a file.
    pub(super) fn unit(&self, file: usize, part: &Arc<OpenPart>, group: usize) -> Result<Unit> {
        let known = match &self.files[file].file.columns {
            Some(names) => roots_by_name(&part.file.schema, names),
            None => roots_by_id(&part.file.schema),
        };
        let roots = self.columns.ids.iter().map(|id| known.get(id).copied());
        let roots: Arc<[Option<usize>]> = roots.collect();
        let deletions = self.deletions.get(&self.files[file].file.path);
        let deleted = deletions.map(|d| self.deleted(part, &roots, d).map(Arc::new));
        Ok(Unit {
            file,
            group,
            part: Arc::clone(part),
            deleted: deleted.transpose()?,
            roots,
        })
    }

    /// What is deleted of a file, and which row groups need a look at their keys to know.
    fn deleted(
        &self,
        part: &OpenPart,
        roots: &[Option<usize>],
        deletions: &Arc<Deletions>,
    ) -> Result<Deleted> {
        let rows = Arc::clone(deletions);
        if rows.keys.is_empty() {
            return Ok(Deleted { rows, by_key: None });
        }
        let key = self.columns.schema.field(self.key()?);
        let ranges = KeyRanges::new(&rows.keys, key.data_type())?;
        let groups = RowGroupStatistics {
            part,
            columns: &self.columns,
            field_mappings: roots,
        };
        let overlaps = groups.overlaps(&ranges, key.name())?;
        Ok(Deleted {
            rows,
            by_key: Some((ranges, overlaps)),
        })
    }

    /// The rows of a row group that are not deleted.
    pub(super) async fn alive(&self, unit: &Unit) -> Result<BooleanArray> {
        if unit.is_deleted() {
            return Ok(vec![false; unit.rows()].into());
        }
        let kept = self.select(unit).await?.kept;
        Ok(kept.unwrap_or_else(|| vec![true; unit.rows()].into()))
    }

    /// All columns of some rows of a row group.
    pub(super) async fn read_kept(
        &self,
        unit: &Unit,
        kept: BooleanArray,
        schema: &SchemaRef,
    ) -> Result<Vec<RecordBatch>> {
        let wanted: Vec<usize> = (0..schema.fields().len()).collect();
        let columns = self.read_columns(unit, &wanted, &(0..unit.rows())).await?;
        let (rows, schema) = (unit.rows(), Arc::clone(schema));
        run_blocking(move || batches(&columns, &wanted, rows, Some(&kept), &schema)).await
    }

    /// Which rows of a row group are left.
    pub(super) async fn select(&self, unit: &Unit) -> Result<Selection> {
        let by_key = unit.is_deleted_by_key();
        let key = if by_key { Some(self.key()?) } else { None };
        let mut needed = self
            .filter
            .as_ref()
            .map_or_else(Vec::new, |f| f.columns().to_vec());
        if let Some(key) = key.filter(|key| !needed.contains(key)) {
            needed.push(key);
        }
        let columns = self.read_columns(unit, &needed, &(0..unit.rows())).await?;
        let work = Work {
            unit: unit.clone(),
            key,
            filter: self.filter.clone(),
        };
        run_blocking(move || work.select(columns)).await
    }

    /// The rows of a row group that are left, as `schema`, which is that of the columns `wanted`.
    pub(super) async fn read(
        &self,
        unit: &Unit,
        wanted: &[usize],
        schema: &SchemaRef,
    ) -> Result<Vec<RecordBatch>> {
        let Selection { kept, columns, .. } = self.select(unit).await?;
        let mut rows = 0..unit.rows();
        if let Some(kept) = &kept {
            let mut set = kept.values().set_slices();
            let Some((first, end)) = set.next() else {
                return Ok(Vec::new());
            };
            rows = first..set.last().map_or(end, |(_, end)| end);
        }
        let missing = wanted.iter().filter(|c| !columns.contains_key(c)).copied();
        let missing: Vec<usize> = missing.collect();
        let mut read = self.read_columns(unit, &missing, &rows).await?;
        let (wanted, schema) = (wanted.to_vec(), Arc::clone(schema));
        run_blocking(move || {
            let known = columns.into_iter();
            read.extend(known.map(|(column, arrays)| (column, slice_arrays(arrays, &rows))));
            let kept = kept.map(|kept| kept.slice(rows.start, rows.len()));
            batches(&read, &wanted, rows.len(), kept.as_ref(), &schema)
        })
        .await
    }

    /// Columns of some rows of a row group as the table has them.
    async fn read_columns(
        &self,
        unit: &Unit,
        wanted: &[usize],
        rows: &Range<usize>,
    ) -> Result<Read> {
        let there = wanted.iter().filter_map(|c| Some((*c, unit.roots[*c]?)));
        let there: Vec<(usize, usize)> = there.collect();
        let mut group = RowGroupSelection {
            part: Arc::clone(&unit.part),
            index: unit.group,
            projection: there.iter().map(|(_, root)| *root).collect(),
            rows: (rows.len() < unit.rows()).then(|| rows.clone()),
        };
        let mut reopened = 0;
        let mut read = loop {
            match self.reader.read(group.clone()).await {
                Ok(read) => break read,
                // Written a second time by a request that was repeated: it holds the same.
                Err(e) if e.kind() == ErrorKind::Conflict && reopened < MAX_REOPENED => {
                    reopened += 1;
                    group.part = self.part(unit.file).await?;
                }
                Err(e) => {
                    let path = &self.files[unit.file].file.path;
                    return Err(self.gone(path, e).await);
                }
            }
        };
        let schema = Arc::clone(&self.columns.schema);
        let (rows, wanted) = (rows.len(), wanted.to_vec());
        run_blocking(move || {
            let mut found = Read::new();
            for column in wanted {
                let field = schema.field(column);
                let arrays = match there.iter().find(|(c, _)| *c == column) {
                    Some((_, root)) => read.remove(root).ok_or_else(not_read)?,
                    None => vec![arrow_array::new_null_array(field.data_type(), rows)],
                };
                let arrays = arrays.iter();
                let arrays = arrays.map(|a| convert(a, field.data_type(), field.name()));
                found.insert(column, arrays.collect::<Result<_>>()?);
            }
            Ok(found)
        })
        .await
    }

    /// The identity of the key, if it is one column.
    pub(super) fn key_id(&self) -> Option<u32> {
        match self.manifest.key.as_slice() {
            [id] => Some(*id),
            _ => None,
        }
    }

    /// The position of the key.
    fn key(&self) -> Result<usize> {
        let place = |id| self.columns.ids.iter().position(|known| *known == id);
        let found = self.key_id().and_then(place);
        found.ok_or_else(|| corrupted("a tombstone", "it deletes by key, and the table has none"))
    }
}

/// A file that is not the one the manifest means would lose or gain rows.
fn check(part: &OpenPart, file: &DataFile) -> Result<()> {
    let (length, rows) = (part.file.length, part.file.rows());
    if (length, rows) == (file.size_bytes, file.total_rows) {
        return Ok(());
    }
    let message = format!(
        "{:?} has {length} bytes and {rows} rows, the manifest says {} and {}",
        file.path, file.size_bytes, file.total_rows
    );
    Err(Error::new(ErrorKind::PartCorrupted, message).with_path(&part.path))
}
