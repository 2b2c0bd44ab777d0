//! Handles of the Open Data Fabric for Python: [`BlockHandle`] wraps a block, [`ChainHandle`] the chain of a dataset.
//!
//! `pds.odf` makes its own types of the results, see `odf_results.rs`. Hashes and times are text, events are
//! plain Python objects. A position in a chain (`at`, `micros`) is the hash of a block, or microseconds since 1970,
//! or the head. Errors are raised as the exceptions of `pds.errors`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use chrono::DateTime;
use pds::attach;
use pds::odf::{
    self, Attached, Block, BlockSelector, Chain, ChainView, DatasetId, DatasetKind, IngestOptions,
    Multihash, SourceState,
};
use pds::table::{ScanOptions, external_snapshot};
use pds::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::{PyRecordBatch, PySchema};

use crate::dataset::PyWriteOptions;
use crate::handle::TableHandle;
use crate::input::{extract_reader, parse_seconds};
use crate::odf_results::{
    AppendFields, ChainCompactFields, ChainVacuumFields, ChainVerifyFields, FactFields,
    IngestFields,
};
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;
use crate::value::{from_object, to_object};

/// One block.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct BlockHandle(Arc<Block>);

#[pymethods]
impl BlockHandle {
    /// Encodes a block of an event. The time is RFC 3339.
    #[staticmethod]
    fn create(
        py: Python<'_>,
        system_time: &str,
        prev_block_hash: Option<&str>,
        sequence_number: u64,
        event: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let event = from_object(event)?;
        let create_block = || {
            let time = odf::parse_time(system_time)?;
            let previous = prev_block_hash.map(str::parse::<Multihash>).transpose()?;
            Block::new(time, previous.as_ref(), sequence_number, &event)
        };
        Ok(Self(Arc::new(into_py_result(py, create_block())?)))
    }

    /// Decodes a block from the bytes that are stored.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, raw: Vec<u8>) -> PyResult<Self> {
        let block = into_py_result(py, Block::from_bytes(raw.into()))?;
        Ok(Self(Arc::new(block)))
    }

    /// Parses the YAML of a block.
    #[staticmethod]
    fn from_yaml(py: Python<'_>, text: &str) -> PyResult<Self> {
        Ok(Self(Arc::new(into_py_result(py, Block::from_yaml(text))?)))
    }

    /// The hash of the bytes.
    #[getter]
    fn hash(&self) -> String {
        self.0.hash().to_string()
    }

    /// The time at which the block was appended, RFC 3339.
    #[getter]
    fn system_time(&self) -> String {
        odf::format_time(&self.0.system_time)
    }

    /// The hash of the previous block; None in the first block.
    #[getter]
    fn prev_block_hash(&self) -> Option<String> {
        self.0.prev_block_hash.as_ref().map(ToString::to_string)
    }

    /// The position in the chain, from 0.
    #[getter]
    fn sequence_number(&self) -> u64 {
        self.0.sequence_number
    }

    /// The version of the manifest.
    #[getter]
    fn manifest_version(&self) -> i32 {
        self.0.manifest_version()
    }

    /// The event, in the spelling of the specification.
    #[getter]
    fn event<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_object(py, &self.0.fields())
    }

    /// The bytes that the block was read from.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.bytes())
    }

    /// Encodes the fields in canonical form.
    fn encode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &into_py_result(py, self.0.encode())?))
    }

    /// Formats the block as YAML.
    fn to_yaml(&self) -> String {
        self.0.to_yaml()
    }
}

/// The chain of a dataset.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct ChainHandle {
    store: StoreHandle,
    path: String,
    chain: Chain,
}

impl ChainHandle {
    fn attached(store: StoreHandle, attached: Attached) -> Self {
        let chain = attached.chain;
        Self {
            store,
            path: chain.root().to_owned(),
            chain,
        }
    }

    /// Returns the chain; in a forked process with a client of its own.
    pub(crate) fn open_chain(&self) -> Result<Chain> {
        self.chain.with_store(self.store.store()?)
    }

    fn view(&self, py: Python<'_>, at: Option<&str>, micros: Option<i64>) -> PyResult<ChainView> {
        let at = match (at, micros) {
            (Some(hash), _) => BlockSelector::Hash(into_py_result(py, hash.parse())?),
            (None, Some(micros)) => {
                let time = DateTime::from_timestamp_micros(micros);
                let invalid = || Error::invalid(format!("timestamp out of range: {micros} µs"));
                BlockSelector::Time(into_py_result(py, time.ok_or_else(invalid))?)
            }
            (None, None) => BlockSelector::Head,
        };
        let chain = into_py_result(py, self.open_chain())?;
        run(py, move || async move { chain.view(&at).await })
    }
}

