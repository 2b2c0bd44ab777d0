//! The logical hash of rows: a SHA3-256 of Arrow data that does not depend on the layout of the data.
//!
//! A [`LogicalHash`] takes batches and hashes all columns side by side. The result is the hash of the names of the
//! fields, followed by the hashes of the columns. A type without a logical hash is an error of the kind
//! [`crate::ErrorKind::InvalidInput`].
//!
//! Source: RFC-002 of the Open Data Fabric and the record digest of the `arrow-digest` crate (version 0), which the
//! tests compare with.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, RecordBatch, StructArray, make_array};
use arrow_buffer::{BooleanBuffer, NullBuffer, buffer_bin_or};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Fields, Schema};
use arrow_select::interleave::interleave;

use super::column_bytes::{encode_type, encode_values};
use super::multihash::{ARROW0_SHA3_256, Multihash};
use crate::error::{Error, Result};
use crate::sync::hash::{Sha3, SharedHasher, update_all};

/// The rows of a batch of a schema with structs. The crate's hash of structs depends on how rows are split into
/// batches, and kamu's batches have so many rows.
const STRUCT_BATCH_ROWS: usize = 10_000;
/// About how many bytes of rows are encoded at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The hash of a stream of batches.
pub(super) struct LogicalHash {
    names: Sha3,
    columns: Vec<Sha3>,
    /// The encoded values of each column.
    scratch: Vec<Vec<u8>>,
    /// Another stream that is hashed in the lanes that the columns leave free.
    pub(super) shared_hasher: Option<SharedHasher>,
    /// Rows that wait until they fill a batch of [`STRUCT_BATCH_ROWS`]; None if the schema has no structs.
    pending_batches: Option<Vec<RecordBatch>>,
}

impl std::fmt::Debug for LogicalHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.columns.len();
        f.debug_struct("LogicalHash")
            .field("columns", &columns)
            .finish_non_exhaustive()
    }
}

impl LogicalHash {
    /// Creates the hash of rows with these columns. The error names the column that has no logical hash.
    pub(super) fn new(schema: &Schema) -> Result<Self> {
        let mut logical_hash = Self {
            names: Sha3::new(),
            columns: Vec::new(),
            scratch: Vec::new(),
            shared_hasher: None,
            pending_batches: None,
        };
        logical_hash.add_fields(schema.fields(), 0)?;
        logical_hash.scratch = vec![Vec::new(); logical_hash.columns.len()];
        let mut fields = schema.fields().iter();
        if fields.any(|field| matches!(field.data_type(), DataType::Struct(_))) {
            logical_hash.pending_batches = Some(Vec::new());
        }
        Ok(logical_hash)
    }

    fn add_fields(&mut self, fields: &Fields, level: u64) -> Result<()> {
        for field in fields {
            self.names
                .update(&(field.name().len() as u64).to_le_bytes());
            self.names.update(field.name().as_bytes());
            self.names.update(&level.to_le_bytes());
            if let DataType::Struct(inner) = field.data_type() {
                self.add_fields(inner, level + 1)?;
                continue;
            }
            let Some(type_bytes) = encode_type(field.data_type()) else {
                let message = format!(
                    "column {:?}: the logical hash of ODF is not defined for {}; cast the column first",
                    field.name(),
                    field.data_type()
                );
                return Err(Error::invalid(message));
            };
            let mut column = Sha3::new();
            column.update(&type_bytes);
            self.columns.push(column);
        }
        Ok(())
    }

