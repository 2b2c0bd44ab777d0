//! Finding the selected keys among decoded rows, which are in the order of the run.
//!
//! A key is found by comparing it with some of the rows. To make the keys of all rows comparable takes longer, because
//! of a page mostly one row is selected.

use std::cmp::Ordering;
use std::ops::Range;

use arrow_array::ArrayRef;
use arrow_ord::ord::{DynComparator, make_comparator};
use arrow_schema::{Schema, SortOptions};

use super::SortColumn;
use super::index::positions_in;
use super::selection::{KeyInterval, KeySelection, sort_keys};
use crate::error::{Error, Result};
use crate::files::merge::SortKeys;

/// The keys to read: ascending, disjoint intervals.
#[derive(Debug)]
pub(super) struct KeySearch {
    /// The columns whose rows are the bounds of the intervals.
    bounds: Vec<ArrayRef>,
    intervals: Vec<KeyInterval>,
    /// Whether the last key of an interval is left out.
    excludes_end: bool,
    /// How each column is ordered.
    options: Vec<SortOptions>,
}

impl KeySearch {
    /// The keys of a selection from a run with the columns `schema`, which is in the order of `by`.
    pub(super) fn new(
        selection: &KeySelection,
        schema: &Schema,
        by: &[SortColumn],
    ) -> Result<Self> {
        let (bounds, mut intervals) = selection.intervals()?;
        let is_keys = matches!(selection, KeySelection::Keys(_));
        if is_keys {
            let keys = SortKeys::new(schema, by)?.convert_columns(&bounds);
            sort_keys(&keys.map_err(Error::from_cause)?, &mut intervals);
        }
        Ok(Self {
            bounds,
            intervals,
            excludes_end: !is_keys,
            options: by.iter().map(|column| column.options).collect(),
        })
    }

