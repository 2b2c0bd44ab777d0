//! The rows of a snapshot as a stream, without those that tombstones delete.
//!
//! Files are opened a little ahead and their row groups decoded by all processors. A file is read by
//! the identities of its columns: a column it does not have is null, one that was widened is cast.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, Scalar, StringArray};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::filter::filter_record_batch;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;
use serde_json::Value;

use super::Table;
use super::format::{DataFile, Manifest, corrupted};
use super::schema::{Columns, roots_by_id};
use super::tombstone::{self, Deletions};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::Cancel;
use crate::parquet::file::TAIL_BYTES;
use crate::parquet::types::{batch_of, convert};
use crate::part::{Aligned, BatchSender, Group, OpenPart, Reader, Scan, open};

/// Files opened ahead.
const FILES_AHEAD: usize = 8;
/// Row groups decoded ahead.
const GROUPS_AHEAD: usize = 2;
/// Tombstone files read at once.
const CONCURRENT_TOMBSTONES: usize = 16;
/// A tombstone file above this is none.
const MAX_TOMBSTONE_BYTES: u64 = 1 << 30;

/// Streams a snapshot's rows: `columns` in the order asked for, at most `limit` rows.
pub async fn scan(
    table: &Table,
    manifest: Arc<Manifest>,
    columns: Option<&[String]>,
    limit: Option<u64>,
) -> Result<Scan> {
    let all = Columns::of(&manifest)?;
    let wanted = all.project(columns)?;
    let schema = all.schema.project(&wanted);
    let schema = schema.map_err(|e| Error::other(e.to_string()).caused_by(e))?;
    let schema = Arc::new(schema);
    let deletions = deletions(table, &manifest).await?;
    let job = Job {
        table: table.clone(),
        reader: Reader::new(table.store().clone()),
        manifest,
        all,
        wanted,
        schema: Arc::clone(&schema),
        deletions,
    };
    let cancel = Cancel::default();
    Ok(Scan::start(schema, &cancel, |sender| async move {
        Arc::new(job).run(limit.unwrap_or(u64::MAX), &sender).await
    }))
}

/// All that the snapshot's tombstones say, by file.
async fn deletions(table: &Table, manifest: &Manifest) -> Result<BTreeMap<String, Deletions>> {
    let reads = manifest.tombstones.iter().map(|found| async move {
        let path = table.path(&found.path);
        let read = table
            .store()
            .get_at_most(&path, GetOptions::default(), MAX_TOMBSTONE_BYTES);
        match read.await {
            Ok((bytes, _)) => tombstone::parse(&bytes, &found.path).map_err(|e| e.at(&path)),
            Err(e) => Err(gone(table, manifest, &found.path, e).await),
        }
    });
    let lines: Vec<Vec<tombstone::Line>> = stream::iter(reads)
        .buffer_unordered(CONCURRENT_TOMBSTONES)
        .try_collect()
        .await?;
    Ok(Deletions::by_file(lines.iter().flatten()))
}

/// Why an object that a snapshot names is not there.
async fn gone(table: &Table, manifest: &Manifest, path: &str, error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    match table.newest().await {
        Ok(now) if !now.manifest.keeps(manifest.version) => {
            table.expired(manifest.version, &now.manifest)
        }
        Ok(_) => {
            let message = format!(
                "version {} names {path:?}, which is not there",
                manifest.version
            );
            let found = Error::new(ErrorKind::PartCorrupted, message);
            found.at(table.path(path)).caused_by(error)
        }
        Err(_) => error,
    }
}

struct Job {
    table: Table,
    reader: Reader,
    manifest: Arc<Manifest>,
    all: Columns,
    /// Positions among all columns.
    wanted: Vec<usize>,
    schema: SchemaRef,
    deletions: BTreeMap<String, Deletions>,
}

