//! The files of a table that each part of a staged source has to be compared with.
//!
//! A file can have a row with the key of a row of the source only if the bounds of the key's columns overlap in both. A
//! bound that is unknown leaves no file out: those of floats, of long texts, and of files that were listed without. Nor
//! do nulls matter: they are not keys. The files are ordered by their keys and grouped to tasks, which all parts share;
//! a part has those tasks in which a file may have one of its keys. The tasks keep the bounds of the key, so that they
//! do not open the other files.
//!
//! [`find_targets`] has the same files again when the changes of the tasks are committed.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::DataType;
use roaring::RoaringBitmap;

use super::format::{DataFile, TableManifest};
use super::keys::resolve_match_columns;
use super::listing::list_files;
use super::packed_task::pack;
use super::scan_tasks::{TaskSizes, group_files, pack_ranges, without_files};
use super::segment::to_data_file;
use super::snapshot_file::SnapshotFile;
use super::{Table, TableColumns};
use crate::error::Result;
use crate::files::expr::FileStatistics;
use crate::files::run_blocking;
use crate::parquet::types::convert;

/// Rows that other processes staged to be upserted or merged.
#[derive(Debug)]
pub struct StagedSource {
    /// The columns of the rows, and the version that they were staged for.
    pub task: TableManifest,
    /// The files of each part. No two parts have the same key.
    pub parts: Vec<Vec<DataFile>>,
    /// The names of the columns that rows are matched by. Defaults to the table's key.
    pub on: Option<Vec<String>>,
    /// Whether the rows are merged, and have columns of their own; else they are upserted, and have the table's.
    pub is_merge: bool,
    /// Whether rows that the source does not have are changed, too.
    pub reads_all: bool,
}

/// The files of a version as tasks, for the parts of a source.
#[derive(Debug)]
pub struct TargetTasks {
    /// The tasks.
    pub tasks: Vec<Vec<u8>>,
    /// For each part the positions of its tasks: one at least.
    pub parts: Vec<Vec<usize>>,
    /// The number of files in the tasks of all parts together.
    pub searches: usize,
}

/// Splits the files that a source has to be compared with into tasks of these sizes, or larger ones if the parts would
/// have more than `max_tasks` together.
pub async fn split_targets(
    table: &Table,
    base: Arc<TableManifest>,
    source: &StagedSource,
    sizes: TaskSizes,
    max_tasks: usize,
) -> Result<TargetTasks> {
    let keys = Arc::new(SourceKeys::new(&base, source)?);
    let targets = list_targets(table, &base, &keys).await?;
    run_blocking(move || keys.pack(&base, targets, sizes, max_tasks)).await
}

/// The files that some part of a source has to be compared with.
pub(super) async fn find_targets(
    table: &Table,
    base: &TableManifest,
    source: &StagedSource,
) -> Result<Vec<SnapshotFile>> {
    let keys = Arc::new(SourceKeys::new(base, source)?);
    let targets = list_targets(table, base, &keys).await?;
    Ok(targets.into_iter().map(|target| target.file).collect())
}

/// Of each part of a source the numbers of its tasks.
type TasksOfParts = Vec<Vec<usize>>;
/// The smallest and the largest value of a column, as bytes that compare as the values do.
type ValueRange = (Box<[u8]>, Box<[u8]>);
/// The range of each column of the key in a file, where it is known.
type KeyBounds = Vec<Option<ValueRange>>;

/// A file of the table.
struct Target {
    bounds: KeyBounds,
    file: SnapshotFile,
}

/// What is known of the keys of a source.
struct SourceKeys {
    /// The columns of the table.
    columns: TableColumns,
    /// The positions of the key's columns among them, and the types in which their values are compared.
    key: Vec<(usize, DataType)>,
    /// For each part the bounds of its files.
    parts: Vec<Vec<KeyBounds>>,
    reads_all: bool,
}

