//! Pipelines: their snapshots, and updates, which call the functions of stages.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::Schema;
use pds::producers::{
    self, ChangedFunctionHook, Changes, ConsumedInput, ConsumedStep, Engine, FunctionDigest, Graph,
    Node, Operator, Pipeline, PipelineManifest, Preserve, PushedRows, RebuildOptions, RunSizes,
    SourceNode, StageFunction, StageNode, TableName, UpdateOptions, ValueOrder,
};
use pds::table::Versioned;
use pds::versions::history;
use pds::{Error, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use pyo3_arrow::PySchema;

use crate::engine::PyEngine;
use crate::input::{extract_reader, extract_schema, parse_scope, parse_seconds};
use crate::pipeline_results::UpdateFields;
use crate::producer_calls::{PyChangedFunctionHook, PyPreserve, PyProducer};
use crate::runtime::{into_py_result, run};
use crate::scan::Scan;
use crate::store::StoreHandle;

/// One snapshot of a pipeline.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct PipelineHandle {
    pub(crate) store: StoreHandle,
    pub(crate) path: String,
    pub(crate) manifest: Arc<PipelineManifest>,
}

impl PipelineHandle {
    fn pipeline(&self) -> Result<Pipeline> {
        Pipeline::new(self.store.store()?, &self.path)
    }
}

#[pymethods]
impl PipelineHandle {
    /// Opens the newest snapshot, or that of `version`; None if the pipeline has no version yet.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        store: &StoreHandle,
        path: String,
        version: Option<u64>,
    ) -> PyResult<Option<Self>> {
        let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
        let manifest = run(py, move || async move {
            match version {
                None => producers::open(&pipeline).await,
                Some(version) => pipeline.manifest_at(version).await.map(Some),
            }
        })?;
        Ok(manifest.map(|manifest| Self {
            store: store.clone_handle(),
            path,
            manifest,
        }))
    }

    /// The version of the snapshot.
    #[getter]
    fn version(&self) -> u64 {
        self.manifest.version
    }

    /// Opens the snapshot of a version.
    fn at(&self, py: Python<'_>, version: u64) -> PyResult<Self> {
        let pipeline = into_py_result(py, self.pipeline())?;
        let read = move || async move { pipeline.manifest_at(version).await };
        let manifest = run(py, read)?;
        Ok(Self {
            store: self.store.clone_handle(),
            path: self.path.clone(),
            manifest,
        })
    }

    /// The columns of the content of a source or stage, or of its key mappings, as a `pyarrow.Schema`.
    fn schema<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        is_mappings: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let schema = self.pipeline().and_then(|pipeline| {
            producers::schema(&pipeline, &self.manifest, name, table_name(is_mappings))
        });
        PySchema::new(into_py_result(py, schema)?).into_pyarrow(py)
    }

    /// Raises an error if the declared sources and stages are not those of the snapshot, or these and new ones.
    fn check_definitions(&self, py: Python<'_>, nodes: Vec<PyNode<'_>>) -> PyResult<()> {
        let graph = build_graph(py, nodes)?;
        into_py_result(py, producers::check_definitions(&graph, &self.manifest))
    }

    /// The manifest as JSON.
    fn manifest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.manifest.to_bytes())
    }

    /// Reads the history of the last `limit` versions: an entry as JSON for each, newest first.
    fn history<'py>(&self, py: Python<'py>, limit: u64) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let pipeline = into_py_result(py, self.pipeline())?;
        let newest = Arc::clone(&self.manifest);
        let entries = run(py, move || async move {
            history(&pipeline, &newest, limit).await
        })?;
        let bytes = entries.iter().map(|e| PyBytes::new(py, &e.to_bytes()));
        Ok(bytes.collect())
    }

    /// Streams the content of a source or stage, or its key mappings; `keys` are a stream of one column.
    fn read(
        &self,
        py: Python<'_>,
        name: String,
        is_mappings: bool,
        keys: Option<&Bound<'_, PyAny>>,
        memory_limit: usize,
    ) -> PyResult<Scan> {
        let pipeline = into_py_result(py, self.pipeline())?;
        let keys = keys.map(extract_reader).transpose()?;
        let manifest = Arc::clone(&self.manifest);
        let table = table_name(is_mappings);
        let scan = run(py, move || async move {
            producers::read(&pipeline, &manifest, &name, table, keys, memory_limit)
        })?;
        Ok(Scan::new(scan))
    }

    /// Streams what the version of the snapshot changed in a stage.
    fn changes(&self, py: Python<'_>, name: String, memory_limit: usize) -> PyResult<Scan> {
        let pipeline = into_py_result(py, self.pipeline())?;
        let manifest = Arc::clone(&self.manifest);
        let scan = run(py, move || async move {
            producers::changes(&pipeline, &manifest, &name, memory_limit)
        })?;
        Ok(Scan::new(scan))
    }

    /// Streams what the versions after `since`, up to that of the snapshot, changed in a stage together.
    fn net_changes(
        &self,
        py: Python<'_>,
        name: String,
        since: u64,
        memory_limit: usize,
    ) -> PyResult<Scan> {
        let pipeline = into_py_result(py, self.pipeline())?;
        let until = Arc::clone(&self.manifest);
        let scan = run(py, move || async move {
            producers::net_changes(&pipeline, since, &until, &name, memory_limit).await
        })?;
        Ok(Scan::new(scan))
    }
}

