//! The types in which the fields of a file are read as columns, whoever has written the file.

use std::collections::HashMap;

use arrow_schema::{DataType, TimeUnit};

use crate::files::types::{can_read_as, can_widen};
use crate::files::{OpenPart, TableColumns};
use crate::parquet::file::ParquetFile;
use crate::parquet::written_schema::{with_field_types, with_stored_units};

/// The same part, of which fields are read in the types of their columns where Parquet stores both alike, whatever the
/// file's Arrow schema says; `fields` has the index of a column's field by the id.
pub(crate) fn with_types_of(
    part: OpenPart,
    fields: &HashMap<u32, usize>,
    columns: &TableColumns,
) -> OpenPart {
    let part = with_timestamps_of(part, fields, columns);
    let table_fields = columns.schema.fields().iter().zip(columns.ids.iter());
    let types = table_fields.filter_map(|(field, id)| {
        let index = fields.get(id)?;
        let column_type = field.data_type();
        is_stored_as(&part.file, *index, column_type).then(|| (*index, column_type.clone()))
    });
    let types: Vec<(usize, DataType)> = types.collect();
    if types.is_empty() {
        return part;
    }
    let mut file = part.file.clone();
    file.schema = with_field_types(&file.schema, &types);
    part.with_file(file)
}

/// Whether a field of another type than its column is stored as one of the column's type.
fn is_stored_as(file: &ParquetFile, index: usize, column_type: &DataType) -> bool {
    let written = file.schema.field(index).data_type();
    if can_widen(written, column_type) {
        return false;
    }
    let stored = file.stored_schema().field(index).data_type();
    can_read_as(written, column_type)
        || can_read_as(&with_stored_units(written, stored), column_type)
}

/// The same part, of which timestamps of 96 bits are decoded as those of the columns.
fn with_timestamps_of(
    part: OpenPart,
    fields: &HashMap<u32, usize>,
    columns: &TableColumns,
) -> OpenPart {
    let table_fields = columns.schema.fields().iter().zip(columns.ids.iter());
    let types = table_fields.filter_map(|(field, id)| {
        let is_timestamp = matches!(
            field.data_type(),
            DataType::Timestamp(unit, zone)
                if *unit == TimeUnit::Microsecond || *unit == TimeUnit::Millisecond || zone.is_some()
        );
        let index = fields.get(id).filter(|_| is_timestamp)?;
        Some((*index, field.data_type().clone()))
    });
    let types: Vec<(usize, DataType)> = types.collect();
    if types.is_empty() {
        return part;
    }
    let file = part.file.with_int96_types(&types);
    part.with_file(file)
}
