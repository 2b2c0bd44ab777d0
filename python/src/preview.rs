//! Previews of updates: what one would make, which can be read, committed or discarded.

use std::sync::{Arc, Mutex, MutexGuard};

use pds::Error;
use pds::producers::{self, Preview};
use pds::sync::mutex;
use pyo3::prelude::*;

use crate::error::to_python;
use crate::pipeline::{PipelineHandle, PyChanges, PyNode, PyUpdateOptions, UpdateInput};
use crate::pipeline_results::{ChangeCountFields, UpdateFields};
use crate::runtime::run;
use crate::store::StoreHandle;

/// An update that is not committed.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct PreviewHandle {
    store: StoreHandle,
    path: String,
    /// None after it was committed or discarded.
    preview: Mutex<Option<Preview>>,
}

impl PreviewHandle {
    fn lock(&self) -> MutexGuard<'_, Option<Preview>> {
        mutex::lock(&self.preview)
    }

    fn take(&self, py: Python<'_>) -> PyResult<Preview> {
        self.lock().take().ok_or_else(|| ended_error(py))
    }
}

fn ended_error(py: Python<'_>) -> PyErr {
    let error = Error::invalid("the preview was committed or discarded; make another one");
    to_python(py, &error)
}

#[pymethods]
impl PreviewHandle {
    /// The pipeline as the commit would make it.
    fn pipeline(&self, py: Python<'_>) -> PyResult<PipelineHandle> {
        let preview = self.lock();
        let preview = preview.as_ref().ok_or_else(|| ended_error(py))?;
        Ok(PipelineHandle {
            store: self.store.clone_handle(),
            path: self.path.clone(),
            manifest: Arc::clone(preview.manifest()),
        })
    }

    /// What the update would do.
    fn report(&self, py: Python<'_>) -> PyResult<UpdateFields> {
        let preview = self.lock();
        let preview = preview.as_ref().ok_or_else(|| ended_error(py))?;
        Ok(preview.report().into())
    }

    /// How many rows and keys of each source and stage the update would change.
    fn count_changes(
        &self,
        py: Python<'_>,
        memory_limit: usize,
    ) -> PyResult<Vec<ChangeCountFields>> {
        let versions = {
            let preview = self.lock();
            preview.as_ref().ok_or_else(|| ended_error(py))?.versions()
        };
        let counts = run(py, move || versions.count_changes(memory_limit))?;
        Ok(counts.into_iter().map(ChangeCountFields::from).collect())
    }

    fn commit(&self, py: Python<'_>) -> PyResult<UpdateFields> {
        let preview = self.take(py)?;
        let report = run(py, move || preview.commit())?;
        Ok(report.into())
    }

    /// Removes what was written; nothing is done after a commit.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let preview = self.lock().take();
        run(py, move || async move {
            if let Some(preview) = preview {
                preview.discard().await;
            }
            Ok(())
        })
    }
}

/// Computes an update without committing it.
#[pyfunction]
fn preview_pipeline(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    nodes: Vec<PyNode<'_>>,
    changes: Vec<PyChanges<'_>>,
    options: PyUpdateOptions,
) -> PyResult<PreviewHandle> {
    let input = UpdateInput::new(py, store, &path, nodes, changes, options)?;
    let preview = run(py, move || async move {
        producers::preview(&input.pipeline, &input.graph, input.changes, &input.options).await
    })?;
    Ok(PreviewHandle {
        store: store.clone_handle(),
        path,
        preview: Mutex::new(Some(preview)),
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PreviewHandle>()?;
    module.add_function(wrap_pyfunction!(preview_pipeline, module)?)
}
