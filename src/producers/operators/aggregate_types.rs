//! Aggregates as they are declared, and the types that they take and give.

use arrow_schema::{DataType, Field};
use serde::{Deserialize, Serialize};

use super::super::keys::{check_key_type, nullable};
use super::accumulators::{MAX_SUMMED_PRECISION, sum_type};
use super::fields::value_fields;
use super::variance::Spread;
use crate::error::{Error, Result};

/// A function of the values of a group. Values that are null do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AggregateFunction {
    /// The number of values; of rows, without a column.
    Count,
    /// The exact sum, rounded once; null without values.
    Sum,
    /// The sum divided by the number of values; null without values.
    Mean,
    /// The least value; null without values. Not-a-number is greater than all other floats.
    Min,
    /// The greatest value.
    Max,
    /// The number of distinct values.
    CountDistinct,
    /// The variance of a sample: the sum of the squared distances from the mean, divided by the number of values less one.
    /// Null for less than two values.
    Variance,
    /// The root of the variance of a sample.
    Stddev,
    /// The variance of a population: divided by the number of values. Null without values.
    VarPop,
    /// The root of the variance of a population.
    StddevPop,
}

impl AggregateFunction {
    pub(super) fn spread(self) -> Option<Spread> {
        let (of_sample, is_root) = match self {
            Self::Variance => (true, false),
            Self::Stddev => (true, true),
            Self::VarPop => (false, false),
            Self::StddevPop => (false, true),
            _ => return None,
        };
        Some(Spread { of_sample, is_root })
    }
}

/// An aggregate and the name of its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregate {
    /// The name of the field that has the result.
    pub name: String,
    /// The function.
    pub function: AggregateFunction,
    /// The field of the value, or `value` for one without fields; None for the rows themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
}

/// The type in which an aggregate computes with its column.
pub(super) fn argument_type(aggregate: &Aggregate, value: &Field) -> Result<Option<DataType>> {
    use DataType as T;
    let Some(column) = &aggregate.column else {
        return match aggregate.function {
            AggregateFunction::Count => Ok(None),
            _ => Err(refused(aggregate, "it needs a column")),
        };
    };
    let fields = value_fields(value);
    let Some(field) = fields.iter().find(|field| field.name() == column) else {
        let names: Vec<&String> = fields.iter().map(|field| field.name()).collect();
        let message = format!("its column {column:?} does not exist; the value has {names:?}");
        return Err(refused(aggregate, &message));
    };
    let plain = match nullable(field, "value").data_type() {
        T::Dictionary(_, values) => values.as_ref().clone(),
        other => other.clone(),
    };
    match aggregate.function {
        AggregateFunction::Count => Ok(Some(plain)),
        AggregateFunction::Min | AggregateFunction::Max | AggregateFunction::CountDistinct => {
            if matches!(plain, T::RunEndEncoded(..)) {
                return Err(refused(
                    aggregate,
                    "cast run-end-encoded values to plain ones",
                ));
            }
            check_key_type(&plain, column)
                .map_err(|e| refused(aggregate, &format!("{plain} has no order")).with_source(e))?;
            Ok(Some(plain))
        }
        _ if aggregate.function.spread().is_some() => {
            if plain.is_numeric() {
                return Ok(Some(T::Float64));
            }
            Err(refused(aggregate, &format!("{plain} is not a number")))
        }
        _ => match plain {
            T::Int8 | T::Int16 | T::Int32 | T::Int64 | T::UInt8 | T::UInt16 | T::UInt32 => {
                Ok(Some(T::Int64))
            }
            T::UInt64 | T::Decimal128(..) => Ok(Some(plain)),
            T::Float16 | T::Float32 | T::Float64 => Ok(Some(T::Float64)),
            T::Decimal32(precision, scale) | T::Decimal64(precision, scale) => {
                Ok(Some(T::Decimal128(precision, scale)))
            }
            T::Decimal256(precision, _) if precision <= MAX_SUMMED_PRECISION => Ok(Some(plain)),
            T::Decimal256(..) => Err(refused(
                aggregate,
                &format!("decimals of more than {MAX_SUMMED_PRECISION} digits have no exact sum"),
            )),
            other => Err(refused(aggregate, &format!("{other} is not a number"))),
        },
    }
}

/// The type of its result.
pub(super) fn result_type(aggregate: &Aggregate, argument: Option<&DataType>) -> Result<DataType> {
    Ok(match (aggregate.function, argument) {
        (AggregateFunction::Count, _) | (AggregateFunction::CountDistinct, Some(_)) => {
            DataType::Int64
        }
        (AggregateFunction::Sum, Some(argument)) => sum_type(argument),
        (AggregateFunction::Min | AggregateFunction::Max, Some(argument)) => argument.clone(),
        // Means, and what says how far values are apart.
        (_, Some(_)) => DataType::Float64,
        (_, None) => return Err(refused(aggregate, "it needs a column")),
    })
}

fn refused(aggregate: &Aggregate, reason: &str) -> Error {
    let name = &aggregate.name;
    Error::invalid(format!(
        "the aggregate {name:?} cannot be computed: {reason}"
    ))
}