    /// Adds rows.
    pub(super) fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        let Some(mut pending_batches) = self.pending_batches.take() else {
            return self.hash(std::slice::from_ref(batch));
        };
        let mut remaining = batch.clone();
        let mut pending_rows: usize = pending_batches.iter().map(RecordBatch::num_rows).sum();
        while pending_rows + remaining.num_rows() >= STRUCT_BATCH_ROWS {
            let missing = STRUCT_BATCH_ROWS - pending_rows;
            pending_batches.push(remaining.slice(0, missing));
            self.hash(&pending_batches)?;
            remaining = remaining.slice(missing, remaining.num_rows() - missing);
            pending_batches.clear();
            pending_rows = 0;
        }
        if remaining.num_rows() > 0 {
            pending_batches.push(remaining);
        }
        self.pending_batches = Some(pending_batches);
        Ok(())
    }

    /// Hashes batches as if they were one.
    fn hash(&mut self, batches: &[RecordBatch]) -> Result<()> {
        let normalized = batches
            .iter()
            .map(|batch| normalize_nulls(batch.columns(), None))
            .collect::<Result<Vec<_>>>()?;
        let mut leaves = Vec::with_capacity(self.columns.len());
        for column in 0..normalized.first().map_or(0, Vec::len) {
            let parts: Vec<_> = normalized
                .iter()
                .map(|columns| Arc::clone(&columns[column]))
                .collect();
            collect_leaves(&parts, &vec![None; parts.len()], &mut leaves);
        }
        for (index, batch) in batches.iter().enumerate() {
            let batch_leaves: Vec<Leaf> = leaves.iter().map(|parts| parts[index].clone()).collect();
            self.hash_leaves(batch.num_rows(), &batch_leaves);
        }
        Ok(())
    }

    fn hash_leaves(&mut self, all_rows: usize, leaves: &[Leaf]) {
        let all_bytes: usize = leaves
            .iter()
            .map(|(array, _)| estimate_array_bytes(array))
            .sum();
        let row_bytes = all_bytes / all_rows.max(1);
        let chunk_rows = (CHUNK_BYTES / row_bytes.max(1)).max(1);
        for start in (0..all_rows).step_by(chunk_rows) {
            let rows = chunk_rows.min(all_rows - start);
            let chunks: Vec<_> = leaves
                .iter()
                .zip(&mut self.scratch)
                .map(|((array, nulls), scratch)| {
                    let nulls = nulls.as_ref().map(|nulls| nulls.slice(start, rows));
                    encode_values(array.slice(start, rows).as_ref(), nulls.as_ref(), scratch)
                })
                .collect();
            let mut streams: Vec<_> = self
                .columns
                .iter_mut()
                .zip(chunks.iter().zip(&self.scratch))
                .map(|(hash, (chunk, scratch))| {
                    let bytes = chunk.as_ref().map_or(&scratch[..], |chunk| &chunk[..]);
                    (hash, bytes)
                })
                .collect();
            match &self.shared_hasher {
                Some(shared_hasher) => shared_hasher.update_with(&mut streams),
                None => update_all(&mut streams),
            }
        }
        for scratch in &mut self.scratch {
            scratch.clear();
            scratch.shrink_to(CHUNK_BYTES);
        }
    }

    /// Returns the hash of all rows that were added.
    pub(super) fn finish(mut self) -> Result<Multihash> {
        if let Some(pending_batches) = self.pending_batches.take() {
            self.hash(&pending_batches)?;
        }
        for column in self.columns {
            self.names.update(&column.finish());
        }
        Ok(Multihash::new(ARROW0_SHA3_256, &self.names.finish()))
    }
}

/// Returns about how many bytes the values of an array have.
fn estimate_array_bytes(array: &ArrayRef) -> usize {
    let sum = |lengths: &mut dyn Iterator<Item = u32>| lengths.map(|n| n as usize).sum::<usize>();
    let view_bytes = match array.data_type() {
        DataType::Utf8View => sum(&mut array.as_string_view().lengths()),
        DataType::BinaryView => sum(&mut array.as_binary_view().lengths()),
        _ => 0,
    };
    view_bytes + array.to_data().get_slice_memory_size().unwrap_or(0)
}

/// An array that is not a struct, with the nulls of the array and of the structs around it.
type Leaf = (ArrayRef, Option<NullBuffer>);

