//! The external sort of runs against `SortExec` of DataFusion, in memory and with spills: `make bench-sort`.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark that cannot go on ends so"
)]

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, SortOptions};
use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use datafusion_execution::runtime_env::RuntimeEnvBuilder;
use datafusion_execution::{SendableRecordBatchStream, TaskContext};
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion_physical_plan::ExecutionPlan;
use datafusion_physical_plan::sorts::sort::SortExec;
use datafusion_physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::{TryStreamExt, stream};
use pds::testing::sort_by_first_columns;
use tokio::runtime::Runtime;

const ROWS: u64 = 10_000_000;
const BATCH_ROWS: u64 = 8192;
/// A third of the rows, about.
const SPILLING_BYTES: usize = 128 << 20;

/// The rows, in no order.
#[derive(Debug)]
struct UnsortedRows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl UnsortedRows {
    fn new(order: [usize; 3]) -> Self {
        let fields = vec![
            Field::new("key", DataType::Int64, false),
            Field::new("text", DataType::Utf8, false),
            Field::new("value", DataType::Float64, false),
        ];
        let schema = Arc::new(Schema::new(fields).project(&order).unwrap());
        let starts = (0..ROWS).step_by(usize::try_from(BATCH_ROWS).unwrap());
        let unsorted = starts.map(|start| {
            let numbers = || (start..ROWS.min(start + BATCH_ROWS)).map(scatter);
            let texts = numbers().map(|n| format!("text {:03}", n % 1000));
            #[expect(clippy::cast_precision_loss, reason = "any float will do")]
            let values = numbers().map(|n| n as f64);
            let columns: [ArrayRef; 3] = [
                Arc::new(Int64Array::from_iter_values(
                    numbers().map(u64::cast_signed),
                )),
                Arc::new(StringArray::from_iter_values(texts)),
                Arc::new(Float64Array::from_iter_values(values)),
            ];
            let ordered = order.map(|index| Arc::clone(&columns[index]));
            RecordBatch::try_new(Arc::clone(&schema), ordered.to_vec()).unwrap()
        });
        let batches = unsorted.collect();
        Self { schema, batches }
    }
}

/// Another number for each number.
fn scatter(number: u64) -> u64 {
    number
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(31)
        .wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

impl PartitionStream for UnsortedRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = stream::iter(self.batches.clone().into_iter().map(Ok));
        let schema = Arc::clone(&self.schema);
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }
}

/// Sorts by the first columns with the engine's sort; returns the number of rows.
fn sort_runs(rows: &UnsortedRows, columns: usize, memory_bytes: Option<usize>) -> usize {
    let batches = rows.batches.clone().into_iter().map(Ok);
    let input = RecordBatchIterator::new(batches, Arc::clone(&rows.schema));
    let bytes = memory_bytes.unwrap_or(usize::MAX);
    let sorted = sort_by_first_columns(Box::new(input), columns, bytes).unwrap();
    sorted.map(|batch| batch.unwrap().num_rows()).sum()
}

/// Sorts by the first columns with `SortExec`, on one thread as the other; returns the number of rows.
fn sort_exec(
    runtime: &Runtime,
    rows: &Arc<UnsortedRows>,
    columns: usize,
    memory_bytes: Option<usize>,
) -> usize {
    let options = SortOptions {
        descending: false,
        nulls_first: false,
    };
    let fields = rows.schema.fields().iter().take(columns).enumerate();
    let expressions = fields.map(|(index, field)| {
        PhysicalSortExpr::new(Arc::new(Column::new(field.name(), index)), options)
    });
    let ordering = LexOrdering::new(expressions).unwrap();
    let partition: Arc<dyn PartitionStream> = Arc::<UnsortedRows>::clone(rows);
    let schema = Arc::clone(&rows.schema);
    let input = StreamingTableExec::try_new(schema, vec![partition], None, Vec::new(), false, None);
    let plan = SortExec::new(ordering, Arc::new(input.unwrap()));
    let mut environment = RuntimeEnvBuilder::new();
    if let Some(bytes) = memory_bytes {
        environment = environment.with_memory_limit(bytes, 1.0);
    }
    let context = TaskContext::default().with_runtime(environment.build_arc().unwrap());
    let counted = runtime.block_on(async {
        let sorted = plan.execute(0, Arc::new(context))?;
        sorted
            .try_fold(
                0_usize,
                |sum, batch| async move { Ok(sum + batch.num_rows()) },
            )
            .await
    });
    counted.unwrap()
}

fn sorting(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut group = c.benchmark_group("sort");
    group.throughput(Throughput::Elements(ROWS));
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    let expected = usize::try_from(ROWS).unwrap();
    for (key, order, columns) in [("int64", [0, 1, 2], 1), ("string, int64", [1, 0, 2], 2)] {
        let rows = Arc::new(UnsortedRows::new(order));
        for (memory, bytes) in [("in memory", None), ("spilling", Some(SPILLING_BYTES))] {
            let case = format!("{key}, {memory}");
            group.bench_function(BenchmarkId::new("pds", &case), |b| {
                b.iter(|| assert_eq!(sort_runs(&rows, columns, bytes), expected));
            });
            group.bench_function(BenchmarkId::new("SortExec", &case), |b| {
                b.iter(|| assert_eq!(sort_exec(&runtime, &rows, columns, bytes), expected));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, sorting);
criterion_main!(benches);
