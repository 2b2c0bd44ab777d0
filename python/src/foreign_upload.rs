//! A multipart upload to a `remote_store.Store`, through `Store.open_atomic`.
//!
//! The parts are written in their order, each after the one before it. Nothing is visible at the key before the upload
//! is completed. An upload that is aborted or dropped leaves its context manager with an error, upon which the store
//! removes what was written. After a part failed, the following parts and the completion fail too.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use object_store::path::Path;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use pds::sync::mutex::lock;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tokio::sync::oneshot;

use crate::foreign::{STORE_NAME, map_remote_store_error};
use crate::runtime::{spawn_blocking, spawn_python};

/// The open file: `file` is what the context manager `context` returned.
#[derive(Debug)]
struct AtomicFile {
    context: Py<PyAny>,
    file: Py<PyAny>,
}

/// An upload whose parts are written in their order.
#[derive(Debug)]
pub(crate) struct ForeignUpload {
    key: Path,
    /// None once the upload is completed or aborted.
    open: Arc<Mutex<Option<AtomicFile>>>,
    /// Receives once the last part is written; its sender is dropped if that part failed.
    previous_part: Option<oneshot::Receiver<()>>,
}

impl ForeignUpload {
    /// Begins an upload to `key`.
    pub(crate) fn begin(store: &Bound<'_, PyAny>, key: Path) -> PyResult<Self> {
        let kwargs = PyDict::new(store.py());
        kwargs.set_item("overwrite", true)?;
        let context = store.call_method("open_atomic", (key.as_ref(),), Some(&kwargs))?;
        let file = context.call_method0("__enter__")?.unbind();
        let open = AtomicFile {
            context: context.unbind(),
            file,
        };
        Ok(Self {
            key,
            open: Arc::new(Mutex::new(Some(open))),
            previous_part: None,
        })
    }

    fn take(&self) -> Option<AtomicFile> {
        lock(&self.open).take()
    }
}

/// Writes all of `data`; one call of an unbuffered file may write less.
fn write_all(file: &Bound<'_, PyAny>, mut data: Bytes) -> PyResult<()> {
    while !data.is_empty() {
        let content = PyBytes::new(file.py(), &data);
        let answer = file.call_method1("write", (content,))?;
        // A file that returns None has written all.
        let written_bytes: usize = answer.extract::<Option<usize>>()?.unwrap_or(data.len());
        if written_bytes == 0 {
            return Err(PyOSError::new_err("a write to the file wrote no bytes"));
        }
        data.advance(written_bytes.min(data.len()));
    }
    Ok(())
}

fn upload_ended_error() -> Error {
    Error::Generic {
        store: STORE_NAME,
        source: "the upload was completed or aborted, or an earlier part of it failed".into(),
    }
}

#[async_trait]
impl MultipartUpload for ForeignUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (sender, receiver) = oneshot::channel();
        let previous = self.previous_part.replace(receiver);
        let (open, path) = (Arc::clone(&self.open), self.key.to_string());
        Box::pin(async move {
            if let Some(previous) = previous {
                previous.await.map_err(|_failed| upload_ended_error())?;
            }
            let data: Bytes = data.into();
            spawn_python(move |py| {
                let file = lock(&open)
                    .as_ref()
                    .map(|open| open.file.clone_ref(py))
                    .ok_or_else(upload_ended_error)?;
                write_all(file.bind(py), data).map_err(|e| map_remote_store_error(py, e, path))
            })
            .await??;
            // There is no receiver after the last part.
            let _ = sender.send(());
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if let Some(previous) = self.previous_part.take() {
            previous.await.map_err(|_failed| upload_ended_error())?;
        }
        let open = self.take().ok_or_else(upload_ended_error)?;
        let path = self.key.to_string();
        spawn_python(move |py| {
            let none = py.None();
            open.context
                .call_method1(py, "__exit__", (&none, &none, &none))
                .map_err(|e| map_remote_store_error(py, e, path))
        })
        .await??;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn abort(&mut self) -> Result<()> {
        if let Some(open) = self.take() {
            spawn_python(move |py| exit_with_error(py, &open)).await?;
        }
        Ok(())
    }
}

/// Leaves the context manager with an error, upon which the store removes what was written.
fn exit_with_error(py: Python<'_>, open: &AtomicFile) {
    let error = PyRuntimeError::new_err("the upload was aborted");
    let error_type = error.get_type(py).into_any().unbind();
    let arguments = (error_type, error.into_value(py), py.None());
    // The context manager raises this error, or another one if it could not remove the file.
    if let Err(e) = open.context.call_method1(py, "__exit__", arguments)
        && !e.is_instance_of::<PyRuntimeError>(py)
    {
        log::warn!("cannot abort an upload to {STORE_NAME}: {e}");
    }
}

impl Drop for ForeignUpload {
    fn drop(&mut self) {
        let Some(open) = self.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let exit = move || Python::attach(|py| exit_with_error(py, &open));
            if let Err(e) = spawn_blocking(&runtime, exit) {
                log::warn!("cannot abort an upload to {STORE_NAME}: {e}");
            }
        }
    }
}