    /// Which of `rows` rows with these keys are selected, as ascending ranges with gaps between them.
    pub(super) fn rows_in(&self, keys: &[ArrayRef], rows: usize) -> Result<Vec<Range<usize>>> {
        let columns = self
            .bounds
            .iter()
            .zip(keys)
            .zip(&self.options)
            .map(|((bound, key), options)| {
                make_comparator(bound.as_ref(), key.as_ref(), *options).map_err(Error::from_cause)
            })
            .collect::<Result<Vec<DynComparator>>>()?;
        // Of a bound with the key of a row.
        let compare = |bound: usize, row: usize| {
            let mut orders = columns.iter().map(|compare| compare(bound, row));
            orders
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        };
        let begins_after = |interval: &KeyInterval, row: usize| {
            interval.from.is_some_and(|from| compare(from, row).is_gt())
        };
        let ends_before = |interval: &KeyInterval, row: usize| {
            let order = interval.to.map(|to| compare(to, row));
            order.is_some_and(|order| order.is_lt() || self.excludes_end && order.is_eq())
        };
        Ok(positions_in(
            &self.intervals,
            rows,
            begins_after,
            ends_before,
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int8Type;
    use arrow_array::{
        Array, BooleanArray, DictionaryArray, FixedSizeBinaryArray, Float32Array, Float64Array,
        Int8Array, Int64Array, StringArray, StructArray, UInt32Array,
    };
    use arrow_cast::cast;
    use arrow_row::Rows;
    use arrow_schema::{DataType, Field, Fields, TimeUnit};
    use arrow_select::take::take;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::run::KeyRange;

    fn floats() -> ArrayRef {
        let nans = [
            0x7ff8_0000_0000_0000,
            0xfff8_0000_0000_0000,
            0x7ff0_0000_0000_0001,
        ];
        let numbers = [
            -0.0,
            0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1.5,
            -1.5,
            5e-324,
        ];
        let floats = nans.map(f64::from_bits).into_iter().chain(numbers);
        let floats = floats.map(Some).chain([None, None]);
        Arc::new(floats.collect::<Float64Array>())
    }

    fn texts() -> ArrayRef {
        let values = [
            "",
            "a",
            "ab",
            "a\0",
            "b",
            "\u{e4}",
            "\u{10ffff}",
            "twelve bytes",
            "twelve bytes and more",
            "twelve bytes and less",
        ];
        let texts = values.map(Some).into_iter().chain([None]);
        Arc::new(texts.collect::<StringArray>())
    }

    fn structs() -> ArrayRef {
        let inner = Fields::from(vec![
            Field::new("text", DataType::Utf8View, true),
            Field::new("float", DataType::Float64, true),
        ]);
        let columns = vec![
            cast(&texts(), &DataType::Utf8View).unwrap(),
            floats().slice(0, 11),
        ];
        let valid = (0..11).map(|row| row != 4).collect::<Vec<_>>();
        let inner = Arc::new(StructArray::new(inner, columns, Some(valid.into())));
        let fields = Fields::from(vec![
            Field::new("inner", inner.data_type().clone(), true),
            Field::new("flag", DataType::Boolean, true),
        ]);
        let flags = (0..11).map(|row| [None, Some(true), Some(false)][row % 3]);
        let flags: BooleanArray = flags.collect();
        let valid = (0..11).map(|row| row != 7).collect::<Vec<_>>();
        let columns: Vec<ArrayRef> = vec![inner, Arc::new(flags)];
        Arc::new(StructArray::new(fields, columns, Some(valid.into())))
    }

    /// Values of the types that keys may have.
    fn values() -> Vec<ArrayRef> {
        let numbers = Int64Array::from(vec![None, Some(-3), Some(0), Some(1), Some(2), Some(90)]);
        let numbers: ArrayRef = Arc::new(numbers);
        let narrow = [f32::NAN, -f32::NAN, -0.0, 0.0, 2.5].map(Some).into_iter();
        let bytes = [Some([0_u8, 1]), None, Some([0, 0]), Some([255, 0])].into_iter();
        let bytes = FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, 2).unwrap();
        // A null of its own, and one among the values.
        let positions = Int8Array::from(vec![Some(2), None, Some(0), Some(1), Some(2)]);
        let named = StringArray::from(vec![Some("x"), None, Some("a")]);
        let dictionary = DictionaryArray::<Int8Type>::new(positions, Arc::new(named));
        let binaries = cast(&texts(), &DataType::Binary).unwrap();
        let mut values: Vec<ArrayRef> = vec![
            floats(),
            structs(),
            Arc::new(narrow.chain([None]).collect::<Float32Array>()),
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
            Arc::new(bytes),
            Arc::new(dictionary),
            cast(&binaries, &DataType::BinaryView).unwrap(),
            cast(&binaries, &DataType::LargeBinary).unwrap(),
            binaries,
        ];
        let of_numbers = [
            DataType::Int64,
            DataType::UInt8,
            DataType::Float16,
            DataType::Date32,
            DataType::Timestamp(TimeUnit::Microsecond, None),
            DataType::Decimal128(20, 3),
            DataType::Decimal256(50, 2),
        ];
        let of_texts = [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View];
        values.extend(of_numbers.map(|to| cast(&numbers, &to).unwrap()));
        values.extend(of_texts.map(|to| cast(&texts(), &to).unwrap()));
        values
    }

    fn pick(columns: &[ArrayRef], rows: usize, random: &mut StdRng) -> Vec<ArrayRef> {
        let picked = columns.iter().map(|column| {
            let last = u32::try_from(column.len() - 1).unwrap();
            let rows = (0..rows).map(|_| random.random_range(0..=last));
            take(column, &UInt32Array::from_iter_values(rows), None).unwrap()
        });
        picked.collect()
    }

    fn in_order(columns: &[ArrayRef], keys: &SortKeys) -> Vec<ArrayRef> {
        let rows = keys.convert_columns(columns).unwrap();
        let mut order: Vec<usize> = (0..rows.num_rows()).collect();
        order.sort_by(|a, b| rows.row(*a).cmp(&rows.row(*b)));
        let order = order.into_iter().map(|row| u32::try_from(row).unwrap());
        let order = UInt32Array::from_iter_values(order);
        let sorted = columns
            .iter()
            .map(|column| take(column, &order, None).unwrap());
        sorted.collect()
    }

    /// Keys, and ranges of keys, are where all rows in comparable form say.
    fn check(columns: &[ArrayRef], options: SortOptions, random: &mut StdRng) {
        let fields = columns
            .iter()
            .map(|c| Field::new("c", c.data_type().clone(), true));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let by: Vec<SortColumn> = (0..columns.len())
            .map(|index| SortColumn::new(index, options))
            .collect();
        let keys = SortKeys::new(&schema, &by).unwrap();
        let comparable = |columns: &[ArrayRef]| keys.convert_columns(columns).unwrap();
        for rows in [0, 1, 2, 7, 40, 150] {
            let whole = in_order(&pick(columns, rows + 5, random), &keys);
            let sorted: Vec<ArrayRef> = whole.iter().map(|column| column.slice(5, rows)).collect();
            let all = comparable(&sorted);
            let compare = |selection: &KeySelection, is_selected: &dyn Fn(usize) -> bool| {
                let search = KeySearch::new(selection, &schema, &by).unwrap();
                let ranges = search.rows_in(&sorted, rows).unwrap();
                assert!(
                    ranges.windows(2).all(|pair| pair[0].end < pair[1].start),
                    "{ranges:?}"
                );
                let selected: Vec<usize> = ranges.into_iter().flatten().collect();
                let expected: Vec<usize> = (0..rows).filter(|row| is_selected(*row)).collect();
                assert_eq!(selected, expected, "{options:?} {selection:?} {sorted:?}");
            };
            for count in [0, 1, 3, 30] {
                let asked = pick(columns, count, random);
                let ends = comparable(&asked);
                compare(&KeySelection::Keys(asked), &|row| {
                    ends.iter().any(|end| end == all.row(row))
                });
                let bounds = in_order(&pick(columns, 2 * count, random), &keys);
                let ends = comparable(&bounds);
                compare(&ranges(&bounds, &ends), &|row| {
                    let is_in = |at: usize| {
                        let begins = at == 0 || ends.row(at) <= all.row(row);
                        begins && (at + 2 == 2 * count || all.row(row) < ends.row(at + 1))
                    };
                    (0..2 * count).step_by(2).any(is_in)
                });
            }
        }
    }

    /// From each second one of some keys to the next one; the first range and the last one are open.
    fn ranges(bounds: &[ArrayRef], ends: &Rows) -> KeySelection {
        let count = ends.num_rows();
        let bound = |at: usize| bounds.iter().map(|column| column.slice(at, 1)).collect();
        let ranges = (0..count).step_by(2).map(|at| KeyRange {
            from: (at > 0).then(|| bound(at)),
            to: (at + 2 < count).then(|| bound(at + 1)),
        });
        KeySelection::Ranges(ranges.collect())
    }

    #[test]
    fn keys_are_where_their_comparable_forms_are() {
        let mut random = StdRng::seed_from_u64(11);
        let values = values();
        for descending in [false, true] {
            for nulls_first in [false, true] {
                let options = SortOptions {
                    descending,
                    nulls_first,
                };
                for column in &values {
                    check(std::slice::from_ref(column), options, &mut random);
                }
                check(&[texts(), structs(), floats()], options, &mut random);
            }
        }
    }
}
