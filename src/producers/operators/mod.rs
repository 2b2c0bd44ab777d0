//! Operators: stages that are declared instead of programmed, and computed without a call per row.
//!
//! An [`Operator`] is plain data, which the manifest stores. `plan` checks it against the columns of its feeders and
//! makes a [`PlannedOperator`] of it: the key and value of the stage, and what computes them.
//!
//! | operator | modules |
//! | --- | --- |
//! | aggregates | `aggregate`, `aggregate_types` |
//! | numbers of a group | `accumulators` (counts, sums, means), `distinct_values`, `truths`, `variance`, `percentile` |
//! | values of a group | `extremes`, `collected` |
//! | distinct values, the first rows | `ordered` |
//! | elements of lists | `flatten` |
//! | joins | `join` |
//! | rows, keys and values by expressions | `select`, `expressions` |
//! | the order of a stage's values | `value_order` |

mod accumulators;
mod aggregate;
mod aggregate_types;
mod collected;
mod distinct_values;
mod exact_sum;
mod expressions;
mod extremes;
mod fields;
mod flatten;
mod join;
mod ordered;
mod percentile;
mod picked_results;
mod select;
mod sorted_files;
mod sorted_values;
mod truths;
mod value_order;
mod variance;

use std::sync::Arc;

use arrow_schema::Field;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use self::accumulators::Sign;
pub use self::aggregate::Aggregation;
pub(super) use self::aggregate::{Arguments, GroupEnd, Groups, UnresolvedEnd};
pub use self::aggregate_types::{Aggregate, AggregateFunction};
pub use self::flatten::Flatten;
use self::flatten::{FlattenFunction, Flattening};
pub(super) use self::join::Side;
pub use self::join::{Join, JoinKind, JoinPlan};
pub use self::ordered::{First, OrderBy};
use self::ordered::{Ordered, OrderedFunction};
pub use self::select::{Select, SelectedValue};
use self::select::{SelectFunction, Selection};
pub use self::value_order::PlannedOrder;
use super::format::ValueOrder;
use super::functions::Produce;
use crate::error::{Error, Result};

/// How a stage is computed.
#[derive(Debug, Clone)]
pub enum StageFunction {
    /// By a function of all rows of a key.
    Produce(Arc<dyn Produce>),
    /// From the stored state of a key and what changed among its rows.
    Fold(Arc<Aggregation>),
    /// By pairs of the rows of two feeders.
    Join(Arc<JoinPlan>),
}

impl StageFunction {
    fn produce(function: impl Produce + 'static) -> Self {
        Self::Produce(Arc::new(function))
    }
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
    /// A row for each element of a list.
    Flatten(Flatten),
    /// Pairs of rows with equal keys.
    Join(Join),
    /// Rows, keys and values by expressions.
    Select(Select),
}

/// What operators see of a feeder.
#[derive(Debug)]
pub(super) struct FeederColumns {
    pub(super) name: String,
    pub(super) key: Field,
    pub(super) value: Field,
    pub(super) descending: bool,
    /// What tells, within a key, which rows a newer run replaces: the source key of a stage.
    pub(super) identity: Field,
    /// The order of the values of a key, if it has one.
    pub(super) order_by: Option<ValueOrder>,
}

/// An operator for feeders with a key and value.
#[derive(Debug, Clone)]
pub struct PlannedOperator {
    /// The key of the stage.
    pub key: Field,
    /// The value of the stage.
    pub value: Field,
    /// The source key, where that is not the key of the feeders.
    pub source_key: Option<Field>,
    /// Whether the key is that of the feeders, and in their order.
    pub has_key_of_feeders: bool,
    /// How many first rows of a key are enough; None for all.
    pub first_rows: Option<u64>,
    /// What it computes.
    pub function: StageFunction,
    /// The operator, as the manifest has it.
    pub definition: Value,
}

impl Operator {
    /// Plans the operator for a stage of this name and its feeders. Fails with
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if it cannot be computed from them.
    pub(super) fn plan(&self, stage: &str, feeders: &[FeederColumns]) -> Result<PlannedOperator> {
        let Some(first) = feeders.first() else {
            return Err(Error::invalid("it needs a feeder"));
        };
        let of_any = |field: fn(&FeederColumns) -> &Field| {
            let is_nullable = feeders.iter().any(|feeder| field(feeder).is_nullable());
            field(first).clone().with_nullable(is_nullable)
        };
        let (key, value) = (&of_any(|f| &f.key), &of_any(|f| &f.value));
        let definition = serde_json::to_value(self).map_err(Error::from_cause)?;
        let of_key = |value: Field, function: StageFunction| PlannedOperator {
            key: key.clone(),
            value,
            source_key: None,
            has_key_of_feeders: true,
            first_rows: None,
            function,
            definition,
        };
        Ok(match self {
            Self::Aggregate(aggregates) => {
                let aggregation = Aggregation::plan(aggregates, feeders, key, value)?;
                of_key(
                    aggregation.value(),
                    StageFunction::Fold(Arc::new(aggregation)),
                )
            }
            Self::Distinct {} => {
                let ordered = Ordered::distinct(stage, key, value)?;
                of_key(value.clone(), OrderedFunction::of(ordered))
            }
            Self::First(first) => {
                let ordered = Ordered::first(stage, first, key, value)?;
                let has_order =
                    matches!(feeders, [only] if first.is_order_of(only.order_by.as_ref()));
                PlannedOperator {
                    first_rows: has_order.then_some(first.rows),
                    ..of_key(value.clone(), OrderedFunction::of(ordered))
                }
            }
            Self::Flatten(flatten) => {
                let flattening = Arc::new(Flattening::plan(flatten, value)?);
                let value = flattening.value();
                of_key(value, StageFunction::produce(FlattenFunction(flattening)))
            }
            Self::Join(join) => {
                let plan = JoinPlan::plan(join, feeders)?;
                PlannedOperator {
                    source_key: Some(plan.source_key()),
                    ..of_key(plan.value(), StageFunction::Join(Arc::new(plan)))
                }
            }
            Self::Select(select) => {
                let selection = Arc::new(Selection::plan(select, key, value)?);
                PlannedOperator {
                    key: selection.key(),
                    has_key_of_feeders: false,
                    ..of_key(selection.value(), SelectFunction::of(stage, selection))
                }
            }
        })
    }
}
