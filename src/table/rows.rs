//! Row groups of a snapshot, and which of their rows are left: not deleted, and meant by a filter.
//!
//! Files and row groups that cannot hold such rows are not read. Of the others the columns of the
//! filter come first; the rest only where a row is left.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, Scalar};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::filter::filter_record_batch;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;

use super::Table;
use super::filter::Filter;
use super::format::{DataFile, Manifest, corrupted};
use super::listing::{self, ListedFile};
use super::pruning::{OfFiles, OfGroups};
use super::schema::{Columns, roots_by_id};
use super::segment::as_file;
use super::tombstone::{self, Deletions};
use super::values::from_json;
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::decode::align;
use crate::parquet::file::TAIL_BYTES;
use crate::parquet::types::{batch_of, convert};
use crate::part::{Group, OpenPart, Reader, blocking, open};

/// Tombstone files read at once.
const CONCURRENT_TOMBSTONES: usize = 16;
/// A tombstone file above this is none.
const MAX_TOMBSTONE_BYTES: u64 = 1 << 30;
/// No file ends with less, whatever its manifest says.
const MIN_FOOTER_BYTES: u64 = 64;
/// A footer above this is read in two requests.
const MAX_FOOTER_BYTES: u64 = 16 << 20;

/// The rows of a snapshot, all or those of a filter.
#[derive(Debug)]
pub(super) struct Rows {
    table: Table,
    reader: Reader,
    pub(super) manifest: Arc<Manifest>,
    pub(super) columns: Columns,
    filter: Option<Arc<Filter>>,
    /// The files that may hold rows.
    pub(super) files: Vec<ListedFile>,
    deletions: BTreeMap<String, Arc<Deletions>>,
}

/// A row group of a file.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    /// The file, by position in [`Rows::files`].
    pub(super) file: usize,
    /// Its row group.
    pub(super) group: usize,
    part: Arc<OpenPart>,
    /// The field of the file for each of the table's columns.
    roots: Arc<[Option<usize>]>,
    deletions: Option<Arc<Deletions>>,
}

/// Arrays by the table's column.
type Read = HashMap<usize, Vec<ArrayRef>>;

/// Which rows of a row group are left, and what was read to know it.
#[derive(Debug)]
pub(super) struct Selection {
    /// None is all.
    pub(super) kept: Option<BooleanArray>,
    /// Rows that are not deleted.
    pub(super) alive: usize,
    columns: Read,
}

impl Unit {
    /// Its rows, deleted ones included.
    pub(super) fn rows(&self) -> usize {
        let rows = self.part.file.metadata().row_group(self.group).num_rows();
        usize::try_from(rows).unwrap_or(usize::MAX)
    }

    /// The row groups of its file.
    pub(super) fn groups_of_file(&self) -> usize {
        self.part.file.metadata().num_row_groups()
    }

    /// The row groups of its file that are deleted as such.
    pub(super) fn deleted_groups(&self) -> usize {
        let groups = u32::try_from(self.groups_of_file()).unwrap_or(u32::MAX);
        let deletions = self.deletions.as_ref();
        deletions.map_or(0, |d| d.groups.range(..groups).count())
    }

    fn number(&self) -> u32 {
        u32::try_from(self.group).unwrap_or(u32::MAX)
    }
}

impl Rows {
    /// Reads what the tombstones of the files that are left say.
    pub(super) async fn new(
        table: &Table,
        manifest: Arc<Manifest>,
        filter: Option<Arc<Filter>>,
    ) -> Result<Self> {
        let columns = Columns::of(&manifest)?;
        let mut rows = Self {
            table: table.clone(),
            reader: Reader::new(table.store().clone()),
            manifest,
            columns,
            filter,
            files: Vec::new(),
            deletions: BTreeMap::new(),
        };
        rows.files = rows.list().await?;
        rows.deletions = rows.read_tombstones().await?;
        Ok(rows)
    }

    /// The files that may hold rows.
    async fn list(&self) -> Result<Vec<ListedFile>> {
        let segments: Vec<DataFile> = self.manifest.segments.iter().map(as_file).collect();
        let wanted = self.may_hold(&segments);
        let listed = listing::files(&self.table, &self.manifest, &wanted).await?;
        let files: Vec<DataFile> = listed.iter().map(|l| l.file.clone()).collect();
        let may = self.may_hold(&files);
        let left = listed.into_iter().zip(may).filter(|(_, may)| *may);
        Ok(left.map(|(listed, _)| listed).collect())
    }

