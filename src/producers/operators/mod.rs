//! Operators: stages that are declared instead of programmed, and computed without a call per row.

mod accumulators;
mod aggregate;
mod exact_sum;
mod expressions;
mod extremes;
mod fields;
mod ordered;
mod select;

use std::sync::Arc;

use arrow_schema::Field;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use self::accumulators::Sign;
pub use self::aggregate::{Aggregate, AggregateFunction, Aggregation};
pub(super) use self::aggregate::{Arguments, GroupEnd, Groups};
pub use self::ordered::{First, OrderBy};
use self::ordered::{Ordered, OrderedFunction};
pub use self::select::{Select, SelectedValue};
use self::select::{SelectFunction, Selection};
use super::functions::Produce;
use crate::error::{Error, Result};

/// How a stage is computed.
#[derive(Debug, Clone)]
pub enum StageFunction {
    /// By a function of all rows of a key.
    Produce(Arc<dyn Produce>),
    /// From the stored state of a key and what changed among its rows.
    Fold(Arc<Aggregation>),
}

/// A declared operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    /// One row for each key: aggregates of its values.
    Aggregate(Vec<Aggregate>),
    /// Each distinct value of a key once.
    Distinct {},
    /// The first rows of each key in an order.
    First(First),
    /// Rows, keys and values by expressions.
    Select(Select),
}

/// An operator for feeders with a key and value.
#[derive(Debug, Clone)]
pub struct PlannedOperator {
    /// The key of the stage.
    pub key: Field,
    /// The value of the stage.
    pub value: Field,
    /// Whether the key is that of the feeders, and in their order.
    pub has_key_of_feeders: bool,
    /// What it computes.
    pub function: StageFunction,
    /// The operator, as the manifest has it.
    pub definition: Value,
}

impl Operator {
    /// Plans the operator for a stage of this name, whose feeders have these fields. Fails with
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if it cannot be computed from them.
    pub fn plan(&self, stage: &str, key: &Field, value: &Field) -> Result<PlannedOperator> {
        let definition = serde_json::to_value(self).map_err(|e| Error::other(e.to_string()))?;
        match self {
            Self::Aggregate(aggregates) => {
                let aggregation = Aggregation::plan(aggregates, value)?;
                Ok(PlannedOperator {
                    key: key.clone(),
                    value: aggregation.value(),
                    has_key_of_feeders: true,
                    function: StageFunction::Fold(Arc::new(aggregation)),
                    definition,
                })
            }
            Self::Distinct {} | Self::First(_) => {
                let ordered = match self {
                    Self::First(first) => Ordered::first(stage, first, key, value)?,
                    _ => Ordered::distinct(stage, key, value)?,
                };
                Ok(PlannedOperator {
                    key: key.clone(),
                    value: value.clone(),
                    has_key_of_feeders: true,
                    function: StageFunction::Produce(Arc::new(OrderedFunction(Arc::new(ordered)))),
                    definition,
                })
            }
            Self::Select(select) => {
                let selection = Selection::plan(select, key, value)?;
                Ok(PlannedOperator {
                    key: selection.key(),
                    value: selection.value(),
                    has_key_of_feeders: false,
                    function: StageFunction::Produce(Arc::new(SelectFunction {
                        stage: stage.to_owned(),
                        selection: Arc::new(selection),
                    })),
                    definition,
                })
            }
        }
    }
}
