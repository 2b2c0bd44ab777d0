//! The logical hash of rows: SHA3-256 of Arrow data, the same whatever the layout of the data.
//!
//! Source: RFC-002 of the Open Data Fabric and the `arrow-digest` crate (version 0), whose hash of a record
//! is made here, with all columns side by side: a hash of the names, then those of the columns.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, RecordBatch, StructArray, make_array};
use arrow_buffer::{BooleanBuffer, NullBuffer, buffer_bin_or};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Fields, Schema};
use arrow_select::interleave::interleave;

use super::column_bytes::{described, values};
use super::multihash::{ARROW0_SHA3_256, Multihash};
use crate::error::{Error, Result};
use crate::hash::{Sha3, SharedHasher, update_all};

/// Of structs the crate's hash depends on how rows are cut into batches: those of kamu have so many.
const STRUCT_BATCH_ROWS: usize = 10_000;
/// Of the rows whose bytes are made at once.
const PIECE_BYTES: usize = 1 << 20;

/// The hash of a stream of batches.
pub(super) struct LogicalHash {
    names: Sha3,
    columns: Vec<Sha3>,
    /// Where the bytes of each column's rows are made.
    made: Vec<Vec<u8>>,
    /// What is hashed along with them.
    pub(super) passenger: Option<SharedHasher>,
    /// Rows that wait for a batch of the right length, of schemas with structs.
    waiting: Option<Vec<RecordBatch>>,
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
    /// Of rows with these columns; an error names the one that has no logical hash.
    pub(super) fn new(schema: &Schema) -> Result<Self> {
        let mut made = Self {
            names: Sha3::new(),
            columns: Vec::new(),
            made: Vec::new(),
            passenger: None,
            waiting: None,
        };
        made.describe(schema.fields(), 0)?;
        made.made = vec![Vec::new(); made.columns.len()];
        let mut fields = schema.fields().iter();
        if fields.any(|field| matches!(field.data_type(), DataType::Struct(_))) {
            made.waiting = Some(Vec::new());
        }
        Ok(made)
    }

    fn describe(&mut self, fields: &Fields, level: u64) -> Result<()> {
        for field in fields {
            self.names
                .update(&(field.name().len() as u64).to_le_bytes());
            self.names.update(field.name().as_bytes());
            self.names.update(&level.to_le_bytes());
            if let DataType::Struct(inner) = field.data_type() {
                self.describe(inner, level + 1)?;
                continue;
            }
            let Some(kind) = described(field.data_type()) else {
                let message = format!(
                    "column {:?}: the logical hash of ODF is not defined for {}; cast it first",
                    field.name(),
                    field.data_type()
                );
                return Err(Error::invalid(message));
            };
            let mut column = Sha3::new();
            column.update(&kind);
            self.columns.push(column);
        }
        Ok(())
    }

    /// Takes rows.
    pub(super) fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        let Some(mut waiting) = self.waiting.take() else {
            return self.hash(std::slice::from_ref(batch));
        };
        let mut rest = batch.clone();
        let mut held: usize = waiting.iter().map(RecordBatch::num_rows).sum();
        while held + rest.num_rows() >= STRUCT_BATCH_ROWS {
            let missing = STRUCT_BATCH_ROWS - held;
            waiting.push(rest.slice(0, missing));
            self.hash(&waiting)?;
            rest = rest.slice(missing, rest.num_rows() - missing);
            waiting.clear();
            held = 0;
        }
        if rest.num_rows() > 0 {
            waiting.push(rest);
        }
        self.waiting = Some(waiting);
        Ok(())
    }

    /// Hashes batches as if they were one.
    fn hash(&mut self, batches: &[RecordBatch]) -> Result<()> {
        let clean = batches.iter().map(|batch| settled(batch.columns(), None));
        let clean = clean.collect::<Result<Vec<_>>>()?;
        let mut leaves = Vec::with_capacity(self.columns.len());
        for column in 0..clean.first().map_or(0, Vec::len) {
            let parts: Vec<_> = clean
                .iter()
                .map(|columns| Arc::clone(&columns[column]))
                .collect();
            collect(&parts, &vec![None; parts.len()], &mut leaves);
        }
        for (index, batch) in batches.iter().enumerate() {
            let leaves: Vec<Leaf> = leaves.iter().map(|parts| parts[index].clone()).collect();
            self.hash_leaves(batch.num_rows(), &leaves);
        }
        Ok(())
    }

    fn hash_leaves(&mut self, all_rows: usize, leaves: &[Leaf]) {
        let sizes = leaves.iter();
        let sizes = sizes.map(|(array, _)| bytes_of(array));
        let row_bytes = sizes.sum::<usize>() / all_rows.max(1);
        let piece_rows = (PIECE_BYTES / row_bytes.max(1)).max(1);
        for from in (0..all_rows).step_by(piece_rows) {
            let rows = piece_rows.min(all_rows - from);
            let pieces = leaves
                .iter()
                .zip(&mut self.made)
                .map(|((array, nulls), made)| {
                    let nulls = nulls.as_ref().map(|nulls| nulls.slice(from, rows));
                    values(array.slice(from, rows).as_ref(), nulls.as_ref(), made)
                });
            let pieces: Vec<_> = pieces.collect();
            let streams = self.columns.iter_mut().zip(pieces.iter().zip(&self.made));
            let streams = streams.map(|(hash, (piece, made))| {
                let bytes = piece.as_ref().map_or(&made[..], |piece| &piece[..]);
                (hash, bytes)
            });
            let mut streams: Vec<_> = streams.collect();
            match &self.passenger {
                Some(passenger) => passenger.update_with(&mut streams),
                None => update_all(&mut streams),
            }
        }
        for made in &mut self.made {
            made.clear();
            made.shrink_to(PIECE_BYTES);
        }
    }

    /// The hash of all rows taken.
    pub(super) fn finish(mut self) -> Result<Multihash> {
        if let Some(waiting) = self.waiting.take() {
            self.hash(&waiting)?;
        }
        for column in self.columns {
            self.names.update(&column.finish());
        }
        Ok(Multihash::new(ARROW0_SHA3_256, &self.names.finish()))
    }
}

