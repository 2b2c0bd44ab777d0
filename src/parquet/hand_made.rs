//! Files as other makers could write them: any bytes as strings, in any encoding, with any Arrow schema.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, encode_arrow_schema};
use parquet::basic::Encoding;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::decode::{Chunks, decode_rows};
use super::file::{FileOpenResult, ParquetFile};
use crate::error::Result;

/// The values of a column, without nulls.
pub(super) enum Values<'a> {
    Bytes(Vec<&'a [u8]>),
    Numbers(Vec<i32>),
}

/// A file of the one column `x`, which has the Parquet type `column`. In a list all values are in its first row.
pub(super) fn write(
    column: &str,
    arrow_type: Option<&DataType>,
    encoding: Encoding,
    values: &Values<'_>,
) -> Bytes {
    let schema = Arc::new(parse_message_type(&format!("message m {{ {column} }}")).unwrap());
    let properties = WriterProperties::builder().set_data_page_row_count_limit(1000);
    let properties = if encoding == Encoding::RLE_DICTIONARY {
        properties
    } else {
        let properties = properties.set_dictionary_enabled(false);
        properties.set_encoding(encoding)
    };
    let mut file =
        SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    if let Some(arrow_type) = arrow_type {
        let schema = Schema::new(vec![Field::new("x", arrow_type.clone(), true)]);
        let encoded = encode_arrow_schema(&schema);
        file.append_key_value_metadata(KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), encoded));
    }
    let mut group = file.next_row_group().unwrap();
    let mut writer = group.next_column().unwrap().unwrap();
    match (writer.untyped(), values) {
        (ColumnWriter::ByteArrayColumnWriter(writer), Values::Bytes(values)) => {
            let values: Vec<_> = values.iter().map(|v| ByteArray::from(v.to_vec())).collect();
            let repeated = column.contains("repeated");
            let levels = vec![if repeated { 3 } else { 1 }; values.len()];
            let lists: Vec<i16> = (0..values.len()).map(|at| i16::from(at > 0)).collect();
            let lists = repeated.then_some(&lists[..]);
            writer.write_batch(&values, Some(&levels), lists).unwrap();
        }
        (ColumnWriter::FixedLenByteArrayColumnWriter(writer), Values::Bytes(values)) => {
            let values: Vec<_> = values.iter().map(|v| v.to_vec().into()).collect();
            let levels = vec![1; values.len()];
            writer.write_batch(&values, Some(&levels), None).unwrap();
        }
        (ColumnWriter::Int32ColumnWriter(writer), Values::Numbers(values)) => {
            let levels = vec![1; values.len()];
            writer.write_batch(values, Some(&levels), None).unwrap();
        }
        _ => panic!("the column has another type than the values"),
    }
    writer.close().unwrap();
    group.close().unwrap();
    file.into_inner().unwrap().into()
}

pub(super) fn open(bytes: &Bytes) -> (ParquetFile, Chunks) {
    let FileOpenResult::Ready(file) = ParquetFile::open(bytes, bytes.len() as u64).unwrap() else {
        panic!("the file is complete");
    };
    let mut chunks = Chunks::new();
    chunks.push(0, bytes.clone());
    (*file, chunks)
}

/// Decodes the column.
pub(super) fn read(bytes: &Bytes) -> Result<Vec<ArrayRef>> {
    let (file, chunks) = open(bytes);
    decode_rows(&file, 0, 0, &chunks, None)
}
