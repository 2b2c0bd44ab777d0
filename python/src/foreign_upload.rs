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

use crate::foreign::{STORE, meaning};
use crate::runtime::in_python;

/// The open file: `file` is what the context manager `context` gave.
#[derive(Debug)]
struct Open {
    context: Py<PyAny>,
    file: Py<PyAny>,
}

/// Pieces are written in their order, each when those before it are.
#[derive(Debug)]
pub(crate) struct Upload {
    key: Path,
    /// None once it was completed or aborted.
    open: Arc<Mutex<Option<Open>>>,
    /// Of the piece before: its sender is dropped unsent where that was not written.
    written: Option<oneshot::Receiver<()>>,
}

impl Upload {
    /// Opens `key`; nothing is seen there before the upload is completed.
    pub(crate) fn begin(store: &Bound<'_, PyAny>, key: Path) -> PyResult<Self> {
        let kwargs = PyDict::new(store.py());
        kwargs.set_item("overwrite", true)?;
        let context = store.call_method("open_atomic", (key.as_ref(),), Some(&kwargs))?;
        let file = context.call_method0("__enter__")?.unbind();
        let open = Open {
            context: context.unbind(),
            file,
        };
        Ok(Self {
            key,
            open: Arc::new(Mutex::new(Some(open))),
            written: None,
        })
    }

    fn take(&self) -> Option<Open> {
        locked(&self.open).take()
    }
}

fn locked(open: &Mutex<Option<Open>>) -> MutexGuard<'_, Option<Open>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes all of `data`: an unbuffered file may take less at once.
fn write_all(file: &Bound<'_, PyAny>, mut data: Bytes) -> PyResult<()> {
    while !data.is_empty() {
        let content = PyBytes::new(file.py(), &data);
        let taken = file.call_method1("write", (content,))?;
        // None: a file that does not count takes all.
        let taken: usize = taken.extract::<Option<usize>>()?.unwrap_or(data.len());
        if taken == 0 {
            return Err(PyOSError::new_err("the file takes no more bytes"));
        }
        data.advance(taken.min(data.len()));
    }
    Ok(())
}

fn ended() -> Error {
    Error::Generic {
        store: STORE,
        source: "the upload has ended".into(),
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (done, written) = oneshot::channel();
        let before = self.written.replace(written);
        let (open, path) = (Arc::clone(&self.open), self.key.to_string());
        Box::pin(async move {
            if let Some(before) = before {
                before.await.map_err(|_failed| ended())?;
            }
            let data: Bytes = data.into();
            in_python(move |py| {
                let file = locked(&open)
                    .as_ref()
                    .map(|open| open.file.clone_ref(py))
                    .ok_or_else(ended)?;
                write_all(file.bind(py), data).map_err(|e| meaning(py, e, path))
            })
            .await??;
            // Nobody waits after the last piece.
            let _ = done.send(());
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if let Some(written) = self.written.take() {
            written.await.map_err(|_failed| ended())?;
        }
        let open = self.take().ok_or_else(ended)?;
        let path = self.key.to_string();
        in_python(move |py| {
            let none = py.None();
            open.context
                .call_method1(py, "__exit__", (&none, &none, &none))
                .map_err(|e| meaning(py, e, path))
        })
        .await??;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn abort(&mut self) -> Result<()> {
        if let Some(open) = self.take() {
            in_python(move |py| give_up(py, &open)).await?;
        }
        Ok(())
    }
}

/// Leaves the context as after an error, upon which the store removes what it holds.
fn give_up(py: Python<'_>, open: &Open) {
    let error = PyRuntimeError::new_err("the upload was given up");
    let kind = error.get_type(py).into_any().unbind();
    let arguments = (kind, error.into_value(py), py.None());
    // It raises what it was given, or says why nothing could be removed.
    if let Err(e) = open.context.call_method1(py, "__exit__", arguments)
        && !e.is_instance_of::<PyRuntimeError>(py)
    {
        log::warn!("an upload could not be given up: {e}");
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(open) = self.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || Python::attach(|py| give_up(py, &open)));
        }
    }
}
