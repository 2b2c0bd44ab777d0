//! The column `source_key` of a content whose values are in an order: a struct of the order, and of the source key last.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, StructArray};
use arrow_schema::{ArrowError, DataType, Field};

/// The name of that column, of its last field, and of the field in a stage's schema that has its type.
pub(super) const SOURCE_KEY: &str = "source_key";

/// The fields of a `source_key` with an order: those of the order, and the key of the feeder. None if it has no order.
pub(super) fn split_source_key(source_key: &Field) -> Option<(&[Arc<Field>], &Field)> {
    let DataType::Struct(fields) = source_key.data_type() else {
        return None;
    };
    let (source_key, order) = fields.split_last()?;
    (source_key.name() == SOURCE_KEY && !order.is_empty()).then_some((order, source_key))
}

/// The keys of the feeder in a column `source_key` that has an order.
pub(super) fn plain_source_keys(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let fields = column
        .as_struct_opt()
        .and_then(|keys| keys.columns().last());
    let no_order = || ArrowError::SchemaError("a source key without an order".to_owned());
    fields.cloned().ok_or_else(no_order)
}

/// A column `source_key` with an order as the columns of key mappings: the key of the feeder, and the order.
pub(super) fn split_source_keys(column: &ArrayRef) -> Result<(ArrayRef, ArrayRef), ArrowError> {
    let source_keys = plain_source_keys(column)?;
    let keys = column.as_struct();
    let fields = keys.fields();
    let order = StructArray::try_new(
        fields[..fields.len() - 1].to_vec().into(),
        keys.columns()[..fields.len() - 1].to_vec(),
        None,
    );
    Ok((source_keys, Arc::new(order?)))
}

/// The inverse of [`split_source_keys`]; `field` is that of the column.
pub(super) fn join_source_keys(
    source_keys: &ArrayRef,
    order: &ArrayRef,
    field: &Field,
) -> Result<ArrayRef, ArrowError> {
    let (DataType::Struct(fields), Some(order)) = (field.data_type(), order.as_struct_opt()) else {
        return Err(ArrowError::SchemaError(
            "a mapping without an order".to_owned(),
        ));
    };
    let mut columns = order.columns().to_vec();
    columns.push(Arc::clone(source_keys));
    Ok(Arc::new(StructArray::try_new(
        fields.clone(),
        columns,
        None,
    )?))
}
