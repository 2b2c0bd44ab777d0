//! The Arrow schema that a file keeps beside its Parquet schema, and where the two differ.
//!
//! The Arrow schema says what was written; the Parquet schema says what the file has. pyarrow coarsens timestamps on
//! demand (`coerce_timestamps`) and keeps their former unit in the Arrow schema; it stores seconds as milliseconds.
//! arrow-rs stores seconds as numbers without a unit.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use parquet::arrow::parquet_to_arrow_schema;
use parquet::file::metadata::ParquetMetaData;

use super::nested::child_fields;
use crate::error::{Error, ErrorKind, Result};

/// The Arrow schema that the file keeps, if it has the same columns as the file.
pub(super) fn written_schema(
    metadata: &ParquetMetaData,
    inferred: &SchemaRef,
) -> Option<SchemaRef> {
    use base64::Engine;
    let key_values = metadata.file_metadata().key_value_metadata()?;
    let encoded = key_values
        .iter()
        .find(|kv| kv.key == parquet::arrow::ARROW_SCHEMA_META_KEY)?
        .value
        .as_ref()?;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .ok()?;
    let message = bytes
        .get(8..)
        .filter(|_| bytes.starts_with(&[0xff; 4]))
        .unwrap_or(&bytes);
    let ipc_schema = arrow_ipc::root_as_message(message)
        .ok()?
        .header_as_schema()?;
    let schema = std::panic::catch_unwind(|| arrow_ipc::convert::fb_to_schema(ipc_schema)).ok()?;
    let same_names = schema.fields().len() == inferred.fields().len()
        && schema
            .fields()
            .iter()
            .zip(inferred.fields())
            .all(|(a, b)| a.name() == b.name());
    let decodable = schema.fields().iter().zip(inferred.fields()).all(|(a, b)| {
        // If one is nested and the other is not, the schema belongs to another file.
        is_nested(a.data_type()) == is_nested(b.data_type())
    });
    if !same_names || !decodable {
        return None;
    }
    let fields = schema.fields().iter().zip(inferred.fields());
    let fields: Vec<FieldRef> = fields
        .map(|(written, inferred)| {
            let is_other = contradicts(written.data_type(), inferred.data_type());
            Arc::clone(if is_other { inferred } else { written })
        })
        .collect();
    Some(Arc::new(Schema::new_with_metadata(fields, schema.metadata)))
}

/// Whether a type would change the numbers that the file has, at any depth: truth values would keep only whether they are
/// 0, and another scale would move the point.
fn contradicts(written: &DataType, inferred: &DataType) -> bool {
    use DataType::{Boolean, Decimal32, Decimal64, Decimal128, Decimal256};
    let written = value_type(written);
    let mut children = child_fields(written).iter().zip(child_fields(inferred));
    let own = match (written, inferred) {
        (
            Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale),
            Decimal128(_, stored) | Decimal256(_, stored),
        ) => scale != stored,
        _ => (*written == Boolean) != (*inferred == Boolean),
    };
    own || children.any(|(w, i)| contradicts(w.data_type(), i.data_type()))
}

fn is_nested(data_type: &DataType) -> bool {
    value_type(data_type).is_nested()
}

/// The hint `decoded` by which a field is decoded, with seconds where the file has numbers of seconds without a unit,
/// as `inferred`, the field of the Parquet schema, shows. By a hint of milliseconds they would be decoded as those.
pub(super) fn with_plain_seconds(
    decoded: &FieldRef,
    written: &Field,
    inferred: &Field,
) -> FieldRef {
    let types = (written.data_type(), inferred.data_type());
    let data_type = with_seconds(decoded.data_type(), types.0, types.1);
    if data_type == *decoded.data_type() {
        return Arc::clone(decoded);
    }
    Arc::new(Field::clone(decoded).with_data_type(data_type))
}

