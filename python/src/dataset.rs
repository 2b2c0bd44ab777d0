//! Python functions of datasets: each converts its arguments, runs a function of [`pds::dataset`] on the store of a
//! handle, and maps the error to an exception.
//!
//! The structs take the attributes of the options in `pds.options`, or become dicts for the dataclasses of `pds`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use pds::dataset::{self, DatasetManifest, DatasetWrite, Layout, WriteTask};
use pds::parquet::default_threads;
use pds::parquet::options::WriteOptions;
use pyo3::prelude::*;
use pyo3_arrow::PyTable;

use crate::input::{extract_reader, extract_schema};
use crate::parts::StagedPart;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

/// The attributes of `pds.options.WriteOptions`.
#[derive(Debug, FromPyObject)]
pub(crate) struct PyWriteOptions {
    compression: String,
    compression_level: Option<i32>,
    row_group_size: Option<i64>,
    max_rows_per_file: Option<i64>,
    memory_limit: Option<i64>,
}

impl PyWriteOptions {
    pub(crate) fn to_write_options(&self) -> pds::Result<WriteOptions> {
        WriteOptions::new(
            &self.compression,
            self.compression_level,
            self.row_group_size,
            self.max_rows_per_file,
            self.memory_limit,
        )
    }
}

/// The attributes of `pds.dataset.DatasetWrite`.
#[derive(Debug, FromPyObject)]
struct WriteFields {
    key: String,
    overwrite: bool,
    run_id: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
    write_id: u128,
    created_at: String,
    options: PyWriteOptions,
}

impl WriteFields {
    fn into_write(self) -> pds::Result<DatasetWrite> {
        let options = self.options.to_write_options()?;
        Ok(DatasetWrite {
            key: self.key,
            overwrite: self.overwrite,
            run_id: self.run_id,
            metadata: self.metadata,
            layout: Layout::Numbered,
            write_id: self.write_id,
            created_at: self.created_at,
            options,
        })
    }
}

/// The attributes of `pds.options.NewWrite`.
#[derive(Debug, FromPyObject)]
struct NewWrite {
    key: String,
    overwrite: bool,
    run_id: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
    options: PyWriteOptions,
}

/// The attributes of `pds.options.TaskOptions`.
#[derive(Debug, FromPyObject)]
struct TaskFields {
    number: u64,
    threads: Option<usize>,
    input_in_memory: bool,
    keep_empty: bool,
    shared: bool,
}

/// The fields of `pds.DatasetManifest`.
#[derive(Debug, FromPyObject, IntoPyObject)]
struct ManifestFields {
    dataset_key: String,
    parts: Vec<String>,
    row_count: u64,
    schema_hash: String,
    compression: String,
    created_at_utc: String,
    run_id: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
}

impl From<DatasetManifest> for ManifestFields {
    fn from(manifest: DatasetManifest) -> Self {
        Self {
            dataset_key: manifest.dataset_key,
            parts: manifest.parts,
            row_count: manifest.row_count,
            schema_hash: manifest.schema_hash,
            compression: manifest.compression,
            created_at_utc: manifest.created_at_utc,
            run_id: manifest.run_id,
            metadata: manifest.metadata,
        }
    }
}

/// What a write gets when it begins.
#[derive(Debug, IntoPyObject)]
struct BeginFields {
    write_id: u128,
    created_at: String,
}

/// The fields of `pds.dataset.VerifyReport`.
#[derive(Debug, IntoPyObject)]
struct DatasetVerifyFields {
    rows: u64,
    bytes: u64,
    parts: usize,
    checksummed_parts: usize,
}

/// Checks options; raises `InvalidInput` for those that are not valid.
#[pyfunction]
fn check_options(py: Python<'_>, options: PyWriteOptions) -> PyResult<()> {
    into_py_result(py, options.to_write_options()).map(drop)
}

/// Checks the key of a dataset; raises `InvalidPath` if it is not valid.
#[pyfunction]
fn check_key(py: Python<'_>, key: &str) -> PyResult<()> {
    into_py_result(py, dataset::check_key(key))
}

/// Checks that Parquet supports a schema; otherwise raises `InvalidInput` with the column's name.
#[pyfunction]
fn check_schema(py: Python<'_>, schema: &Bound<'_, PyAny>) -> PyResult<()> {
    let schema = extract_schema(schema)?;
    into_py_result(py, pds::parquet::writer::check_schema(&schema))
}

/// Parses a manifest; raises `ManifestCorrupted` if it is not valid.
#[pyfunction]
fn parse_manifest(py: Python<'_>, text: &[u8]) -> PyResult<ManifestFields> {
    into_py_result(
        py,
        DatasetManifest::from_json(text).map(ManifestFields::from),
    )
}