fn parse_source_state(
    py: Python<'_>,
    fields: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<SourceState>> {
    let Some(fields) = fields.map(from_object).transpose()? else {
        return Ok(None);
    };
    let as_invalid = |e: Error| e.with_kind(ErrorKind::InvalidInput).context("source_state");
    let parsed = SourceState::from_fields(&fields).map_err(as_invalid);
    Ok(Some(into_py_result(py, parsed)?))
}

pub(crate) fn parse_ingest_options(
    py: Python<'_>,
    event_time: Option<String>,
    watermark: Option<&str>,
    source_state: Option<&Bound<'_, PyAny>>,
    options: &PyWriteOptions,
    timeout: f64,
) -> PyResult<IngestOptions> {
    Ok(IngestOptions {
        event_time,
        watermark: into_py_result(py, watermark.map(odf::parse_time).transpose())?,
        source_state: parse_source_state(py, source_state)?,
        write_options: into_py_result(py, options.to_write_options())?,
        timeout: into_py_result(py, parse_seconds("timeout", timeout))?,
    })
}

impl BlockHandle {
    pub(crate) fn from_blocks(blocks: Vec<Arc<Block>>) -> Vec<Self> {
        blocks.into_iter().map(Self).collect()
    }
}

#[pymethods]
impl ChainHandle {
    /// Opens a chain, which need not exist yet. Sends no request.
    #[staticmethod]
    fn open(py: Python<'_>, store: &StoreHandle, path: String) -> PyResult<Self> {
        let chain = into_py_result(py, store.store().and_then(|s| Chain::new(s, &path)))?;
        Ok(Self {
            store: store.clone_handle(),
            path,
            chain,
        })
    }

    /// Creates the dataset with its first block.
    fn create(
        &self,
        py: Python<'_>,
        dataset_id: &str,
        kind: &str,
        system_time: Option<&str>,
    ) -> PyResult<()> {
        let time = into_py_result(py, system_time.map(odf::parse_time).transpose())?;
        let id: DatasetId = into_py_result(py, dataset_id.parse())?;
        let dataset_kind = match kind {
            "root" => DatasetKind::Root,
            "derivative" => DatasetKind::Derivative,
            other => {
                let message = format!("kind must be \"root\" or \"derivative\", not {other:?}");
                return into_py_result(py, Err(Error::invalid(message)));
            }
        };
        let chain = into_py_result(py, self.open_chain())?;
        run(py, move || async move {
            chain.create(&id, dataset_kind, time).await.map(drop)
        })
    }

    /// Reads the hash of the newest block; None if there is no dataset.
    fn head(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let chain = into_py_result(py, self.open_chain())?;
        let head = run(py, move || async move { chain.head().await })?;
        Ok(head.map(|head| head.hash.to_string()))
    }

    /// Returns the block with a hash.
    fn block(&self, py: Python<'_>, block_hash: &str) -> PyResult<BlockHandle> {
        let hash: Multihash = into_py_result(py, block_hash.parse())?;
        let chain = into_py_result(py, self.open_chain())?;
        let block = run(py, move || async move { chain.block(&hash).await })?;
        Ok(BlockHandle(block))
    }

    /// Returns up to `limit` blocks, newest first.
    fn blocks(&self, py: Python<'_>, limit: Option<usize>) -> PyResult<Vec<BlockHandle>> {
        let chain = into_py_result(py, self.open_chain())?;
        let limit = limit.unwrap_or(usize::MAX);
        let blocks = run(py, move || async move {
            let head = chain.head().await?.ok_or_else(|| chain.not_found())?;
            chain.blocks_back_from(&head.hash, None, limit).await
        })?;
        Ok(BlockHandle::from_blocks(blocks))
    }

    /// Appends events, all or none.
    fn append(
        &self,
        py: Python<'_>,
        events: Vec<Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<AppendFields> {
        let values: PyResult<Vec<_>> = events.iter().map(from_object).collect();
        let events = values?;
        let timeout = into_py_result(py, parse_seconds("timeout", timeout))?;
        let chain = into_py_result(py, self.open_chain())?;
        let appended = run(
            py,
            move || async move { chain.append(&events, timeout).await },
        )?;
        Ok(appended.into())
    }

    /// Appends a block unchanged.
    fn append_block(&self, py: Python<'_>, block: &BlockHandle) -> PyResult<()> {
        let block = Block::clone(&block.0);
        let chain = into_py_result(py, self.open_chain())?;
        run(py, move || async move {
            chain.append_block(block).await.map(drop)
        })
    }

    /// Appends rows.
    #[expect(clippy::too_many_arguments, reason = "a call of the facade's own")]
    fn ingest(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        event_time: Option<String>,
        watermark: Option<&str>,
        source_state: Option<&Bound<'_, PyAny>>,
        options: PyWriteOptions,
        timeout: f64,
    ) -> PyResult<IngestFields> {
        let ingest_options =
            parse_ingest_options(py, event_time, watermark, source_state, &options, timeout)?;
        let chain = into_py_result(py, self.open_chain())?;
        let input = extract_reader(data)?;
        let ingested = run(py, move || async move {
            odf::ingest(&chain, input, &ingest_options).await
        })?;
        Ok(ingested.into())
    }

    /// Returns the schema as a `pyarrow.Schema`; None if there is none yet.
    fn schema<'py>(
        &self,
        py: Python<'py>,
        at: Option<&str>,
        micros: Option<i64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let view = self.view(py, at, micros)?;
        let schema = run(py, move || async move { view.schema().await })?;
        schema
            .map(|schema| PySchema::new(schema).into_pyarrow(py))
            .transpose()
    }

    /// Returns the rows as a snapshot of a table.
    fn snapshot(
        &self,
        py: Python<'_>,
        at: Option<&str>,
        micros: Option<i64>,
    ) -> PyResult<TableHandle> {
        let view = self.view(py, at, micros)?;
        let manifest = run(py, move || async move {
            external_snapshot(&view.files().await?)
        })?;
        Ok(TableHandle {
            store: self.store.clone_handle(),
            path: self.path.clone(),
            manifest: Arc::new(manifest),
        })
    }

    /// Raises `VersionExpired` if a vacuum removed the slice of this name.
    fn check_retained(&self, py: Python<'_>, slice: String) -> PyResult<()> {
        let chain = into_py_result(py, self.open_chain())?;
        run(
            py,
            move || async move { chain.check_retained(&slice).await },
        )
    }

    /// Applies retractions and corrections up to a block. Returns the schema and the batches of the rows that remain.
    fn ledger<'py>(
        &self,
        py: Python<'py>,
        block_hash: &str,
        rows: &TableHandle,
        columns: Option<Vec<String>>,
        predicate: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>)> {
        let view = self.view(py, Some(block_hash), None)?;
        let scan_options = ScanOptions {
            columns,
            filter: rows.build_filter(predicate, true)?,
            ..ScanOptions::default()
        };
        let (schema, batches) = run(py, move || async move { view.ledger(scan_options).await })?;
        let to_pyarrow = |batch| PyRecordBatch::new(batch).into_pyarrow(py);
        let py_batches: PyResult<Vec<_>> = batches.into_iter().map(to_pyarrow).collect();
        Ok((PySchema::new(schema).into_pyarrow(py)?, py_batches?))
    }

    /// What the chain says of the dataset there.
    fn facts(&self, py: Python<'_>, at: Option<&str>, micros: Option<i64>) -> PyResult<FactFields> {
        Ok((&self.view(py, at, micros)?).into())
    }

    /// Verifies the chain.
    fn verify(&self, py: Python<'_>, at: Option<&str>, data: bool) -> PyResult<ChainVerifyFields> {
        let at = into_py_result(py, at.map(str::parse::<Multihash>).transpose())?;
        let chain = into_py_result(py, self.open_chain())?;
        let report = run(py, move || async move {
            odf::verify(&chain, at.as_ref(), data).await
        })?;
        Ok(report.into())
    }

    /// Merges slices; None if there is nothing to merge.
    fn compact(
        &self,
        py: Python<'_>,
        target_bytes: u64,
        options: PyWriteOptions,
        timeout: f64,
    ) -> PyResult<Option<ChainCompactFields>> {
        let options = into_py_result(py, options.to_write_options())?;
        let timeout = into_py_result(py, parse_seconds("timeout", timeout))?;
        let chain = into_py_result(py, self.open_chain())?;
        let compacted = run(py, move || async move {
            odf::compact(&chain, target_bytes, &options, timeout).await
        })?;
        Ok(compacted.map(ChainCompactFields::from))
    }

    /// Removes objects that no reference leads to.
    fn vacuum(
        &self,
        py: Python<'_>,
        older_than: f64,
        dry_run: bool,
    ) -> PyResult<ChainVacuumFields> {
        let older_than = into_py_result(py, parse_seconds("older_than", older_than))?;
        let chain = into_py_result(py, self.open_chain())?;
        let report = run(py, move || async move {
            odf::vacuum(&chain, older_than, dry_run).await
        })?;
        Ok(report.into())
    }
}

