//! Aggregates of the values of each key: their result, and a state from which the next result is computed by what
//! changed among the values.
//!
//! The state of a group is the number of its rows and what each aggregate keeps, see `docs/format.md`. It has one
//! encoding: a group that was changed step by step has the state that it has when it is computed from all its rows.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray, new_null_array};
use arrow_cast::cast;
use arrow_row::{RowConverter, SortField};
use arrow_schema::{DataType, Field, Fields, SortOptions};

use super::super::keys::normalize;
use super::FeederColumns;
use super::accumulators::{Accumulator, Argument, Count, Sign, Sum, take_count};
use super::aggregate_types::{Aggregate, AggregateFunction, argument_type, result_type};
use super::collected::{ListAgg, StringAgg};
use super::distinct_values::DistinctValues;
use super::exact_sum::{put_unsigned, state_error};
use super::extremes::Extreme;
use super::fields::column_of;
use super::percentile::Percentile;
use super::truths::Truths;
use super::value_order::first_column;
use super::variance::Variance;
use crate::error::{Error, Result};

/// Aggregates, planned for values of a type.
#[derive(Debug)]
pub struct Aggregation {
    planned: Vec<PlannedAggregate>,
    results: Fields,
    /// The column that the values of a key are in the order of, and whether the greatest comes first.
    ordered: Option<(String, bool)>,
}

#[derive(Debug)]
struct PlannedAggregate {
    aggregate: Aggregate,
    /// The type that the column is computed in; None for rows.
    argument: Option<DataType>,
}

impl PlannedAggregate {
    fn compares(&self) -> bool {
        matches!(
            self.aggregate.function,
            AggregateFunction::Min | AggregateFunction::Max
        )
    }

    /// Whether it tells values apart.
    fn needs_order(&self) -> bool {
        use AggregateFunction as F;
        self.compares()
            || matches!(
                self.aggregate.function,
                F::CountDistinct | F::Median | F::PercentileCont | F::PercentileDisc
            )
    }

    fn accumulator(&self) -> Result<Box<dyn Accumulator>> {
        use AggregateFunction as F;
        let failed = || Error::other("internal error: an aggregate that was not planned");
        let (aggregate, argument) = (&self.aggregate, self.argument.as_ref());
        let fraction = || aggregate.fraction().ok_or_else(failed);
        let accumulator: Box<dyn Accumulator> = match (aggregate.function, argument) {
            (F::Count, _) => Box::new(Count::default()),
            (_, None) => return Err(failed()),
            (F::Sum, Some(t)) => Box::new(Sum::new(t, false).ok_or_else(failed)?),
            (F::Mean, Some(t)) => Box::new(Sum::new(t, true).ok_or_else(failed)?),
            (F::Min, Some(t)) => Box::new(Extreme::new(t, false)),
            (F::Max, Some(t)) => Box::new(Extreme::new(t, true)),
            (F::CountDistinct, Some(_)) => Box::new(DistinctValues::new()),
            (F::BoolAnd, Some(_)) => Box::new(Truths::all()),
            (F::BoolOr, Some(_)) => Box::new(Truths::any()),
            (F::CountIf, Some(_)) => Box::new(Truths::count()),
            (F::Median | F::PercentileCont, Some(_)) => {
                Box::new(Percentile::continuous(fraction()?))
            }
            (F::PercentileDisc, Some(t)) => Box::new(Percentile::discrete(fraction()?, t)),
            (F::StringAgg, Some(_)) => Box::new(StringAgg::new(
                aggregate.delimiter.as_deref().ok_or_else(failed)?,
            )),
            (F::List, Some(t)) => Box::new(ListAgg::new(t)),
            (F::Variance | F::Stddev | F::VarPop | F::StddevPop, Some(_)) => Box::new(
                Variance::new(aggregate.function.spread().ok_or_else(failed)?),
            ),
        };
        Ok(accumulator)
    }
}

impl Aggregation {
    /// Refuses columns that are not there, and types that a function cannot take.
    pub(super) fn plan(
        aggregates: &[Aggregate],
        feeders: &[FeederColumns],
        key: &Field,
        value: &Field,
    ) -> Result<Self> {
        if aggregates.is_empty() {
            return Err(Error::invalid("an aggregation needs an aggregate"));
        }
        let mut planned: Vec<PlannedAggregate> = Vec::new();
        let mut results = Vec::new();
        for aggregate in aggregates {
            let name = &aggregate.name;
            if name.is_empty() {
                let message = "an aggregate needs a name";
                return Err(Error::invalid(message));
            }
            if planned.iter().any(|other| other.aggregate.name == *name) {
                let message = format!("there are two aggregates named {name:?}");
                return Err(Error::invalid(message));
            }
            let argument = argument_type(aggregate, value)?;
            results.push(Field::new(
                name,
                result_type(aggregate, argument.as_ref())?,
                true,
            ));
            planned.push(PlannedAggregate {
                aggregate: aggregate.clone(),
                argument,
            });
        }
        Ok(Self {
            planned,
            results: results.into(),
            ordered: match feeders {
                [
                    FeederColumns {
                        order_by: Some(order),
                        ..
                    },
                ] => first_column(order, key, value)?,
                _ => None,
            },
        })
    }