/// Encodes the fields of a manifest as JSON.
#[pyfunction]
fn manifest_to_json(manifest: ManifestFields) -> String {
    DatasetManifest {
        dataset_key: manifest.dataset_key,
        parts: manifest.parts,
        row_count: manifest.row_count,
        schema_hash: manifest.schema_hash,
        compression: manifest.compression,
        created_at_utc: manifest.created_at_utc,
        run_id: manifest.run_id,
        metadata: manifest.metadata,
    }
    .to_json()
}

/// Checks that a dataset can be written, and begins the write.
#[pyfunction]
fn begin_write(
    py: Python<'_>,
    store: &StoreHandle,
    key: String,
    overwrite: bool,
    options: PyWriteOptions,
) -> PyResult<BeginFields> {
    let options = into_py_result(py, options.to_write_options())?;
    into_py_result(py, dataset::check_key(&key))?;
    let store = into_py_result(py, store.store())?;
    let write = run(py, move || async move {
        DatasetWrite::begin(&store, &key, overwrite, Layout::Numbered, options).await
    })?;
    Ok(BeginFields {
        write_id: write.write_id,
        created_at: write.created_at,
    })
}

/// Writes a stream as a dataset. The write gets its identity and its creation time here.
#[pyfunction]
fn write_dataset(
    py: Python<'_>,
    store: &StoreHandle,
    write: NewWrite,
    input_in_memory: bool,
    small: bool,
    data: &Bound<'_, PyAny>,
    schema_hash: String,
) -> PyResult<ManifestFields> {
    let store = into_py_result(py, store.store())?;
    let options = into_py_result(py, write.options.to_write_options())?;
    let layout = match options.rows_per_file {
        None => Layout::Single,
        Some(_) => Layout::Numbered,
    };
    let new = DatasetWrite::new(&store, &write.key, write.overwrite, layout, options);
    let write = DatasetWrite {
        run_id: write.run_id,
        metadata: write.metadata,
        ..into_py_result(py, new)?
    };
    let input = extract_reader(data)?;
    let task = WriteTask {
        number: 0,
        threads: default_threads(),
        input_in_memory,
        keep_empty: true,
        shared: false,
    };
    run(py, move || async move {
        dataset::write(&store, &write, task, input, small, &schema_hash).await
    })
    .map(ManifestFields::from)
}

/// Encodes a stream and uploads it as staged parts.
#[pyfunction]
fn prepare(
    py: Python<'_>,
    store: &StoreHandle,
    write: WriteFields,
    task: TaskFields,
    data: &Bound<'_, PyAny>,
) -> PyResult<Vec<StagedPart>> {
    let store = into_py_result(py, store.store())?;
    let write = into_py_result(py, write.into_write())?;
    let input = extract_reader(data)?;
    let task = WriteTask {
        number: task.number,
        threads: task.threads.unwrap_or_else(default_threads),
        input_in_memory: task.input_in_memory,
        keep_empty: task.keep_empty,
        shared: task.shared,
    };
    let parts = run(py, move || async move {
        dataset::prepare(&store, &write, task, input).await
    })?;
    Ok(parts.into_iter().map(StagedPart).collect())
}

/// Publishes staged parts as the dataset.
#[pyfunction]
fn publish(
    py: Python<'_>,
    store: &StoreHandle,
    write: WriteFields,
    parts: Vec<StagedPart>,
    schema_hash: String,
) -> PyResult<ManifestFields> {
    let store = into_py_result(py, store.store())?;
    let write = into_py_result(py, write.into_write())?;
    let parts = parts.into_iter().map(|p| p.0).collect();
    run(py, move || async move {
        dataset::publish(&store, &write, parts, &schema_hash).await
    })
    .map(ManifestFields::from)
}

/// Removes staged parts that no interrupted publish needs.
#[pyfunction]
fn abort(
    py: Python<'_>,
    store: &StoreHandle,
    write: WriteFields,
    parts: Vec<StagedPart>,
) -> PyResult<()> {
    let store = into_py_result(py, store.store())?;
    let write = into_py_result(py, write.into_write())?;
    let parts: Vec<_> = parts.into_iter().map(|p| p.0).collect();
    run(py, move || async move {
        dataset::abort(&store, &write, &parts).await;
        Ok(())
    })
}

/// Removes the hidden objects of all tasks of a write that no interrupted publish needs; uploads stay for `clean`.
#[pyfunction]
fn abort_all(py: Python<'_>, store: &StoreHandle, write: WriteFields) -> PyResult<()> {
    let store = into_py_result(py, store.store())?;
    let write = into_py_result(py, write.into_write())?;
    run(py, move || async move {
        dataset::abort_all(&store, &write).await
    })
}

