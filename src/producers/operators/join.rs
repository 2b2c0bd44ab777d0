//! Joins by equal keys: which rows are joined, and what their value is. [`super::super::pairs`] computes them.

use std::sync::Arc;

use arrow_array::{ArrayRef, StructArray};
use arrow_schema::{DataType, Field, Fields};
use serde::{Deserialize, Serialize};

use super::super::keys::nullable;
use super::FeederColumns;
use super::fields::{column_of, value_fields};
use crate::error::{Error, Result};

/// A join of two feeders by equal keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Which rows it has.
    pub how: JoinKind,
    /// What is put behind the name of a field of the right side that the left side has, too.
    pub suffix: String,
}

/// Which rows a join has. A key that is null, or has a null in it, equals none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinKind {
    /// Each pair of rows with equal keys.
    Inner,
    /// Those, and left rows without a right one.
    Left,
    /// Those of the inner join, and right rows without a left one.
    Right,
    /// All of these.
    Full,
    /// Left rows with a right one.
    Semi,
    /// Left rows without a right one.
    Anti,
}

impl JoinKind {
    /// Whether it has pairs of rows.
    pub(in super::super) fn has_pairs(self) -> bool {
        !matches!(self, Self::Semi | Self::Anti)
    }

    /// Whether it may have left rows alone.
    pub(in super::super) fn may_have_left(self) -> bool {
        !matches!(self, Self::Inner | Self::Right)
    }

    /// Whether it may have right rows alone.
    pub(in super::super) fn may_have_right(self) -> bool {
        matches!(self, Self::Right | Self::Full)
    }

    /// Whether it has the left rows of a key alone.
    pub(in super::super) fn has_left(self, has_right_rows: bool) -> bool {
        self.may_have_left() && has_right_rows == (self == Self::Semi)
    }
}

/// Which sides a row of a join is of, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Side {
    Both = 0,
    Left = 1,
    Right = 2,
}

/// A planned join.
#[derive(Debug)]
pub struct JoinPlan {
    pub(in super::super) kind: JoinKind,
    value: Field,
    source_key: Field,
    /// The fields of the value that are of the left side.
    left_fields: usize,
    /// The names of the fields within the values of the sides.
    names: Vec<String>,
}

impl JoinPlan {
    pub(super) fn plan(join: &Join, feeders: &[FeederColumns]) -> Result<Self> {
        let [left, right] = feeders else {
            let message = format!("a join has two feeders, not {}", feeders.len());
            return Err(Error::invalid(message));
        };
        let source_key = Fields::from(vec![
            nullable(&left.identity, "left"),
            nullable(&right.identity, "right"),
            Field::new("side", DataType::Int8, true),
        ]);
        let mut plan = Self {
            kind: join.how,
            value: left.value.clone().with_name("value"),
            source_key: Field::new("source_key", DataType::Struct(source_key), true),
            left_fields: 0,
            names: Vec::new(),
        };
        if !join.how.has_pairs() {
            return Ok(plan);
        }
        let mut fields: Vec<Field> = Vec::new();
        let sides = [
            (left, "", join.how.may_have_right()),
            (right, join.suffix.as_str(), join.how.may_have_left()),
        ];
        for (feeder, suffix, may_lack) in sides {
            for field in value_fields(&feeder.value) {
                plan.names.push(field.name().clone());
                let is_struct = matches!(feeder.value.data_type(), DataType::Struct(_));
                let name = if is_struct {
                    field.name()
                } else {
                    &feeder.name
                };
                let mut name = name.clone();
                let is_there = |name: &str| fields.iter().any(|other| other.name() == name);
                if is_there(&name) {
                    name.push_str(suffix);
                }
                if is_there(&name) {
                    return Err(Error::invalid(format!(
                        "both sides have a field {name:?}; choose another suffix than {suffix:?}"
                    )));
                }
                let is_nullable = may_lack || field.is_nullable();
                let field = field.as_ref().clone().with_name(name);
                fields.push(field.with_nullable(is_nullable));
            }
        }
        plan.left_fields = value_fields(&left.value).len();
        plan.value = Field::new("value", DataType::Struct(fields.into()), true);
        Ok(plan)
    }

    pub(super) fn value(&self) -> Field {
        self.value.clone()
    }

    pub(super) fn source_key(&self) -> Field {
        self.source_key.clone()
    }

    /// The values of rows with these values of the sides, which are null where a side has no row.
    pub(in super::super) fn value_of(&self, left: &ArrayRef, right: &ArrayRef) -> Result<ArrayRef> {
        if !self.kind.has_pairs() {
            return Ok(Arc::clone(left));
        }
        let columns = self
            .names
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let side = if at < self.left_fields { left } else { right };
                column_of(side, name)
            })
            .collect::<Result<Vec<_>>>()?;
        let DataType::Struct(fields) = self.value.data_type() else {
            return Err(Error::other("internal error: a pair is no struct"));
        };
        let fields = fields
            .iter()
            .zip(&columns)
            .map(|(field, column)| Field::new(field.name(), column.data_type().clone(), true));
        let value = StructArray::try_new(fields.collect(), columns, None);
        Ok(Arc::new(value.map_err(Error::from_cause)?))
    }
}
