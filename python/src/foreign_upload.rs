//! A long object written to a `remote_store.Store` piece by piece, through `Store.open_atomic`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use object_store::path::Path;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tokio::sync::oneshot;

use crate::foreign::{STORE_NAME, map_remote_store_error};
use crate::runtime::spawn_python;

/// The open file: `file` is what the context manager `context` gave.
#[derive(Debug)]
struct AtomicFile {
    context: Py<PyAny>,
    file: Py<PyAny>,
}

/// Pieces are written in their order, each when those before it are.
#[derive(Debug)]
pub(crate) struct ForeignUpload {
    key: Path,
    /// None once it was completed or aborted.
    open: Arc<Mutex<Option<AtomicFile>>>,
    /// Of the piece before: its sender is dropped unsent where that was not written.
    previous_part: Option<oneshot::Receiver<()>>,
}

impl ForeignUpload {
    /// Opens `key`; nothing is seen there before the upload is completed.
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

fn lock(open: &Mutex<Option<AtomicFile>>) -> MutexGuard<'_, Option<AtomicFile>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes all of `data`: an unbuffered file may take less at once.
fn write_all(file: &Bound<'_, PyAny>, mut data: Bytes) -> PyResult<()> {
    while !data.is_empty() {
        let content = PyBytes::new(file.py(), &data);
        let answer = file.call_method1("write", (content,))?;
        // None: a file that does not count takes all.
        let written_bytes: usize = answer.extract::<Option<usize>>()?.unwrap_or(data.len());
        if written_bytes == 0 {
            return Err(PyOSError::new_err("the file takes no more bytes"));
        }
        data.advance(written_bytes.min(data.len()));
    }
    Ok(())
}

fn upload_ended_error() -> Error {
    Error::Generic {
        store: STORE_NAME,
        source: "the upload has ended".into(),
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
            // Nobody waits after the last piece.
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

/// Leaves the context as after an error, upon which the store removes what it holds.
fn exit_with_error(py: Python<'_>, open: &AtomicFile) {
    let error = PyRuntimeError::new_err("the upload was given up");
    let error_type = error.get_type(py).into_any().unbind();
    let arguments = (error_type, error.into_value(py), py.None());
    // It raises what it was given, or says why nothing could be removed.
    if let Err(e) = open.context.call_method1(py, "__exit__", arguments)
        && !e.is_instance_of::<PyRuntimeError>(py)
    {
        log::warn!("an upload could not be given up: {e}");
    }
}

impl Drop for ForeignUpload {
    fn drop(&mut self) {
        let Some(open) = self.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || Python::attach(|py| exit_with_error(py, &open)));
        }
    }
}