impl StagedSource {
    /// The positions of the key's columns in the table and in the source. A column that one of them lacks is left out:
    /// the tasks refuse it.
    fn key_positions(
        &self,
        base: &TableManifest,
        columns: &TableColumns,
        own: &TableColumns,
    ) -> Vec<(usize, usize)> {
        let on = self.on.as_deref();
        if self.is_merge {
            let positions = resolve_match_columns(on, base, columns).unwrap_or_default();
            let pairs = positions.into_iter().filter_map(|position| {
                let name = columns.schema.field(position).name();
                Some((position, own.schema.index_of(name).ok()?))
            });
            return pairs.collect();
        }
        let positions = resolve_match_columns(on, &self.task, own).unwrap_or_default();
        let pairs = positions.into_iter().filter_map(|own_position| {
            let mut ids = columns.ids.iter();
            let position = ids.position(|id| *id == own.ids[own_position])?;
            Some((position, own_position))
        });
        pairs.collect()
    }
}

impl SourceKeys {
    fn new(base: &TableManifest, source: &StagedSource) -> Result<Self> {
        let columns = TableColumns::from_manifest(base)?;
        let own = TableColumns::from_manifest(&source.task)?;
        let (mut key, mut own_key) = (Vec::new(), Vec::new());
        for (position, own_position) in source.key_positions(base, &columns, &own) {
            let data_type = match columns.schema.field(position).data_type() {
                DataType::Dictionary(_, values) => values.as_ref(),
                other => other,
            };
            key.push((position, data_type.clone()));
            own_key.push((own_position, data_type.clone()));
        }
        let parts = source.parts.iter();
        Ok(Self {
            parts: parts
                .map(|files| read_bounds(files, &own, &own_key))
                .collect(),
            columns,
            key,
            reads_all: source.reads_all,
        })
    }

    /// The bounds of files of the table.
    fn bounds_of(&self, files: &[DataFile]) -> Vec<KeyBounds> {
        read_bounds(files, &self.columns, &self.key)
    }

    /// Whether a file with these bounds may have keys of a part.
    fn may_share_keys(&self, part: &[KeyBounds], bounds: &[Option<ValueRange>]) -> bool {
        self.reads_all || part.iter().any(|own| overlap(own, bounds))
    }

