//! Lists of values, to find the files and row groups whose bounds have one of them between them.
//!
//! A [`ValueList`] is sorted once. Each container takes a binary search, so long lists over many files stay cheap.
//! A bound that is unknown prunes nothing.

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::DataType;
use datafusion_common::pruning::PruningStatistics;
use datafusion_common::{Column, ScalarValue};

/// A column that has to be one of some values, or none of them.
#[derive(Debug)]
pub(super) struct ValueList {
    column: Column,
    converter: RowConverter,
    /// The values in the row format of `arrow-row`, ascending.
    values: Vec<Box<[u8]>>,
    /// Whether the column has to have none of the values.
    negated: bool,
}

impl ValueList {
    /// A list of values of the column's type; None if they cannot be compared.
    pub(super) fn new(column: &str, values: Vec<ScalarValue>, negated: bool) -> Option<Self> {
        let array = ScalarValue::iter_to_array(values).ok()?;
        let converter = new_converter(array.data_type())?;
        let rows = converter.convert_columns(&[array]).ok()?;
        let keys = rows.iter().map(|row| row.as_ref().into()).collect();
        Some(Self::from_keys(column, converter, keys, negated))
    }

    /// A list of values in the row format of one column of `data_type`.
    pub(super) fn from_encoded(
        column: &str,
        data_type: &DataType,
        keys: Vec<Box<[u8]>>,
    ) -> Option<Self> {
        let converter = new_converter(data_type)?;
        Some(Self::from_keys(column, converter, keys, false))
    }

    fn from_keys(
        column: &str,
        converter: RowConverter,
        mut values: Vec<Box<[u8]>>,
        negated: bool,
    ) -> Self {
        values.sort_unstable();
        Self {
            column: Column::from_name(column),
            converter,
            values,
            negated,
        }
    }

    /// For each container (file or row group) whether it may hold matching rows.
    pub(super) fn prune(&self, statistics: &dyn PruningStatistics) -> Vec<bool> {
        let count = statistics.num_containers();
        let is_null = find_null_containers(statistics, &self.column);
        let known = statistics
            .min_values(&self.column)
            .zip(statistics.max_values(&self.column))
            .and_then(|(mins, maxes)| {
                Some((self.encode(&mins)?, self.encode(&maxes)?, mins, maxes))
            });
        let may_hold = |container: usize| {
            let Some((lows, highs, mins, maxes)) = &known else {
                return true;
            };
            mins.is_null(container)
                || maxes.is_null(container)
                || self.overlaps(lows.row(container).as_ref(), highs.row(container).as_ref())
        };
        (0..count)
            .map(|container| !is_null(container) && may_hold(container))
            .collect()
    }

    /// Whether a value between the bounds, which are inclusive, may match.
    fn overlaps(&self, low: &[u8], high: &[u8]) -> bool {
        let first = self.values.partition_point(|value| value.as_ref() < low);
        let first = self.values.get(first).map(AsRef::as_ref);
        if self.negated {
            // Only a container of a single value is known to have no other.
            return low != high || first != Some(low);
        }
        first.is_some_and(|value| value <= high)
    }

    fn encode(&self, bounds: &ArrayRef) -> Option<Rows> {
        self.converter
            .convert_columns(std::slice::from_ref(bounds))
            .ok()
    }
}

fn new_converter(data_type: &DataType) -> Option<RowConverter> {
    RowConverter::new(vec![SortField::new(data_type.clone())]).ok()
}

/// Which containers have nulls only. A null is in no list, nor is it certain to be outside of one.
fn find_null_containers(
    statistics: &dyn PruningStatistics,
    column: &Column,
) -> impl Fn(usize) -> bool + use<> {
    let counts = statistics
        .null_counts(column)
        .zip(statistics.row_counts())
        .filter(|(nulls, rows)| {
            [nulls, rows].map(|counts| counts.data_type()) == [&DataType::UInt64; 2]
        });
    move |container| {
        counts.as_ref().is_some_and(|(nulls, rows)| {
            let [nulls, rows] = [nulls, rows].map(|counts| counts.as_primitive::<UInt64Type>());
            nulls.is_valid(container)
                && rows.is_valid(container)
                && nulls.value(container) == rows.value(container)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use arrow_array::{BooleanArray, Int64Array, UInt64Array};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    struct Bounds(Vec<(Option<i64>, Option<i64>, u64)>);

    impl PruningStatistics for Bounds {
        fn min_values(&self, _: &Column) -> Option<ArrayRef> {
            Some(Arc::new(self.0.iter().map(|b| b.0).collect::<Int64Array>()))
        }

        fn max_values(&self, _: &Column) -> Option<ArrayRef> {
            Some(Arc::new(self.0.iter().map(|b| b.1).collect::<Int64Array>()))
        }

        fn num_containers(&self) -> usize {
            self.0.len()
        }

        fn null_counts(&self, _: &Column) -> Option<ArrayRef> {
            let counts = self.0.iter().map(|b| b.2);
            Some(Arc::new(UInt64Array::from_iter_values(counts)))
        }

        fn row_counts(&self) -> Option<ArrayRef> {
            Some(Arc::new(UInt64Array::from(vec![9; self.0.len()])))
        }

        fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
            None
        }
    }

    fn prune(values: &[i64], negated: bool, bounds: &Bounds) -> Vec<bool> {
        let values = values.iter().map(|v| ScalarValue::Int64(Some(*v)));
        ValueList::new("a", values.collect(), negated)
            .unwrap()
            .prune(bounds)
    }

    #[test]
    fn containers_with_a_value_between_their_bounds_are_kept() {
        let mut random = StdRng::seed_from_u64(7);
        for _ in 0..200 {
            let values: Vec<i64> = (0..random.random_range(1..9))
                .map(|_| random.random_range(-40..40))
                .collect();
            let ranges: Vec<(i64, i64)> = (0..20)
                .map(|_| {
                    let low = random.random_range(-50..50);
                    (low, low + random.random_range(0..6))
                })
                .collect();
            let bounds = Bounds(
                ranges
                    .iter()
                    .map(|(l, h)| (Some(*l), Some(*h), 1))
                    .collect(),
            );
            let holds = |range: &(i64, i64)| values.iter().any(|v| range.0 <= *v && *v <= range.1);
            let expected: Vec<bool> = ranges.iter().map(holds).collect();
            assert_eq!(prune(&values, false, &bounds), expected);
            let others = |range: &(i64, i64)| (range.0..=range.1).any(|v| !values.contains(&v));
            for (range, may_hold) in ranges.iter().zip(prune(&values, true, &bounds)) {
                assert!(may_hold || !others(range), "{values:?} {range:?}");
            }
        }
    }

    #[test]
    fn a_single_value_that_is_excluded_prunes_and_unknown_bounds_do_not() {
        let bounds = Bounds(vec![
            (Some(3), Some(3), 0),
            (Some(4), Some(4), 0),
            (None, Some(1), 0),
            (Some(1), None, 0),
            (None, None, 9),
        ]);
        assert_eq!(
            prune(&[3, 5], true, &bounds),
            [false, true, true, true, false]
        );
        assert_eq!(
            prune(&[3, 5], false, &bounds),
            [true, false, true, true, false]
        );
    }
}
