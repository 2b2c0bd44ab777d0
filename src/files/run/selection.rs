//! Which rows of a run are read.

use arrow_array::{Array, ArrayRef};
use arrow_schema::SchemaRef;

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