    /// Whether a value of the order of the feeder is all that some aggregates take of a key.
    pub(in super::super) fn has_order(&self) -> bool {
        let (Some((ordered, _)), planned) = (&self.ordered, &self.planned) else {
            return false;
        };
        let mut compared = planned.iter().filter(|planned| planned.compares());
        compared.any(|planned| planned.aggregate.column.as_ref() == Some(ordered))
    }

    /// The type of the result: a struct with a field for each aggregate.
    pub(super) fn value(&self) -> Field {
        Field::new("value", DataType::Struct(self.results.clone()), true)
    }

    /// Begins a computation of groups.
    pub(in super::super) fn groups(&self) -> Result<Groups<'_>> {
        let accumulators = self.planned.iter().map(PlannedAggregate::accumulator);
        Ok(Groups {
            aggregation: self,
            accumulators: accumulators.collect::<Result<_>>()?,
            rows: 0,
            states: BinaryBuilder::new(),
            state: Vec::new(),
        })
    }
}

/// Rows of a batch, as the aggregates take them.
#[derive(Debug)]
pub(in super::super) struct Arguments(Vec<Arc<Argument>>);

impl Arguments {
    /// The first of some rows of which an aggregate has a value.
    pub(in super::super) fn first_valid(
        &self,
        end: UnresolvedEnd,
        mut rows: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let values = &self.0.get(end.aggregate)?.values;
        rows.find(|row| values.is_valid(*row))
    }
}

/// An aggregate of a group, and the end of the group's values at which its result is.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct UnresolvedEnd {
    aggregate: usize,
    /// Whether it is the first one that is not null, else the last.
    pub(in super::super) is_first: bool,
}

/// The groups of a computation, one after another.
pub(in super::super) struct Groups<'a> {
    aggregation: &'a Aggregation,
    accumulators: Vec<Box<dyn Accumulator>>,
    /// Of the group that is being computed.
    rows: i64,
    states: BinaryBuilder,
    state: Vec<u8>,
}

/// How a group ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum GroupEnd {
    /// It has a result.
    Result,
    /// It has no rows.
    Empty,
    /// Its result depends on all its rows: they are to be added to a group that begins without a stored one.
    Unresolved,
}

