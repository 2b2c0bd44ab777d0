//! The format of segments: lists of data files as immutable Parquet objects, one row for each file, in the
//! order of the table.
//!
//! With segments a commit does not write the list of all files. Bounds are the same JSON as in the manifest's
//! `data_files`, as text columns.
//!
//! [`decode`] trusts nothing in a segment. A segment that is no valid Parquet file, does not list as many
//! files as the manifest says, decodes to more than a limit, or references a path outside the
//! table is [`crate::ErrorKind::ManifestCorrupted`]; a panic of the Parquet reader is caught.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::format::{DataFile, FileChecksum, PositionBitmap, Segment, corrupted_error};
use super::names;
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::files::expr::FileStatistics;
use crate::files::expr::extreme_to_json;
use crate::parquet::{footer, pages, panic_text};

const TEXT_COLUMNS: [&str; 4] = ["path", "min", "max", "null_counts"];
/// The columns of [`DataFile::columns`], [`DataFile::constants`] and [`DataFile::checksum`], null where a file has none.
const OPTIONAL_COLUMNS: [&str; 3] = ["columns", "constants", "checksum"];
/// The number of rows in a decoded batch.
const BATCH_ROWS: usize = 1024;
/// The maximum size of a decoded list in memory.
const MAX_DECODED_BYTES: usize = 2 << 30;
const NUMBER_COLUMNS: [&str; 4] = ["size_bytes", "footer_size", "row_group_count", "total_rows"];

/// Encodes a list of files as a Parquet file.
pub(super) fn encode(files: &[DataFile]) -> Result<Bytes> {
    let text = |value_of: &dyn Fn(&DataFile) -> String| {
        Arc::new(StringArray::from_iter_values(files.iter().map(value_of))) as ArrayRef
    };
    let number = |value_of: &dyn Fn(&DataFile) -> u64| {
        Arc::new(UInt64Array::from_iter_values(files.iter().map(value_of))) as ArrayRef
    };
    let optional_text = |value_of: &dyn Fn(&DataFile) -> Option<String>| {
        Arc::new(files.iter().map(value_of).collect::<StringArray>()) as ArrayRef
    };
    let columns = vec![
        text(&|f| f.path.clone()),
        text(&|f| to_json(&f.min)),
        text(&|f| to_json(&f.max)),
        text(&|f| to_json(&f.null_counts)),
        number(&|f| f.size_bytes),
        number(&|f| f.footer_size),
        number(&|f| f.row_group_count),
        number(&|f| f.total_rows),
        optional_text(&|f| f.columns.as_ref().map(to_json)),
        optional_text(&|f| (!f.constants.is_empty()).then(|| to_json(&f.constants))),
        optional_text(&|f| f.checksum.map(|checksum| checksum.to_string())),
    ];
    let texts = TEXT_COLUMNS.map(|name| Field::new(name, DataType::Utf8, false));
    let numbers = NUMBER_COLUMNS.map(|name| Field::new(name, DataType::UInt64, false));
    let optional = OPTIONAL_COLUMNS.map(|name| Field::new(name, DataType::Utf8, true));
    let fields = texts.into_iter().chain(numbers).chain(optional);
    let schema = Schema::new(fields.collect::<Vec<_>>());
    let encode_error =
        |e: &dyn std::fmt::Display| Error::other(format!("a segment cannot be encoded: {e}"));
    let batch = RecordBatch::try_new(Arc::new(schema), columns).map_err(|e| encode_error(&e))?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))
        .map_err(|e| encode_error(&e))?;
    writer.write(&batch).map_err(|e| encode_error(&e))?;
    writer
        .into_inner()
        .map(Bytes::from)
        .map_err(|e| encode_error(&e))
}

