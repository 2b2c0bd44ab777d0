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
use datafusion_common::{DFSchema, DataFusionError};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use serde::{Deserialize, Serialize};

use super::super::functions::{EmittedRows, Produce, Rows};
use super::super::keys::nullable;
use super::super::layers::to_error;
use super::fields::{column_of, value_fields};
use crate::error::{Error, Result};
use crate::files::expr::sql;
use crate::files::expr::to_physical;

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

/// A planned expression.
#[derive(Debug)]
struct Planned {
    expr: Arc<dyn PhysicalExpr>,
    field: Field,
    /// Names it in errors.
    label: String,
}

#[derive(Debug)]
enum PlannedValue {
    One(Planned),
    Fields(Vec<Planned>),
}

/// A planned selection.
#[derive(Debug)]
pub(super) struct Selection {
    /// The columns that expressions see.
    columns: SchemaRef,
    key: Planned,
    value: PlannedValue,
    filter: Option<Planned>,
}

impl Selection {
    pub(super) fn plan(select: &Select, key: &Field, value: &Field) -> Result<Self> {
        let mut fields = vec![nullable(key, "key"), nullable(value, "value")];
        for field in value_fields(value) {
            if !matches!(field.name().as_str(), "key" | "value") {
                fields.push(nullable(&field, field.name()));
            }
        }
        let columns = Arc::new(Schema::new(fields));
        let schema = DFSchema::try_from(Arc::clone(&columns))
            .map_err(|e| sql::planning_error("the value", e))?;
        let schema = Arc::new(schema);
        let one = |what: &str, name: &str, text: &str| plan_expression(&schema, what, name, text);
        let filter = select.filter.as_deref();
        let filter = filter.map(|text| plan_filter(&schema, text)).transpose()?;
        // What stays as it is keeps its type and metadata: expressions widen some types.
        let unchanged = |index: usize| {
            let field = columns.field(index).clone();
            Planned {
                expr: Arc::new(Column::new(field.name(), index)),
                label: format!("the column {:?}", field.name()),
                field,
            }
        };
        let value = match &select.value {
            None => PlannedValue::One(unchanged(1)),
            Some(SelectedValue::One(text)) => PlannedValue::One(one("the value", "value", text)?),
            Some(SelectedValue::Fields(fields)) => {
                PlannedValue::Fields(plan_fields(&schema, fields)?)
            }
        };
        Ok(Self {
            key: match &select.key {
                None => unchanged(0),
                Some(text) => one("the key", "key", text)?,
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
        let source_key = nullable(self.columns.field(0), "source_key");
        let (key, value) = (nullable(&self.key(), "target_key"), self.value());
        let fields = vec![source_key, key, nullable(&value, "value")];
        Arc::new(Schema::new(fields))
    }

    /// Selects from rows with the columns `key` and `value`.
    fn select(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let failed = |e: arrow_schema::ArrowError| Error::other(e.to_string()).with_source(e);
        let value = rows.column(1);
        let mut columns = vec![Arc::clone(rows.column(0)), Arc::clone(value)];
        for field in &self.columns.fields()[2..] {
            columns.push(column_of(value, field.name())?);
        }
        let mut columns =
            RecordBatch::try_new(Arc::clone(&self.columns), columns).map_err(failed)?;
        if let Some(filter) = &self.filter {
            let mask = filter.evaluate(&columns)?;
            let mask = mask.as_boolean();
            let mask = match mask.null_count() {
                0 => mask.clone(),
                _ => prep_null_mask_filter(mask),
            };
            columns = filter_record_batch(&columns, &mask).map_err(failed)?;
        }
        if columns.num_rows() == 0 {
            // Constants are not evaluated where no row asks for them.
            return Ok(RecordBatch::new_empty(self.emitted()));
        }
        let value: ArrayRef = match &self.value {
            PlannedValue::One(planned) => planned.evaluate(&columns)?,
            PlannedValue::Fields(planned) => {
                let fields = planned.iter().map(|planned| planned.field.clone());
                let arrays = planned.iter().map(|planned| planned.evaluate(&columns));
                let arrays = arrays.collect::<Result<Vec<_>>>()?;
                Arc::new(StructArray::try_new(fields.collect(), arrays, None).map_err(failed)?)
            }
        };
        RecordBatch::try_from_iter([
            ("source_key", Arc::clone(columns.column(0))),
            ("target_key", self.key.evaluate(&columns)?),
            ("value", value),
        ])
        .map_err(failed)
    }
}

/// A selection as the function of a stage.
#[derive(Debug)]
pub(super) struct SelectFunction {
    pub(super) stage: String,
    pub(super) selection: Arc<Selection>,
}

impl Produce for SelectFunction {
    fn produce(&self, feeds: Vec<Rows>) -> Result<EmittedRows> {
        let (selection, stage) = (Arc::clone(&self.selection), self.stage.clone());
        let rows = feeds.into_iter().flatten();
        Ok(Box::new(rows.map(move |batch| {
            let selected = selection.select(&batch.map_err(to_error)?);
            selected.map_err(|e| e.context(format!("stage {stage:?}")))
        })))
    }
}

impl Planned {
    fn evaluate(&self, columns: &RecordBatch) -> Result<ArrayRef> {
        let failed = |e: DataFusionError| {
            let reason = e.strip_backtrace();
            Error::invalid(format!("{} cannot be evaluated: {reason}", self.label)).with_source(e)
        };
        let value = self.expr.evaluate(columns).map_err(failed)?;
        value.into_array(columns.num_rows()).map_err(failed)
    }
}

fn plan_filter(columns: &Arc<DFSchema>, text: &str) -> Result<Planned> {
    let planned = plan_expression(columns, "the condition", "where", text)?;
    let data_type = planned.field.data_type();
    if *data_type != DataType::Boolean {
        return Err(Error::invalid(format!(
            "{} has the type {data_type}; it must be true or false",
            planned.label
        )));
    }
    Ok(planned)
}

fn plan_fields(columns: &Arc<DFSchema>, fields: &[(String, String)]) -> Result<Vec<Planned>> {
    let mut planned: Vec<Planned> = Vec::new();
    for (name, text) in fields {
        if name.is_empty() || planned.iter().any(|other| other.field.name() == name) {
            return Err(Error::invalid(format!(
                "the fields of a value need names of their own, not {name:?}"
            )));
        }
        let what = format!("the field {name:?}");
        planned.push(plan_expression(columns, &what, name, text)?);
    }
    if planned.is_empty() {
        return Err(Error::invalid("a value needs a field"));
    }
    Ok(planned)
}

fn plan_expression(columns: &Arc<DFSchema>, what: &str, name: &str, text: &str) -> Result<Planned> {
    let label = format!("{what} {}", sql::format_sql(text));
    sql::check_length(&label, text)?;
    let (expr, data_type) = sql::with_stack(&label, || {
        let planned = sql::plan_deterministic(text, columns);
        let planned = planned.and_then(|expr| to_physical(&expr, columns));
        planned.map_err(|e| sql::planning_error(&label, e))
    })?;
    if data_type == DataType::Null {
        let message = format!("{label} has no type; cast it with CAST");
        return Err(Error::invalid(message));
    }
    Ok(Planned {
        expr,
        field: nullable(&Field::new(name, data_type, true), name),
        label,
    })
}
