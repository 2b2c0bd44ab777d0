//! Ranges of a key: which rows and row groups are deleted by key.
//!
//! [`KeyRanges`] holds the ranges of a file's tombstones, sorted and merged. Its masks say which keys lie
//! outside; by the bounds of a row group's keys it finds row groups that are deleted as a whole or not at
//! all ([`Overlap`]), whose keys need not be read. A value that is not of the key's type is an error of
//! the kind `ManifestCorrupted`.

use arrow_array::{Array, ArrayRef, BooleanArray, Scalar, UInt64Array};
use arrow_ord::cmp::{gt_eq, lt_eq};
use arrow_row::{OwnedRow, RowConverter, SortField};
use arrow_schema::DataType;
use serde_json::Value;

use super::expr::from_json;
use crate::error::{Error, Result};

/// Up to this number, ranges are compared one after the other with whole columns.
const MAX_LINEAR_RANGES: usize = 4;

/// How many keys of a row group lie in the ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// No key.
    Disjoint,
    /// Unknown or some: the keys have to be read.
    Partial,
    /// All keys.
    Full,
}

/// Closed ranges of a key, ascending and disjoint.
#[derive(Debug)]
pub(crate) struct KeyRanges {
    converter: RowConverter,
    ranges: Vec<KeyRange>,
}

#[derive(Debug)]
struct KeyRange {
    min: OwnedRow,
    max: OwnedRow,
    ends: [Scalar<ArrayRef>; 2],
}

impl KeyRanges {
    /// Parses the values of tombstones as ranges of a key of the type `key`; drops empty ranges.
    pub(crate) fn new(ranges: &[(Value, Value)], key: &DataType) -> Result<Self> {
        let converter =
            RowConverter::new(vec![SortField::new(key.clone())]).map_err(Error::from_cause)?;
        let row = |value: &ArrayRef| -> Result<OwnedRow> {
            let rows = converter.convert_columns(std::slice::from_ref(value));
            Ok(rows.map_err(Error::from_cause)?.row(0).owned())
        };
        let mut all = Vec::with_capacity(ranges.len());
        for (min, max) in ranges {
            let (low, high) = (from_json(min, key)?, from_json(max, key)?);
            all.push(KeyRange {
                min: row(&low)?,
                max: row(&high)?,
                ends: [Scalar::new(low), Scalar::new(high)],
            });
        }
        all.retain(|range| range.min <= range.max);
        all.sort_by(|a, b| a.min.cmp(&b.min));
        let mut merged: Vec<KeyRange> = Vec::with_capacity(all.len());
        for range in all {
            match merged.last_mut().filter(|last| range.min <= last.max) {
                Some(last) if range.max > last.max => {
                    last.max = range.max;
                    last.ends[1] = range.ends[1].clone();
                }
                Some(_) => {}
                None => merged.push(range),
            }
        }
        Ok(Self {
            converter,
            ranges: merged,
        })
    }

    /// For each key whether it lies in none of the ranges; a null lies in none.
    pub(crate) fn outside_mask(&self, keys: &ArrayRef) -> Result<BooleanArray> {
        if self.ranges.len() > MAX_LINEAR_RANGES {
            let converted = self.converter.convert_columns(std::slice::from_ref(keys));
            let rows = converted.map_err(Error::from_cause)?;
            let outside = rows.iter().map(|row| {
                let after = self.ranges.partition_point(|range| range.max.row() < row);
                let range = self.ranges.get(after);
                Some(range.is_none_or(|range| row < range.min.row()))
            });
            return Ok(outside.collect());
        }
        let mut outside = BooleanArray::from(vec![true; keys.len()]);
        for KeyRange { ends, .. } in &self.ranges {
            let above = gt_eq(keys, &ends[0]).map_err(Error::from_cause)?;
            let below = lt_eq(keys, &ends[1]).map_err(Error::from_cause)?;
            let mut inside = above.values() & below.values();
            if let Some(nulls) = keys.logical_nulls() {
                inside = &inside & nulls.inner();
            }
            outside = BooleanArray::new(outside.values() & &!&inside, None);
        }
        Ok(outside)
    }