fn table_name(is_mappings: bool) -> TableName {
    if is_mappings {
        TableName::KeyMappings
    } else {
        TableName::Content
    }
}

/// The attributes of `pds.producers.graph.Node`.
#[derive(FromPyObject)]
pub(crate) struct PyNode<'py> {
    name: String,
    /// None for a source.
    feeders: Option<Vec<String>>,
    is_join: bool,
    /// The fields `key` and `value`.
    fields: Bound<'py, PyAny>,
    descending: bool,
    skip_unchanged: bool,
    definition: BTreeMap<String, i64>,
    /// What compiled the function, and a digest of it.
    function_digest: Option<(String, String)>,
    /// Called with a list of readers, gives an iterable of record batches; None for a source or an operator.
    function: Option<Py<PyAny>>,
    /// An operator as JSON, in place of a function. Then the fields are its own.
    operator: Option<String>,
    /// The expressions by which the values of a key are in order, and whether the greatest is first.
    order_by: Option<(Vec<String>, bool)>,
    /// Called with a reader and the stored state as JSON or None, gives an iterable of record batches with `get_state`.
    preserve: Option<Py<PyAny>>,
}

impl PyNode<'_> {
    /// `declared` are the nodes before it.
    fn into_node(mut self, declared: &[Node]) -> PyResult<Node> {
        let py = self.fields.py();
        let order = self.order_by.take();
        let order = order.map(|(by, descending)| ValueOrder { by, descending });
        match (self.into_unordered(declared)?, order) {
            (Node::Stage(stage), Some(order)) => {
                into_py_result(py, stage.with_order(&order, declared)).map(Node::Stage)
            }
            (node, _) => Ok(node),
        }
    }

    fn into_unordered(self, declared: &[Node]) -> PyResult<Node> {
        let py = self.fields.py();
        if let (Some(operator), Some(feeders)) = (&self.operator, &self.feeders) {
            let operator: Operator =
                serde_json::from_str(operator).map_err(|e| PyValueError::new_err(e.to_string()))?;
            let (feeders, descending) = (feeders.clone(), self.descending);
            let stage =
                StageNode::of_operator(&self.name, feeders, &operator, descending, declared);
            return Ok(Node::Stage(StageNode {
                skip_unchanged: self.skip_unchanged,
                ..into_py_result(py, stage)?
            }));
        }
        let schema = extract_schema(&self.fields)?;
        let [key, value] = schema.fields().as_ref() else {
            let message = "a source or stage has the fields key and value";
            return into_py_result(py, Err(Error::invalid(message)));
        };
        let (key, value) = (key.as_ref().clone(), value.as_ref().clone());
        let Some(feeders) = self.feeders else {
            return Ok(Node::Source(SourceNode {
                name: self.name,
                key,
                value,
                descending: self.descending,
                skip_unchanged: self.skip_unchanged,
            }));
        };
        let function = self.function.unwrap_or_else(|| py.None());
        let definition = self.definition.into_iter();
        let definition = definition.map(|(name, value)| (name, value.into()));
        let digest = self.function_digest;
        let digest = digest.map(|(runtime, digest)| FunctionDigest { runtime, digest });
        Ok(Node::Stage(StageNode {
            name: self.name,
            feeders,
            join: self.is_join,
            source_key: None,
            order_by: None,
            first_rows: None,
            key,
            value,
            descending: self.descending,
            skip_unchanged: self.skip_unchanged,
            definition: definition.collect(),
            function: StageFunction::Produce(Arc::new(PyProducer { function })),
            function_digest: digest,
            preserve: self
                .preserve
                .map(|hook| Arc::new(PyPreserve { hook }) as Arc<dyn Preserve>),
        }))
    }
}

/// The attributes of `pds.producers.graph.ConsumedTable`.
#[derive(Debug, FromPyObject)]
struct PyConsumedTable {
    location: String,
    version: u64,
    commit_id: String,
    columns: Vec<u32>,
}

impl From<PyConsumedTable> for ConsumedInput {
    fn from(table: PyConsumedTable) -> Self {
        Self {
            location: table.location,
            version: table.version,
            commit_id: table.commit_id,
            columns: table.columns,
        }
    }
}

/// Rows of a source.
#[derive(FromPyObject)]
enum PyRows<'py> {
    /// What `stage_source_rows` returned for parts of them.
    Staged(Vec<PyBackedBytes>),
    /// An Arrow stream.
    Stream(Bound<'py, PyAny>),
}

impl PyRows<'_> {
    fn into_rows(self) -> PyResult<PushedRows> {
        Ok(match self {
            Self::Staged(messages) => {
                PushedRows::Staged(messages.iter().map(|message| message.to_vec()).collect())
            }
            Self::Stream(stream) => PushedRows::Stream(extract_reader(&stream)?),
        })
    }
}

