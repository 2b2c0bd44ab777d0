//! The store handle of Python, which opens its store at the first use in each process.
//!
//! A forked child opens a store of its own, because the connections that it inherits are its parent's. The handle of a
//! folder shares the store of its parent handle.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use object_store::{CopyMode, GetOptions, GetRange, ObjectMeta, PutMode};
use pds::store::{FolderListing, Store, StoreBuilder, path, secrets};
use pds::sync::mutex::lock;
use pds::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::credentials::PyCredentialProvider;
use crate::foreign::ForeignStore;
use crate::runtime::{into_py_result, run};

/// A stored file; the attributes of `_pds.StoredFile`.
#[pyclass(frozen, get_all, module = "pds._pds")]
#[derive(Debug)]
struct StoredFile {
    path: String,
    size: u64,
    /// The time of the last change, in seconds since 1970.
    modified_at: f64,
    etag: Option<String>,
}

/// What a folder holds; a dict in Python.
#[derive(Debug, IntoPyObject)]
struct ListingFields {
    files: Vec<StoredFile>,
    folders: Vec<String>,
}

#[derive(Debug)]
enum StoreSource {
    Url(StoreBuilder),
    Foreign(Store),
}

#[derive(Debug)]
struct SharedStore {
    source: StoreSource,
    /// The process that opened the store, and the store.
    opened: Mutex<Option<(u32, Store)>>,
}

/// The native half of a store.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct StoreHandle {
    shared: Arc<SharedStore>,
    folder: String,
}

impl StoreHandle {
    fn new(source: StoreSource) -> Self {
        let shared = SharedStore {
            source,
            opened: Mutex::new(None),
        };
        Self {
            shared: Arc::new(shared),
            folder: String::new(),
        }
    }

    /// Another handle of the same store and folder.
    pub(crate) fn clone_handle(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            folder: self.folder.clone(),
        }
    }

    /// The store of this process, limited to the folder; it is opened if this process has not opened it.
    pub(crate) fn store(&self) -> Result<Store> {
        let builder = match &self.shared.source {
            StoreSource::Foreign(store) => return store.child(&self.folder),
            StoreSource::Url(builder) => builder,
        };
        let pid = std::process::id();
        let mut opened = lock(&self.shared.opened);
        let store = match &*opened {
            Some((owner, store)) if *owner == pid => store.clone(),
            _ => {
                let store = builder.build()?;
                // Closing the parent's connections from here would disturb the parent.
                std::mem::forget(opened.replace((pid, store.clone())));
                store
            }
        };
        store.child(&self.folder)
    }
}

#[pymethods]
impl StoreHandle {
    /// Checks the URL and the options; opens no connection.
    #[new]
    #[pyo3(signature = (url, options, credential_provider=None))]
    fn open(
        py: Python<'_>,
        url: &str,
        options: BTreeMap<String, String>,
        credential_provider: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let parsed =
            StoreBuilder::parse(url, &options).and_then(|builder| match credential_provider {
                Some(call) => builder.with_credentials(Arc::new(PyCredentialProvider(call))),
                None => Ok(builder),
            });
        into_py_result(
            py,
            parsed.map(|builder| Self::new(StoreSource::Url(builder))),
        )
    }

    /// A handle of a `remote_store.Store`.
    #[staticmethod]
    fn foreign(py: Python<'_>, store: Py<PyAny>) -> PyResult<Self> {
        let store = ForeignStore::wrap(py, store)?;
        Ok(Self::new(StoreSource::Foreign(store)))
    }

    /// A handle of a folder of this one.
    fn child(&self, py: Python<'_>, folder: &str) -> PyResult<Self> {
        let joined = match (self.folder.as_str(), folder) {
            ("", folder) => folder.to_owned(),
            (parent, "") => parent.to_owned(),
            (parent, folder) => format!("{parent}/{folder}"),
        };
        into_py_result(py, path::parse_folder(&joined))?;
        Ok(Self {
            shared: Arc::clone(&self.shared),
            folder: joined,
        })
    }

