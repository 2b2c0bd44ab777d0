//! Results that are values of groups, taken from the arrays that have them.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, new_null_array};
use arrow_schema::DataType;
use arrow_select::interleave::interleave;

use super::accumulators::Argument;
use crate::error::{Error, Result};
use crate::parquet::size::slice_bytes;

/// The most arrays that results are kept of, and about how many bytes of results.
const MAX_ARRAYS: usize = 64;
pub(super) const MAX_BYTES: usize = 16 << 20;

/// Results of groups.
#[derive(Debug)]
pub(super) struct PickedResults {
    data_type: DataType,
    /// The arrays of the results, and where in these they are; array 0 is a null.
    arrays: Vec<ArrayRef>,
    places: Vec<(usize, usize)>,
    /// The size of the results, but numbers.
    bytes: usize,
}

impl PickedResults {
    pub(super) fn new(data_type: &DataType) -> Self {
        Self {
            data_type: data_type.clone(),
            arrays: Vec::new(),
            places: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds the value of a row, or a null.
    pub(super) fn push(&mut self, result: Option<(ArrayRef, usize)>) {
        if let Some((array, row)) = &result
            && !self.data_type.is_primitive()
        {
            self.bytes += slice_bytes(&array.slice(*row, 1));
        }
        let place = result.map_or((0, 0), |(array, row)| {
            let known = self.arrays.iter().rposition(|a| Arc::ptr_eq(a, &array));
            let at = known.unwrap_or_else(|| {
                self.arrays.push(array);
                self.arrays.len() - 1
            });
            (at + 1, row)
        });
        self.places.push(place);
    }

    pub(super) fn is_full(&self) -> bool {
        self.arrays.len() >= MAX_ARRAYS || self.bytes >= MAX_BYTES
    }

    pub(super) fn take(&mut self) -> Result<ArrayRef> {
        let (arrays, places) = (
            std::mem::take(&mut self.arrays),
            std::mem::take(&mut self.places),
        );
        self.bytes = 0;
        let null = new_null_array(&self.data_type, 1);
        let arrays: Vec<&dyn Array> = [&null]
            .into_iter()
            .chain(&arrays)
            .map(AsRef::as_ref)
            .collect();
        interleave(&arrays, &places).map_err(Error::from_cause)
    }
}

/// The result of a stored group, which holds until a value comes or leaves. All rows of the group are needed then.
#[derive(Debug, Default)]
pub(super) struct StoredResult {
    stored: Option<(ArrayRef, usize)>,
    has_changed: bool,
}

impl StoredResult {
    pub(super) fn begin(stored: Option<(&mut &[u8], &Argument, usize)>) -> Self {
        Self {
            stored: stored.map(|(_, result, row)| (Arc::clone(&result.values), row)),
            has_changed: false,
        }
    }

    /// Takes note of a change. Whether the group is computed from all its rows.
    pub(super) fn change(&mut self) -> bool {
        self.has_changed = true;
        self.stored.is_none()
    }

    pub(super) fn is_resolved(&self) -> bool {
        self.stored.is_none() || !self.has_changed
    }

    pub(super) fn take(&mut self) -> Option<(ArrayRef, usize)> {
        self.stored.take()
    }
}
