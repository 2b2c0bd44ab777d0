//! Merges sorted streams of batches into one, in bounded memory.
//!
//! A stream is any iterator of batches: of a file, of a run in the store, of memory. Of each one there is one batch in
//! memory. Rows with equal keys come in the order of their streams, and within a stream in its order, so a merge of the
//! streams of a stable sort is stable.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{ArrowError, DataType, Schema, SortOptions};
use arrow_select::interleave::interleave_record_batch;
use arrow_select::take::take_record_batch;

use super::expr::{canonicalize, has_floats};
use crate::error::{Error, Result};
use crate::parquet::nested::contains_type;
use crate::parquet::size::slice_bytes;

/// The most rows of a batch that is made of sorted rows.
pub(crate) const BATCH_ROWS: usize = 8192;

/// The batches of a stream, in the order of its keys.
pub(crate) type SortedBatches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// A column that rows are ordered by, and how. Numbers are in the order of their values, texts and bytes by their bytes,
/// structs field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SortColumn {
    /// The index of the column.
    pub(crate) index: usize,
    /// Whether the greatest value comes first, and where nulls are.
    pub(crate) options: SortOptions,
    /// The order of floats, also of those within other values.
    pub(crate) floats: FloatOrder,
}

/// The order of floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatOrder {
    /// IEEE 754's total order, in which the runs of pipelines are stored.
    Total,
    /// That of SQL: zeros are equal, and so are all NaN, which are greater than any other value.
    Sql,
}

impl SortColumn {
    /// Floats in total order.
    pub(crate) fn new(index: usize, options: SortOptions) -> Self {
        Self {
            index,
            options,
            floats: FloatOrder::Total,
        }
    }

    /// Ascending, nulls last, floats in total order.
    pub(crate) fn ascending(index: usize) -> Self {
        let options = SortOptions {
            descending: false,
            nulls_first: false,
        };
        Self::new(index, options)
    }

    /// The order of the rows of tables: ascending, nulls last, floats in the order of SQL.
    pub(crate) fn of_table(index: usize) -> Self {
        Self {
            floats: FloatOrder::Sql,
            ..Self::ascending(index)
        }
    }
}

/// The columns that rows are compared by, and the conversion of their values into comparable keys.
#[derive(Debug)]
pub(crate) struct SortKeys {
    converter: RowConverter,
    columns: Vec<usize>,
    /// The positions of the columns with floats in the order of SQL.
    sql_floats: Vec<usize>,
}

impl SortKeys {
    /// Refuses columns that Arrow's row format cannot compare
    /// ([`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)).
    pub(crate) fn new(schema: &Schema, by: &[SortColumn]) -> Result<Self> {
        let fields = by.iter().map(|column| {
            let data_type = schema.field(column.index).data_type().clone();
            SortField::new_with_options(data_type, column.options)
        });
        let converter = RowConverter::new(fields.collect()).map_err(|e| {
            let names: Vec<&String> = by
                .iter()
                .map(|column| schema.field(column.index).name())
                .collect();
            Error::invalid(format!("rows cannot be sorted by {names:?}: {e}")).with_source(e)
        })?;
        let positions = by.iter().enumerate().filter(|(_, column)| {
            let data_type = schema.field(column.index).data_type();
            column.floats == FloatOrder::Sql && has_floats(data_type)
        });
        Ok(Self {
            converter,
            columns: by.iter().map(|column| column.index).collect(),
            sql_floats: positions.map(|(position, _)| position).collect(),
        })
    }

    pub(crate) fn convert_batch(&self, batch: &RecordBatch) -> Result<Rows, ArrowError> {
        let key_columns = self.columns.iter();
        let columns: Vec<ArrayRef> = key_columns
            .map(|at| Arc::clone(batch.column(*at)))
            .collect();
        self.convert_columns(&columns)
    }

    /// The keys with these columns.
    pub(crate) fn convert_columns(&self, columns: &[ArrayRef]) -> Result<Rows, ArrowError> {
        if self.sql_floats.is_empty() {
            return self.converter.convert_columns(columns);
        }
        let mut columns = columns.to_vec();
        for position in &self.sql_floats {
            if let Some(column) = columns.get_mut(*position) {
                *column = canonicalize(column);
            }
        }
        self.converter.convert_columns(&columns)
    }
}

/// The most bytes of a batch, about.
const BATCH_BYTES: usize = 16 << 20;

/// The merge of streams that are in the order of `keys`, in batches of `batch_rows` rows, and fewer where they are wide.
pub(crate) struct Merge {
    keys: Arc<SortKeys>,
    batch_rows: usize,
    cursors: Vec<Cursor>,
    heads: BinaryHeap<Head>,
    /// The batches with rows that are not merged yet.
    batches: Vec<RecordBatch>,
    /// The rows that are merged and not in the output yet.
    merged: VecDeque<RecordBatch>,
}

/// The position in a stream that is read.
struct Cursor {
    stream: SortedBatches,
    keys: Rows,
    /// The index of the current batch in [`Merge::batches`].
    batch: usize,
    row: usize,
    /// About how many bytes a row of the current batch has.
    row_bytes: usize,
}