    /// Whether a file with these bounds may have keys of some part.
    fn is_target(&self, bounds: &[Option<ValueRange>]) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| self.may_share_keys(part, bounds))
    }

    /// The files that are targets, ordered by their keys.
    fn select(&self, listed: Vec<SnapshotFile>) -> Vec<Target> {
        let files: Vec<DataFile> = listed.iter().map(|listed| listed.file.clone()).collect();
        let bounds = self.bounds_of(&files);
        let targets = bounds.into_iter().zip(listed);
        let mut targets: Vec<Target> = targets
            .filter(|(bounds, _)| self.is_target(bounds))
            .map(|(bounds, file)| Target { bounds, file })
            .collect();
        targets.sort_by(|a, b| a.bounds.cmp(&b.bounds));
        targets
    }

    /// Packs targets as tasks.
    fn pack(
        &self,
        base: &TableManifest,
        targets: Vec<Target>,
        sizes: TaskSizes,
        max_tasks: usize,
    ) -> Result<TargetTasks> {
        let parts = self.parts.iter();
        let selected: Vec<RoaringBitmap> = parts.map(|part| self.number(part, &targets)).collect();
        let files: Vec<SnapshotFile> = targets.into_iter().map(|target| target.file).collect();
        let (ranges, mut parts) = self.group(&files, &selected, sizes, max_tasks)?;
        let lengths = parts.iter().flatten().map(|task| ranges[*task].len());
        let searches = lengths.sum();
        let key = self.key.iter();
        let ids = key.map(|(position, _)| self.columns.ids[*position]);
        let mut tasks = pack_ranges(base, &files, &ranges, ids.collect())?;
        let empty_parts = parts.iter_mut().filter(|part| part.is_empty());
        let mut empty_parts = empty_parts.peekable();
        if empty_parts.peek().is_some() {
            // A task without files refuses keys that are there twice, and inserts rows.
            empty_parts.for_each(|part| part.push(tasks.len()));
            tasks.push(pack(&without_files(base))?);
        }
        Ok(TargetTasks {
            tasks,
            parts,
            searches,
        })
    }

    /// The numbers of the targets of a part.
    fn number(&self, part: &[KeyBounds], targets: &[Target]) -> RoaringBitmap {
        let numbered = (0_u32..).zip(targets);
        numbered
            .filter(|(_, target)| self.may_share_keys(part, &target.bounds))
            .map(|(number, _)| number)
            .collect()
    }

    /// Groups files to tasks. For each part the tasks with files of it, given their numbers.
    fn group(
        &self,
        files: &[SnapshotFile],
        selected: &[RoaringBitmap],
        mut sizes: TaskSizes,
        max_tasks: usize,
    ) -> Result<(Vec<Range<usize>>, TasksOfParts)> {
        let fields = self.key.iter();
        let names = fields.map(|(position, _)| self.columns.schema.field(*position).name().clone());
        let names: Vec<String> = names.collect();
        // Of a row group without a match only the key is read, unless rows without a match are changed, too.
        let reads_key = !self.reads_all && !names.is_empty();
        let names = reads_key.then_some(names.as_slice());
        loop {
            let ranges = group_files(&self.columns, files, names, sizes)?;
            let parts = selected.iter().map(|part| ranges_with(&ranges, part));
            let parts: Vec<Vec<usize>> = parts.collect();
            let tasks: usize = parts.iter().map(Vec::len).sum();
            if tasks <= max_tasks || ranges.len() < 2 {
                return Ok((ranges, parts));
            }
            sizes.count = (sizes.count / 2).max(1);
            sizes.max_bytes = sizes.max_bytes.saturating_mul(2);
        }
    }
}

/// The files of a version that some part of a source has to be compared with, ordered by their keys.
async fn list_targets(
    table: &Table,
    base: &TableManifest,
    keys: &Arc<SourceKeys>,
) -> Result<Vec<Target>> {
    let segments: Vec<DataFile> = base.segments.iter().map(to_data_file).collect();
    let bounds = keys.bounds_of(&segments);
    let selected: Vec<bool> = bounds.iter().map(|bounds| keys.is_target(bounds)).collect();
    let listed = list_files(table, base, &selected, None).await?;
    let keys = Arc::clone(keys);
    run_blocking(move || Ok(keys.select(listed))).await
}

/// The positions of the ranges with some of the numbers.
fn ranges_with(ranges: &[Range<usize>], numbers: &RoaringBitmap) -> Vec<usize> {
    let to_number = |position: usize| u32::try_from(position).unwrap_or(u32::MAX);
    let has_number = |range: &Range<usize>| {
        numbers.range_cardinality(to_number(range.start)..to_number(range.end)) > 0
    };
    let numbered = ranges.iter().enumerate();
    numbered
        .filter(|(_, range)| has_number(range))
        .map(|(position, _)| position)
        .collect()
}

/// Whether two files may have the same key.
fn overlap(own: &[Option<ValueRange>], other: &[Option<ValueRange>]) -> bool {
    own.iter().zip(other).all(|ranges| match ranges {
        (Some((min, max)), Some((low, high))) => low <= max && min <= high,
        _ => true,
    })
}

/// The bounds of the columns of a key in files.
fn read_bounds(
    files: &[DataFile],
    columns: &TableColumns,
    key: &[(usize, DataType)],
) -> Vec<KeyBounds> {
    let of_columns: Vec<Vec<Option<ValueRange>>> = key
        .iter()
        .map(|(position, data_type)| read_ranges(files, columns, *position, data_type))
        .collect();
    let of_file = |file: usize| {
        of_columns
            .iter()
            .map(|ranges| ranges[file].clone())
            .collect()
    };
    (0..files.len()).map(of_file).collect()
}

