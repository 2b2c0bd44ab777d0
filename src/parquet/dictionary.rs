//! Keeps the dictionaries of columns as they were written.
//!
//! Parquet stores the values that occur, in the order of their first occurrence. The order of an Arrow dictionary has
//! a meaning (the categories of a pandas categorical), and so do values that no row has. So if all rows of a column in
//! a file have one dictionary, the file keeps it in the seal, and reading maps the decoded keys back to it. If the
//! dictionaries differ, are large, are nested or contain nulls, reading returns the values in the order in which they
//! occur.
//!
//! A kept dictionary that cannot be read, or that lacks a value of the column, is ignored; it is never an error.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt64Array, make_array};
use arrow_buffer::Buffer;
use arrow_cast::cast;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use arrow_ord::ord::make_comparator;
use arrow_schema::{ArrowError, DataType, Field, Schema, SortOptions};
use arrow_select::take::take;

/// Larger dictionaries are not kept, because every reader of the file fetches them.
const MAX_DICTIONARY_BYTES: usize = 1 << 20;
/// The most bytes of all kept dictionaries of a file; one that would exceed them is not kept.
const MAX_TOTAL_BYTES: usize = 8 << 20;

/// The dictionaries of some rows by column; None if they differ or cannot be kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Dictionaries(BTreeMap<usize, Option<ArrayRef>>);

impl Dictionaries {
    /// Adds the dictionaries of a batch.
    pub(super) fn observe(&mut self, batch: &RecordBatch) {
        for (index, column) in batch.columns().iter().enumerate() {
            if let Some(array) = column.as_any_dictionary_opt() {
                self.observe_values(index, Some(array.values()));
            }
        }
    }

    /// Adds the dictionaries of another row group.
    pub(super) fn merge(&mut self, other: &Self) {
        for (index, values) in &other.0 {
            self.observe_values(*index, values.as_ref());
        }
    }

    fn observe_values(&mut self, index: usize, values: Option<&ArrayRef>) {
        let values = values.filter(|v| is_storable(v));
        self.0
            .entry(index)
            .and_modify(|existing| {
                let is_unchanged = existing
                    .as_ref()
                    .zip(values)
                    .is_some_and(|(a, b)| is_same(a, b));
                if !is_unchanged {
                    *existing = None;
                }
            })
            .or_insert_with(|| values.cloned());
    }

    /// The dictionaries to keep: the index of each column, and an IPC stream of one batch.
    pub(super) fn encode(&self) -> Result<Vec<(u32, Vec<u8>)>, ArrowError> {
        let dictionaries = self.0.iter();
        let mut remaining_bytes = MAX_TOTAL_BYTES;
        dictionaries
            .filter_map(|(index, values)| Some((*index, values.as_ref()?)))
            .filter(|(_, values)| {
                let bytes = values
                    .to_data()
                    .get_slice_memory_size()
                    .unwrap_or(usize::MAX);
                remaining_bytes
                    .checked_sub(bytes)
                    .inspect(|remaining| remaining_bytes = *remaining)
                    .is_some()
            })
            .map(|(index, values)| {
                let field = Field::new("", values.data_type().clone(), true);
                let schema = Arc::new(Schema::new(vec![field]));
                let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(values)])?;
                let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
                writer.write(&batch)?;
                Ok((
                    u32::try_from(index).unwrap_or(u32::MAX),
                    writer.into_inner()?,
                ))
            })
            .collect()
    }
}

fn is_storable(values: &ArrayRef) -> bool {
    values.null_count() == 0 && !values.data_type().is_nested() && {
        let bytes = values.to_data().get_slice_memory_size();
        bytes.is_ok_and(|bytes| bytes <= MAX_DICTIONARY_BYTES)
    }
}

fn is_same(a: &ArrayRef, b: &ArrayRef) -> bool {
    Arc::ptr_eq(a, b) || a.to_data().ptr_eq(&b.to_data()) || a == b
}

/// Reads a kept dictionary; None if it is damaged.
pub(super) fn decode(bytes: &[u8]) -> Option<ArrayRef> {
    let read = || {
        // The decoder uses the bytes that exist: a length that claims more costs nothing.
        let mut stream = Buffer::from(bytes);
        let batch = StreamDecoder::new().decode(&mut stream).ok()??;
        batch.columns().first().cloned()
    };
    std::panic::catch_unwind(read).ok().flatten()
}