/// Collects the leaves of a column. `parts` are the arrays of the column, `outer` the nulls of the structs around
/// each.
fn collect_leaves(parts: &[ArrayRef], outer: &[Option<NullBuffer>], leaves: &mut Vec<Vec<Leaf>>) {
    let nulls = combine_nulls(outer, parts);
    let structs: Option<Vec<&StructArray>> =
        parts.iter().map(|part| part.as_struct_opt()).collect();
    let Some(structs) = structs else {
        leaves.push(parts.iter().cloned().zip(nulls).collect());
        return;
    };
    for field in 0..structs.first().map_or(0, |part| part.num_columns()) {
        let inner: Vec<_> = structs
            .iter()
            .map(|part| Arc::clone(part.column(field)))
            .collect();
        collect_leaves(&inner, &nulls, leaves);
    }
}

/// Combines nulls as `arrow-digest` does: if both sides have nulls in any of the rows that it takes at once, a value
/// that either side calls valid counts as valid.
fn combine_nulls(outer: &[Option<NullBuffer>], parts: &[ArrayRef]) -> Vec<Option<NullBuffer>> {
    let inner: Vec<_> = parts.iter().map(|part| part.nulls().cloned()).collect();
    let has_nulls = |all: &[Option<NullBuffer>]| all.iter().flatten().any(|n| n.null_count() > 0);
    match (has_nulls(outer), has_nulls(&inner)) {
        (true, true) => {
            let both = outer.iter().zip(&inner).map(|(a, b)| {
                let (a, b) = (a.as_ref()?, b.as_ref()?);
                let either = buffer_bin_or(a.buffer(), a.offset(), b.buffer(), b.offset(), a.len());
                Some(NullBuffer::new(BooleanBuffer::new(either, 0, a.len())))
            });
            both.collect()
        }
        (true, false) => outer.to_vec(),
        (false, true) => inner,
        (false, false) => vec![None; parts.len()],
    }
}

/// Applies the nulls of structs to their fields, and clears the values under the nulls of fields: the crate may hash
/// such values, and a file does not keep them.
fn normalize_nulls(arrays: &[ArrayRef], outer: Option<&NullBuffer>) -> Result<Vec<ArrayRef>> {
    let normalize = |array: &ArrayRef| -> Result<ArrayRef> {
        let nulls = NullBuffer::union(outer, array.nulls());
        let Some(inner) = array.as_struct_opt() else {
            return match (outer, &nulls) {
                (Some(_), Some(nulls)) if nulls.null_count() > 0 => zero_nulls(array, nulls),
                _ => Ok(Arc::clone(array)),
            };
        };
        // The mask is needed without outer nulls, too: fields may hold any value under their own nulls.
        let mask = nulls
            .clone()
            .unwrap_or_else(|| NullBuffer::new_valid(array.len()));
        let columns = normalize_nulls(inner.columns(), Some(&mask))?;
        let struct_nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        let normalized = StructArray::try_new(inner.fields().clone(), columns, struct_nulls);
        normalized
            .map(|normalized| Arc::new(normalized) as ArrayRef)
            .map_err(schema_mismatch)
    };
    arrays.iter().map(normalize).collect()
}

/// Returns the array with these nulls, and with zeros or empty values under them.
fn zero_nulls(array: &ArrayRef, nulls: &NullBuffer) -> Result<ArrayRef> {
    // The index of a null leads to the zero value in the second array.
    let zero = zero_value(array.data_type())?;
    let indices: Vec<(usize, usize)> = (0..array.len())
        .map(|row| {
            if nulls.is_valid(row) {
                (0, row)
            } else {
                (1, 0)
            }
        })
        .collect();
    let interleaved =
        interleave(&[array.as_ref(), zero.as_ref()], &indices).map_err(schema_mismatch)?;
    let data = interleaved
        .to_data()
        .into_builder()
        .nulls(Some(nulls.clone()));
    Ok(make_array(data.build().map_err(schema_mismatch)?))
}

