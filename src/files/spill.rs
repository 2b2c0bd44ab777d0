//! Batches that are set aside to be read later, more than once if need be: in memory while they are few, else in a
//! temporary file that has no name, so that nothing stays of it however the process ends.

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, SchemaRef};

use super::merge::{SortedBatches, gc_views};
use crate::error::Error;
use crate::sync::heap::count_bytes;

/// Batches that were set aside.
#[derive(Debug, Clone)]
pub(crate) struct Spill {
    schema: SchemaRef,
    rows: u64,
    bytes: usize,
    kept: Kept,
}

#[derive(Debug, Clone)]
enum Kept {
    Memory(Arc<[RecordBatch]>),
    File(Arc<File>),
}

/// Takes batches, in the order in which they will be read.
pub(crate) struct SpillWriter {
    schema: SchemaRef,
    memory_bytes: usize,
    rows: u64,
    bytes: usize,
    batches: Vec<RecordBatch>,
    file: Option<StreamWriter<BufWriter<File>>>,
}

impl SpillWriter {
    /// Keeps up to about `memory_bytes` bytes in memory.
    pub(crate) fn new(schema: &SchemaRef, memory_bytes: usize) -> Self {
        Self {
            schema: Arc::clone(schema),
            memory_bytes,
            rows: 0,
            bytes: 0,
            batches: Vec::new(),
            file: None,
        }
    }

    /// Takes a batch.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<(), ArrowError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.rows += batch.num_rows() as u64;
        let bytes = batch.get_array_memory_size();
        self.bytes += bytes;
        count_bytes(bytes);
        if let Some(file) = &mut self.file {
            return file.write(&gc_views(batch)?).map_err(to_spill_error);
        }
        self.batches.push(batch);
        if self.bytes > self.memory_bytes {
            self.open_file()?;
        }
        Ok(())
    }

    fn open_file(&mut self) -> Result<(), ArrowError> {
        let file = tempfile::tempfile().map_err(spill_error)?;
        let mut writer =
            StreamWriter::try_new_buffered(file, &self.schema).map_err(to_spill_error)?;
        for batch in self.batches.drain(..) {
            writer.write(&gc_views(batch)?).map_err(to_spill_error)?;
        }
        self.file = Some(writer);
        Ok(())
    }

    /// Ends the writing.
    pub(crate) fn finish(self) -> Result<Spill, ArrowError> {
        let kept = if let Some(writer) = self.file {
            let buffer = writer.into_inner().map_err(to_spill_error)?;
            let file = buffer
                .into_inner()
                .map_err(|e| spill_error(e.into_error()))?;
            Kept::File(Arc::new(file))
        } else {
            Kept::Memory(self.batches.into())
        };
        Ok(Spill {
            schema: self.schema,
            rows: self.rows,
            bytes: self.bytes,
            kept,
        })
    }
}

impl Spill {
    /// Sets aside all batches of a stream.
    pub(crate) fn collect(
        schema: &SchemaRef,
        batches: impl IntoIterator<Item = Result<RecordBatch, ArrowError>>,
        memory_bytes: usize,
    ) -> Result<Self, ArrowError> {
        let mut writer = SpillWriter::new(schema, memory_bytes);
        for batch in batches {
            writer.push(batch?)?;
        }
        writer.finish()
    }

    /// The columns.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// About how many bytes the rows have in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the batches from the first one on. Fails at an end before the last row.
    pub(crate) fn read(&self) -> Result<SortedBatches, ArrowError> {
        let batches: SortedBatches = match &self.kept {
            Kept::Memory(batches) => {
                let batches = Arc::clone(batches);
                Box::new((0..batches.len()).map(move |at| Ok(batches[at].clone())))
            }
            Kept::File(file) => {
                let file = SpilledBytes {
                    file: Arc::clone(file),
                    offset: 0,
                };
                Box::new(StreamReader::try_new_buffered(file, None)?)
            }
        };
        Ok(Box::new(CompleteRows {
            batches,
            rows: 0,
            expected_rows: self.rows,
        }))
    }
}