/// The range of a column in each file, of values that are converted to a type of the same order.
fn read_ranges(
    files: &[DataFile],
    columns: &TableColumns,
    position: usize,
    data_type: &DataType,
) -> Vec<Option<ValueRange>> {
    let id = columns.ids[position];
    let name = columns.schema.field(position).name();
    let encode = |bounds: Option<ArrayRef>| {
        let values = convert(&bounds?, data_type, name).ok()?;
        let converter = RowConverter::new(vec![SortField::new(data_type.clone())]).ok()?;
        let rows = converter.convert_columns(std::slice::from_ref(&values));
        Some((rows.ok()?, values))
    };
    let statistics = FileStatistics { files, columns };
    let mins = encode(statistics.bounds(position, |file| file.min.get(&id)));
    let maxes = encode(statistics.bounds(position, |file| file.max.get(&id)));
    let Some(((lows, mins), (highs, maxes))) = mins.zip(maxes) else {
        return vec![None; files.len()];
    };
    let to_bytes = |rows: &Rows, file: usize| -> Box<[u8]> { rows.row(file).as_ref().into() };
    let range = |file: usize| {
        let is_known = mins.is_valid(file) && maxes.is_valid(file);
        is_known.then(|| (to_bytes(&lows, file), to_bytes(&highs, file)))
    };
    (0..files.len()).map(range).collect()
}

#[cfg(test)]
mod tests {
    use arrow_schema::{Field, Schema};
    use serde_json::{Value, json};

    use super::*;
    use crate::table::actions::NewTable;

    /// A file of some bytes with bounds of columns: of each the id, the smallest and the largest value.
    fn file(bounds: &[(u32, Value, Value)]) -> DataFile {
        DataFile {
            size_bytes: 1000,
            min: bounds
                .iter()
                .map(|(id, min, _)| (*id, min.clone()))
                .collect(),
            max: bounds
                .iter()
                .map(|(id, _, max)| (*id, max.clone()))
                .collect(),
            ..DataFile::default()
        }
    }