/// Returns an array with one value of a type: zero, or empty.
fn zero_value(data_type: &DataType) -> Result<ArrayRef> {
    if let DataType::FixedSizeList(item, length) = data_type
        && !item.is_nullable()
    {
        let indices = vec![(0, 0); usize::try_from(*length).unwrap_or_default()];
        let items = interleave(&[zero_value(item.data_type())?.as_ref()], &indices)
            .map_err(schema_mismatch)?;
        let list = FixedSizeListArray::try_new(Arc::clone(item), *length, items, None);
        return Ok(Arc::new(list.map_err(schema_mismatch)?));
    }
    let data = ArrayData::new_null(data_type, 1).into_builder().nulls(None);
    data.build().map(make_array).map_err(schema_mismatch)
}

fn schema_mismatch(error: ArrowError) -> Error {
    let message = format!("the rows do not match their schema: {error}");
    Error::invalid(message).with_source(error)
}

#[cfg(test)]
mod tests {
    use arrow_array::{BooleanArray, Float64Array, Int32Array, ListArray, StringArray};
    use arrow_digest::{RecordDigest, RecordDigestV0};
    use arrow_schema::Field;
    use sha3::Sha3_256;

    use super::*;

    #[test]
    fn it_is_the_hash_of_the_crate_for_records() {
        let ints = Int32Array::from(vec![Some(1), None, Some(3), Some(4)]);
        let texts = StringArray::from(vec![None, Some("b"), Some(""), Some("d")]);
        let floats = Float64Array::from(vec![1.5, f64::NAN, -0.0, 4.0]);
        let bools = BooleanArray::from(vec![Some(true), None, Some(false), None]);
        let lists = ListArray::from_iter_primitive::<arrow_array::types::Int64Type, _, _>(vec![
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
            Some(vec![Some(4)]),
        ]);
        let fields = Fields::from(vec![
            Field::new("a", DataType::Int32, true),
            Field::new("t", DataType::Utf8, true),
        ]);
        let arrays: Vec<ArrayRef> = vec![Arc::new(ints.clone()), Arc::new(texts.clone())];
        for nulls in [None, Some(NullBuffer::from(vec![true, true, false, false]))] {
            let inner = StructArray::new(fields.clone(), arrays.clone(), nulls.clone());
            let outer = Fields::from(vec![Field::new("s", inner.data_type().clone(), true)]);
            let outer_nulls = Some(NullBuffer::from(vec![false, true, true, false]));
            let nested = StructArray::new(outer, vec![Arc::new(inner.clone())], outer_nulls);
            let columns: Vec<(&str, ArrayRef)> = vec![
                ("i", Arc::new(ints.clone())),
                ("t", Arc::new(texts.clone())),
                ("f", Arc::new(floats.clone())),
                ("b", Arc::new(bools.clone())),
                ("l", Arc::new(lists.clone())),
                ("s", Arc::new(inner)),
                ("n", Arc::new(nested)),
            ];
            let built = RecordBatch::try_from_iter_with_nullable(
                columns.into_iter().map(|(name, array)| (name, array, true)),
            );
            let batch = built.unwrap();
            let mut ours = LogicalHash::new(batch.schema_ref()).unwrap();
            ours.update(&batch.slice(0, 3)).unwrap();
            ours.update(&batch.slice(3, 1)).unwrap();
            let normalized_columns = normalize_nulls(batch.columns(), None).unwrap();
            let normalized = RecordBatch::try_new(batch.schema(), normalized_columns).unwrap();
            let mut theirs = RecordDigestV0::<Sha3_256>::new(normalized.schema_ref());
            theirs.update(&normalized);
            assert_eq!(ours.finish().unwrap().digest(), &theirs.finalize()[..]);
        }
    }
}