fn with_seconds(decoded: &DataType, written: &DataType, inferred: &DataType) -> DataType {
    use DataType::{Int32, Int64, Time32, Timestamp};
    let written = value_type(written);
    match (written, inferred) {
        (Timestamp(TimeUnit::Second, _), Int64 | Timestamp(TimeUnit::Second, _))
        | (Time32(TimeUnit::Second), Int32 | Time32(TimeUnit::Second)) => written.clone(),
        _ => {
            let (written, inferred) = (child_fields(written), child_fields(inferred));
            map_child_types(decoded, &|index, data_type| match (
                written.get(index),
                inferred.get(index),
            ) {
                (Some(written), Some(inferred)) => {
                    with_seconds(data_type, written.data_type(), inferred.data_type())
                }
                _ => data_type.clone(),
            })
        }
    }
}

/// The type `written` of a file's Arrow schema, in the units of time that the file has, as its `stored` type shows.
/// Nanoseconds are left out: so are timestamps of 96 bits shown.
pub(crate) fn with_stored_units(written: &DataType, stored: &DataType) -> DataType {
    use DataType::{Time32, Time64, Timestamp};
    let is_converted = |from: TimeUnit, to: TimeUnit| to != from && to != TimeUnit::Nanosecond;
    match (value_type(written), stored) {
        (Timestamp(from, zone), Timestamp(to, stored_zone))
            if zone.is_some() == stored_zone.is_some() && is_converted(*from, *to) =>
        {
            Timestamp(*to, zone.clone())
        }
        (Time32(from) | Time64(from), Time32(to) | Time64(to)) if is_converted(*from, *to) => {
            stored.clone()
        }
        (values, _) if values.is_nested() => {
            let stored = child_fields(stored);
            map_child_types(values, &|index, data_type| match stored.get(index) {
                Some(stored) => with_stored_units(data_type, stored.data_type()),
                None => data_type.clone(),
            })
        }
        _ => written.clone(),
    }
}

/// The same Arrow schema, with another type for some of its fields, by their index.
pub(crate) fn with_field_types(schema: &SchemaRef, types: &[(usize, DataType)]) -> SchemaRef {
    let mut fields = schema.fields().to_vec();
    for (index, data_type) in types {
        let field = fields[*index].as_ref().clone();
        fields[*index] = Arc::new(field.with_data_type(data_type.clone()));
    }
    let key_values = schema.metadata().clone();
    Arc::new(Schema::new_with_metadata(fields, key_values))
}

/// The fields of a file with this Arrow schema as readers see them that look at Parquet's own schema alone. Their metadata, such as the names
/// of extension types, are those of the Arrow schema.
pub(crate) fn parquet_fields(metadata: &ParquetMetaData, schema: &Schema) -> Result<Vec<Field>> {
    let descriptor = metadata.file_metadata().schema_descr();
    let plain = parquet_to_arrow_schema(descriptor, None).map_err(|e| {
        let message = format!("the schema cannot be read: {e}");
        Error::new(ErrorKind::PartCorrupted, message).with_source(e)
    })?;
    let fields = plain.fields().iter().zip(schema.fields());
    Ok(fields
        .map(|(plain, written)| with_metadata_of(plain, written))
        .collect())
}

/// The field with the metadata of another one, and so the fields in it.
fn with_metadata_of(field: &Field, other: &Field) -> Field {
    let others = child_fields(value_type(other.data_type()));
    let data_type = map_children(field.data_type(), &|index, child| match others.get(index) {
        Some(other) => Arc::new(with_metadata_of(child, other)),
        None => Arc::clone(child),
    });
    let mut metadata = field.metadata().clone();
    metadata.extend(other.metadata().clone());
    field
        .clone()
        .with_data_type(data_type)
        .with_metadata(metadata)
}

/// The type of the values of a dictionary or of runs; other types are their own.
fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => value_type(values),
        DataType::RunEndEncoded(_, values) => value_type(values.data_type()),
        other => other,
    }
}

/// The type with other types of the fields in it.
fn map_child_types(
    data_type: &DataType,
    new_type: &dyn Fn(usize, &DataType) -> DataType,
) -> DataType {
    map_children(data_type, &|index, field| {
        Arc::new(Field::clone(field).with_data_type(new_type(index, field.data_type())))
    })
}

