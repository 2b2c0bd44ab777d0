//! What functions emit, checked.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;

use super::graph::StageNode;
use super::keys::{normalize, retype};
use super::layers::to_error;
use super::tables::STATE;
use crate::error::{Error, Result};
use crate::parquet::plain_values::plain_values;
use crate::parquet::required::check_nulls;

/// The emitted rows in the form in which they are stored.
pub(super) fn check_emitted(
    batch: &RecordBatch,
    stage: &StageNode,
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let of_stage = |e: Error| e.context(format!("stage {:?}", stage.name));
    let column = |name: &str| {
        let column = batch.column_by_name(name);
        column.ok_or_else(|| {
            of_stage(Error::invalid(format!(
                "the function gave no column {name:?}"
            )))
        })
    };
    let (target, source, value) = (
        column("target_key")?,
        column("source_key")?,
        column("value")?,
    );
    let group_state = match schema.column_with_name(STATE) {
        Some(_) => Some(column(STATE)?),
        None => None,
    };
    check_nulls(target, &stage.key, "target_key").map_err(of_stage)?;
    check_nulls(value, &stage.value, "value").map_err(of_stage)?;
    let columns = [target, source, value].into_iter().chain(group_state);
    let columns = columns.zip(schema.fields());
    let columns = columns
        .map(|(column, field)| retype(&plain_values(column, field.name())?, field.data_type()));
    let mut columns: Vec<ArrayRef> = columns.collect::<Result<_>>().map_err(of_stage)?;
    columns[0] = normalize(&columns[0]);
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(to_error)
}