/// What of a row group is read, and for what.
struct Unit {
    /// Among the snapshot's data files.
    file: usize,
    group: Group,
    /// For each wanted column, its place among what is read.
    places: Vec<Option<usize>>,
    /// The place of the key, where rows are deleted by it.
    key: Option<usize>,
    deletions: Deletions,
}

impl Job {
    async fn run(self: Arc<Self>, limit: u64, sender: &BatchSender) -> Result<()> {
        let paths: Vec<usize> = (0..self.manifest.data_files.len()).collect();
        let job = Arc::clone(&self);
        let files = stream::iter(paths)
            .map(move |index| {
                let job = Arc::clone(&job);
                async move { job.open(index).await }
            })
            .buffered(FILES_AHEAD);
        let units = files.map_ok(|units| stream::iter(units.into_iter().map(Ok)));
        let job = Arc::clone(&self);
        let mut read = units
            .try_flatten()
            .map_ok(move |unit| {
                let job = Arc::clone(&job);
                async move { job.read(unit).await }
            })
            .try_buffered(GROUPS_AHEAD)
            .boxed();
        let mut left = limit;
        while left > 0 {
            let Some(batches) = read.try_next().await? else {
                break;
            };
            for batch in batches {
                let rows = usize::try_from(left).unwrap_or(usize::MAX);
                let batch = batch.slice(0, batch.num_rows().min(rows));
                left -= batch.num_rows() as u64;
                if batch.num_rows() > 0 && sender.send(Ok(batch)).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What is to be read of a data file.
    async fn open(&self, index: usize) -> Result<Vec<Unit>> {
        let file = &self.manifest.data_files[index];
        let deleted = self.deletions.get(&file.path);
        let path = self.table.path(&file.path);
        let tail = file.footer_size.clamp(8, TAIL_BYTES * 16);
        let part = match open(self.table.store(), &path, tail).await {
            Ok(part) => part,
            Err(e) => return Err(gone(&self.table, &self.manifest, &file.path, e).await),
        };
        check(&part, file)?;
        let known = roots_by_id(&part.file.schema);
        let mut roots: Vec<usize> = Vec::new();
        let mut place = |column: usize| {
            let root = *known.get(&self.all.ids[column])?;
            Some(roots.iter().position(|r| *r == root).unwrap_or_else(|| {
                roots.push(root);
                roots.len() - 1
            }))
        };
        let places: Vec<Option<usize>> = self.wanted.iter().map(|c| place(*c)).collect();
        let key = match deleted.filter(|d| !d.keys.is_empty()) {
            Some(_) => Some(self.key().and_then(&mut place).ok_or_else(|| {
                let why = "rows are deleted by key, and the file has no key";
                corrupted(&file.path, why)
            })?),
            None => None,
        };
        let (part, roots): (_, Arc<[usize]>) = (Arc::new(part), roots.into());
        let deletions = deleted.cloned().unwrap_or_default();
        let groups = 0..part.file.metadata().num_row_groups();
        let kept = groups.filter(|g| {
            let number = u32::try_from(*g).unwrap_or(u32::MAX);
            !deletions.groups.contains(&number)
        });
        let unit = |group| Unit {
            file: index,
            group: Group {
                part: Arc::clone(&part),
                index: group,
                roots: Arc::clone(&roots),
            },
            places: places.clone(),
            key,
            deletions: deletions.clone(),
        };
        Ok(kept.map(unit).collect())
    }

    /// The position of the key, if it is one column.
    fn key(&self) -> Option<usize> {
        match self.manifest.key.as_slice() {
            [id] => self.all.ids.iter().position(|known| known == id),
            _ => None,
        }
    }

    /// The rows of a row group that are left.
    async fn read(&self, unit: Unit) -> Result<Vec<RecordBatch>> {
        let read = self.reader.read(unit.group.clone()).await;
        let aligned = match read {
            Ok(aligned) => aligned,
            Err(e) => {
                let file = &self.manifest.data_files[unit.file].path;
                return Err(gone(&self.table, &self.manifest, file, e).await);
            }
        };
        let (schema, key) = (Arc::clone(&self.schema), self.key());
        let key = key.map(|k| Arc::clone(&self.all.schema.fields()[k]));
        let key = key.map(|field| field.data_type().clone());
        crate::part::blocking(move || left(&aligned, &unit, &schema, key.as_ref())).await
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
    Err(Error::new(ErrorKind::PartCorrupted, message).at(&part.path))
}

/// What tombstones leave of a row group, as the table's columns.
fn left(
    aligned: &Aligned,
    unit: &Unit,
    schema: &SchemaRef,
    key_type: Option<&DataType>,
) -> Result<Vec<RecordBatch>> {
    let number = u32::try_from(unit.group.index).unwrap_or(u32::MAX);
    let deleted = unit.deletions.rows.get(&number);
    let mut batches = Vec::new();
    let mut at = 0_u32;
    for (rows, columns) in aligned {
        let fields = schema.fields().iter().zip(&unit.places);
        let arrays = fields.map(|(field, place)| match place {
            Some(place) => convert(&columns[*place], field.data_type(), field.name()),
            None => Ok(arrow_array::new_null_array(field.data_type(), *rows)),
        });
        let batch = batch_of(schema, arrays.collect::<Result<_>>()?, *rows)?;
        let end = at.saturating_add(u32::try_from(*rows).unwrap_or(u32::MAX));
        let mut kept: Option<BooleanArray> = deleted.map(|deleted| {
            let mut kept = vec![true; *rows];
            for row in deleted.range(at..end) {
                kept[(row - at) as usize] = false;
            }
            kept.into()
        });
        if let (Some(place), Some(data_type)) = (unit.key, key_type) {
            let by_key = outside(&columns[place], data_type, &unit.deletions.keys)?;
            kept = Some(match kept {
                Some(kept) => both(&kept, &by_key),
                None => by_key,
            });
        }
        batches.push(match kept {
            Some(kept) => filter_record_batch(&batch, &kept)
                .map_err(|e| Error::other(e.to_string()).caused_by(e))?,
            None => batch,
        });
        at = end;
    }
    Ok(batches)
}

fn both(a: &BooleanArray, b: &BooleanArray) -> BooleanArray {
    BooleanArray::new(a.values() & b.values(), None)
}

/// Which keys lie in none of the ranges; a null lies in none.
fn outside(
    keys: &ArrayRef,
    data_type: &DataType,
    ranges: &[(Value, Value)],
) -> Result<BooleanArray> {
    use arrow_ord::cmp::{gt_eq, lt_eq};
    let keys = convert(keys, data_type, "key")?;
    let failed = |e: arrow_schema::ArrowError| Error::other(e.to_string()).caused_by(e);
    let mut kept = BooleanArray::from(vec![true; keys.len()]);
    for (min, max) in ranges {
        let (min, max) = (from_json(min, data_type)?, from_json(max, data_type)?);
        let above = gt_eq(&keys, &Scalar::new(min)).map_err(failed)?;
        let below = lt_eq(&keys, &Scalar::new(max)).map_err(failed)?;
        let inside = above.iter().zip(&below);
        let inside = inside.map(|(a, b)| a == Some(true) && b == Some(true));
        let outside: Vec<bool> = inside.map(|inside| !inside).collect();
        kept = both(&kept, &outside.into());
    }
    Ok(kept)
}

/// A value of a manifest or a tombstone.
pub(super) fn from_json(value: &Value, data_type: &DataType) -> Result<ArrayRef> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        _ => {
            let why = format!("{value} is no value of {data_type}");
            return Err(corrupted("a bound", &why));
        }
    };
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let text: ArrayRef = Arc::new(StringArray::from(vec![text]));
    cast_with_options(&text, data_type, &options).map_err(|e| {
        let why = format!("{value} is no value of {data_type}");
        corrupted("a bound", &why).caused_by(e)
    })
}
