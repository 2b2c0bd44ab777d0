//! Operators on the values of a key in an order: each distinct value once, and the first rows.
//!
//! Both sort the rows that they get by key and order, in bounded memory, and pick rows in one pass. Floats are compared
//! as SQL does: one zero, and one not-a-number, greater than all others.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef, SortOptions};
use serde::{Deserialize, Serialize};

use super::super::cursor::{Cursor, Picker};
use super::super::format::ValueOrder;
use super::super::functions::{EmittedRows, Produce, Rows};
use super::super::keys::nullable;
use super::super::layers::{to_arrow, to_error};
use super::StageFunction;
use super::expressions::{Columns, Planned};
use crate::error::{Error, Result};
use crate::files::expr::canonicalize;
use crate::files::{SortColumn, SortKeys, sort_batches};

/// The first rows of each key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct First {
    /// How many.
    pub rows: u64,
    /// Their order; rows that are equal in it are in the order of the feeders.
    pub by: Vec<OrderBy>,
}

/// An order by an expression. Nulls are last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderBy {
    /// The expression, as SQL.
    pub expression: String,
    /// Whether the greatest value comes first.
    pub descending: bool,
}

impl First {
    /// Whether values in this order begin with the first rows.
    pub(super) fn is_order_of(&self, order: Option<&ValueOrder>) -> bool {
        order.is_some_and(|order| {
            let mut both = self.by.iter().zip(&order.by);
            self.by.len() <= order.by.len()
                && both
                    .all(|(by, text)| by.expression == *text && by.descending == order.descending)
        })
    }
}

/// A planned operator of this module.
#[derive(Debug)]
pub(super) struct Ordered {
    stage: String,
    columns: Columns,
    /// The values that rows are in the order of, within a key.
    by: Vec<(Planned, SortOptions)>,
    /// How many rows of a key are picked; None for one of each group of rows that are equal in the order.
    limit: Option<u64>,
}

impl Ordered {
    pub(super) fn distinct(stage: &str, key: &Field, value: &Field) -> Result<Self> {
        let columns = Columns::new(key, value)?;
        let by = vec![(columns.unchanged(1), order(false))];
        Self::new(stage, columns, by, None)
    }

    pub(super) fn first(stage: &str, first: &First, key: &Field, value: &Field) -> Result<Self> {
        if first.rows == 0 || first.by.is_empty() {
            let message = "the first rows are at least one, in an order by at least one expression";
            return Err(Error::invalid(message));
        }
        let columns = Columns::new(key, value)?;
        let by = first
            .by
            .iter()
            .map(|by| {
                let planned = columns.plan("the order", "order", &by.expression)?;
                Ok((planned, order(by.descending)))
            })
            .collect::<Result<_>>()?;
        Self::new(stage, columns, by, Some(first.rows))
    }

    fn new(
        stage: &str,
        columns: Columns,
        by: Vec<(Planned, SortOptions)>,
        limit: Option<u64>,
    ) -> Result<Self> {
        for (planned, options) in &by {
            let data_type = planned.field.data_type().clone();
            let field = SortField::new_with_options(data_type, *options);
            RowConverter::new(vec![field]).map_err(|e| {
                let message = format!("{} has no order: {e}", planned.label);
                Error::invalid(message).with_source(e)
            })?;
        }
        Ok(Self {
            stage: stage.to_owned(),
            columns,
            by,
            limit,
        })
    }

    /// The key, the value and the order of rows.
    fn schema(&self) -> SchemaRef {
        let own = self.columns.schema.fields()[..2].iter().cloned();
        let by =
            self.by.iter().enumerate().map(|(at, (planned, _))| {
                Arc::new(nullable(&planned.field, &format!("order {at}")))
            });
        Arc::new(Schema::new(own.chain(by).collect::<Vec<_>>()))
    }

    fn with_order(&self, rows: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        let columns = self.columns.of_rows(rows)?;
        let mut arrays = rows.columns()[..2].to_vec();
        if self.limit.is_none() {
            arrays[1] = canonicalize(&arrays[1]);
        }
        for (planned, _) in &self.by {
            arrays.push(canonicalize(&planned.evaluate(&columns)?));
        }
        RecordBatch::try_new(Arc::clone(schema), arrays).map_err(Error::from_cause)
    }
}

fn order(descending: bool) -> SortOptions {
    SortOptions {
        descending,
        nulls_first: false,
    }
}

/// An operator as the function of a stage.
#[derive(Debug)]
pub(super) struct OrderedFunction(Arc<Ordered>);

impl OrderedFunction {
    pub(super) fn of(ordered: Ordered) -> StageFunction {
        StageFunction::produce(Self(Arc::new(ordered)))
    }
}

impl Produce for OrderedFunction {
    fn produce(&self, feeds: Vec<Rows>, memory_bytes: usize) -> Result<EmittedRows> {
        let (operator, schema) = (Arc::clone(&self.0), self.0.schema());
        let input = {
            let (operator, schema) = (Arc::clone(&operator), Arc::clone(&schema));
            feeds.into_iter().flatten().map(move |rows| {
                let ordered = operator.with_order(&rows?, &schema);
                ordered.map_err(|e| to_arrow(e.context(format!("stage {:?}", operator.stage))))
            })
        };
        let by = operator
            .by
            .iter()
            .enumerate()
            .map(|(at, (_, options))| SortColumn::new(at + 2, *options));
        let by: Vec<SortColumn> = std::iter::once(SortColumn::ascending(0))
            .chain(by)
            .collect();
        let input: Rows = Box::new(RecordBatchIterator::new(input, Arc::clone(&schema)));
        let sorted = sort_batches(input, &by, memory_bytes)?;
        // Rows are counted, or told apart, by the key; for distinct ones by the value, too.
        let compared = if operator.limit.is_some() {
            1
        } else {
            by.len()
        };
        let keys = Arc::new(SortKeys::new(&schema, &by[..compared])?);
        Ok(Box::new(PickedRows {
            rows: Cursor::new(Box::new(sorted), &keys).map_err(to_error)?,
            limit: operator.limit.unwrap_or(1),
            last: Vec::new(),
            count: 0,
            picker: Picker::default(),
            picked: Vec::new(),
        }))
    }
}

/// So many of the rows that are equal in the keys of a sorted stream.
struct PickedRows {
    rows: Cursor,
    limit: u64,
    /// The key of the last row, and how many rows have it so far.
    last: Vec<u8>,
    count: u64,
    picker: Picker,
    picked: Vec<RecordBatch>,
}

impl PickedRows {
    fn pick(&mut self) -> Result<(), ArrowError> {
        while let (Some(key), Some((batch, row))) = (self.rows.key(), self.rows.row()) {
            if self.count == 0 || self.last != key {
                self.last.clear();
                self.last.extend_from_slice(key);
                self.count = 0;
            }
            self.count += 1;
            if self.count <= self.limit {
                self.picker.pick(batch, row);
            }
            self.rows.advance()?;
            if self.picker.is_full() {
                break;
            }
        }
        self.picked = self.picker.take()?;
        self.picked.reverse();
        Ok(())
    }
}

impl Iterator for PickedRows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.picked.is_empty()
            && let Err(e) = self.pick()
        {
            return Some(Err(to_error(e)));
        }
        let rows = self.picked.pop()?;
        let (key, value) = (rows.column(0), rows.column(1));
        let emitted = RecordBatch::try_from_iter([
            ("source_key", Arc::clone(key)),
            ("target_key", Arc::clone(key)),
            ("value", Arc::clone(value)),
        ]);
        Some(emitted.map_err(Error::from_cause))
    }
}
