//! Selections: rows, their keys and their values by SQL expressions, as `SELECT` has them, without a call per row.
//!
//! An expression sees the columns `key` and `value`, and the fields of a value that is a struct by their names, unless
//! these are `key` or `value`. A row for which the condition is false or null is left out. Expressions have the semantics
//! of the filters of tables; functions that are not deterministic are refused.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::filter::{filter_record_batch, prep_null_mask_filter};
use serde::{Deserialize, Serialize};

use super::super::functions::{EmittedRows, Produce, Rows};
use super::super::keys::nullable;
use super::super::layers::to_error;
use super::StageFunction;
use super::expressions::{Columns, Planned};
use crate::error::{Error, Result};

/// The selected rows, keys and values, as SQL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Select {
    /// The target key; None for the key as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The value; None for the value as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<SelectedValue>,
    /// Which rows are selected; None for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

/// A value, as SQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SelectedValue {
    /// One expression.
    One(String),
    /// A struct of fields with these names and expressions.
    Fields(Vec<(String, String)>),
}

#[derive(Debug)]
enum PlannedValue {
    One(Planned),
    Fields(Vec<Planned>),
}

/// A planned selection.
#[derive(Debug)]
pub(super) struct Selection {
    columns: Columns,
    key: Planned,
    value: PlannedValue,
    filter: Option<Planned>,
}

impl Selection {
    pub(super) fn plan(select: &Select, key: &Field, value: &Field) -> Result<Self> {
        let columns = Columns::new(key, value)?;
        let filter = select
            .filter
            .as_deref()
            .map(|text| plan_filter(&columns, text))
            .transpose()?;
        let value = match &select.value {
            None => PlannedValue::One(columns.unchanged(1)),
            Some(SelectedValue::One(text)) => {
                PlannedValue::One(columns.plan("the value", "value", text)?)
            }
            Some(SelectedValue::Fields(fields)) => {
                PlannedValue::Fields(plan_fields(&columns, fields)?)
            }
        };
        Ok(Self {
            key: match &select.key {
                None => columns.unchanged(0),
                Some(text) => columns.plan("the key", "key", text)?.without_dictionary(),
            },
            columns,
            value,
            filter,
        })
    }

    pub(super) fn key(&self) -> Field {
        self.key.field.clone()
    }

    pub(super) fn value(&self) -> Field {
        match &self.value {
            PlannedValue::One(planned) => planned.field.clone(),
            PlannedValue::Fields(planned) => {
                let fields = planned.iter().map(|planned| planned.field.clone());
                Field::new("value", DataType::Struct(fields.collect()), true)
            }
        }
    }

    /// The columns of selected rows.
    fn emitted(&self) -> SchemaRef {
        let source_key = nullable(self.columns.schema.field(0), "source_key");
        let (key, value) = (nullable(&self.key(), "target_key"), self.value());
        let fields = vec![source_key, key, nullable(&value, "value")];
        Arc::new(Schema::new(fields))
    }

    /// Selects from rows with the columns `key` and `value`.
    fn select(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = self.columns.of_rows(rows)?;
        if let Some(filter) = &self.filter {
            let mask = filter.evaluate(&columns)?;
            let mask = mask.as_boolean();
            let mask = match mask.null_count() {
                0 => mask.clone(),
                _ => prep_null_mask_filter(mask),
            };
            columns = filter_record_batch(&columns, &mask).map_err(Error::from_cause)?;
        }
        if columns.num_rows() == 0 {
            // Constants are not evaluated where no row asks for them.
            return Ok(RecordBatch::new_empty(self.emitted()));
        }
        let value: ArrayRef = match &self.value {
            PlannedValue::One(planned) => planned.evaluate(&columns)?,
            PlannedValue::Fields(planned) => {
                let fields = planned.iter().map(|planned| planned.field.clone());
                let arrays = planned
                    .iter()
                    .map(|planned| planned.evaluate(&columns))
                    .collect::<Result<Vec<_>>>()?;
                Arc::new(
                    StructArray::try_new(fields.collect(), arrays, None)
                        .map_err(Error::from_cause)?,
                )
            }
        };
        RecordBatch::try_from_iter([
            ("source_key", Arc::clone(columns.column(0))),
            ("target_key", self.key.evaluate(&columns)?),
            ("value", value),
        ])
        .map_err(Error::from_cause)
    }
}

/// A selection as the function of a stage.
#[derive(Debug)]
pub(super) struct SelectFunction {
    stage: String,
    selection: Arc<Selection>,
}

impl SelectFunction {
    pub(super) fn of(stage: &str, selection: Arc<Selection>) -> StageFunction {
        StageFunction::produce(Self {
            stage: stage.to_owned(),
            selection,
        })
    }
}

impl Produce for SelectFunction {
    fn produce(&self, feeds: Vec<Rows>, _: usize) -> Result<EmittedRows> {
        let (selection, stage) = (Arc::clone(&self.selection), self.stage.clone());
        let rows = feeds.into_iter().flatten();
        Ok(Box::new(rows.map(move |batch| {
            let selected = selection.select(&batch.map_err(to_error)?);
            selected.map_err(|e| e.context(format!("stage {stage:?}")))
        })))
    }
}

fn plan_filter(columns: &Columns, text: &str) -> Result<Planned> {
    let planned = columns.plan("the condition", "where", text)?;
    let data_type = planned.field.data_type();
    if *data_type != DataType::Boolean {
        return Err(Error::invalid(format!(
            "{} has the type {data_type}; it must be true or false",
            planned.label
        )));
    }
    Ok(planned)
}

fn plan_fields(columns: &Columns, fields: &[(String, String)]) -> Result<Vec<Planned>> {
    let mut planned: Vec<Planned> = Vec::new();
    for (name, text) in fields {
        if name.is_empty() || planned.iter().any(|other| other.field.name() == name) {
            return Err(Error::invalid(format!(
                "the fields of a value need names of their own, not {name:?}"
            )));
        }
        let what = format!("the field {name:?}");
        planned.push(columns.plan(&what, name, text)?);
    }
    if planned.is_empty() {
        return Err(Error::invalid("a value needs a field"));
    }
    Ok(planned)
}