/// The batches of a spill, which must have all its rows: a stream in a file that was cut between two of them ends there.
struct CompleteRows {
    batches: SortedBatches,
    rows: u64,
    expected_rows: u64,
}

impl Iterator for CompleteRows {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.batches.next();
        if let Some(Ok(batch)) = &next {
            self.rows += batch.num_rows() as u64;
        }
        if next.is_none() && self.rows != self.expected_rows {
            let (rows, expected) = (self.rows, self.expected_rows);
            let message = format!("it has {rows} rows, and {expected} were written");
            return Some(Err(spill_error(io::Error::other(message))));
        }
        next
    }
}

/// Reads a file from an offset of its own.
struct SpilledBytes {
    file: Arc<File>,
    offset: u64,
}

impl Read for SpilledBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

fn spill_error(e: io::Error) -> ArrowError {
    let folder = std::env::temp_dir();
    let message = format!(
        "sort spill to {} failed: {e}; free disk space there, or set TMPDIR to another folder",
        folder.display()
    );
    ArrowError::ExternalError(Box::new(Error::other(message).with_source(e)))
}

fn to_spill_error(e: ArrowError) -> ArrowError {
    match e {
        ArrowError::IoError(_, e) => spill_error(e),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, StringViewArray};
    use arrow_schema::{DataType, Field, Schema};

    use super::*;

    fn batch(from: i64, rows: i64) -> RecordBatch {
        let fields = vec![
            Field::new("n", DataType::Int64, false),
            Field::new("s", DataType::Utf8View, true),
        ];
        let numbers = Int64Array::from_iter_values(from..from + rows);
        let texts =
            (from..from + rows).map(|n| (n % 3 != 0).then(|| format!("a long text of {n}")));
        let texts: StringViewArray = texts.collect();
        let columns: Vec<arrow_array::ArrayRef> = vec![Arc::new(numbers), Arc::new(texts)];
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    }

    #[test]
    fn gives_back_what_it_took_to_several_readers_at_once() {
        for memory_bytes in [0, 1 << 10, 1 << 30] {
            let batches: Vec<RecordBatch> = (0..20).map(|n| batch(n * 50, 50)).collect();
            let schema = batches[0].schema();
            let spill =
                Spill::collect(&schema, batches.iter().cloned().map(Ok), memory_bytes).unwrap();
            assert_eq!(spill.rows(), 1000);
            let (first, second) = (spill.read().unwrap(), spill.read().unwrap());
            for (expected, (a, b)) in batches.iter().zip(first.zip(second)) {
                assert_eq!((expected, expected), (&a.unwrap(), &b.unwrap()));
            }
            assert_eq!(spill.read().unwrap().count(), 20);
        }
    }

    #[test]
    fn nothing_is_nothing() {
        let spill = Spill::collect(&batch(0, 1).schema(), [Ok(batch(0, 0))], 0).unwrap();
        assert_eq!((spill.rows(), spill.read().unwrap().count()), (0, 0));
    }

    #[test]
    fn an_end_before_the_last_row_is_an_error() {
        for memory_bytes in [0, 1 << 30] {
            let batches = (0..4).map(|n| Ok(batch(n * 50, 50)));
            let spill = Spill::collect(&batch(0, 1).schema(), batches, memory_bytes).unwrap();
            let cut = Spill { rows: 250, ..spill };
            let read: Vec<_> = cut.read().unwrap().take(6).collect();
            assert!(read[..4].iter().all(Result::is_ok));
            for error in &read[4..] {
                let text = error.as_ref().unwrap_err().to_string();
                assert!(
                    text.contains("has 200 rows, and 250 were written"),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_slice_keeps_no_more_than_its_rows() {
        let whole = batch(0, 10_000);
        let slices = (0..100).map(|n| Ok(whole.slice(n * 100, 100)));
        let spill = Spill::collect(&whole.schema(), slices, 1 << 10).unwrap();
        let numbers = spill.read().unwrap().flat_map(|batch| {
            let batch = batch.unwrap();
            assert!(batch.get_array_memory_size() < 100_000);
            batch
                .column(0)
                .as_primitive::<Int64Type>()
                .values()
                .to_vec()
        });
        assert!(numbers.eq(0..10_000));
    }
}