    /// For each row group how its keys overlap the ranges, by its smallest key, its largest key and its
    /// number of nulls. An unknown statistic is null.
    pub(crate) fn overlaps(
        &self,
        mins: &ArrayRef,
        maxes: &ArrayRef,
        nulls: Option<&UInt64Array>,
    ) -> Result<Vec<Overlap>> {
        let encode = |values: &ArrayRef| {
            let converted = self.converter.convert_columns(std::slice::from_ref(values));
            converted.map_err(Error::from_cause)
        };
        let (lows, highs) = (encode(mins)?, encode(maxes)?);
        let overlaps = (0..mins.len()).map(|group| {
            if mins.is_null(group) || maxes.is_null(group) {
                return Overlap::Partial;
            }
            let (low, high) = (lows.row(group), highs.row(group));
            let after = self.ranges.partition_point(|range| range.max.row() < low);
            match self.ranges.get(after) {
                Some(range) if range.min.row() <= high => {
                    let all = range.min.row() <= low && high <= range.max.row();
                    let no_null = nulls.is_some_and(|n| n.is_valid(group) && n.value(group) == 0);
                    if all && no_null {
                        Overlap::Full
                    } else {
                        Overlap::Partial
                    }
                }
                _ => Overlap::Disjoint,
            }
        });
        Ok(overlaps.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, StringArray};
    use serde_json::json;

    use super::*;

    fn outside(ranges: &[(Value, Value)], keys: &ArrayRef) -> Vec<bool> {
        let ranges = KeyRanges::new(ranges, keys.data_type()).unwrap();
        let mask = ranges.outside_mask(keys).unwrap();
        mask.values().iter().collect()
    }

    #[test]
    fn many_ranges_say_what_each_says() {
        let values = (-5..200).map(|key| (key % 7 != 0).then_some(key));
        let keys: ArrayRef = Arc::new(values.collect::<Int64Array>());
        let ranges: Vec<(Value, Value)> = (0..40)
            .map(|n| (json!(n * 37 % 180), json!(n * 37 % 180 + n % 3)))
            .chain([(json!(60), json!(50))])
            .collect();
        let mut expected = vec![true; keys.len()];
        for range in &ranges {
            let one = outside(std::slice::from_ref(range), &keys);
            expected
                .iter_mut()
                .zip(one)
                .for_each(|(all, one)| *all &= one);
        }
        assert!(expected.contains(&false));
        assert_eq!(outside(&ranges, &keys), expected);
    }

    #[test]
    fn texts_are_compared_as_texts() {
        let keys: ArrayRef = Arc::new(StringArray::from(vec![Some("10"), Some("9"), None]));
        let ranges = [(json!("1"), json!("2"))];
        assert_eq!(outside(&ranges, &keys), [false, true, true]);
    }

    #[test]
    fn row_groups_need_no_look_where_bounds_tell() {
        let bounds = [(json!(5), json!(9)), (json!(8), json!(20))];
        let ranges = KeyRanges::new(&bounds, &DataType::Int64).unwrap();
        let int = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let mins = int(vec![Some(0), Some(5), Some(6), Some(21), None, Some(6)]);
        let maxes = int(vec![
            Some(4),
            Some(20),
            Some(21),
            Some(30),
            Some(9),
            Some(7),
        ]);
        let nulls = UInt64Array::from(vec![Some(0), Some(0), Some(0), Some(0), Some(0), Some(1)]);
        let overlaps = ranges.overlaps(&mins, &maxes, Some(&nulls)).unwrap();
        let (all, part, nothing) = (Overlap::Full, Overlap::Partial, Overlap::Disjoint);
        assert_eq!(overlaps, [nothing, all, part, nothing, part, part]);
        let overlaps = ranges.overlaps(&mins, &maxes, None).unwrap();
        assert_eq!(overlaps, [nothing, part, part, nothing, part, part]);
    }
}