/// About the bytes of an array's values.
fn bytes_of(array: &ArrayRef) -> usize {
    let sum = |lengths: &mut dyn Iterator<Item = u32>| lengths.map(|n| n as usize).sum::<usize>();
    let viewed = match array.data_type() {
        DataType::Utf8View => sum(&mut array.as_string_view().lengths()),
        DataType::BinaryView => sum(&mut array.as_binary_view().lengths()),
        _ => 0,
    };
    viewed + array.to_data().get_slice_memory_size().unwrap_or(0)
}

/// An array that is no struct, with its nulls and those of the structs that it is in.
type Leaf = (ArrayRef, Option<NullBuffer>);

/// The leaves of a column, of which there are several parts with the nulls of what they are in.
fn collect(parts: &[ArrayRef], outer: &[Option<NullBuffer>], leaves: &mut Vec<Vec<Leaf>>) {
    let nulls = combined(outer, parts);
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
        collect(&inner, &nulls, leaves);
    }
}

/// As `arrow-digest` combines nulls: where both have some in any of the rows that it takes at once, what
/// either calls valid counts as valid.
fn combined(outer: &[Option<NullBuffer>], parts: &[ArrayRef]) -> Vec<Option<NullBuffer>> {
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

/// The columns with the nulls of structs in their fields, and nothing under a null: the crate may hash
/// what lies there, and a file does not keep it.
fn settled(arrays: &[ArrayRef], outer: Option<&NullBuffer>) -> Result<Vec<ArrayRef>> {
    let settle = |array: &ArrayRef| -> Result<ArrayRef> {
        let nulls = NullBuffer::union(outer, array.nulls());
        let Some(inner) = array.as_struct_opt() else {
            return match (outer, &nulls) {
                (Some(_), Some(nulls)) if nulls.null_count() > 0 => emptied(array, nulls),
                _ => Ok(Arc::clone(array)),
            };
        };
        // Fields of a struct may hold anything where they are null.
        let mask = nulls
            .clone()
            .unwrap_or_else(|| NullBuffer::new_valid(array.len()));
        let columns = settled(inner.columns(), Some(&mask))?;
        let kept = nulls.filter(|nulls| nulls.null_count() > 0);
        let made = StructArray::try_new(inner.fields().clone(), columns, kept);
        made.map(|made| Arc::new(made) as ArrayRef).map_err(unfit)
    };
    arrays.iter().map(settle).collect()
}

/// An array with some of its values null, and zeros or nothing in their places.
fn emptied(array: &ArrayRef, nulls: &NullBuffer) -> Result<ArrayRef> {
    // The places of nulls lead to a value of zeros behind the others.
    let zeros = zeros(array.data_type())?;
    let places = (0..array.len()).map(|at| if nulls.is_valid(at) { (0, at) } else { (1, 0) });
    let places: Vec<(usize, usize)> = places.collect();
    let laid = interleave(&[array.as_ref(), zeros.as_ref()], &places).map_err(unfit)?;
    let data = laid.to_data().into_builder().nulls(Some(nulls.clone()));
    Ok(make_array(data.build().map_err(unfit)?))
}

/// One value of a type: zeros, or nothing.
fn zeros(kind: &DataType) -> Result<ArrayRef> {
    if let DataType::FixedSizeList(item, length) = kind
        && !item.is_nullable()
    {
        let places = vec![(0, 0); usize::try_from(*length).unwrap_or_default()];
        let items = interleave(&[zeros(item.data_type())?.as_ref()], &places).map_err(unfit)?;
        let made = FixedSizeListArray::try_new(Arc::clone(item), *length, items, None);
        return Ok(Arc::new(made.map_err(unfit)?));
    }
    let data = ArrayData::new_null(kind, 1).into_builder().nulls(None);
    data.build().map(make_array).map_err(unfit)
}

fn unfit(error: ArrowError) -> Error {
    let message = format!("rows are not what their schema says: {error}");
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
            let over = Some(NullBuffer::from(vec![false, true, true, false]));
            let nested = StructArray::new(outer, vec![Arc::new(inner.clone())], over);
            let columns: Vec<(&str, ArrayRef)> = vec![
                ("i", Arc::new(ints.clone())),
                ("t", Arc::new(texts.clone())),
                ("f", Arc::new(floats.clone())),
                ("b", Arc::new(bools.clone())),
                ("l", Arc::new(lists.clone())),
                ("s", Arc::new(inner)),
                ("n", Arc::new(nested)),
            ];
            let batch = RecordBatch::try_from_iter_with_nullable(
                columns.into_iter().map(|(name, array)| (name, array, true)),
            );
            let batch = batch.unwrap();
            let mut ours = LogicalHash::new(batch.schema_ref()).unwrap();
            ours.update(&batch.slice(0, 3)).unwrap();
            ours.update(&batch.slice(3, 1)).unwrap();
            let clean = settled(batch.columns(), None).unwrap();
            let clean = RecordBatch::try_new(batch.schema(), clean).unwrap();
            let mut theirs = RecordDigestV0::<Sha3_256>::new(clean.schema_ref());
            theirs.update(&clean);
            assert_eq!(ours.finish().unwrap().digest(), &theirs.finalize()[..]);
        }
    }
}
