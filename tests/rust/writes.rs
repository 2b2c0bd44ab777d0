//! The bytes of a Parquet file leave column by column, before the last column of their row group is encoded, and are
//! the same for any number of threads.

use std::sync::{Arc, Mutex};

use arrow_array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
    TimestampSecondArray,
};
use pds::parquet::Cancel;
use pds::parquet::options::WriteOptions;
use pds::parquet::seal::PartIdentity;
use pds::parquet::writer::{self, ByteSink, ByteSinkFactory, FileStats, WritePlan};
use pds::{Error, ErrorKind};

/// What came to a sink.
#[derive(Debug, Clone, Default)]
struct Received {
    bytes: Arc<Mutex<Vec<u8>>>,
    finished: Arc<Mutex<usize>>,
    /// A write beyond so many bytes fails.
    limit: Option<usize>,
    /// A file cannot be ended.
    fails_at_end: bool,
}

impl Received {
    fn length(&self) -> usize {
        self.bytes.lock().unwrap().len()
    }

    fn files(&self) -> usize {
        *self.finished.lock().unwrap()
    }
}

impl ByteSink for Received {
    fn write(&mut self, bytes: &[u8]) -> pds::Result<()> {
        let mut received = self.bytes.lock().unwrap();
        received.extend_from_slice(bytes);
        if self.limit.is_some_and(|limit| received.len() > limit) {
            return Err(Error::new(ErrorKind::Unavailable, "the disk is full"));
        }
        Ok(())
    }

    fn finish(self: Box<Self>, _stats: FileStats) -> pds::Result<()> {
        if self.fails_at_end {
            return Err(Error::new(ErrorKind::Unavailable, "the disk is full"));
        }
        *self.finished.lock().unwrap() += 1;
        Ok(())
    }
}

impl ByteSinkFactory for Received {
    fn open(&mut self) -> pds::Result<Box<dyn ByteSink>> {
        Ok(Box::new(self.clone()))
    }
}

/// A sequence of values that repeats nothing for long; `spread` bounds it.
fn noise(spread: u64, rows: usize) -> impl Iterator<Item = i64> {
    let numbers = (1_u64..).map(move |i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31));
    numbers.take(rows).map(move |n| (n % spread).cast_signed())
}

fn numbers(rows: usize) -> ArrayRef {
    Arc::new(noise(1 << 60, rows).collect::<Int64Array>())
}

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let names = (0..columns.len()).map(|i| format!("c{i:03}"));
    RecordBatch::try_from_iter(names.zip(columns)).unwrap()
}

/// Columns of 8 bytes a row. A time that has no milliseconds, in the last one, is found when it is encoded.
fn batch_with_a_wrong_end(columns: usize, rows: usize) -> RecordBatch {
    let mut arrays = vec![numbers(rows); columns];
    arrays.push(Arc::new(TimestampSecondArray::from_value(i64::MAX, rows)));
    batch(arrays)
}

fn write(
    batches: &[RecordBatch],
    threads: usize,
    in_memory: bool,
    sink: &Received,
) -> pds::Result<()> {
    let options = WriteOptions::new("zstd", None, None, None, Some(64 << 20))?;
    let mut plan = WritePlan::new(batches[0].schema(), options, PartIdentity::default())?;
    (plan.threads, plan.input_in_memory) = (threads, in_memory);
    let rows = batches.iter().cloned().map(Ok);
    let mut input = RecordBatchIterator::new(rows, batches[0].schema());
    writer::write(&plan, &mut input, &mut sink.clone(), &Cancel::default())
}

#[test]
fn columns_leave_before_the_last_one_is_encoded() {
    // So little that one thread does it all, in the order of the file.
    for in_memory in [true, false] {
        let received = Received::default();
        let rows = [batch_with_a_wrong_end(20, 1000)];
        let error = write(&rows, 1, in_memory, &received).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("c020"), "{error}");
        // At least half of 8 bytes a value, whatever the compression makes of them.
        assert!(received.length() > 20 * 1000 * 4, "{}", received.length());
        assert_eq!(received.files(), 0);
    }
}

#[test]
fn an_error_of_a_column_or_of_the_sink_ends_the_write() {
    for (threads, in_memory) in [(1, true), (2, false), (8, true)] {
        let received = Received::default();
        let rows = [batch_with_a_wrong_end(30, 50_000)];
        let error = write(&rows, threads, in_memory, &received).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(received.files(), 0);

        let full = Received {
            limit: Some(1 << 20),
            ..Received::default()
        };
        let rows = [batch(vec![numbers(50_000); 30])];
        let error = write(&rows, threads, in_memory, &full).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(full.files(), 0);
    }
}

/// The thread of the input waits for the row group that another one appends: it must not take what is left after an
/// error for the whole.
#[test]
fn a_file_that_cannot_be_ended_ends_the_write() {
    let rows = [batch(vec![numbers(80_000)])];
    let options = WriteOptions::new("none", None, Some(40_000), Some(40_000), None).unwrap();
    let mut plan = WritePlan::new(rows[0].schema(), options, PartIdentity::default()).unwrap();
    (plan.threads, plan.input_in_memory) = (4, true);
    for _ in 0..500 {
        let mut full = Received {
            fails_at_end: true,
            ..Received::default()
        };
        let batches = rows.iter().cloned().map(Ok);
        let mut input = RecordBatchIterator::new(batches, rows[0].schema());
        let error = writer::write(&plan, &mut input, &mut full, &Cancel::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads_or_batches() {
    let rows = 100_000;
    #[expect(clippy::cast_precision_loss, reason = "any float will do")]
    let floats: Float64Array = noise(5000, rows).map(|n| n as f64 / 100.0).collect();
    let optional: Int64Array = noise(1 << 40, rows)
        .map(|n| (n % 3 > 0).then_some(n))
        .collect();
    let words = noise(40, rows).map(|n| format!("word {n}"));
    let texts = noise(1 << 40, rows).map(|n| format!("text {n} {n}"));
    let all = batch(vec![
        numbers(rows),
        Arc::new(noise(300, rows).collect::<Int64Array>()),
        Arc::new(floats),
        Arc::new(optional),
        Arc::new(StringArray::from_iter_values(words)),
        Arc::new(StringArray::from_iter_values(texts)),
    ]);
    for in_memory in [true, false] {
        let expected = Received::default();
        write(std::slice::from_ref(&all), 1, in_memory, &expected).unwrap();
        // The first batch is long enough for the look at whether values are distinct.
        for first in [rows, 50_000, 33_333] {
            let second = (rows - first) / 3;
            let ranges = [
                (0, first),
                (first, second),
                (first + second, rows - first - second),
            ];
            let slices = ranges.iter().filter(|(_, rows)| *rows > 0);
            let batches: Vec<RecordBatch> = slices.map(|(at, n)| all.slice(*at, *n)).collect();
            for threads in [1, 2, 8] {
                let received = Received::default();
                write(&batches, threads, in_memory, &received).unwrap();
                let is_same = *received.bytes.lock().unwrap() == *expected.bytes.lock().unwrap();
                assert!(is_same, "{in_memory} {first} {threads}");
            }
        }
    }
}