    fn may_hold(&self, files: &[DataFile]) -> Vec<bool> {
        match &self.filter {
            None => vec![true; files.len()],
            Some(filter) => filter.prune(&OfFiles {
                files,
                columns: &self.columns,
            }),
        }
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
        let reads = touching.map(|found| async move {
            let path = self.table.path(&found.path);
            let store = self.table.store();
            let read = store.get_at_most(&path, GetOptions::default(), MAX_TOMBSTONE_BYTES);
            match read.await {
                Ok((bytes, _)) => tombstone::parse(&bytes, &found.path).map_err(|e| e.at(&path)),
                Err(e) => Err(self.gone(&found.path, e).await),
            }
        });
        let lines: Vec<Vec<tombstone::Line>> = stream::iter(reads)
            .buffer_unordered(CONCURRENT_TOMBSTONES)
            .try_collect()
            .await?;
        let by_file = Deletions::by_file(lines.iter().flatten());
        Ok(by_file.into_iter().map(|(f, d)| (f, Arc::new(d))).collect())
    }

    /// Why an object that the snapshot names is not there.
    async fn gone(&self, path: &str, error: Error) -> Error {
        self.table.gone(self.manifest.version, path, error).await
    }

    /// The row groups of a file that may hold rows.
    pub(super) async fn open(&self, file: usize) -> Result<Vec<Unit>> {
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
        let known = roots_by_id(&part.file.schema);
        let roots = self.columns.ids.iter().map(|id| known.get(id).copied());
        let roots: Arc<[Option<usize>]> = roots.collect();
        let deletions = self.deletions.get(&described.path).cloned();
        let count = part.file.metadata().num_row_groups();
        let may = match &self.filter {
            None => vec![true; count],
            Some(filter) => filter.prune(&OfGroups {
                part: &part,
                columns: &self.columns,
                roots: &roots,
            }),
        };
        let units = may.into_iter().enumerate().filter(|(_, may)| *may);
        let units = units.map(|(group, _)| Unit {
            file,
            group,
            part: Arc::clone(&part),
            roots: Arc::clone(&roots),
            deletions: deletions.clone(),
        });
        let whole = |unit: &Unit| {
            let deletions = unit.deletions.as_ref();
            !deletions.is_some_and(|d| d.groups.contains(&unit.number()))
        };
        Ok(units.filter(whole).collect())
    }

    /// Which rows of a row group are left.
    pub(super) async fn select(&self, unit: &Unit) -> Result<Selection> {
        let by_key = unit.deletions.as_ref().is_some_and(|d| !d.keys.is_empty());
        let key = if by_key { Some(self.key()?) } else { None };
        let mut needed = self
            .filter
            .as_ref()
            .map_or_else(Vec::new, |f| f.columns().to_vec());
        if let Some(key) = key.filter(|key| !needed.contains(key)) {
            needed.push(key);
        }
        let columns = self.read_columns(unit, &needed).await?;
        let work = Work {
            unit: unit.clone(),
            key: key.map(|key| (key, self.columns.schema.field(key).data_type().clone())),
            filter: self.filter.clone(),
        };
        blocking(move || work.select(columns)).await
    }

    /// The rows of a row group that are left, as `schema`, which is that of the columns `wanted`.
    pub(super) async fn read(
        &self,
        unit: &Unit,
        wanted: &[usize],
        schema: &SchemaRef,
    ) -> Result<Vec<RecordBatch>> {
        let Selection {
            kept, mut columns, ..
        } = self.select(unit).await?;
        if kept.as_ref().is_some_and(|kept| kept.true_count() == 0) {
            return Ok(Vec::new());
        }
        let missing = wanted.iter().filter(|c| !columns.contains_key(c)).copied();
        let missing: Vec<usize> = missing.collect();
        columns.extend(self.read_columns(unit, &missing).await?);
        let (rows, wanted, schema) = (unit.rows(), wanted.to_vec(), Arc::clone(schema));
        blocking(move || batches(&columns, &wanted, rows, kept.as_ref(), &schema)).await
    }