fn to_json(value: &impl Serialize) -> String {
    // Serializing plain data into memory cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// Decodes the files that a segment lists, those included that have left the table.
pub(super) fn decode(bytes: &Bytes, segment: &Segment) -> Result<Vec<DataFile>> {
    let corrupt = |reason: &str| {
        corrupted_error(
            &segment.path,
            &format!("it is not a valid Parquet file: {reason}"),
        )
    };
    footer::check_file(bytes).map_err(corrupt)?;
    std::panic::catch_unwind(|| decode_parquet(bytes, segment))
        .unwrap_or_else(|panic| Err(corrupt(panic_text(panic.as_ref()))))
}

/// Decodes arbitrary bytes as a segment of `files` files; for fuzzing.
#[cfg(feature = "testing")]
pub(crate) fn decode_untrusted(bytes: &Bytes, files: u32) {
    let segment = Segment {
        data_files: files,
        ..build_segment(String::new(), bytes.len() as u64, &[], None)
    };
    let _ = decode(bytes, &segment);
}

fn decode_parquet(bytes: &Bytes, segment: &Segment) -> Result<Vec<DataFile>> {
    let corrupt = |reason: &str| corrupted_error(&segment.path, reason);
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())
        .map_err(|e| corrupt("it is not a valid Parquet file").with_source(e))?;
    let expected_files = u64::from(segment.data_files);
    let count_mismatch =
        |count: u64| corrupt(&format!("expected {expected_files} files, found {count}"));
    // Equal rows take almost no space in a file: its claims are checked before memory is allocated.
    let claimed_rows = builder.metadata().file_metadata().num_rows();
    if u64::try_from(claimed_rows) != Ok(expected_files) {
        return Err(count_mismatch(claimed_rows.unsigned_abs()));
    }
    for group in builder.metadata().row_groups() {
        for column in group.columns() {
            check_pages(bytes, column, group.num_rows()).map_err(|reason| corrupt(&reason))?;
        }
    }
    let reader = builder.with_batch_size(BATCH_ROWS).build();
    let mut files = Vec::new();
    let mut decoded_bytes = 0;
    for batch in reader.map_err(|e| corrupt("it is not a valid Parquet file").with_source(e))? {
        let batch = batch.map_err(|e| corrupt("its rows cannot be decoded").with_source(e))?;
        decoded_bytes += batch.get_array_memory_size();
        if decoded_bytes > MAX_DECODED_BYTES {
            let reason =
                format!("it decodes to more than the maximum of {MAX_DECODED_BYTES} bytes");
            return Err(corrupt(&reason));
        }
        read_rows(&batch, &mut files)
            .ok_or_else(|| corrupt("it does not have the columns of a list of data files"))?;
        if files.len() as u64 > expected_files {
            return Err(count_mismatch(files.len() as u64));
        }
    }
    if files.len() as u64 != expected_files {
        return Err(count_mismatch(files.len() as u64));
    }
    if let Some(outside) = files.iter().find(|f| !names::is_inside(&f.path)) {
        let reason = format!("it references a path outside the table: {:?}", outside.path);
        return Err(corrupt(&reason));
    }
    Ok(files)
}

fn check_pages(bytes: &Bytes, column: &ColumnChunkMetaData, rows: i64) -> Result<(), String> {
    let to_index = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let (start, length) = column.byte_range();
    let chunk = bytes
        .get(to_index(start)..to_index(start.saturating_add(length)))
        .ok_or("a column chunk is beyond the end of the file")?;
    let rows = usize::try_from(rows).unwrap_or_default();
    pages::check(bytes.clone(), chunk, column, rows)
}

fn read_rows(batch: &RecordBatch, files: &mut Vec<DataFile>) -> Option<()> {
    let mut texts = Vec::new();
    for name in TEXT_COLUMNS {
        texts.push(batch.column_by_name(name)?.as_string_opt::<i32>()?);
    }
    let mut numbers = Vec::new();
    for name in NUMBER_COLUMNS {
        numbers.push(
            batch
                .column_by_name(name)?
                .as_primitive_opt::<UInt64Type>()?,
        );
    }
    // Older writers do not write these columns.
    let [names, constants, checksums] = OPTIONAL_COLUMNS.map(|name| {
        let column = batch.column_by_name(name);
        column.and_then(|texts| texts.as_string_opt::<i32>())
    });
    let ([path, min, max, nulls], [size, footer, groups, total]) = (&texts[..], &numbers[..])
    else {
        return None;
    };
    for row in 0..batch.num_rows() {
        files.push(DataFile {
            path: path.value(row).to_owned(),
            size_bytes: size.value(row),
            footer_size: footer.value(row),
            row_group_count: groups.value(row),
            total_rows: total.value(row),
            min: parse_json(min.value(row))?,
            max: parse_json(max.value(row))?,
            null_counts: parse_json(nulls.value(row))?,
            columns: match names.filter(|names| names.is_valid(row)) {
                Some(names) => Some(parse_json(names.value(row))?),
                None => None,
            },
            constants: match constants.filter(|constants| constants.is_valid(row)) {
                Some(constants) => parse_json(constants.value(row))?,
                None => BTreeMap::new(),
            },
            checksum: match checksums.filter(|checksums| checksums.is_valid(row)) {
                Some(checksums) => Some(FileChecksum::parse(checksums.value(row))?),
                None => None,
            },
        });
    }
    Some(())
}