    /// The counters of requests and bytes, by name.
    fn metrics(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, u64>> {
        let store = into_py_result(py, self.store())?;
        Ok(store.metrics().snapshot().into_iter().collect())
    }

    /// Sets the counters to zero.
    fn reset_metrics(&self, py: Python<'_>) -> PyResult<()> {
        into_py_result(py, self.store())?.metrics().reset();
        Ok(())
    }

    /// Closes the connections; the next call opens them again. A store in memory keeps its objects.
    fn close(&self) {
        if matches!(&self.shared.source, StoreSource::Url(builder) if builder.is_in_memory()) {
            return;
        }
        *lock(&self.shared.opened) = None;
    }

    /// Reads an object, or `length` bytes from `offset`; fewer at its end. With `etag`, reads only that version.
    #[pyo3(signature = (path, offset=0, length=None, etag=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: String,
        offset: u64,
        length: Option<u64>,
        etag: Option<String>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let store = into_py_result(py, self.store())?;
        let range = match length {
            Some(length) => Some(GetRange::Bounded(offset..offset.saturating_add(length))),
            None => (offset > 0).then_some(GetRange::Offset(offset)),
        };
        let options = GetOptions::new().with_range(range).with_if_match(etag);
        let (bytes, _) = run(py, move || async move { store.get(&path, options).await })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes an object; `content` is not copied.
    fn write(
        &self,
        py: Python<'_>,
        path: String,
        content: PyBackedBytes,
        overwrite: bool,
    ) -> PyResult<()> {
        let store = into_py_result(py, self.store())?;
        let content = Bytes::from_owner(content);
        run(py, move || async move {
            if overwrite {
                return store
                    .put(&path, content, PutMode::Overwrite)
                    .await
                    .map(drop);
            }
            create(&store, &path, content).await
        })
    }

    /// What is known of a file; None if it does not exist.
    fn head(&self, py: Python<'_>, path: String) -> PyResult<Option<StoredFile>> {
        let store = into_py_result(py, self.store())?;
        run(py, move || async move {
            match store.head(&path).await {
                Ok(meta) => Ok(Some(stored_file(&meta))),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                Err(e) => Err(e),
            }
        })
    }

    /// Lists the files and folders of a folder; with `recursive`, the files at all depths and no folders.
    fn list(&self, py: Python<'_>, folder: String, recursive: bool) -> PyResult<ListingFields> {
        let store = into_py_result(py, self.store())?;
        let listing = run(py, move || async move {
            if recursive {
                let files = store.list(&folder).await?;
                return Ok(FolderListing {
                    files,
                    folders: Vec::new(),
                });
            }
            store.list_folder(&folder).await
        })?;
        Ok(ListingFields {
            files: listing.files.iter().map(stored_file).collect(),
            folders: listing.folders,
        })
    }

    /// Lists the files of a folder that is to be deleted, at all depths; a symbolic link is an error.
    fn list_to_delete(&self, py: Python<'_>, folder: String) -> PyResult<ListingFields> {
        let (store, path) = (into_py_result(py, self.store())?, folder.clone());
        run(py, move || async move { store.refuse_link(&path).await })?;
        self.list(py, folder, true)
    }

    /// Deletes files; one that does not exist is not an error.
    fn delete(&self, py: Python<'_>, paths: Vec<String>) -> PyResult<()> {
        let store = into_py_result(py, self.store())?;
        run(py, move || async move { store.delete_all(&paths).await })
    }

    /// Removes an empty folder, in stores where folders exist without files or have objects of their own; returns the
    /// number of these. An error if objects are left in it that no path can name.
    fn remove_empty_folder(&self, py: Python<'_>, folder: String) -> PyResult<usize> {
        let store = into_py_result(py, self.store())?;
        run(py, move || async move {
            store.remove_empty_folder(&folder).await?;
            store.remove_folder_objects(&folder).await
        })
    }

    /// Whether this is a local store in which the folder exists, with or without files.
    fn is_local_folder(&self, py: Python<'_>, folder: String) -> PyResult<bool> {
        let store = into_py_result(py, self.store())?;
        run(
            py,
            move || async move { store.is_local_folder(&folder).await },
        )
    }

    /// Copies a file; with `remove`, moves it.
    fn copy(
        &self,
        py: Python<'_>,
        from: String,
        to: String,
        overwrite: bool,
        remove: bool,
    ) -> PyResult<()> {
        let store = into_py_result(py, self.store())?;
        run(py, move || async move {
            if from == to {
                return store.head(&from).await.map(drop);
            }
            let mode = if overwrite {
                CopyMode::Overwrite
            } else {
                CopyMode::Create
            };
            let copied = if remove {
                store.move_object(&from, &to, mode).await
            } else {
                store.copy(&from, &to, mode).await
            };
            copied.map_err(|e| name_existing(e, &to))
        })
    }
}

/// Normalizes a path.
#[pyfunction]
fn normalize_path(py: Python<'_>, path: &str) -> PyResult<String> {
    into_py_result(py, path::normalize(path))
}

/// The value of an option, masked so that it can be shown.
#[pyfunction]
fn mask_option(name: &str, value: &str) -> String {
    secrets::mask_option(name, value)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<StoreHandle>()?;
    module.add_class::<StoredFile>()?;
    module.add_function(wrap_pyfunction!(mask_option, module)?)?;
    module.add_function(wrap_pyfunction!(normalize_path, module)?)
}

/// Creates an object; the error names the object that exists.
async fn create(store: &Store, path: &str, content: Bytes) -> Result<()> {
    let result = store.create(path, content).await;
    result.map(drop).map_err(|e| name_existing(e, path))
}

/// An `AlreadyExists` error with the path in its message; other errors as they are.
fn name_existing(error: Error, path: &str) -> Error {
    match error.kind() {
        ErrorKind::AlreadyExists => {
            Error::new(ErrorKind::AlreadyExists, format!("{path:?} already exists")).with_path(path)
        }
        _ => error,
    }
}

fn stored_file(meta: &ObjectMeta) -> StoredFile {
    #[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit")]
    let modified_at = meta.last_modified.timestamp_micros() as f64 / 1e6;
    StoredFile {
        path: meta.location.to_string(),
        size: meta.size,
        modified_at,
        etag: meta.e_tag.clone(),
    }
}
