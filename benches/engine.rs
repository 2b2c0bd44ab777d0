//! The parts of the engine by themselves: encode, hash, upload, read, and what a row group costs.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark that cannot go on ends so"
)]

use std::hint::black_box;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray,
};
use arrow_schema::{Field, Schema};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pds::dataset::{self, DatasetWrite, Layout, WriteTask};
use pds::parquet::Cancel;
use pds::parquet::options::WriteOptions;
use pds::parquet::seal::{PartIdentity, hash};
use pds::parquet::writer::{self, ByteSink, ByteSinkFactory, FileStats, WritePlan};
use pds::store::Store;
use pds::testing::{faulty_memory, test_store};

const ROWS: usize = 200_000;

/// A sequence of values that repeats nothing for long; `spread` bounds it.
fn noise(spread: u64) -> impl Iterator<Item = u64> {
    (1_u64..).map(move |i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) % spread)
}

fn columns() -> Vec<(&'static str, ArrayRef)> {
    let numbers = || noise(1 << 40).take(ROWS).map(u64::cast_signed);
    let words = ["AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB", "REG AIR"];
    let pick = |n: u64| words[usize::try_from(n).unwrap_or_default()];
    #[expect(clippy::cast_precision_loss, reason = "any float will do")]
    let floats: Float64Array = noise(1 << 40)
        .take(ROWS)
        .map(|n| n as f64 / 100.0)
        .collect();
    vec![
        ("int64", Arc::new(numbers().collect::<Int64Array>())),
        (
            "int64 few values",
            Arc::new(
                noise(50)
                    .take(ROWS)
                    .map(u64::cast_signed)
                    .collect::<Int64Array>(),
            ),
        ),
        ("float64", Arc::new(floats)),
        (
            "string few values",
            Arc::new(StringArray::from_iter_values(noise(7).take(ROWS).map(pick))),
        ),
        (
            "string",
            Arc::new(StringArray::from_iter_values(
                numbers().map(|n| format!("comment {n}")),
            )),
        ),
    ]
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, c)| Field::new(*name, c.data_type().clone(), true))
        .collect();
    let arrays = columns.into_iter().map(|(_, c)| c).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

fn reader(batch: &RecordBatch) -> Box<dyn RecordBatchReader + Send> {
    Box::new(RecordBatchIterator::new(
        [Ok(batch.clone())],
        batch.schema(),
    ))
}

fn options(codec: &str, row_group_rows: Option<i64>) -> WriteOptions {
    WriteOptions::new(codec, None, row_group_rows, None, None).unwrap()
}

/// Takes bytes and drops them.
struct Nowhere;

impl ByteSink for Nowhere {
    fn write(&mut self, bytes: &[u8]) -> pds::Result<()> {
        black_box(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>, _stats: FileStats) -> pds::Result<()> {
        Ok(())
    }
}

impl ByteSinkFactory for Nowhere {
    fn open(&mut self) -> pds::Result<Box<dyn ByteSink>> {
        Ok(Box::new(Self))
    }
}

fn encode(batch: &RecordBatch, options: WriteOptions) {
    let mut plan = WritePlan::new(batch.schema(), options, PartIdentity::default()).unwrap();
    plan.input_in_memory = true;
    writer::write(&plan, &mut *reader(batch), &mut Nowhere, &Cancel::default()).unwrap();
}

fn encoding(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode");
    for codec in ["none", "snappy", "lz4", "zstd"] {
        let all = batch(columns());
        group.throughput(Throughput::Bytes(all.get_array_memory_size() as u64));
        group.bench_function(BenchmarkId::new("codec", codec), |b| {
            b.iter(|| encode(&all, options(codec, None)));
        });
    }
    for (name, column) in columns() {
        let one = batch(vec![(name, column)]);
        group.throughput(Throughput::Bytes(one.get_array_memory_size() as u64));
        group.bench_function(BenchmarkId::new("type", name), |b| {
            b.iter(|| encode(&one, options("zstd", None)));
        });
    }
    group.finish();
}

/// The same rows in ever more row groups: the difference is what a row group costs.
fn row_groups(c: &mut Criterion) {
    let mut group = c.benchmark_group("row groups");
    let all = batch(columns());
    for rows in [200_000, 20_000, 2_000] {
        group.bench_function(BenchmarkId::new("rows each", rows), |b| {
            b.iter(|| encode(&all, options("none", Some(rows))));
        });
    }
    group.finish();
}

fn hashing(c: &mut Criterion) {
    let mut group = c.benchmark_group("hash");
    let bytes: Vec<u8> = noise(256)
        .take(1 << 20)
        .map(|n| u8::try_from(n).unwrap_or_default())
        .collect();
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("xxh3-64", |b| b.iter(|| hash(black_box(&bytes))));
    group.finish();
}

async fn write(store: &Store, batch: &RecordBatch) {
    let write = DatasetWrite::begin(store, "a", true, Layout::Single, options("zstd", None))
        .await
        .unwrap();
    let task = WriteTask {
        number: 0,
        threads: pds::parquet::default_threads(),
        input_in_memory: true,
        keep_empty: true,
        shared: false,
    };
    let parts = dataset::prepare(store, &write, task, reader(batch))
        .await
        .unwrap();
    dataset::publish(store, &write, parts, "0123456789abcdef")
        .await
        .unwrap();
}

/// Datasets in memory: everything but the network.
fn datasets(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = test_store(&faulty_memory(), true);
    let all = batch(columns());
    let mut group = c.benchmark_group("dataset");
    group.throughput(Throughput::Bytes(all.get_array_memory_size() as u64));
    group.bench_function("write", |b| {
        b.iter(|| runtime.block_on(write(&store, &all)));
    });
    group.bench_function("read", |b| {
        b.iter(|| runtime.block_on(dataset::read(&store, "a", None)).unwrap());
    });
    let one = ["int64".to_owned()];
    group.bench_function("read one column", |b| {
        b.iter(|| {
            runtime
                .block_on(dataset::read(&store, "a", Some(&one)))
                .unwrap()
        });
    });
    group.finish();
}

criterion_group!(benches, encoding, row_groups, hashing, datasets);
criterion_main!(benches);