/// Reads a dataset into a `pyarrow.Table`.
#[pyfunction]
fn read_dataset<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    key: String,
    columns: Option<Vec<String>>,
) -> PyResult<Bound<'py, PyAny>> {
    let store = into_py_result(py, store.store())?;
    let table = run(py, move || async move {
        dataset::read(&store, &key, columns.as_deref()).await
    })?;
    // `pyarrow.table` would import pandas to check whether its argument is a data frame.
    let reader = py.import("pyarrow")?.getattr("RecordBatchReader")?;
    let stream = PyTable::try_new(table.batches, table.schema)?;
    reader
        .call_method1("from_stream", (stream,))?
        .call_method0("read_all")
}

/// Reads the manifest of a dataset.
#[pyfunction]
fn read_manifest(py: Python<'_>, store: &StoreHandle, key: String) -> PyResult<ManifestFields> {
    let store = into_py_result(py, store.store())?;
    run(py, move || async move {
        dataset::read_manifest(&store, &key).await
    })
    .map(ManifestFields::from)
}

/// Whether the dataset's marker exists.
#[pyfunction]
fn dataset_exists(py: Python<'_>, store: &StoreHandle, key: String) -> PyResult<bool> {
    let store = into_py_result(py, store.store())?;
    run(
        py,
        move || async move { dataset::exists(&store, &key).await },
    )
}

/// Deletes a dataset with its folder.
#[pyfunction]
fn delete_dataset(py: Python<'_>, store: &StoreHandle, key: String) -> PyResult<()> {
    let store = into_py_result(py, store.store())?;
    run(
        py,
        move || async move { dataset::delete(&store, &key).await },
    )
}

/// The keys of complete datasets below a folder.
#[pyfunction]
fn list_datasets(py: Python<'_>, store: &StoreHandle, prefix: String) -> PyResult<Vec<String>> {
    let store = into_py_result(py, store.store())?;
    run(
        py,
        move || async move { dataset::list(&store, &prefix).await },
    )
}

/// Checks every byte of a dataset.
#[pyfunction]
fn verify_dataset(
    py: Python<'_>,
    store: &StoreHandle,
    key: String,
) -> PyResult<DatasetVerifyFields> {
    let store = into_py_result(py, store.store())?;
    let report = run(
        py,
        move || async move { dataset::verify(&store, &key).await },
    )?;
    Ok(DatasetVerifyFields {
        rows: report.rows,
        bytes: report.bytes,
        parts: report.parts,
        checksummed_parts: report.checksummed_parts,
    })
}

/// Removes what killed writers left; returns the number of removed files and uploads.
#[pyfunction]
fn clean_dataset(
    py: Python<'_>,
    store: &StoreHandle,
    key: String,
    older_than_seconds: f64,
) -> PyResult<usize> {
    let store = into_py_result(py, store.store())?;
    let age = Duration::try_from_secs_f64(older_than_seconds).unwrap_or(Duration::MAX);
    let removed = run(py, move || async move {
        dataset::clean(&store, &key, age).await
    })?;
    Ok(removed.files + removed.uploads)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(check_options, module)?)?;
    module.add_function(wrap_pyfunction!(check_key, module)?)?;
    module.add_function(wrap_pyfunction!(check_schema, module)?)?;
    module.add_function(wrap_pyfunction!(parse_manifest, module)?)?;
    module.add_function(wrap_pyfunction!(manifest_to_json, module)?)?;
    module.add_function(wrap_pyfunction!(begin_write, module)?)?;
    module.add_function(wrap_pyfunction!(write_dataset, module)?)?;
    module.add_function(wrap_pyfunction!(prepare, module)?)?;
    module.add_function(wrap_pyfunction!(publish, module)?)?;
    module.add_function(wrap_pyfunction!(abort, module)?)?;
    module.add_function(wrap_pyfunction!(abort_all, module)?)?;
    module.add_function(wrap_pyfunction!(read_dataset, module)?)?;
    module.add_function(wrap_pyfunction!(read_manifest, module)?)?;
    module.add_function(wrap_pyfunction!(dataset_exists, module)?)?;
    module.add_function(wrap_pyfunction!(delete_dataset, module)?)?;
    module.add_function(wrap_pyfunction!(list_datasets, module)?)?;
    module.add_function(wrap_pyfunction!(verify_dataset, module)?)?;
    module.add_function(wrap_pyfunction!(clean_dataset, module)?)
}