fn parse_json<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

/// Builds the manifest's entry for a segment that lists `files`; without `columns` it has no bounds.
pub(super) fn build_segment(
    path: String,
    size_bytes: u64,
    files: &[DataFile],
    columns: Option<&TableColumns>,
) -> Segment {
    let mut segment = Segment {
        path,
        size_bytes,
        data_files: u32::try_from(files.len()).unwrap_or(u32::MAX),
        total_rows: files
            .iter()
            .map(|f| f.total_rows)
            .fold(0, u64::saturating_add),
        min: BTreeMap::new(),
        max: BTreeMap::new(),
        null_counts: BTreeMap::new(),
        removed: PositionBitmap::default(),
    };
    let Some(columns) = columns else {
        return segment;
    };
    for (index, id) in columns.ids.iter().enumerate() {
        // What cannot be added up is not known: files of others may have counts that are damaged.
        let null_count = files.iter().try_fold(0_u64, |sum, file| {
            sum.checked_add(*file.null_counts.get(id)?)
        });
        if let Some(null_count) = null_count {
            segment.null_counts.insert(*id, null_count);
        }
        // A file in which all values are null has no bounds and needs none.
        let is_null = |f: &DataFile| f.null_counts.get(id) == Some(&f.total_rows);
        let null_files = files.iter().filter(|f| is_null(f)).count();
        let statistics = FileStatistics { files, columns };
        let bounds = (
            statistics.bounds(index, |f| f.min.get(id).filter(|_| !is_null(f))),
            statistics.bounds(index, |f| f.max.get(id).filter(|_| !is_null(f))),
        );
        let (Some(min), Some(max)) = bounds else {
            continue;
        };
        if null_files == files.len()
            || min.null_count() != null_files
            || max.null_count() != null_files
        {
            continue;
        }
        if let (Some(min), Some(max)) = (extreme_to_json(&min, false), extreme_to_json(&max, true))
        {
            segment.min.insert(*id, min);
            segment.max.insert(*id, max);
        }
    }
    segment
}

