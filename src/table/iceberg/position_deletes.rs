//! Files with the deleted rows of a data file, by their position in it.
//!
//! Source: the specification of Iceberg, "Position Delete Files". Each is about one data file: polars reads no others.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::{ArrowWriter, PARQUET_FIELD_ID_META_KEY};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use roaring::RoaringTreemap;

use super::manifests::Entry;
use crate::error::{Error, Result};

/// The field ids of the columns.
const FILE_PATH: u32 = 2_147_483_546;
const POS: u32 = 2_147_483_545;
/// The number of rows that are encoded at once.
const BATCH_ROWS: usize = 64 << 10;

/// Encodes the file with the deleted rows of a data file, by its absolute path.
pub(super) fn encode(data_file: &str, positions: &RoaringTreemap) -> Result<Bytes> {
    let encode_error = |e: &dyn std::fmt::Display| {
        Error::other(format!("a file with deleted rows cannot be encoded: {e}"))
    };
    let field = |name: &str, data_type, id: u32| {
        let id = (PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_string());
        Field::new(name, data_type, false).with_metadata([id].into())
    };
    let schema = Arc::new(Schema::new(vec![
        field("file_path", DataType::Utf8, FILE_PATH),
        field("pos", DataType::Int64, POS),
    ]));
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties))
        .map_err(|e| encode_error(&e))?;
    let mut positions = positions.iter().peekable();
    while positions.peek().is_some() {
        let some = positions.by_ref().take(BATCH_ROWS);
        let some = some.map(|position| i64::try_from(position).unwrap_or(i64::MAX));
        let numbers = Int64Array::from_iter_values(some);
        let paths = std::iter::repeat_n(data_file, numbers.len());
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(paths)),
            Arc::new(numbers),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns);
        let batch = batch.map_err(|e| encode_error(&e))?;
        writer.write(&batch).map_err(|e| encode_error(&e))?;
    }
    let bytes = writer.into_inner().map_err(|e| encode_error(&e))?;
    Ok(bytes.into())
}

/// The entry of such a file in a manifest.
pub(super) fn entry(
    path: String,
    size_bytes: u64,
    rows: u64,
    data_file: &str,
    sequence: u64,
) -> Entry {
    // Polars needs them, although the data file is named.
    let bound = vec![(FILE_PATH, data_file.as_bytes().to_vec())];
    Entry {
        path,
        rows,
        size_bytes,
        sequence,
        value_counts: Vec::new(),
        null_counts: Vec::new(),
        lower: bound.clone(),
        upper: bound,
        data_file: Some(data_file.to_owned()),
    }
}

/// Gives an entry counts, as if it had nulls and values of the columns of the table: `DuckDB` 1.4 applies filters on them to files
/// with deleted rows, and takes a count that is missing for 0, so it would show deleted rows.
pub(super) fn set_counts(entry: &mut Entry, columns: &[u32]) {
    let own = [POS, FILE_PATH];
    let counts = |of_columns, of_own| {
        let columns = columns.iter().map(|id| (*id, of_columns));
        columns.chain(own.map(|id| (id, of_own))).collect()
    };
    entry.value_counts = counts(2, entry.rows);
    entry.null_counts = counts(1, 0);
}
