//! Decides from statistics which files and row groups may hold matching rows.
//!
//! DataFusion's [`PruningPredicate`] decides all but long IN lists: it would compare each value with each
//! container. For these a [`ValueList`] searches its sorted values.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion_common::DFSchema;
use datafusion_common::pruning::PruningStatistics;
use datafusion_common::tree_node::TreeNode;
use datafusion_expr::Operator;
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::expr::{BinaryExpr, Expr, InList};
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_physical_expr::create_physical_expr;
use datafusion_pruning::{PruningPredicate, PruningPredicateBuilder};

use super::simplify::{is_long_list, to_prunable};
use super::value_list::ValueList;

/// What statistics decide of a predicate.
#[derive(Debug)]
pub(super) enum Pruner {
    /// What DataFusion decides.
    Statistics(Box<PruningPredicate>),
    /// A long IN list.
    Values(ValueList),
    /// All of these hold.
    All(Vec<Self>),
    /// One of these holds.
    Any(Vec<Self>),
    /// No row matches.
    Nothing,
}

impl Pruner {
    /// What statistics can decide of a predicate over the columns of `input`; None if they decide nothing.
    pub(super) fn new(expr: &Expr, input: &SchemaRef, schema: &DFSchema) -> Option<Self> {
        Self::build(&to_prunable(expr, schema)?, input, schema)
    }

    fn build(expr: &Expr, input: &SchemaRef, schema: &DFSchema) -> Option<Self> {
        if !expr.exists(|node| Ok(is_long_list(node))).unwrap_or(true) {
            let (context, props) = (PhysicalPlanningContext::default(), ExecutionProps::new());
            let predicate = create_physical_expr(expr, schema, &props, &context);
            let builder = PruningPredicateBuilder::new().with_file_schema(Arc::clone(input));
            return builder
                .try_build(predicate.ok()?)
                .ok()
                .map(|predicate| Self::Statistics(Box::new(predicate)));
        }
        match expr {
            Expr::InList(list) => Self::from_list(list),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let sides = [left, right].map(|side| Self::build(side, input, schema));
                match (op, sides) {
                    (Operator::And, [Some(left), Some(right)]) => {
                        Some(Self::All(vec![left, right]))
                    }
                    (Operator::And, [left, right]) => left.or(right),
                    (Operator::Or, [Some(left), Some(right)]) => Some(Self::Any(vec![left, right])),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn from_list(list: &InList) -> Option<Self> {
        let Expr::Column(column) = &*list.expr else {
            return None;
        };
        let mut values = Vec::with_capacity(list.list.len());
        for item in &list.list {
            let Expr::Literal(value, _) = item else {
                return None;
            };
            if !value.is_null() {
                values.push(value.clone());
            } else if list.negated {
                // No value is known to differ from a null.
                return Some(Self::Nothing);
            }
        }
        if values.is_empty() {
            return Some(Self::Nothing);
        }
        ValueList::new(&column.name, values, list.negated).map(Self::Values)
    }

    /// For each container (file or row group) whether it may hold matching rows.
    pub(super) fn prune(&self, statistics: &dyn PruningStatistics) -> Vec<bool> {
        let count = statistics.num_containers();
        let combine = |pruners: &[Self], of_none: bool, op: fn(bool, bool) -> bool| {
            pruners
                .iter()
                .fold(vec![of_none; count], |combined, pruner| {
                    let may_hold = pruner.prune(statistics);
                    combined
                        .into_iter()
                        .zip(may_hold)
                        .map(|(a, b)| op(a, b))
                        .collect()
                })
        };
        match self {
            Self::Statistics(predicate) => predicate.prune(statistics).unwrap_or_else(|e| {
                log::debug!("{} cannot be used for pruning: {e}", predicate.orig_expr());
                vec![true; count]
            }),
            Self::Values(list) => list.prune(statistics),
            Self::All(pruners) => combine(pruners, true, |a, b| a && b),
            Self::Any(pruners) => combine(pruners, false, |a, b| a || b),
            Self::Nothing => vec![false; count],
        }
    }
}
