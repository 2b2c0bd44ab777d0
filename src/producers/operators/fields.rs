//! The columns that operators see: the fields of a value that is a struct, else the value itself.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, make_array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, FieldRef};

use crate::error::{Error, Result};

/// The fields of a value that is a struct, which are null where it is; else the value.
pub(super) fn value_fields(value: &Field) -> Vec<FieldRef> {
    match value.data_type() {
        DataType::Struct(fields) => fields
            .iter()
            .map(|field| Arc::new(field.as_ref().clone().with_nullable(true)))
            .collect(),
        _ => vec![Arc::new(value.clone().with_name("value"))],
    }
}

/// A column of values.
pub(super) fn column_of(values: &ArrayRef, name: &str) -> Result<ArrayRef> {
    let Some(fields) = values.as_struct_opt() else {
        return Ok(Arc::clone(values));
    };
    let missing = || {
        Error::other(format!(
            "internal error: the values have no column {name:?}"
        ))
    };
    let column = fields.column_by_name(name).ok_or_else(missing)?;
    let outer = fields.nulls().filter(|nulls| nulls.null_count() > 0);
    let Some(outer) = outer.filter(|_| *column.data_type() != DataType::Null) else {
        return Ok(Arc::clone(column));
    };
    let nulls = NullBuffer::union(Some(outer), column.logical_nulls().as_ref());
    let data = column.to_data().into_builder().nulls(nulls);
    let data = data
        .build()
        .map_err(|e| Error::other(e.to_string()).with_source(e))?;
    Ok(make_array(data))
}
