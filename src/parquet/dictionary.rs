//! Dictionaries as the user had them.
//!
//! Parquet keeps the values that occur, in the order in which they occur. The order of a dictionary
//! means something (a pandas categorical's categories), and so do values that no row has. So a file
//! whose rows of a column all have one dictionary keeps it in the seal, and reading maps the decoded
//! keys back to it. Where row groups have different dictionaries, or large ones, reading gives the
//! values in the order in which they occur.

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

/// Larger dictionaries are not kept: every reader of the file fetches them.
const MAX_KEPT_BYTES: usize = 1 << 20;
/// Nor those of further columns where all together are larger than this.
const MAX_ALL_BYTES: usize = 8 << 20;

/// The dictionaries of some rows by column; None where they differ or are too large.
#[derive(Debug, Clone, Default)]
pub(super) struct Dictionaries(BTreeMap<usize, Option<ArrayRef>>);

impl Dictionaries {
    /// Takes note of a batch's dictionaries.
    pub(super) fn see(&mut self, batch: &RecordBatch) {
        for (index, column) in batch.columns().iter().enumerate() {
            if let Some(array) = column.as_any_dictionary_opt() {
                self.meet(index, Some(array.values()));
            }
        }
    }

    /// Takes note of another row group's dictionaries.
    pub(super) fn merge(&mut self, other: &Self) {
        for (index, values) in &other.0 {
            self.meet(*index, values.as_ref());
        }
    }

    fn meet(&mut self, index: usize, values: Option<&ArrayRef>) {
        let values = values.filter(|v| is_kept(v));
        self.0
            .entry(index)
            .and_modify(|known| {
                let same = known
                    .as_ref()
                    .zip(values)
                    .is_some_and(|(a, b)| is_same(a, b));
                if !same {
                    *known = None;
                }
            })
            .or_insert_with(|| values.cloned());
    }

    /// Those that are kept, each by its column as an IPC stream of one batch.
    pub(super) fn encode(&self) -> Result<Vec<(u32, Vec<u8>)>, ArrowError> {
        let kept = self.0.iter();
        let mut room = MAX_ALL_BYTES;
        kept.filter_map(|(index, values)| Some((*index, values.as_ref()?)))
            .filter(|(_, values)| {
                let bytes = values
                    .to_data()
                    .get_slice_memory_size()
                    .unwrap_or(usize::MAX);
                room.checked_sub(bytes)
                    .inspect(|left| room = *left)
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

fn is_kept(values: &ArrayRef) -> bool {
    values.null_count() == 0 && !values.data_type().is_nested() && {
        let bytes = values.to_data().get_slice_memory_size();
        bytes.is_ok_and(|bytes| bytes <= MAX_KEPT_BYTES)
    }
}

fn is_same(a: &ArrayRef, b: &ArrayRef) -> bool {
    Arc::ptr_eq(a, b) || a.to_data().ptr_eq(&b.to_data()) || a == b
}

/// Reads a kept dictionary.
pub(super) fn decode(bytes: &[u8]) -> Option<ArrayRef> {
    let read = || {
        // It takes what is there: a length that claims more costs nothing.
        let mut stream = Buffer::from(bytes);
        let batch = StreamDecoder::new().decode(&mut stream).ok()??;
        batch.columns().first().cloned()
    };
    std::panic::catch_unwind(read).ok().flatten()
}

/// `array` with `kept` as its dictionary; unchanged where that does not hold its values.
pub(super) fn restore(array: ArrayRef, kept: Option<&ArrayRef>) -> ArrayRef {
    kept.and_then(|kept| with_dictionary(&array, kept))
        .unwrap_or(array)
}

fn with_dictionary(array: &ArrayRef, kept: &ArrayRef) -> Option<ArrayRef> {
    let found = array.as_any_dictionary_opt()?;
    let DataType::Dictionary(key, value) = array.data_type() else {
        return None;
    };
    if kept.data_type() != value.as_ref() {
        return None;
    }
    if is_same(found.values(), kept) {
        return Some(Arc::clone(array));
    }
    let places = cast(&positions(found.values(), kept)?, key).ok()?;
    let keys = take(&places, found.keys(), None).ok()?;
    let data = keys
        .to_data()
        .into_builder()
        .data_type(array.data_type().clone())
        .child_data(vec![kept.to_data()])
        .build()
        .ok()?;
    Some(make_array(data))
}

/// Where each of `values` is in `kept`.
fn positions(values: &ArrayRef, kept: &ArrayRef) -> Option<UInt64Array> {
    let options = SortOptions::default();
    let among = make_comparator(kept, kept, options).ok()?;
    let across = make_comparator(kept, values, options).ok()?;
    let mut sorted: Vec<usize> = (0..kept.len()).collect();
    // Of equal values the first stands for all.
    sorted.sort_by(|a, b| among(*a, *b).then(a.cmp(b)));
    let places = (0..values.len()).map(|value| {
        let at = sorted.partition_point(|i| across(*i, value) == Ordering::Less);
        let place = *sorted.get(at)?;
        (across(place, value) == Ordering::Equal).then_some(place as u64)
    });
    let places: Vec<u64> = places.collect::<Option<_>>()?;
    Some(places.into())
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
        let kept: ArrayRef = Arc::new(StringArray::from(vec!["low", "mid", "high", "never"]));
        let found = column(vec![Some(0), None, Some(1), Some(0)], &["high", "low"]);
        let wanted = column(
            vec![Some(2), None, Some(0), Some(2)],
            &["low", "mid", "high", "never"],
        );
        assert_eq!(&restore(found, Some(&kept)), &wanted);
    }

    #[test]
    fn a_dictionary_without_the_values_is_not_used() {
        let kept: ArrayRef = Arc::new(StringArray::from(vec!["low"]));
        let found = column(vec![Some(0)], &["high"]);
        assert_eq!(&restore(Arc::clone(&found), Some(&kept)), &found);
    }

    #[test]
    fn all_together_have_a_limit() {
        let half: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(MAX_KEPT_BYTES / 2)]));
        let seen = Dictionaries((0..100).map(|i| (i, Some(Arc::clone(&half)))).collect());
        let bytes: usize = seen.encode().unwrap().iter().map(|(_, b)| b.len()).sum();
        assert!((MAX_ALL_BYTES / 2..=MAX_ALL_BYTES + 100_000).contains(&bytes));
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
        let mut seen = Dictionaries::default();
        seen.see(&batch);
        let encoded = seen.encode().unwrap();
        let decoded = decode(&encoded[0].1).unwrap();
        assert_eq!(&decoded, array.as_any_dictionary().values());
        assert!(decode(&encoded[0].1[..40]).is_none());
    }
}