    fn manifest(types: &[DataType]) -> TableManifest {
        let names = ["a", "b"];
        let fields = names.iter().zip(types);
        let fields = fields.map(|(name, data_type)| Field::new(*name, data_type.clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        NewTable::new(&schema, &["a".to_owned()], &[])
            .unwrap()
            .draft()
    }

    fn source(task: TableManifest, parts: Vec<Vec<DataFile>>) -> StagedSource {
        StagedSource {
            task,
            parts,
            on: None,
            is_merge: true,
            reads_all: false,
        }
    }

    fn listed(files: &[DataFile]) -> Vec<SnapshotFile> {
        let paths = files.iter().enumerate();
        let listed = paths.map(|(number, file)| SnapshotFile {
            file: DataFile {
                path: number.to_string(),
                ..file.clone()
            },
            segment_position: None,
        });
        listed.collect()
    }

    /// The paths of the targets.
    fn targets(base: &TableManifest, source: &StagedSource, files: &[DataFile]) -> Vec<String> {
        let keys = SourceKeys::new(base, source).unwrap();
        let targets = keys.select(listed(files)).into_iter();
        targets.map(|target| target.file.file.path).collect()
    }

    fn ints(min: i64, max: i64) -> DataFile {
        file(&[(1, json!(min), json!(max))])
    }

    #[test]
    fn files_beyond_the_keys_are_left_out_and_unknown_bounds_leave_nothing_out() {
        let base = manifest(&[DataType::Int64]);
        let files = [ints(-9, -1), ints(10, 19), DataFile::default(), ints(0, 9)];
        let part = |file: DataFile| source(manifest(&[DataType::Int16]), vec![vec![file]]);
        assert_eq!(targets(&base, &part(ints(9, 9)), &files), ["2", "3"]);
        assert_eq!(targets(&base, &part(ints(20, 30)), &files), ["2"]);
        assert_eq!(targets(&base, &part(ints(-1, 0)), &files), ["2", "0", "3"]);
        let unknown = part(DataFile::default());
        assert_eq!(targets(&base, &unknown, &files), ["2", "0", "3", "1"]);
        // Beyond the type that the bounds are of: what they are is unknown.
        assert_eq!(targets(&base, &part(ints(0, 1 << 40)), &files).len(), 4);
        let all = StagedSource {
            reads_all: true,
            ..part(ints(9, 9))
        };
        assert_eq!(targets(&base, &all, &files).len(), 4);
    }

    #[test]
    fn floats_have_no_bounds() {
        let base = manifest(&[DataType::Float64]);
        let files = [ints(0, 9), ints(10, 19)];
        let part = source(manifest(&[DataType::Float32]), vec![vec![ints(5, 5)]]);
        assert_eq!(targets(&base, &part, &files), ["0", "1"]);
    }

    #[test]
    fn each_column_of_a_key_excludes_files() {
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let base = manifest(&[dictionary, DataType::Decimal128(10, 2)]);
        let bounds = |low: &str, high: &str, min: &str, max: &str| {
            let texts = (1, json!(low), json!(high));
            file(&[texts, (2, json!(min), json!(max))])
        };
        let files = [
            bounds("a", "c", "9.00", "10.00"),
            bounds("b", "é", "-10.00", "9.50"),
            bounds("b", "c", "10.50", "99.00"),
        ];
        let staged = bounds("d", "z", "9.25", "10.00");
        let task = manifest(&[DataType::LargeUtf8, DataType::Decimal128(4, 2)]);
        let on = |names: &[&str]| StagedSource {
            on: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..source(task.clone(), vec![vec![staged.clone()]])
        };
        assert_eq!(targets(&base, &on(&["a", "b"]), &files), ["1"]);
        assert_eq!(targets(&base, &on(&["b"]), &files), ["1", "0"]);
        assert_eq!(targets(&base, &on(&["none"]), &files), ["0", "1", "2"]);
    }

    #[test]
    fn an_upsert_finds_the_key_by_its_id() {
        let mut base = manifest(&[DataType::Int64, DataType::Int64]);
        let upsert = StagedSource {
            is_merge: false,
            ..source(base.clone(), vec![vec![ints(5, 5)]])
        };
        let files = [ints(0, 9), ints(10, 19)];
        assert_eq!(targets(&base, &upsert, &files), ["0"]);
        base.schema.columns.swap(0, 1);
        for (column, name) in base.schema.columns.iter_mut().zip(["a", "b"]) {
            name.clone_into(&mut column.name);
        }
        assert_eq!(targets(&base, &upsert, &files), ["0"]);
    }

    #[test]
    fn parts_share_tasks_and_one_without_files_has_a_task_too() {
        let base = manifest(&[DataType::Int64]);
        let files: Vec<DataFile> = (0..40).rev().map(|n| ints(n * 10, n * 10 + 9)).collect();
        let parts = [(0, 95), (90, 199), (500, 600)];
        let parts = parts.map(|(min, max)| vec![ints(min, max)]);
        let keys = SourceKeys::new(&base, &source(base.clone(), Vec::from(parts))).unwrap();
        let split = |max_tasks: usize| {
            let sizes = TaskSizes {
                count: 1000,
                min_bytes: 1,
                max_bytes: 5000,
            };
            let targets = keys.select(listed(&files));
            keys.pack(&base, targets, sizes, max_tasks).unwrap()
        };
        let fine = split(100);
        assert_eq!((fine.tasks.len(), fine.searches), (21, 21));
        assert_eq!(fine.parts[0], (0..10).collect::<Vec<_>>());
        assert_eq!(fine.parts[1], (9..20).collect::<Vec<_>>());
        assert_eq!(fine.parts[2], [20]);
        let coarse = split(3);
        assert_eq!(coarse.parts, [[0], [0], [1]]);
        assert_eq!(coarse.searches, 40);
    }
}
