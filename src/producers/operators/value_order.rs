//! The order of the values of a key, as a stage declares it.
//!
//! It is part of what identifies a row: the content has it in the column `source_key`, a struct of the order and then the
//! key of the feeder. So the rows of a key are in that order, and every instruction to delete names a position. For the
//! expression of number `n` the struct has two fields: `is_null_n`, or `is_valid_n` where the order descends, which puts
//! nulls last, and `order_n`, its value.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, StructArray};
use arrow_buffer::BooleanBuffer;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

use super::super::format::ValueOrder;
use super::super::keys::{check_key_type, normalize, nullable};
use super::super::source_keys::SOURCE_KEY;
use super::expressions::{Columns, Planned};
use crate::error::{Error, Result};

/// The column of a key and value that an order is by first, as aggregates name it, and whether the greatest comes first.
pub(super) fn first_column(
    order: &ValueOrder,
    key: &Field,
    value: &Field,
) -> Result<Option<(String, bool)>> {
    let Some(first) = order.by.first() else {
        return Ok(None);
    };
    let planned = Columns::new(key, value)?.plan("the order", "order", first)?;
    // The expressions do not see fields of these names.
    let is_struct = matches!(value.data_type(), DataType::Struct(_));
    let is_hidden = |name: &str| name == "key" || (is_struct && name == "value");
    let column = planned.column().filter(|name| !is_hidden(name));
    Ok(column.map(|column| (column.to_owned(), order.descending)))
}

/// An order, planned for the rows of a stage.
#[derive(Debug)]
pub struct PlannedOrder {
    order: ValueOrder,
    columns: Columns,
    by: Vec<Planned>,
    /// The fields of the column `source_key`.
    fields: Fields,
}

impl PlannedOrder {
    /// For a stage with this key and value, whose source keys are `source_key`.
    pub(in super::super) fn plan(
        order: &ValueOrder,
        key: &Field,
        value: &Field,
        source_key: &Field,
    ) -> Result<Self> {
        if order.by.is_empty() {
            let message = "an order of values is by at least one expression";
            return Err(Error::invalid(message));
        }
        let columns = Columns::new(key, value)?;
        let (mut by, mut fields) = (Vec::new(), Vec::new());
        for (number, text) in order.by.iter().enumerate() {
            let planned = columns
                .plan("the order of the values", "order", text)?
                .without_dictionary();
            let data_type = planned.field.data_type();
            if matches!(data_type, DataType::Struct(_)) {
                let label = &planned.label;
                let message = format!("{label} is a struct; order by its fields instead");
                return Err(Error::invalid(message));
            }
            check_key_type(data_type, text).map_err(|e| {
                Error::invalid(format!("{} has no order", planned.label)).with_source(e)
            })?;
            let flag = if order.descending {
                "is_valid"
            } else {
                "is_null"
            };
            fields.push(Field::new(
                format!("{flag}_{number}"),
                DataType::Boolean,
                true,
            ));
            fields.push(nullable(&planned.field, &format!("order_{number}")));
            by.push(planned);
        }
        fields.push(nullable(source_key, SOURCE_KEY));
        Ok(Self {
            order: order.clone(),
            columns,
            by,
            fields: fields.into(),
        })
    }

    /// The order as it was declared.
    pub(in super::super) fn declared(&self) -> &ValueOrder {
        &self.order
    }

    /// The column `source_key` of the content.
    pub(in super::super) fn source_key(&self) -> Field {
        Field::new(SOURCE_KEY, DataType::Struct(self.fields.clone()), true)
    }

    /// The columns of a content, as a function emits its rows.
    pub(in super::super) fn emitted(&self, content: &SchemaRef) -> SchemaRef {
        let mut fields: Vec<_> = content.fields().iter().cloned().collect();
        if let (Some(field), Some(source_key)) = (fields.get_mut(1), self.fields.last()) {
            *field = Arc::clone(source_key);
        }
        Arc::new(Schema::new(fields))
    }

    /// Emitted rows as the content has them: with the order in their source keys.
    pub(in super::super) fn with_order(
        &self,
        rows: &RecordBatch,
        content: &SchemaRef,
    ) -> Result<RecordBatch> {
        let mut arrays = rows.columns().to_vec();
        let plain = rows.project(&[0, 2]).map_err(Error::from_cause)?;
        let columns = self.columns.of_rows(&plain)?;
        let mut fields: Vec<ArrayRef> = Vec::new();
        for (planned, field) in self.by.iter().zip(self.fields.iter().skip(1).step_by(2)) {
            let values = if rows.num_rows() == 0 {
                // Constants are not evaluated where no row asks for them.
                arrow_array::new_empty_array(field.data_type())
            } else {
                normalize(&planned.evaluate(&columns)?)
            };
            fields.push(Arc::new(self.flags(&values)));
            fields.push(values);
        }
        fields.push(Arc::clone(&arrays[1]));
        let source_keys = StructArray::try_new(self.fields.clone(), fields, None);
        arrays[1] = Arc::new(source_keys.map_err(Error::from_cause)?);
        RecordBatch::try_new(Arc::clone(content), arrays).map_err(Error::from_cause)
    }

    fn flags(&self, values: &ArrayRef) -> BooleanArray {
        let valid = values.logical_nulls().map_or_else(
            || BooleanBuffer::new_set(values.len()),
            |nulls| nulls.inner().clone(),
        );
        BooleanArray::new(
            if self.order.descending {
                valid
            } else {
                !&valid
            },
            None,
        )
    }
}