/// Replaces the dictionary of `array` by `dictionary`; returns `array` unchanged if a value is missing there.
pub(super) fn restore(array: ArrayRef, dictionary: Option<&ArrayRef>) -> ArrayRef {
    dictionary
        .and_then(|dictionary| with_dictionary(&array, dictionary))
        .unwrap_or(array)
}

fn with_dictionary(array: &ArrayRef, dictionary: &ArrayRef) -> Option<ArrayRef> {
    let dictionary_array = array.as_any_dictionary_opt()?;
    let DataType::Dictionary(key, value) = array.data_type() else {
        return None;
    };
    if dictionary.data_type() != value.as_ref() {
        return None;
    }
    if is_same(dictionary_array.values(), dictionary) {
        return Some(Arc::clone(array));
    }
    let key_map = cast(&positions(dictionary_array.values(), dictionary)?, key).ok()?;
    let keys = take(&key_map, dictionary_array.keys(), None).ok()?;
    let data = keys
        .to_data()
        .into_builder()
        .data_type(array.data_type().clone())
        .child_data(vec![dictionary.to_data()])
        .build()
        .ok()?;
    Some(make_array(data))
}

/// The index of each of `values` in `dictionary`; None if one is missing.
fn positions(values: &ArrayRef, dictionary: &ArrayRef) -> Option<UInt64Array> {
    let options = SortOptions::default();
    let among = make_comparator(dictionary, dictionary, options).ok()?;
    let across = make_comparator(dictionary, values, options).ok()?;
    let mut sorted: Vec<usize> = (0..dictionary.len()).collect();
    // Of equal values the first one is used.
    sorted.sort_by(|a, b| among(*a, *b).then(a.cmp(b)));
    let matches = (0..values.len()).map(|value| {
        let at = sorted.partition_point(|i| across(*i, value) == Ordering::Less);
        let index = *sorted.get(at)?;
        (across(index, value) == Ordering::Equal).then_some(index as u64)
    });
    let indices: Vec<u64> = matches.collect::<Option<_>>()?;
    Some(indices.into())
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int8Type;
    use arrow_array::{DictionaryArray, Int8Array, StringArray};

    use super::*;

    fn column(keys: Vec<Option<i8>>, values: &[&str]) -> ArrayRef {
        let values = Arc::new(StringArray::from(values.to_vec()));
        Arc::new(DictionaryArray::<Int8Type>::try_new(Int8Array::from(keys), values).unwrap())
    }

    #[test]
    fn keys_are_mapped_to_the_kept_dictionary() {
        let dictionary: ArrayRef = Arc::new(StringArray::from(vec!["low", "mid", "high", "never"]));
        let decoded = column(vec![Some(0), None, Some(1), Some(0)], &["high", "low"]);
        let expected = column(
            vec![Some(2), None, Some(0), Some(2)],
            &["low", "mid", "high", "never"],
        );
        assert_eq!(&restore(decoded, Some(&dictionary)), &expected);
    }

    #[test]
    fn a_dictionary_without_the_values_is_not_used() {
        let dictionary: ArrayRef = Arc::new(StringArray::from(vec!["low"]));
        let decoded = column(vec![Some(0)], &["high"]);
        assert_eq!(&restore(Arc::clone(&decoded), Some(&dictionary)), &decoded);
    }

    #[test]
    fn all_together_have_a_limit() {
        let half: ArrayRef = Arc::new(StringArray::from(vec![
            "x".repeat(MAX_DICTIONARY_BYTES / 2),
        ]));
        let dictionaries = Dictionaries((0..100).map(|i| (i, Some(Arc::clone(&half)))).collect());
        let bytes: usize = dictionaries
            .encode()
            .unwrap()
            .iter()
            .map(|(_, b)| b.len())
            .sum();
        assert!((MAX_TOTAL_BYTES / 2..=MAX_TOTAL_BYTES + 100_000).contains(&bytes));
    }

    #[test]
    fn survives_its_encoding() {
        let array = column(vec![Some(1)], &["b", "a"]);
        let schema = Arc::new(Schema::new(vec![Field::new(
            "c",
            array.data_type().clone(),
            true,
        )]));
        let batch = RecordBatch::try_new(schema, vec![Arc::clone(&array)]).unwrap();
        let mut dictionaries = Dictionaries::default();
        dictionaries.observe(&batch);
        let encoded = dictionaries.encode().unwrap();
        let decoded = decode(&encoded[0].1).unwrap();
        assert_eq!(&decoded, array.as_any_dictionary().values());
        assert!(decode(&encoded[0].1[..40]).is_none());
    }
}