impl Groups<'_> {
    /// The values of a batch of rows, of which the last column is the value.
    pub(in super::super) fn arguments(&self, batch: &RecordBatch) -> Result<Arguments> {
        let value = batch.column(batch.num_columns() - 1);
        let planned = self.aggregation.planned.iter();
        let arguments = planned.map(|planned| {
            let column = match &planned.aggregate.column {
                Some(column) => column_of(value, column)?,
                None => new_null_array(&DataType::Null, value.len()),
            };
            to_argument(planned, &column)
        });
        Ok(Arguments(arguments.collect::<Result<_>>()?))
    }

    /// The results of stored groups, of which the last columns are the value and the state.
    pub(in super::super) fn stored(&self, batch: &RecordBatch) -> Result<Arguments> {
        let value = batch.column(batch.num_columns() - 2).as_struct();
        let planned = self.aggregation.planned.iter().zip(value.columns());
        let arguments = planned.map(|(planned, result)| {
            if planned.compares() {
                return to_argument(planned, result);
            }
            let values = Arc::clone(result);
            Ok(Arc::new(Argument {
                values,
                order: None,
            }))
        });
        Ok(Arguments(arguments.collect::<Result<_>>()?))
    }

    /// Begins a group; with a stored one, which is a row of a batch.
    pub(in super::super) fn begin(
        &mut self,
        stored: Option<(&RecordBatch, &Arguments, usize)>,
    ) -> Result<()> {
        let Some((batch, results, row)) = stored else {
            self.rows = 0;
            return self
                .accumulators
                .iter_mut()
                .try_for_each(|accumulator| accumulator.begin(None));
        };
        let states = batch.column(batch.num_columns() - 1).as_binary::<i32>();
        if states.is_null(row) {
            return Err(state_error());
        }
        let mut state = states.value(row);
        self.rows = take_count(&mut state)?;
        for (accumulator, result) in self.accumulators.iter_mut().zip(&results.0) {
            accumulator.begin(Some((&mut state, result, row)))?;
        }
        if state.is_empty() {
            Ok(())
        } else {
            Err(state_error())
        }
    }

    /// Adds rows to the group or takes them out. Those that are taken out come first.
    pub(in super::super) fn update(
        &mut self,
        arguments: &Arguments,
        rows: Range<usize>,
        sign: Sign,
    ) {
        let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        self.rows += match sign {
            Sign::Added => count,
            Sign::Removed => -count,
        };
        for (accumulator, argument) in self.accumulators.iter_mut().zip(&arguments.0) {
            accumulator.update(argument, rows.clone(), sign);
        }
    }

    /// The ends of the values of the group at which the results are that depend on all its rows; None if one of them is
    /// elsewhere. Null values are last.
    pub(in super::super) fn unresolved_ends(&self) -> Option<Vec<UnresolvedEnd>> {
        let (ordered, descending) = self.aggregation.ordered.as_ref()?;
        let all = self.accumulators.iter().zip(&self.aggregation.planned);
        let unresolved = all.enumerate().filter(|(_, (a, _))| !a.is_resolved());
        let ends = unresolved.map(|(at, (_, planned))| {
            let is_greatest = planned.aggregate.function == AggregateFunction::Max;
            let is_ordered =
                planned.compares() && planned.aggregate.column.as_ref() == Some(ordered);
            is_ordered.then_some(UnresolvedEnd {
                aggregate: at,
                is_first: is_greatest == *descending,
            })
        });
        ends.collect()
    }

    /// Takes the value of a row as the result of an aggregate beside what was added to the group, or none.
    pub(in super::super) fn resolve(
        &mut self,
        end: UnresolvedEnd,
        row: Option<(&Arguments, usize)>,
    ) {
        if let Some(accumulator) = self.accumulators.get_mut(end.aggregate) {
            let row = row.and_then(|(arguments, row)| Some((arguments.0.get(end.aggregate)?, row)));
            accumulator.resolve(row.map(|(argument, row)| (&**argument, row)));
        }
    }

    /// Ends the group.
    pub(in super::super) fn end(&mut self) -> Result<GroupEnd> {
        let Ok(rows) = u64::try_from(self.rows) else {
            let message = "internal error: more rows were taken out of a group than it had";
            return Err(Error::other(message));
        };
        if rows == 0 {
            return Ok(GroupEnd::Empty);
        }
        if !self.accumulators.iter().all(|a| a.is_resolved()) {
            return Ok(GroupEnd::Unresolved);
        }
        self.state.clear();
        put_unsigned(&mut self.state, u128::from(rows));
        let planned = self.aggregation.planned.iter();
        for (accumulator, planned) in self.accumulators.iter_mut().zip(planned) {
            accumulator
                .end(&mut self.state)
                .map_err(|e| e.context(format!("aggregate {:?}", planned.aggregate.name)))?;
        }
        self.states.append_value(&self.state);
        Ok(GroupEnd::Result)
    }

    /// Whether the results are to be taken before more are kept.
    pub(in super::super) fn is_full(&self) -> bool {
        self.accumulators.iter().any(|a| a.is_full())
    }

    /// The values and states of the groups that had a result, since the last time.
    pub(in super::super) fn take(&mut self) -> Result<(ArrayRef, ArrayRef)> {
        let results = self
            .accumulators
            .iter_mut()
            .map(|a| a.take())
            .collect::<Result<Vec<_>>>()?;
        let values = StructArray::try_new(self.aggregation.results.clone(), results, None)
            .map_err(Error::from_cause)?;
        Ok((Arc::new(values), Arc::new(self.states.finish())))
    }
}

fn to_argument(planned: &PlannedAggregate, column: &ArrayRef) -> Result<Arc<Argument>> {
    let is_count = planned.aggregate.function == AggregateFunction::Count;
    let Some(data_type) = planned.argument.as_ref().filter(|_| !is_count) else {
        // Rows count whatever their values are, and values if they are not null.
        let nulls = planned.argument.as_ref().and(column.logical_nulls());
        let values: ArrayRef = Arc::new(arrow_array::BooleanArray::new(
            arrow_buffer::BooleanBuffer::new_unset(column.len()),
            nulls,
        ));
        return Ok(Arc::new(Argument {
            values,
            order: None,
        }));
    };
    let mut values = if column.data_type() == data_type {
        Arc::clone(column)
    } else {
        cast(column, data_type).map_err(Error::from_cause)?
    };
    let order = if planned.needs_order() {
        values = normalize(&values);
        // Nulls within values are the greatest, as in DuckDB, and last in `first`.
        let nulls_last = SortOptions {
            descending: false,
            nulls_first: false,
        };
        let field = SortField::new_with_options(data_type.clone(), nulls_last);
        let converter = RowConverter::new(vec![field]).map_err(Error::from_cause)?;
        let rows = converter.convert_columns(std::slice::from_ref(&values));
        Some(rows.map_err(Error::from_cause)?)
    } else {
        None
    };
    Ok(Arc::new(Argument { values, order }))
}
