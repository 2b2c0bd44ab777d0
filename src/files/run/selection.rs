//! Which rows of a run are read.

use arrow_array::{Array, ArrayRef};
use arrow_row::Rows;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat;

use crate::error::{Error, Result};
use crate::files::merge::SortColumn;

/// Which rows of a run are read. Keys may have the first columns of the run's key only.
#[derive(Debug, Clone)]
pub enum KeySelection {
    /// All rows.
    All,
    /// The rows of some keys: the columns of these, in any order.
    Keys(Vec<ArrayRef>),
    /// The rows of ranges of keys, which are disjoint and in the order of the run.
    Ranges(Vec<KeyRange>),
}

/// A range of keys.
#[derive(Debug, Clone, Default)]
pub struct KeyRange {
    /// The first key, one row of each column; `None` for the run's.
    pub from: Option<Vec<ArrayRef>>,
    /// The first key after the range; `None` for the end of the run.
    pub to: Option<Vec<ArrayRef>>,
}

/// An interval of keys; its bounds are rows of some columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyInterval {
    /// The row of the smallest key; `None` for no bound.
    pub(super) from: Option<usize>,
    /// The row of the largest key; `None` for no bound.
    pub(super) to: Option<usize>,
}

impl KeySelection {
    /// The number of columns of the keys; `None` for all rows.
    pub(super) fn columns(&self) -> Result<Option<usize>> {
        let mut counts = self.keys().map(Vec::len);
        let Some(count) = counts.next() else {
            return Ok(None);
        };
        if counts.any(|other| other != count) {
            return Err(Error::invalid(
                "the bounds of ranges of keys must have equal columns",
            ));
        }
        Ok(Some(count))
    }

    /// The keys, or the bounds of ranges.
    fn keys(&self) -> impl Iterator<Item = &Vec<ArrayRef>> {
        let (keys, ranges): (Option<_>, &[KeyRange]) = match self {
            Self::All => (None, &[]),
            Self::Keys(columns) => (Some(columns), &[]),
            Self::Ranges(ranges) => (None, ranges),
        };
        let bounds = ranges.iter().flat_map(|range| [&range.from, &range.to]);
        keys.into_iter().chain(bounds.flatten())
    }

    /// The selected keys as intervals, and the columns whose rows are their bounds. Single keys are in any order.
    pub(super) fn intervals(&self) -> Result<(Vec<ArrayRef>, Vec<KeyInterval>)> {
        let ranges = match self {
            Self::All => {
                let all = KeyInterval {
                    from: None,
                    to: None,
                };
                return Ok((Vec::new(), vec![all]));
            }
            Self::Keys(columns) => {
                let rows = columns.first().map_or(0, |column| column.len());
                let interval = |row| KeyInterval {
                    from: Some(row),
                    to: Some(row),
                };
                return Ok((columns.clone(), (0..rows).map(interval).collect()));
            }
            Self::Ranges(ranges) => ranges,
        };
        let (mut bounds, mut intervals) = (Vec::new(), Vec::with_capacity(ranges.len()));
        for range in ranges {
            let from = add_bound(&mut bounds, range.from.as_deref())?;
            let to = add_bound(&mut bounds, range.to.as_deref())?;
            intervals.push(KeyInterval { from, to });
        }
        let columns = (0..bounds.first().map_or(0, |bound| bound.len())).map(|column| {
            let values = bounds.iter().map(|bound| bound[column].as_ref());
            concat(&values.collect::<Vec<&dyn Array>>()).map_err(Error::from_cause)
        });
        Ok((columns.collect::<Result<_>>()?, intervals))
    }

    /// Checks that the keys have the types of the run's.
    pub(super) fn check_types(&self, schema: &SchemaRef, by: &[SortColumn]) -> Result<()> {
        for (array, column) in self.keys().flat_map(|columns| columns.iter().zip(by)) {
            let field = schema.field(column.index);
            if array.data_type() != field.data_type() {
                return Err(Error::invalid(format!(
                    "the keys of column {:?} must be of type {}, not {}",
                    field.name(),
                    field.data_type(),
                    array.data_type()
                )));
            }
        }
        Ok(())
    }
}

/// Adds a bound of a range, if it has one; returns at which position.
fn add_bound<'a>(
    bounds: &mut Vec<&'a [ArrayRef]>,
    bound: Option<&'a [ArrayRef]>,
) -> Result<Option<usize>> {
    let Some(bound) = bound else {
        return Ok(None);
    };
    if bound.iter().any(|column| column.len() != 1) {
        return Err(Error::invalid("a bound of a range of keys is one key"));
    }
    bounds.push(bound);
    Ok(Some(bounds.len() - 1))
}

/// Puts the intervals of single keys in the order of the keys, each once.
pub(super) fn sort_keys(keys: &Rows, intervals: &mut Vec<KeyInterval>) {
    let key = |interval: &KeyInterval| interval.from.map(|row| keys.row(row).data());
    intervals.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
    intervals.dedup_by(|a, b| key(a) == key(b));
}
