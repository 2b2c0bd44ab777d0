//! A `remote_store.Store` as an object store: every request calls its Python methods.
//!
//! [`ForeignStore::wrap`] asks the store for its capabilities. Calls run off the async threads. An exception becomes
//! the `object_store` error of the same meaning and remains its source ([`map_remote_store_error`]). Such a store has
//! no conditional replace, so the engine treats it as a store without conditional writes. Long objects are written by
//! [`ForeignUpload`].

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result,
};
use pds::clock::SystemClock;
use pds::store::content_tag::content_tag;
use pds::store::metrics::Metrics;
use pds::store::{Capabilities, Store};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::PyCause;
use crate::foreign_upload::ForeignUpload;
use crate::runtime::spawn_python;

pub(crate) const STORE_NAME: &str = "remote-store";

/// The Python store, and the capabilities on which requests depend.
#[derive(Debug)]
pub(crate) struct ForeignStore {
    store: Py<PyAny>,
    supports_move: bool,
    supports_metadata: bool,
}

impl std::fmt::Display for ForeignStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(STORE_NAME)
    }
}

impl ForeignStore {
    /// Wraps a `remote_store.Store` as a store of the engine.
    pub(crate) fn wrap(py: Python<'_>, store: Py<PyAny>) -> PyResult<Store> {
        let capability = py.import("remote_store")?.getattr("Capability")?;
        let supports = |name: &str| -> PyResult<bool> {
            store
                .bind(py)
                .call_method1("supports", (capability.getattr(name)?,))?
                .extract()
        };
        let capabilities = Capabilities {
            delete: supports("DELETE")?,
            list: supports("LIST")?,
            // It checks before it writes, not with the write: of writers at the same time the last one wins.
            conditional: false,
            suffix_ranges: true,
            versions: false,
        };
        let identity = store.as_ptr().addr();
        let objects = Self {
            supports_move: supports("MOVE")?,
            supports_metadata: supports("METADATA")?,
            store,
        };
        let metrics = Arc::new(Metrics::default());
        Ok(Store::from_object_store(
            STORE_NAME,
            Arc::new(objects),
            capabilities,
            metrics,
            Arc::new(SystemClock),
        )
        .with_identity(identity))
    }

    /// Calls Python off the async threads; maps exceptions to errors.
    async fn call<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T> {
        let store = Python::attach(|py| self.store.clone_ref(py));
        let path = path.to_string();
        spawn_python(move |py| {
            work(store.bind(py)).map_err(|e| map_remote_store_error(py, e, path))
        })
        .await?
    }

    async fn head(&self, location: &Path) -> Result<ObjectMeta> {
        let (key, supports_metadata) = (location.clone(), self.supports_metadata);
        self.call(location, move |store| {
            if supports_metadata {
                let info = store.call_method1("get_file_info", (key.as_ref(),))?;
                return to_object_meta(&key, &info);
            }
            let bytes = store.call_method1("read_bytes", (key.as_ref(),))?;
            Ok(ObjectMeta {
                location: key,
                last_modified: DateTime::<Utc>::UNIX_EPOCH,
                size: bytes.len()? as u64,
                e_tag: None,
                version: None,
            })
        })
        .await
    }

    async fn read(&self, location: &Path, range: Option<Range<u64>>) -> Result<Bytes> {
        let key = location.clone();
        self.call(location, move |store| {
            let Some(range) = range else {
                return extract_bytes(&store.call_method1("read_bytes", (key.as_ref(),))?);
            };
            let stream = store.call_method1("read_seekable", (key.as_ref(),))?;
            let result = stream
                .call_method1("seek", (range.start,))
                .and_then(|_| stream.call_method1("read", (range.end - range.start,)))
                .and_then(|data| extract_bytes(&data));
            stream.call_method0("close")?;
            result
        })
        .await
    }

    async fn write(&self, location: &Path, content: Bytes, overwrite: bool) -> Result<()> {
        let key = location.clone();
        self.call(location, move |store| {
            let kwargs = PyDict::new(store.py());
            kwargs.set_item("overwrite", overwrite)?;
            let content = PyBytes::new(store.py(), &content);
            store.call_method("write_atomic", (key.as_ref(), content), Some(&kwargs))?;
            Ok(())
        })
        .await
    }

    async fn list_folder(&self, prefix: Option<&Path>, recursive: bool) -> Result<ListResult> {
        let folder = prefix.cloned().unwrap_or_default();
        self.call(&folder.clone(), move |store| {
            let mut listing = ListResult {
                common_prefixes: Vec::new(),
                objects: Vec::new(),
            };
            if !folder.is_root()
                && !store
                    .call_method1("is_folder", (folder.as_ref(),))?
                    .extract::<bool>()?
            {
                return Ok(listing);
            }
            let kwargs = PyDict::new(store.py());
            kwargs.set_item("recursive", recursive)?;
            for info in store
                .call_method("list_files", (folder.as_ref(),), Some(&kwargs))?
                .try_iter()?
            {
                let info = info?;
                listing
                    .objects
                    .push(to_object_meta(&parse_path(&info.getattr("path")?)?, &info)?);
            }
            if !recursive {
                for entry in store
                    .call_method1("list_folders", (folder.as_ref(),))?
                    .try_iter()?
                {
                    let entry = entry?;
                    let name = entry.getattr("path").unwrap_or(entry);
                    listing.common_prefixes.push(parse_path(&name)?);
                }
            }
            Ok(listing)
        })
        .await
    }
}