/// The attributes of `pds.producers.graph.SourceInput`.
#[derive(FromPyObject)]
pub(crate) struct PyChanges<'py> {
    source: String,
    upserts: Option<PyRows<'py>>,
    deletes: Option<PyRows<'py>>,
    scope: String,
    consumed: Option<PyConsumedTable>,
    consumed_before: Option<PyConsumedTable>,
    is_canonical: bool,
}

/// The attributes of `pds.producers.graph.UpdateArguments`.
#[derive(Debug, FromPyObject)]
pub(crate) struct PyUpdateOptions {
    base_version: Option<u64>,
    idempotency_key: Option<String>,
    pub(crate) memory_limit: usize,
    pub(crate) page_rows: Option<usize>,
    pub(crate) file_rows: Option<u64>,
    pub(crate) commit_timeout: f64,
    rebuilt: Vec<String>,
    rebuilds_changed: bool,
    sample: Option<f64>,
    /// Called with the name of a stage whose function changed and whose version did not.
    changed_function: Option<Py<PyAny>>,
    /// Runs the tasks of large stages.
    engine: Option<PyEngine>,
}

impl PyUpdateOptions {
    /// The sizes of the runs.
    pub(crate) fn sizes(&self) -> RunSizes {
        RunSizes {
            page_rows: self.page_rows,
            file_rows: self.file_rows,
        }
    }
}

pub(crate) fn build_graph(py: Python<'_>, nodes: Vec<PyNode<'_>>) -> PyResult<Graph> {
    let mut declared = Vec::with_capacity(nodes.len());
    for node in nodes {
        declared.push(node.into_node(&declared)?);
    }
    into_py_result(py, Graph::new(declared))
}

/// The fields `key` and `value` of the last of some sources and stages, and whether its greatest key comes first. Raises an
/// error if they do not fit together.
#[pyfunction]
fn check_graph<'py>(
    py: Python<'py>,
    nodes: Vec<PyNode<'py>>,
) -> PyResult<(Bound<'py, PyAny>, bool)> {
    let graph = build_graph(py, nodes)?;
    let (fields, descending) = graph.last_fields();
    Ok((
        PySchema::new(Arc::new(Schema::new(fields))).into_pyarrow(py)?,
        descending,
    ))
}

/// What an update is made of.
pub(crate) struct UpdateInput {
    pub(crate) pipeline: Pipeline,
    pub(crate) graph: Graph,
    pub(crate) changes: BTreeMap<String, Changes>,
    pub(crate) options: UpdateOptions,
}

impl UpdateInput {
    pub(crate) fn new(
        py: Python<'_>,
        store: &StoreHandle,
        path: &str,
        nodes: Vec<PyNode<'_>>,
        changes: Vec<PyChanges<'_>>,
        options: PyUpdateOptions,
    ) -> PyResult<Self> {
        let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, path)))?;
        let graph = build_graph(py, nodes)?;
        let (mut inputs, mut consumed) = (BTreeMap::new(), BTreeMap::new());
        for change in changes {
            if let Some(after) = change.consumed {
                let step = ConsumedStep {
                    before: change.consumed_before.map(ConsumedInput::from),
                    after: after.into(),
                };
                consumed.insert(change.source.clone(), step);
            }
            let input = Changes {
                upserts: change.upserts.map(PyRows::into_rows).transpose()?,
                deletes: change.deletes.map(PyRows::into_rows).transpose()?,
                scope: into_py_result(py, parse_scope(&change.scope))?,
                is_canonical: change.is_canonical,
            };
            inputs.insert(change.source, input);
        }
        let timeout = parse_seconds("commit_timeout", options.commit_timeout);
        let sizes = options.sizes();
        let options = UpdateOptions {
            base_version: options.base_version,
            idempotency_key: options.idempotency_key,
            rebuild: RebuildOptions {
                stages: options.rebuilt.into_iter().collect(),
                changed: options.rebuilds_changed,
                sample: options.sample,
            },
            consumed,
            memory_limit_bytes: options.memory_limit,
            sizes,
            timeout: into_py_result(py, timeout)?,
            changed_function: options.changed_function.map(|function| {
                Arc::new(PyChangedFunctionHook { function }) as Arc<dyn ChangedFunctionHook>
            }),
            engine: options
                .engine
                .map(|engine| Arc::new(engine) as Arc<dyn Engine>),
        };
        Ok(Self {
            pipeline,
            graph,
            changes: inputs,
            options,
        })
    }
}

/// Updates a pipeline.
#[pyfunction]
fn update_pipeline(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    nodes: Vec<PyNode<'_>>,
    changes: Vec<PyChanges<'_>>,
    options: PyUpdateOptions,
) -> PyResult<UpdateFields> {
    let input = UpdateInput::new(py, store, &path, nodes, changes, options)?;
    let report = run(py, move || async move {
        producers::update(&input.pipeline, &input.graph, input.changes, &input.options).await
    })?;
    Ok(report.into())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PipelineHandle>()?;
    module.add_function(wrap_pyfunction!(check_graph, module)?)?;
    module.add_function(wrap_pyfunction!(update_pipeline, module)?)
}
