//! The upkeep of pipelines: compaction, removal and renaming of sources and stages, tags, vacuum.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use pds::producers::{self, CompactOptions, Pipeline, UpdateReport};
use pds::versions::commit::{commit, was_committed};
use pds::versions::{CommitId, Tag, vacuum};
use pyo3::prelude::*;

use crate::input::parse_seconds;
use crate::pipeline::PyUpdateOptions;
use crate::pipeline_results::UpdateFields;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;
use crate::table_results::VacuumFields;

/// What a compaction did; a dict in Python.
#[derive(Debug, IntoPyObject)]
struct CompactFields {
    version: u64,
    tables: u64,
    runs: u64,
    bytes_written: u64,
}

/// Merges runs of a pipeline.
#[pyfunction]
fn compact_pipeline(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    min_delta: f64,
    options: PyUpdateOptions,
) -> PyResult<CompactFields> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let timeout = parse_seconds("commit_timeout", options.commit_timeout);
    let options = CompactOptions {
        min_delta,
        sizes: options.sizes(),
        memory_limit_bytes: options.memory_limit,
        timeout: into_py_result(py, timeout)?,
    };
    let report = run(py, move || async move {
        producers::compact(&pipeline, &options).await
    })?;
    Ok(CompactFields {
        version: report.version,
        tables: report.tables,
        runs: report.runs,
        bytes_written: report.bytes_written,
    })
}

/// Removes sources and stages of a pipeline; returns the version without them.
#[pyfunction]
fn remove_from_pipeline(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    names: Vec<String>,
    commit_timeout: f64,
) -> PyResult<u64> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let timeout = into_py_result(py, parse_seconds("commit_timeout", commit_timeout))?;
    let names = names.into_iter().collect();
    let committed = run(py, move || async move {
        producers::remove(&pipeline, names, timeout).await
    })?;
    Ok(committed.version)
}

/// Renames a source or stage of a pipeline; returns the version with the new name.
#[pyfunction]
fn rename_in_pipeline(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    old: String,
    new: String,
    commit_timeout: f64,
) -> PyResult<u64> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let timeout = into_py_result(py, parse_seconds("commit_timeout", commit_timeout))?;
    let committed = run(py, move || async move {
        producers::rename(&pipeline, &old, &new, timeout).await
    })?;
    Ok(committed.version)
}

/// Tags a version of a pipeline, or removes a tag; returns the version that this made.
#[pyfunction]
fn tag_pipeline(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    name: String,
    version: Option<u64>,
    commit_timeout: f64,
) -> PyResult<u64> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let timeout = into_py_result(py, parse_seconds("commit_timeout", commit_timeout))?;
    let committed = run(py, move || async move {
        let tag = Tag {
            name,
            version,
            commit_id: None,
        };
        commit(&pipeline, &tag, timeout).await
    })?;
    Ok(committed.version)
}

/// The version of a pipeline that a commit made; None if it made none.
#[pyfunction]
fn find_pipeline_commit(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    commit_id: &str,
) -> PyResult<Option<u64>> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let commit_id = into_py_result(py, CommitId::parse(commit_id))?;
    run(py, move || async move {
        was_committed(&pipeline, &commit_id).await
    })
}

/// The outcome of an earlier update of a pipeline with an idempotency key; None without one. Then an outdated base
/// version is an error.
#[pyfunction]
fn find_pipeline_replay(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    idempotency_key: Option<String>,
    base_version: Option<u64>,
) -> PyResult<Option<UpdateFields>> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let report = run(py, move || async move {
        UpdateReport::find_replay(&pipeline, idempotency_key.as_deref(), base_version).await
    })?;
    Ok(report.map(UpdateFields::from))
}

/// Removes versions that were replaced more than `retention` seconds ago, and the objects that only they reference.
#[pyfunction]
fn vacuum_pipeline(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    retention: f64,
    dry_run: bool,
    commit_timeout: f64,
) -> PyResult<VacuumFields> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let retention = into_py_result(py, parse_seconds("retention", retention))?;
    let timeout = into_py_result(py, parse_seconds("commit_timeout", commit_timeout))?;
    let report = run(py, move || async move {
        vacuum::vacuum(&pipeline, retention, dry_run, timeout).await
    })?;
    Ok(report.into())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(compact_pipeline, module)?)?;
    module.add_function(wrap_pyfunction!(remove_from_pipeline, module)?)?;
    module.add_function(wrap_pyfunction!(rename_in_pipeline, module)?)?;
    module.add_function(wrap_pyfunction!(tag_pipeline, module)?)?;
    module.add_function(wrap_pyfunction!(find_pipeline_commit, module)?)?;
    module.add_function(wrap_pyfunction!(find_pipeline_replay, module)?)?;
    module.add_function(wrap_pyfunction!(vacuum_pipeline, module)?)
}
