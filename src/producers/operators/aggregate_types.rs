//! Aggregates as they are declared, and the types that they take and give.
//!
//! An aggregate has two types: that in which it computes with its column (`argument_type`), to which values are
//! converted first, and that of its result (`result_type`). Both follow from the declaration alone, so a stage has its
//! types before any row is read. What a function cannot take is refused here, with the name of the aggregate and what
//! to do.

use std::sync::Arc;

use arrow_schema::{DataType, Field};
use serde::{Deserialize, Serialize};
use serde_json::Number;

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
    /// Whether all values are true; null without values.
    BoolAnd,
    /// Whether a value is true; null without values.
    BoolOr,
    /// The number of values that are true.
    CountIf,
    /// [`Self::PercentileCont`] of one half.
    Median,
    /// The value, as a double, at a fraction of the way from the least to the greatest, interpolated between two values.
    /// Null without values.
    PercentileCont,
    /// The first value, from the least on, that has at least a fraction of all values up to it. Null without values.
    PercentileDisc,
    /// The texts in the order of the rows, with a delimiter between them; null without values.
    StringAgg,
    /// A list of the values, also of those that are null, in the order of the rows.
    List,
}

impl AggregateFunction {
    fn has_fraction(self) -> bool {
        matches!(self, Self::PercentileCont | Self::PercentileDisc)
    }

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
    /// Of a percentile, which fraction of the values is below it: 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<Number>,
    /// What is between the texts that are joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
}

impl Aggregate {
    /// The fraction of a percentile.
    pub(super) fn fraction(&self) -> Option<f64> {
        if self.function == AggregateFunction::Median {
            return Some(0.5);
        }
        self.fraction.as_ref().and_then(Number::as_f64)
    }

    /// Refuses parameters that the function does not have, and asks for those that it needs.
    fn check_parameters(&self) -> Result<()> {
        if self.function.has_fraction() {
            if !self.fraction().is_some_and(|f| (0.0..=1.0).contains(&f)) {
                return Err(refused(self, "it needs a fraction of 0 to 1"));
            }
        } else if self.fraction.is_some() {
            return Err(refused(self, "it has no fraction"));
        }
        match (self.function, &self.delimiter) {
            (AggregateFunction::StringAgg, None) => Err(refused(self, "it needs a delimiter")),
            (AggregateFunction::StringAgg, Some(_)) | (_, None) => Ok(()),
            (_, Some(_)) => Err(refused(self, "it has no delimiter")),
        }
    }
}

/// The type in which an aggregate computes with its column.
pub(super) fn argument_type(aggregate: &Aggregate, value: &Field) -> Result<Option<DataType>> {
    aggregate.check_parameters()?;
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
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        other => other.clone(),
    };
    computed_type(aggregate, plain, column).map(Some)
}

/// The type in which an aggregate computes with a column of a type.
fn computed_type(aggregate: &Aggregate, plain: DataType, column: &str) -> Result<DataType> {
    use AggregateFunction as F;
    use DataType as T;
    let is_not = |what: &str| Err(refused(aggregate, &format!("{plain} is not a {what}")));
    let check_runs = || match plain {
        T::RunEndEncoded(..) => Err(refused(
            aggregate,
            "cast run-end-encoded values to plain ones",
        )),
        _ => Ok(()),
    };
    match aggregate.function {
        F::Count => Ok(plain),
        F::Min | F::Max | F::CountDistinct | F::PercentileDisc => {
            check_runs()?;
            check_key_type(&plain, column)
                .map_err(|e| refused(aggregate, &format!("{plain} has no order")).with_source(e))?;
            Ok(plain)
        }
        F::List => {
            check_runs()?;
            match plain {
                T::Null => Err(refused(aggregate, "its values have no type")),
                _ => Ok(plain),
            }
        }
        F::StringAgg => match plain {
            T::Utf8 | T::LargeUtf8 | T::Utf8View => Ok(T::Utf8),
            _ => is_not("text"),
        },
        F::BoolAnd | F::BoolOr | F::CountIf => match plain {
            T::Boolean => Ok(plain),
            _ => is_not("truth value"),
        },
        F::Variance | F::Stddev | F::VarPop | F::StddevPop | F::Median | F::PercentileCont => {
            if plain.is_numeric() {
                return Ok(T::Float64);
            }
            is_not("number")
        }
        F::Sum | F::Mean => summed_type(aggregate, plain),
    }
}

/// The type in which values of a type are added.
fn summed_type(aggregate: &Aggregate, plain: DataType) -> Result<DataType> {
    use DataType as T;
    match plain {
        T::Int8 | T::Int16 | T::Int32 | T::Int64 | T::UInt8 | T::UInt16 | T::UInt32 => Ok(T::Int64),
        T::UInt64 | T::Decimal128(..) => Ok(plain),
        T::Float16 | T::Float32 | T::Float64 => Ok(T::Float64),
        T::Decimal32(precision, scale) | T::Decimal64(precision, scale) => {
            Ok(T::Decimal128(precision, scale))
        }
        T::Decimal256(precision, _) if precision <= MAX_SUMMED_PRECISION => Ok(plain),
        T::Decimal256(..) => Err(refused(
            aggregate,
            &format!("decimals of more than {MAX_SUMMED_PRECISION} digits have no exact sum"),
        )),
        other => Err(refused(aggregate, &format!("{other} is not a number"))),
    }
}

/// The type of its result.
pub(super) fn result_type(aggregate: &Aggregate, argument: Option<&DataType>) -> Result<DataType> {
    use AggregateFunction as F;
    Ok(match (aggregate.function, argument) {
        (F::Count, _) | (F::CountDistinct | F::CountIf, Some(_)) => DataType::Int64,
        (F::Sum, Some(argument)) => sum_type(argument),
        (
            F::Min | F::Max | F::PercentileDisc | F::StringAgg | F::BoolAnd | F::BoolOr,
            Some(argument),
        ) => argument.clone(),
        (F::List, Some(argument)) => {
            DataType::List(Arc::new(Field::new_list_field(argument.clone(), true)))
        }
        // Means, percentiles, and what says how far values are apart.
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