/// The type with other fields in it.
fn map_children(
    data_type: &DataType,
    new_child: &dyn Fn(usize, &FieldRef) -> FieldRef,
) -> DataType {
    use DataType::{FixedSizeList, LargeList, LargeListView, List, ListView, Map, Struct};
    let child = |(index, field): (usize, &FieldRef)| new_child(index, field);
    match data_type {
        List(field) => List(child((0, field))),
        LargeList(field) => LargeList(child((0, field))),
        ListView(field) => ListView(child((0, field))),
        LargeListView(field) => LargeListView(child((0, field))),
        FixedSizeList(field, size) => FixedSizeList(child((0, field)), *size),
        Map(field, sorted) => Map(child((0, field)), *sorted),
        Struct(fields) => Struct(fields.iter().enumerate().map(child).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::types::TimestampSecondType;
    use arrow_array::{
        Array, ArrayRef, Date64Array, ListArray, RecordBatch, StructArray, Time32SecondArray,
        TimestampSecondArray,
    };
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;
    use parquet::basic::Encoding;

    use super::*;
    use crate::parquet::decode::{Chunks, RowGroupStream};
    use crate::parquet::file::{FileOpenResult, ParquetFile};

    fn columns() -> RecordBatch {
        let seconds = vec![Some(1_700_000_001), None, Some(-1)];
        let moments = TimestampSecondArray::from(seconds.clone());
        let in_zone = moments.clone().with_timezone("Europe/Berlin");
        let times: ArrayRef = Arc::new(Time32SecondArray::from(vec![Some(86_399), None, Some(1)]));
        let field = Arc::new(Field::new("t", times.data_type().clone(), true));
        let nested = StructArray::from(vec![(field, Arc::clone(&times))]);
        let lists = seconds.iter().map(|second| Some(vec![*second, Some(7)]));
        let lists = ListArray::from_iter_primitive::<TimestampSecondType, _, _>(lists);
        let columns: [(&str, ArrayRef); 5] = [
            ("moment", Arc::new(moments)),
            ("in_zone", Arc::new(in_zone)),
            ("time", times),
            ("nested", Arc::new(nested)),
            ("list", Arc::new(lists)),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn write(batch: &RecordBatch) -> (Box<ParquetFile>, Bytes) {
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        let bytes = Bytes::from(bytes);
        let FileOpenResult::Ready(file) = ParquetFile::open(&bytes, bytes.len() as u64).unwrap()
        else {
            panic!("the file is complete");
        };
        (file, bytes)
    }

    fn fields_of(file: &ParquetFile) -> Vec<Field> {
        parquet_fields(file.metadata(), &file.schema).unwrap()
    }

    /// arrow-rs has no unit of seconds for Parquet, and writes plain numbers.
    #[test]
    fn seconds_of_arrow_rs_are_seconds() {
        let batch = columns();
        let (file, bytes) = write(&batch);
        let mut chunks = Chunks::new();
        chunks.push(0, bytes);
        let projection: Vec<usize> = (0..batch.num_columns()).collect();
        let mut stream = RowGroupStream::open(&file, 0, &projection, &chunks).unwrap();
        let decoded = stream.next_batch().unwrap().unwrap();
        assert_eq!(decoded.num_rows(), batch.num_rows());
        for (column, written) in decoded.columns().iter().zip(batch.columns()) {
            assert_eq!(column.data_type(), written.data_type());
            assert_eq!(column.to_data(), written.to_data());
        }
    }

    #[test]
    fn other_readers_see_the_types_of_parquet() {
        use DataType::{Date64, Int32, Int64};
        let id = std::collections::HashMap::from([(
            "ARROW:extension:name".to_owned(),
            "of.mine".to_owned(),
        )]);
        let days: ArrayRef = Arc::new(Date64Array::from(vec![86_400_000]));
        let named = Field::new("x", Date64, false).with_metadata(id.clone());
        let nested = StructArray::from(vec![(Arc::new(named.clone()), Arc::clone(&days))]);
        let fields = vec![named, Field::new("y", nested.data_type().clone(), false)];
        let days: Vec<ArrayRef> = vec![days, Arc::new(nested)];
        let days = RecordBatch::try_new(Arc::new(Schema::new(fields)), days).unwrap();
        let fields = fields_of(&write(&days).0);
        let child = &child_fields(fields[1].data_type())[0];
        for field in [&fields[0], child.as_ref()] {
            assert_eq!((field.data_type(), field.metadata()), (&Int64, &id));
        }
        let fields = fields_of(&write(&columns()).0);
        let types = fields.iter().map(|field| {
            let own = field.data_type();
            child_fields(own)
                .first()
                .map_or(own, |child| child.data_type())
        });
        assert_eq!(
            types.collect::<Vec<_>>(),
            [&Int64, &Int64, &Int32, &Int32, &Int64]
        );
    }

    /// What the Arrow schema says against the Parquet type does not count.
    #[test]
    fn another_arrow_schema_changes_no_number() {
        use crate::parquet::hand_made::{Values, read, write as write_numbers};
        let numbers = Values::Numbers(vec![1, 250, -3]);
        let read = |column, arrow_type| {
            let bytes = write_numbers(column, Some(&arrow_type), Encoding::PLAIN, &numbers);
            let array = read(&bytes).unwrap().remove(0);
            arrow_cast::cast(&array, &DataType::Utf8).unwrap()
        };
        let texts = |values: [&str; 3]| -> ArrayRef {
            Arc::new(arrow_array::StringArray::from(values.to_vec()))
        };
        for decimal in [
            DataType::Decimal32(9, 4),
            DataType::Decimal64(12, 4),
            DataType::Decimal128(20, 4),
            DataType::Decimal256(50, 4),
        ] {
            let expected = texts(["0.01", "2.50", "-0.03"]);
            let decoded = read("optional int32 x (DECIMAL(9,2));", decimal.clone());
            assert_eq!(&decoded, &expected, "{decimal}");
        }
        let decoded = read("optional int32 x;", DataType::Boolean);
        assert_eq!(&decoded, &texts(["1", "250", "-3"]));
    }

    #[test]
    fn the_units_of_the_file_count() {
        use DataType::{Int64, Time32, Time64, Timestamp};
        use TimeUnit::{Microsecond as Us, Millisecond as Ms, Nanosecond as Ns, Second as S};
        let zoned = |unit, zone: &str| Timestamp(unit, Some(zone.into()));
        for (written, stored, expected) in [
            (
                Timestamp(Ns, None),
                Timestamp(Us, None),
                Timestamp(Us, None),
            ),
            (Timestamp(S, None), Timestamp(Ms, None), Timestamp(Ms, None)),
            (
                zoned(Ns, "Asia/Tokyo"),
                zoned(Ms, "UTC"),
                zoned(Ms, "Asia/Tokyo"),
            ),
            (Time32(S), Time32(Ms), Time32(Ms)),
            (Time64(Ns), Time64(Us), Time64(Us)),
            (Timestamp(S, None), Timestamp(Us, None), Timestamp(Us, None)),
            (
                zoned(Ms, "Asia/Tokyo"),
                zoned(Us, "UTC"),
                zoned(Us, "Asia/Tokyo"),
            ),
            // Of 96 bits, without a unit, of another zone.
            (
                Timestamp(Us, None),
                Timestamp(Ns, None),
                Timestamp(Us, None),
            ),
            (Timestamp(S, None), Timestamp(S, None), Timestamp(S, None)),
            (Timestamp(Ns, None), zoned(Us, "UTC"), Timestamp(Ns, None)),
            (Timestamp(Ns, None), Int64, Timestamp(Ns, None)),
        ] {
            assert_eq!(with_stored_units(&written, &stored), expected);
            let list = |item: &DataType| DataType::new_large_list(item.clone(), true);
            let in_list = with_stored_units(&list(&written), &list(&stored));
            assert_eq!(in_list, list(&expected));
        }
    }
}