#[async_trait]
impl ObjectStore for ForeignStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let content: Bytes = payload.into();
        match opts.mode {
            PutMode::Overwrite => self.write(location, content, true).await?,
            PutMode::Create => self.write(location, content, false).await?,
            PutMode::Update(expected) => {
                // Such a store has no conditional replace: the content is compared just before the write.
                let current = self.read(location, None).await?;
                if Some(content_tag(&current)) != expected.e_tag {
                    return Err(Error::Precondition {
                        path: location.to_string(),
                        source: "the object was modified".into(),
                    });
                }
                self.write(location, content, true).await?;
            }
        }
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let key = location.clone();
        let upload = self
            .call(location, move |store| ForeignUpload::begin(store, key))
            .await?;
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        // A whole object needs no `head`: its length is that of its bytes.
        let (meta, bytes) = if options.range.is_none() && !options.head {
            let bytes = self.read(location, None).await?;
            let meta = ObjectMeta {
                location: location.clone(),
                last_modified: DateTime::<Utc>::UNIX_EPOCH,
                size: bytes.len() as u64,
                e_tag: None,
                version: None,
            };
            (meta, Some(bytes))
        } else {
            (self.head(location).await?, None)
        };
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            None => 0..meta.size,
            Some(range) => range.as_range(meta.size).map_err(|e| Error::Generic {
                store: STORE_NAME,
                source: e.into(),
            })?,
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None if options.head => Bytes::new(),
            None => self.read(location, Some(range.clone())).await?,
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed()),
            meta,
            range,
            attributes: Attributes::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = Python::attach(|py| self.store.clone_ref(py));
        let this = Arc::new(Self {
            store,
            supports_move: self.supports_move,
            supports_metadata: self.supports_metadata,
        });
        locations
            .then(move |key| {
                let this = Arc::clone(&this);
                async move {
                    let key = key?;
                    let name = key.to_string();
                    this.call(&key, move |store| {
                        store.call_method1("delete", (name,)).map(drop)
                    })
                    .await?;
                    Ok(key)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = Python::attach(|py| self.store.clone_ref(py));
        let this = Self {
            store,
            supports_move: self.supports_move,
            supports_metadata: self.supports_metadata,
        };
        let prefix = prefix.cloned();
        stream::once(async move { this.list_folder(prefix.as_ref(), true).await })
            .flat_map(|listing| match listing {
                Ok(listing) => stream::iter(listing.objects).map(Ok).boxed(),
                Err(e) => stream::iter([Err(e)]).boxed(),
            })
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.list_folder(prefix, false).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let bytes = self.read(from, None).await?;
        self.write(to, bytes, options.mode == CopyMode::Overwrite)
            .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, _options: RenameOptions) -> Result<()> {
        if !self.supports_move {
            self.copy_opts(from, to, CopyOptions::default()).await?;
            let name = from.to_string();
            return self
                .call(from, move |store| {
                    store.call_method1("delete", (name,)).map(drop)
                })
                .await;
        }
        let (source, target) = (from.to_string(), to.to_string());
        self.call(from, move |store| {
            let kwargs = PyDict::new(store.py());
            kwargs.set_item("overwrite", true)?;
            store
                .call_method("move", (source, target), Some(&kwargs))
                .map(drop)
        })
        .await
    }
}

fn extract_bytes(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    Ok(Bytes::copy_from_slice(object.extract::<&[u8]>()?))
}

fn parse_path(path: &Bound<'_, PyAny>) -> PyResult<Path> {
    let text = path.str()?.to_string();
    Path::parse(&text).map_err(|e| pyo3::exceptions::PyValueError::new_err(e.to_string()))
}

fn to_object_meta(location: &Path, info: &Bound<'_, PyAny>) -> PyResult<ObjectMeta> {
    let modified: DateTime<Utc> = info
        .getattr("modified_at")?
        .call_method0("timestamp")
        .and_then(|t| t.extract::<f64>())
        .map_or(DateTime::<Utc>::UNIX_EPOCH, |seconds| {
            #[expect(clippy::cast_possible_truncation, reason = "milliseconds of a date")]
            let millis = (seconds * 1000.0) as i64;
            DateTime::from_timestamp_millis(millis).unwrap_or_default()
        });
    Ok(ObjectMeta {
        location: location.clone(),
        last_modified: modified,
        size: info.getattr("size")?.extract()?,
        e_tag: info.getattr("etag")?.extract()?,
        version: None,
    })
}

/// The error for an exception of remote-store, by the names of its classes; the exception is the source.
pub(crate) fn map_remote_store_error(py: Python<'_>, error: PyErr, path: String) -> Error {
    let class_names: Vec<String> = error
        .get_type(py)
        .mro()
        .iter()
        .filter_map(|class| class.getattr("__name__").and_then(|n| n.extract()).ok())
        .collect();
    let is_subclass_of = |name: &str| class_names.iter().any(|n| n == name);
    let source = Box::new(PyCause(error));
    if is_subclass_of("NotFound") {
        Error::NotFound { path, source }
    } else if is_subclass_of("AlreadyExists") {
        Error::AlreadyExists { path, source }
    } else if is_subclass_of("PermissionDenied") {
        Error::PermissionDenied { path, source }
    } else if is_subclass_of("CapabilityNotSupported") {
        Error::NotSupported { source }
    } else {
        Error::Generic {
            store: STORE_NAME,
            source,
        }
    }
}
