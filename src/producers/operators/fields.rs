//! The columns that operators see: the fields of a value that is a struct, else the value itself.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field, FieldRef};

use crate::error::{Error, Result};
use crate::parquet::plain_values::with_nulls;

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
    with_nulls(column, fields.nulls())
}