/// The next row of a stream. The greatest one is the row that comes first: [`BinaryHeap`] pops the greatest.
struct Head {
    key: Box<[u8]>,
    cursor: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = other.key.cmp(&self.key);
        by_key.then_with(|| other.cursor.cmp(&self.cursor))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl Merge {
    pub(crate) fn new(
        streams: impl IntoIterator<Item = SortedBatches>,
        keys: &Arc<SortKeys>,
        batch_rows: usize,
    ) -> Result<Self, ArrowError> {
        let mut merge = Self {
            keys: Arc::clone(keys),
            batch_rows,
            cursors: Vec::new(),
            heads: BinaryHeap::new(),
            batches: Vec::new(),
            merged: VecDeque::new(),
        };
        for mut stream in streams {
            if let Some(batch) = next_with_rows(&mut stream)? {
                merge.cursors.push(Cursor {
                    stream,
                    keys: merge.keys.convert_batch(&batch)?,
                    batch: merge.batches.len(),
                    row: 0,
                    row_bytes: row_bytes(&batch),
                });
                merge.batches.push(batch);
                merge.push_head(merge.cursors.len() - 1);
            }
        }
        Ok(merge)
    }

    fn push_head(&mut self, cursor: usize) {
        let at = &self.cursors[cursor];
        let key = at.keys.row(at.row).as_ref().into();
        self.heads.push(Head { key, cursor });
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        if let Some(batch) = self.merged.pop_front() {
            return Ok(Some(batch));
        }
        let mut positions = Vec::with_capacity(self.batch_rows);
        let mut bytes = 0;
        while positions.len() < self.batch_rows && bytes < BATCH_BYTES {
            let Some(Head { cursor: at, .. }) = self.heads.pop() else {
                break;
            };
            let cursor = &mut self.cursors[at];
            positions.push((cursor.batch, cursor.row));
            bytes += cursor.row_bytes;
            cursor.row += 1;
            if cursor.row == cursor.keys.num_rows() {
                let Some(batch) = next_with_rows(&mut cursor.stream)? else {
                    continue;
                };
                cursor.keys = self.keys.convert_batch(&batch)?;
                (cursor.batch, cursor.row) = (self.batches.len(), 0);
                cursor.row_bytes = row_bytes(&batch);
                self.batches.push(batch);
            }
            self.push_head(at);
        }
        self.merged = interleave_rows(&self.batches, &positions)?.into();
        // Only the current batch of each stream is still needed.
        let mut used: Vec<RecordBatch> = Vec::with_capacity(self.cursors.len());
        for cursor in &mut self.cursors {
            used.push(self.batches[cursor.batch].clone());
            cursor.batch = used.len() - 1;
        }
        self.batches = used;
        Ok(self.merged.pop_front())
    }
}

impl Iterator for Merge {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}

/// About how many bytes a row of a batch has.
pub(crate) fn row_bytes(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter().map(|column| slice_bytes(column));
    columns.sum::<usize>() / batch.num_rows().max(1)
}

fn next_with_rows(stream: &mut SortedBatches) -> Result<Option<RecordBatch>, ArrowError> {
    for batch in stream {
        let batch = batch?;
        if batch.num_rows() > 0 {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

/// Rows of batches, in as few batches as their dictionaries allow: those of several batches together may have more
/// values than their type of key has numbers.
pub(crate) fn interleave_rows(
    batches: &[RecordBatch],
    positions: &[(usize, usize)],
) -> Result<Vec<RecordBatch>, ArrowError> {
    let mut merged = Vec::new();
    let (mut rest, mut most) = (positions, positions.len());
    let references: Vec<&RecordBatch> = batches.iter().collect();
    while let Some((first, _)) = rest.first().copied() {
        let of_first = rest.iter().take_while(|(batch, _)| *batch == first).count();
        let unites = !batches[first]
            .schema()
            .fields()
            .iter()
            .any(|field| contains_type(field.data_type(), cannot_unite));
        let count = if unites {
            most.min(rest.len())
        } else {
            of_first
        };
        let (rows, behind) = rest.split_at(count);
        let batch = if count <= of_first {
            let rows: UInt64Array = rows.iter().map(|(_, row)| *row as u64).collect();
            take_record_batch(&batches[first], &rows)
        } else {
            interleave_record_batch(&references, rows)
        };
        match batch {
            Err(ArrowError::DictionaryKeyOverflowError | ArrowError::OffsetOverflowError(_))
                if count > 1 =>
            {
                most = count / 2;
            }
            batch => {
                merged.push(gc_views(batch?)?);
                rest = behind;
            }
        }
    }
    Ok(merged)
}

/// Whether Arrow concatenates dictionaries of the type as they are, and panics where that is too much for the keys.
fn cannot_unite(data_type: &DataType) -> bool {
    let DataType::Dictionary(key, values) = data_type else {
        return false;
    };
    let is_narrow = key.primitive_width().is_some_and(|bytes| bytes < 4);
    let is_bytes = matches!(
        values.as_ref(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary
    );
    is_narrow && !is_bytes && !values.is_primitive()
}

pub(super) fn is_view(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::BinaryView)
}

/// Removes the values that no view of the batch refers to from its buffers.
pub(super) fn gc_views(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.columns().iter().any(|c| is_view(c.data_type())) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(|column| -> ArrayRef {
        match column.data_type() {
            DataType::Utf8View => Arc::new(column.as_string_view().gc()),
            DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
            _ => Arc::clone(column),
        }
    });
    RecordBatch::try_new(batch.schema(), columns.collect())
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{
        DictionaryArray, Float64Array, Int32Array, ListArray, RunArray, StructArray,
    };
    use arrow_buffer::OffsetBuffer;
    use arrow_cast::cast;
    use arrow_schema::Field;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// One that is another in 16 bits, too.
    const OTHER_NAN: f64 = f64::from_bits(0x7ffc_0000_0000_0000);
    const FLOATS: [Option<f64>; 10] = [
        None,
        Some(f64::NAN),
        Some(-f64::NAN),
        Some(OTHER_NAN),
        Some(0.0),
        Some(-0.0),
        Some(f64::INFINITY),
        Some(f64::NEG_INFINITY),
        Some(1.5),
        Some(-1.5),
    ];

    /// The floats in every type that can hold them.
    fn columns(floats: &Float64Array) -> Vec<ArrayRef> {
        let whole: ArrayRef = Arc::new(floats.clone());
        let length = i32::try_from(floats.len()).unwrap();
        let positions = Int32Array::from_iter_values(0..length);
        let ends = Int32Array::from_iter_values(1..=length);
        let fields = vec![Field::new("f", DataType::Float64, true)];
        let item = Arc::new(Field::new_list_field(DataType::Float64, true));
        let nulls = whole.nulls().cloned();
        let list = {
            let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(1, floats.len()));
            ListArray::new(item, offsets, Arc::clone(&whole), nulls.clone())
        };
        vec![
            cast(&whole, &DataType::Float16).unwrap(),
            cast(&whole, &DataType::Float32).unwrap(),
            Arc::new(DictionaryArray::new(positions, Arc::clone(&whole))),
            Arc::new(RunArray::<Int32Type>::try_new(&ends, &whole).unwrap()),
            Arc::new(StructArray::new(
                fields.into(),
                vec![Arc::clone(&whole)],
                nulls,
            )),
            Arc::new(list),
            whole,
        ]
    }

    fn compare(
        (a, b): (Option<f64>, Option<f64>),
        options: SortOptions,
        floats: FloatOrder,
    ) -> Ordering {
        let (Some(a), Some(b)) = (a, b) else {
            let order = b.is_none().cmp(&a.is_none());
            return if options.nulls_first {
                order
            } else {
                order.reverse()
            };
        };
        let order = match floats {
            FloatOrder::Total => a.total_cmp(&b),
            FloatOrder::Sql => {
                let by_number = a.partial_cmp(&b).unwrap_or(Ordering::Equal);
                a.is_nan().cmp(&b.is_nan()).then(by_number)
            }
        };
        if options.descending {
            order.reverse()
        } else {
            order
        }
    }

    #[test]
    fn floats_have_the_order_of_their_column() {
        let mut random = StdRng::seed_from_u64(5);
        let values: Vec<Option<f64>> = (0..300)
            .map(|_| FLOATS[random.random_range(0..FLOATS.len())])
            .collect();
        let second: Vec<i32> = (0..300).map(|_| random.random_range(0..4)).collect();
        let second_column: ArrayRef = Arc::new(Int32Array::from(second.clone()));
        for column in columns(&values.iter().copied().collect()) {
            let fields = [&column, &second_column].map(|c| c.data_type().clone());
            let fields = fields.map(|data_type| Field::new("c", data_type, true));
            let schema = Schema::new(fields.to_vec());
            // A slice, as batches often are.
            let slices = [&column, &second_column].map(|c| c.slice(11, 280));
            for (descending, nulls_first, floats) in [
                (false, false, FloatOrder::Sql),
                (false, true, FloatOrder::Sql),
                (true, false, FloatOrder::Sql),
                (true, true, FloatOrder::Sql),
                (false, false, FloatOrder::Total),
                (true, true, FloatOrder::Total),
            ] {
                let options = SortOptions {
                    descending,
                    nulls_first,
                };
                let first = SortColumn {
                    index: 0,
                    options,
                    floats,
                };
                let keys = SortKeys::new(&schema, &[first, SortColumn::of_table(1)]).unwrap();
                let rows = keys.convert_columns(&slices).unwrap();
                let mut sorted: Vec<usize> = (11..291).collect();
                let mut expected = sorted.clone();
                sorted.sort_by(|a, b| rows.row(a - 11).cmp(&rows.row(b - 11)));
                expected.sort_by(|a, b| {
                    let by_float = compare((values[*a], values[*b]), options, floats);
                    by_float.then(second[*a].cmp(&second[*b]))
                });
                assert_eq!(sorted, expected, "{} {first:?}", column.data_type());
            }
        }
    }
}
