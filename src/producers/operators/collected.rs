//! Aggregates that keep all values of a group, in their order: joined texts, and lists.
//!
//! The state of each is its result. If a value comes or leaves, all rows of the group are needed.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, new_empty_array};
use arrow_buffer::OffsetBuffer;
use arrow_cast::cast;
use arrow_schema::{DataType, Field, FieldRef};
use arrow_select::interleave::interleave;

use super::accumulators::{Accumulator, Argument, Sign, valid_rows};
use super::picked_results::{MAX_BYTES, StoredResult};
use crate::error::{Error, Result};
use crate::parquet::size::slice_bytes;

/// The most bytes of the values of a group.
const MAX_GROUP_BYTES: usize = 64 << 20;
/// What an element takes beside its bytes.
const ELEMENT_BYTES: usize = 16;
/// The most arrays that elements are kept of.
const MAX_ARRAYS: usize = 64;

fn check_size(bytes: usize) -> Result<()> {
    if bytes <= MAX_GROUP_BYTES {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "its values have more than {MAX_GROUP_BYTES} bytes; aggregate fewer of them, or read the rows of the feeder"
    )))
}

/// The texts that are not null, with a delimiter between them; null if there are none.
#[derive(Debug)]
pub(super) struct StringAgg {
    delimiter: String,
    stored: StoredResult,
    /// Of a group that is computed from all its rows.
    text: Option<String>,
    /// The size of the text, also where it is not kept for being too large.
    bytes: usize,
    results: StringBuilder,
}

impl StringAgg {
    pub(super) fn new(delimiter: &str) -> Self {
        Self {
            delimiter: delimiter.to_owned(),
            stored: StoredResult::default(),
            text: None,
            bytes: 0,
            results: StringBuilder::new(),
        }
    }
}

impl Accumulator for StringAgg {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        self.stored = StoredResult::begin(stored);
        self.text = None;
        self.bytes = 0;
        Ok(())
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, _: Sign) {
        let texts = argument.values.as_string::<i32>();
        for row in valid_rows(texts, rows) {
            if !self.stored.change() {
                return;
            }
            let text = texts.value(row);
            self.bytes += text.len() + self.text.as_ref().map_or(0, |_| self.delimiter.len());
            if self.bytes > MAX_GROUP_BYTES {
                continue;
            }
            match &mut self.text {
                None => self.text = Some(text.to_owned()),
                Some(joined) => {
                    joined.push_str(&self.delimiter);
                    joined.push_str(text);
                }
            }
        }
    }

    fn is_resolved(&self) -> bool {
        self.stored.is_resolved()
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<()> {
        check_size(self.bytes)?;
        match self.stored.take() {
            Some((texts, row)) if texts.is_valid(row) => {
                self.results
                    .append_value(texts.as_string::<i32>().value(row));
            }
            Some(_) => self.results.append_null(),
            None => self.results.append_option(self.text.take()),
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.results.values_slice().len() >= MAX_BYTES
    }

    fn take(&mut self) -> Result<ArrayRef> {
        Ok(Arc::new(self.results.finish()))
    }
}

/// A list of the values, also of those that are null.
#[derive(Debug)]
pub(super) struct ListAgg {
    element: FieldRef,
    stored: StoredResult,
    /// The arrays of the elements, and where in these they are; array 0 is empty.
    arrays: Vec<ArrayRef>,
    places: Vec<(usize, usize)>,
    /// The lengths of the lists that have ended, and how many of the elements these have together.
    lengths: Vec<usize>,
    ended: usize,
    /// The size of the elements, and of those of the group that is being computed.
    bytes: usize,
    group_bytes: usize,
}

impl ListAgg {
    pub(super) fn new(data_type: &DataType) -> Self {
        Self {
            element: Arc::new(Field::new_list_field(data_type.clone(), true)),
            stored: StoredResult::default(),
            arrays: vec![new_empty_array(data_type)],
            places: Vec::new(),
            lengths: Vec::new(),
            ended: 0,
            bytes: 0,
            group_bytes: 0,
        }
    }

    fn add(&mut self, values: &ArrayRef, rows: Range<usize>) {
        let is_last = self.arrays.last().is_some_and(|a| Arc::ptr_eq(a, values));
        if !is_last {
            self.arrays.push(Arc::clone(values));
        }
        let at = self.arrays.len() - 1;
        self.places.extend(rows.map(|row| (at, row)));
    }
}

impl Accumulator for ListAgg {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        self.stored = StoredResult::begin(stored);
        // A group that was begun and did not end has left its elements.
        self.places.truncate(self.ended);
        self.group_bytes = 0;
        Ok(())
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, _: Sign) {
        if rows.is_empty() || !self.stored.change() {
            return;
        }
        let values = argument.values.slice(rows.start, rows.len());
        self.group_bytes += slice_bytes(&values) + rows.len() * ELEMENT_BYTES;
        if self.group_bytes <= MAX_GROUP_BYTES {
            self.add(&argument.values, rows);
        }
    }

    fn is_resolved(&self) -> bool {
        self.stored.is_resolved()
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<()> {
        check_size(self.group_bytes)?;
        if let Some((lists, row)) = self.stored.take() {
            let mut values = lists.as_list::<i32>().value(row);
            if values.data_type() != self.element.data_type() {
                values = cast(&values, self.element.data_type()).map_err(Error::from_cause)?;
            }
            self.group_bytes = slice_bytes(&values);
            self.add(&values, 0..values.len());
        }
        self.bytes += self.group_bytes;
        self.lengths.push(self.places.len() - self.ended);
        self.ended = self.places.len();
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.arrays.len() > MAX_ARRAYS || self.bytes >= MAX_BYTES
    }

    fn take(&mut self) -> Result<ArrayRef> {
        self.places.truncate(self.ended);
        let arrays: Vec<&dyn Array> = self.arrays.iter().map(AsRef::as_ref).collect();
        let values = interleave(&arrays, &self.places).map_err(Error::from_cause)?;
        let offsets = OffsetBuffer::from_lengths(std::mem::take(&mut self.lengths));
        let lists = ListArray::try_new(Arc::clone(&self.element), offsets, values, None);
        self.arrays.truncate(1);
        self.places.clear();
        (self.ended, self.bytes) = (0, 0);
        Ok(Arc::new(lists.map_err(Error::from_cause)?))
    }
}