    /// Columns of a row group as the table has them.
    async fn read_columns(&self, unit: &Unit, wanted: &[usize]) -> Result<Read> {
        let there = wanted.iter().filter_map(|c| Some((*c, unit.roots[*c]?)));
        let there: Vec<(usize, usize)> = there.collect();
        let group = Group {
            part: Arc::clone(&unit.part),
            index: unit.group,
            roots: there.iter().map(|(_, root)| *root).collect(),
        };
        let mut read = match self.reader.read(group).await {
            Ok(read) => read,
            Err(e) => {
                let path = &self.files[unit.file].file.path;
                return Err(self.gone(path, e).await);
            }
        };
        let schema = Arc::clone(&self.columns.schema);
        let (rows, wanted) = (unit.rows(), wanted.to_vec());
        blocking(move || {
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

/// What decides on the rows of a row group.
struct Work {
    unit: Unit,
    /// Where rows are deleted by it: its position and type.
    key: Option<(usize, DataType)>,
    filter: Option<Arc<Filter>>,
}

impl Work {
    fn select(&self, columns: Read) -> Result<Selection> {
        let rows = self.unit.rows();
        let mut kept = self.by_row(rows);
        if let (Some((key, data_type)), Some(deletions)) = (&self.key, &self.unit.deletions) {
            kept = Some(both(kept, outside(&columns, *key, data_type, deletions)?));
        }
        let alive = kept.as_ref().map_or(rows, BooleanArray::true_count);
        if let Some(filter) = &self.filter {
            let mut holds = Vec::with_capacity(rows);
            for (rows, arrays) in pieces(&columns, filter.columns(), rows)? {
                holds.extend(filter.holds(arrays, rows)?.values().iter());
            }
            kept = Some(both(kept, BooleanArray::from(holds)));
        }
        Ok(Selection {
            kept,
            alive,
            columns,
        })
    }

    /// The rows that are not deleted by their number; None is all.
    fn by_row(&self, rows: usize) -> Option<BooleanArray> {
        let deletions = self.unit.deletions.as_ref()?;
        let deleted = deletions.rows.get(&self.unit.number())?;
        let mut kept = vec![true; rows];
        for row in deleted.iter().filter_map(|row| usize::try_from(row).ok()) {
            if let Some(kept) = kept.get_mut(row) {
                *kept = false;
            }
        }
        Some(kept.into())
    }
}

/// Which rows have a key in none of the deleted ranges; a null lies in none.
fn outside(
    read: &Read,
    key: usize,
    data_type: &DataType,
    deletions: &Deletions,
) -> Result<BooleanArray> {
    use arrow_ord::cmp::{gt_eq, lt_eq};
    let failed = |e: arrow_schema::ArrowError| Error::other(e.to_string()).caused_by(e);
    let ranges = deletions.keys.iter().map(|(min, max)| {
        let ends = (from_json(min, data_type)?, from_json(max, data_type)?);
        Ok((Scalar::new(ends.0), Scalar::new(ends.1)))
    });
    let ranges = ranges.collect::<Result<Vec<_>>>()?;
    let mut kept = Vec::new();
    for keys in read.get(&key).into_iter().flatten() {
        let mut outside = vec![true; keys.len()];
        for (min, max) in &ranges {
            let above = gt_eq(keys, min).map_err(failed)?;
            let below = lt_eq(keys, max).map_err(failed)?;
            for (row, outside) in outside.iter_mut().enumerate() {
                let inside = |side: &BooleanArray| side.is_valid(row) && side.value(row);
                *outside &= !(inside(&above) && inside(&below));
            }
        }
        kept.extend(outside);
    }
    Ok(kept.into())
}

/// The rows that are left, as `schema`, which is that of the columns `wanted`.
fn batches(
    read: &Read,
    wanted: &[usize],
    rows: usize,
    kept: Option<&BooleanArray>,
    schema: &SchemaRef,
) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    let mut at = 0;
    for (rows, arrays) in pieces(read, wanted, rows)? {
        let batch = batch_of(schema, arrays, rows)?;
        batches.push(match kept {
            Some(kept) => filter_record_batch(&batch, &kept.slice(at, rows))
                .map_err(|e| Error::other(e.to_string()).caused_by(e))?,
            None => batch,
        });
        at += rows;
    }
    Ok(batches)
}

fn not_read() -> Error {
    Error::other("a column was not read")
}

/// Some of the columns that were read, cut at common places.
fn pieces(read: &Read, wanted: &[usize], rows: usize) -> Result<Vec<(usize, Vec<ArrayRef>)>> {
    if wanted.is_empty() {
        return Ok(vec![(rows, Vec::new())]);
    }
    let arrays = wanted
        .iter()
        .map(|column| read.get(column).cloned().ok_or_else(not_read));
    Ok(align(&arrays.collect::<Result<Vec<_>>>()?, rows))
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
    Err(Error::new(ErrorKind::PartCorrupted, message).at(&part.path))
}

fn both(a: Option<BooleanArray>, b: BooleanArray) -> BooleanArray {
    match a {
        Some(a) => BooleanArray::new(a.values() & b.values(), None),
        None => b,
    }
}