/// Creates the chain of a table or brings it up to date.
#[pyfunction]
fn attach_table(py: Python<'_>, table: &TableHandle, timeout: f64) -> PyResult<ChainHandle> {
    let timeout = into_py_result(py, parse_seconds("timeout", timeout))?;
    let engine_table = into_py_result(py, table.table())?;
    let attached = run(py, move || async move {
        attach::attach_table(&engine_table, timeout).await
    })?;
    Ok(ChainHandle::attached(table.store.clone_handle(), attached))
}

/// Creates the chain of a dataset or brings it up to date.
#[pyfunction]
fn attach_dataset(
    py: Python<'_>,
    store: &StoreHandle,
    key: String,
    timeout: f64,
) -> PyResult<ChainHandle> {
    let timeout = into_py_result(py, parse_seconds("timeout", timeout))?;
    let engine_store = into_py_result(py, store.store())?;
    let attached = run(py, move || async move {
        attach::attach_dataset(&engine_store, &key, timeout).await
    })?;
    Ok(ChainHandle::attached(store.clone_handle(), attached))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BlockHandle>()?;
    module.add_class::<ChainHandle>()?;
    module.add_function(wrap_pyfunction!(attach_table, module)?)?;
    module.add_function(wrap_pyfunction!(attach_dataset, module)?)
}
