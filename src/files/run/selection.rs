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
    /// The rows of a range of keys, in the order of the run.
    Range {
        /// The first key, one row of each column; `None` for the run's.
        from: Option<Vec<ArrayRef>>,
        /// The first key after the range; `None` for the end of the run.
        to: Option<Vec<ArrayRef>>,
    },
}

impl KeySelection {
    /// The number of columns of the keys; `None` for all rows.
    pub(super) fn columns(&self) -> Result<Option<usize>> {
        let counts = match self {
            Self::All => [None, None],
            Self::Keys(columns) => [Some(columns.len()), None],
            Self::Range { from, to } => [from.as_ref().map(Vec::len), to.as_ref().map(Vec::len)],
        };
        match counts {
            [Some(a), Some(b)] if a != b => Err(Error::invalid(
                "the bounds of a range of keys must have equal columns",
            )),
            [a, b] => Ok(a.or(b)),
        }
    }

    /// Checks that the keys have the types of the run's.
    pub(super) fn check_types(&self, schema: &SchemaRef, by: &[SortColumn]) -> Result<()> {
        let keys = match self {
            Self::All => [None, None],
            Self::Keys(columns) => [Some(columns), None],
            Self::Range { from, to } => [from.as_ref(), to.as_ref()],
        };
        for (array, column) in keys
            .into_iter()
            .flatten()
            .flat_map(|columns| columns.iter().zip(by))
        {
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
