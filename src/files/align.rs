//! Input with the columns of a schema: matched by name, in the schema's order, and converted to its types.
//!
//! The one place where input meets a schema, for tables, pipelines and ODF. Refused with
//! [`InvalidInput`](crate::ErrorKind::InvalidInput) are unknown, repeated and missing columns and types whose conversion
//! could lose a value, all before the first batch is read; and nulls in a column that must not be null, when their batch
//! is read.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, FieldRef, SchemaRef};

use super::types::keeps_values;
use crate::error::{Error, Result};
use crate::parquet::types::{batch_with_row_count, convert};

/// Returns `input` with the columns of `target_schema`, matched by name, in their order and with their
/// types. Missing nullable columns are null. Refuses unknown, repeated and missing required columns, and
/// types whose conversion could lose a value.
pub(crate) fn align_to_schema(
    input: Box<dyn RecordBatchReader + Send>,
    target_schema: &SchemaRef,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let input_schema = input.schema();
    let mut projection = Vec::new();
    for field in input_schema.fields() {
        if target_schema.index_of(field.name()).is_err() {
            let names: Vec<&String> = target_schema.fields().iter().map(|f| f.name()).collect();
            let message = format!(
                "unknown column {:?}; the schema has {names:?}; add it to the schema or leave it out",
                field.name()
            );
            return Err(Error::invalid(message));
        }
    }
    for field in target_schema.fields() {
        let mut candidates = input_schema
            .fields()
            .iter()
            .enumerate()
            .filter(|(_, f)| f.name() == field.name())
            .collect::<Vec<_>>();
        let candidate = candidates.pop();
        if !candidates.is_empty() {
            let message = format!(
                "column {:?} occurs twice in the data; rename one of them or leave it out",
                field.name()
            );
            return Err(Error::invalid(message));
        }
        match candidate {
            Some((index, input_field)) => {
                if !keeps_values(input_field.data_type(), field.data_type()) {
                    let message = format!(
                        "type mismatch for column {:?}: expected {}, got {}; cast it first",
                        field.name(),
                        field.data_type(),
                        input_field.data_type()
                    );
                    return Err(Error::invalid(message));
                }
                projection.push(Some(index));
            }
            None if field.is_nullable() => projection.push(None),
            None => {
                let message = format!(
                    "column {:?} is missing in the data and not nullable in the schema; add it to the data",
                    field.name()
                );
                return Err(Error::invalid(message));
            }
        }
    }
    let (schema, target) = (Arc::clone(target_schema), Arc::clone(target_schema));
    let batches = input.map(move |batch| {
        align_batch(&batch?, &projection, &target)
            .map_err(|e| ArrowError::ExternalError(Box::new(e)))
    });
    Ok(Box::new(RecordBatchIterator::new(batches, schema)))
}

fn align_batch(
    batch: &RecordBatch,
    projection: &[Option<usize>],
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let align_column = |(field, index): (&FieldRef, &Option<usize>)| {
        let Some(index) = index else {
            let nulls = arrow_array::new_null_array(field.data_type(), batch.num_rows());
            return Ok(nulls);
        };
        let column = batch.columns().get(*index).ok_or_else(|| {
            Error::invalid("a batch has fewer columns than its schema; make batches of its schema")
        })?;
        if !field.is_nullable() && column.logical_null_count() > 0 {
            let message = format!(
                "null in non-nullable column {:?}; replace its nulls by values",
                field.name()
            );
            return Err(Error::invalid(message));
        }
        convert(column, field.data_type(), field.name())
    };
    let columns = schema
        .fields()
        .iter()
        .zip(projection)
        .map(align_column)
        .collect::<Result<Vec<_>>>()?;
    batch_with_row_count(schema, columns, batch.num_rows())
}
