//! Snapshots as tables of `DataFusion`, for the package `datafusion` of Python.
//!
//! The two libraries share structs whose layout belongs to a major version of `DataFusion`, so the caller compares
//! versions first. `DataFusion` plans on threads of its own runtime; what reads runs on ours.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use datafusion_common::{DataFusionError, Result as DataFusionResult};
use datafusion_execution::{SendableRecordBatchStream, TaskContext};
use datafusion_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::table_provider::FFI_TableProvider;
use datafusion_physical_plan::ExecutionPlan;
use datafusion_physical_plan::empty::EmptyExec;
use datafusion_physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion_session::{Session, TableProvider};
use futures::stream;
use pds::clock::SystemClock;
use pds::table::format::TableManifest;
use pds::table::{
    self, BatchStream, Predicate, ScanOptions, Table, TableColumns, TaskSizes, parse_scan_task,
};
use pds::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::datafusion_filters::to_sql;
use crate::handle::TableHandle;
use crate::runtime::{into_py_result, runtime_handle, start};

/// A part of a scan for which `DataFusion` has a thread is not made smaller than this.
const MIN_PARTITION_BYTES: u64 = 1 << 20;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("DATAFUSION_VERSION", datafusion_ffi::version())?;
    module.add_function(wrap_pyfunction!(datafusion_table_provider, module)?)
}

/// A snapshot as a capsule that `DataFusion` takes for a table. The session has to be of the version
/// `DATAFUSION_VERSION`.
#[pyfunction]
fn datafusion_table_provider<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    session: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let codec = find_codec(session)?;
    let runtime = into_py_result(py, runtime_handle())?.clone();
    let provider = into_py_result(py, SnapshotTable::new(snapshot, runtime.clone()))?;
    let filters = true;
    let exported =
        FFI_TableProvider::new_with_ffi_codec(Arc::new(provider), filters, Some(runtime), codec);
    PyCapsule::new_with_value(py, exported, c"datafusion_table_provider")
}

/// What a session writes expressions with.
#[expect(unsafe_code, reason = "capsules of Python are pointers")]
fn find_codec(session: &Bound<'_, PyAny>) -> PyResult<FFI_LogicalExtensionCodec> {
    let method = "__datafusion_logical_extension_codec__";
    let codec = if session.hasattr(method)? {
        session.call_method0(method)?
    } else {
        session.clone()
    };
    let capsule = codec.cast_into::<PyCapsule>()?;
    let pointer = capsule.pointer_checked(Some(c"datafusion_logical_extension_codec"))?;
    // SAFETY: a capsule of this name has a codec, whose layout is that of the version that the caller checked.
    let codec = unsafe { pointer.cast::<FFI_LogicalExtensionCodec>().as_ref() };
    Ok(codec.clone())
}

/// A snapshot of a table.
#[derive(Debug)]
struct SnapshotTable {
    table: Arc<Table>,
    manifest: Arc<TableManifest>,
    columns: TableColumns,
    runtime: Handle,
}

impl SnapshotTable {
    fn new(snapshot: &TableHandle, runtime: Handle) -> Result<Self> {
        Ok(Self {
            table: Arc::new(snapshot.table()?),
            manifest: Arc::clone(&snapshot.manifest),
            columns: TableColumns::from_manifest(&snapshot.manifest)?,
            runtime,
        })
    }

    /// A filter that prunes, if it is one of pds, too.
    fn to_predicate(&self, filter: &Expr) -> Option<Predicate> {
        let predicate = Predicate::Sql(to_sql(filter, &self.columns.schema)?);
        self.is_usable(&predicate).then_some(predicate)
    }

    fn is_usable(&self, predicate: &Predicate) -> bool {
        predicate.bind(&self.columns, &SystemClock).is_ok()
    }

    /// The filters as one, or those that one expression has room for.
    fn combine(&self, filters: &[Expr]) -> Option<Predicate> {
        let predicates: Vec<Predicate> = filters
            .iter()
            .filter_map(|filter| self.to_predicate(filter))
            .collect();
        let terms: Vec<String> = predicates.iter().map(ToString::to_string).collect();
        let all = Predicate::Sql(terms.join(" AND "));
        let is_one = !terms.is_empty() && self.is_usable(&all);
        if is_one {
            Some(all)
        } else {
            predicates.into_iter().next()
        }
    }