/// Converts a segment to an entry of one large file, so that it is pruned like a file.
pub(super) fn to_data_file(segment: &Segment) -> DataFile {
    DataFile {
        path: segment.path.clone(),
        size_bytes: segment.size_bytes,
        footer_size: 0,
        row_group_count: 0,
        total_rows: segment.total_rows,
        min: segment.min.clone(),
        max: segment.max.clone(),
        null_counts: segment.null_counts.clone(),
        // Its files may be those of other writers.
        columns: Some(BTreeMap::new()),
        constants: BTreeMap::new(),
        checksum: None,
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::TimeUnit;
    use serde_json::json;

    use super::*;
    use crate::table::actions::NewTable;

    fn file(number: u64) -> DataFile {
        DataFile {
            path: format!("data/{number}.parquet"),
            size_bytes: number,
            footer_size: 7,
            row_group_count: 1,
            total_rows: 10,
            min: BTreeMap::from([(1, json!(number)), (2, json!(format!("{}", number % 13)))]),
            max: BTreeMap::from([(1, json!(number + 5)), (2, json!("z"))]),
            null_counts: BTreeMap::from([(1, 1), (2, 0), (3, 10)]),
            columns: number
                .is_multiple_of(3)
                .then(|| BTreeMap::from([(1, "a b".to_owned())])),
            constants: (0..number % 2)
                .map(|_| (9, json!(format!("{number} ä"))))
                .collect(),
            // Those of earlier versions have none.
            checksum: (!number.is_multiple_of(4))
                .then(|| FileChecksum(number.wrapping_mul(u64::MAX / 7))),
        }
    }

    /// Earlier versions read the seconds of arrow-rs as milliseconds, and listed bounds of the year 1970.
    #[test]
    fn seconds_of_other_writers_have_no_bounds() {
        let milliseconds = DataType::Timestamp(TimeUnit::Millisecond, None);
        let schema = Arc::new(Schema::new(vec![
            Field::new("at", DataType::Timestamp(TimeUnit::Second, None), true),
            Field::new("time", DataType::Time32(TimeUnit::Second), true),
            Field::new("ms", milliseconds, true),
        ]));
        let entries = NewTable::new(&schema, &[], &[]).unwrap().schema;
        let columns = TableColumns::from_entries(Arc::clone(&schema), &entries);
        let texts = ["1970-01-20T16:13:20", "00:01:26", "1970-01-20T16:13:20.001"];
        let bounds: BTreeMap<u32, serde_json::Value> =
            (1..).zip(texts.map(|text| json!(text))).collect();
        let own = DataFile {
            total_rows: 1,
            min: bounds.clone(),
            max: bounds,
            null_counts: (1..=3).map(|id| (id, 0)).collect(),
            ..DataFile::default()
        };
        let of_others = DataFile {
            columns: Some(BTreeMap::from([(1, "at".to_owned())])),
            ..own.clone()
        };
        let by_path = DataFile {
            constants: BTreeMap::from([(1, json!(texts[0]))]),
            ..of_others.clone()
        };
        let is_known = |file: &DataFile| -> Vec<bool> {
            let statistics = FileStatistics {
                files: std::slice::from_ref(file),
                columns: &columns,
            };
            let known = columns.ids.iter().enumerate().map(|(position, id)| {
                let min = statistics.bounds(position, |file| file.min.get(id));
                min.unwrap().is_valid(0)
            });
            known.collect()
        };
        assert_eq!(is_known(&own), [true, true, true]);
        assert_eq!(is_known(&of_others), [false, false, true]);
        assert_eq!(is_known(&by_path), [true, false, true]);
        let segment_of =
            |files: &[DataFile]| build_segment("s".to_owned(), 5, files, Some(&columns));
        let segment = segment_of(std::slice::from_ref(&own));
        assert_eq!(segment.min.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(is_known(&to_data_file(&segment)), [false, false, true]);
        let segment = segment_of(&[own, of_others]);
        assert_eq!(segment.min.keys().copied().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn what_is_listed_is_read() {
        let files: Vec<DataFile> = (0..1000).map(file).collect();
        let bytes = encode(&files).unwrap();
        let schema = Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int64, true),
            Field::new("b", DataType::Utf8, true),
            Field::new("c", DataType::Int8, true),
        ]));
        let columns = TableColumns::from_entries(
            Arc::clone(&schema),
            &NewTable::new(&schema, &[], &[]).unwrap().schema,
        );
        let segment = build_segment("s".to_owned(), 5, &files, Some(&columns));
        assert_eq!(decode(&bytes, &segment).unwrap(), files);
        assert_eq!((segment.data_files, segment.total_rows), (1000, 10_000));
        assert_eq!(
            segment.min,
            BTreeMap::from([(1, json!(0)), (2, json!("0"))])
        );
        assert_eq!(
            segment.max,
            BTreeMap::from([(1, json!(1004)), (2, json!("z"))])
        );
        let nulls = BTreeMap::from([(1, 1000), (2, 0), (3, 10_000)]);
        assert_eq!(segment.null_counts, nulls);
        let mut damaged = files[..2].to_vec();
        damaged[0].null_counts = BTreeMap::from([(1, u64::MAX), (2, 0)]);
        let segment_of_damaged = build_segment("s".to_owned(), 5, &damaged, Some(&columns));
        assert_eq!(segment_of_damaged.null_counts, BTreeMap::from([(2, 0)]));
        // A list with another number of files than the manifest says is refused.
        let fewer = Segment {
            data_files: 999,
            ..segment
        };
        let many = Segment {
            data_files: u32::MAX,
            ..fewer.clone()
        };
        assert!(decode(&bytes, &many).is_err());
        for (bytes, says) in [(bytes, "1000"), (Bytes::from_static(b"PAR1"), "Parquet")] {
            assert!(decode(&bytes, &fewer).unwrap_err().message().contains(says));
        }
        // Allocating memory for two thousand million row groups would abort the process.
        let footer =
            b"\x15\x02\x19\x1c\x48\x06schema\x15\x00\x00\x16\x00\x19\xfc\xff\xff\xff\xff\x07";
        let length = u32::try_from(footer.len()).unwrap().to_le_bytes();
        let hostile = [&b"PAR1"[..], footer, &length, b"PAR1"].concat();
        let error = decode(&hostile.into(), &fewer).unwrap_err();
        assert!(error.message().contains("longer than the remaining bytes"));
    }
}