    /// Splits a scan into about `count` tasks.
    async fn split(
        &self,
        names: Vec<String>,
        predicate: Option<Predicate>,
        count: usize,
    ) -> Result<Vec<Vec<u8>>> {
        let (table, manifest) = (Arc::clone(&self.table), Arc::clone(&self.manifest));
        let sizes = TaskSizes {
            count: count.try_into().unwrap_or(u64::MAX),
            min_bytes: MIN_PARTITION_BYTES,
            max_bytes: u64::MAX,
        };
        let (mut sender, receiver) = oneshot::channel();
        start(&self.runtime, move || async move {
            let work = table::split_scan(&table, manifest, predicate.as_ref(), Some(&names), sizes);
            let done = tokio::select! {
                () = sender.closed() => return,
                done = work => done,
            };
            // There is no receiver if the query ended just now.
            let _ = sender.send(done);
        })?;
        let ended = |_| Error::other("the thread that planned the scan panicked");
        receiver.await.map_err(ended)?
    }
}

#[async_trait]
impl TableProvider for SnapshotTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.columns.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        // Never exact: `DataFusion` applies its filters itself.
        let support = |filter: &&Expr| match self.to_predicate(filter) {
            Some(_) => TableProviderFilterPushDown::Inexact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            None => Arc::clone(&self.columns.schema),
            Some(positions) => Arc::new(self.columns.schema.project(positions)?),
        };
        let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
        // A filter that pds leaves out may refuse all of the first rows.
        let limit = if filters.is_empty() { limit } else { None };
        let predicate = self.combine(filters);
        let count = session.config().target_partitions();
        let tasks = self.split(names.clone(), predicate.clone(), count).await;
        let partitions = tasks.map_err(to_datafusion)?.into_iter().map(|task| {
            let partition = Partition {
                table: Arc::clone(&self.table),
                task,
                schema: Arc::clone(&schema),
                names: names.clone(),
                predicate: predicate.clone(),
                limit,
                runtime: self.runtime.clone(),
            };
            Arc::new(partition) as Arc<dyn PartitionStream>
        });
        let partitions: Vec<Arc<dyn PartitionStream>> = partitions.collect();
        if partitions.is_empty() {
            return Ok(Arc::new(EmptyExec::new(schema)));
        }
        let is_infinite = false;
        let plan = StreamingTableExec::try_new(schema, partitions, None, [], is_infinite, limit)?;
        Ok(Arc::new(plan))
    }
}

fn to_datafusion(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The rows of one task of a scan.
#[derive(Debug, Clone)]
struct Partition {
    table: Arc<Table>,
    task: Vec<u8>,
    schema: SchemaRef,
    names: Vec<String>,
    predicate: Option<Predicate>,
    limit: Option<usize>,
    runtime: Handle,
}

/// A batch, the end, or an error. Without an end, a thread that panicked would look like one that had no more rows.
type Message = Result<Option<RecordBatch>>;

impl Partition {
    async fn open(&self) -> Result<BatchStream> {
        let manifest = Arc::new(parse_scan_task(&self.task)?);
        let filter = match &self.predicate {
            None => None,
            Some(predicate) => {
                let columns = TableColumns::from_manifest(&manifest)?;
                Some(Arc::new(predicate.bind(&columns, &SystemClock)?))
            }
        };
        let options = ScanOptions {
            columns: Some(self.names.clone()),
            filter,
            limit: self.limit.map(|rows| rows.try_into().unwrap_or(u64::MAX)),
            ..ScanOptions::default()
        };
        table::scan(&self.table, manifest, options).await
    }

    async fn send_rows(&self, sender: &mpsc::Sender<Message>) -> Result<()> {
        let mut rows = self.open().await?;
        while let Some(batch) = rows.next().await.transpose()? {
            if sender.send(Ok(Some(batch))).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (sender, receiver) = mpsc::channel(1);
        let partition = self.clone();
        let started = start(&self.runtime, move || async move {
            let done = tokio::select! {
                // Nobody reads on, after a limit or an error.
                () = sender.closed() => return,
                done = partition.send_rows(&sender) => done,
            };
            let _ = sender.send(done.map(|()| None)).await;
        });
        if let Err(error) = started {
            let failed = stream::iter([Err(to_datafusion(error))]);
            let schema = Arc::clone(&self.schema);
            return Box::pin(RecordBatchStreamAdapter::new(schema, failed));
        }
        let batches = stream::unfold(Some(receiver), |receiver| async {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Some(Ok(Some(batch))) => Some((Ok(batch), Some(receiver))),
                Some(Ok(None)) => None,
                Some(Err(error)) => Some((Err(to_datafusion(error)), None)),
                None => {
                    let error = Error::other("the thread that read the rows panicked");
                    Some((Err(to_datafusion(error)), None))
                }
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            batches,
        ))
    }
}
