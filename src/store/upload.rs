//! Uploads of staged bytes, and the memory that they share.
//!
//! An [`Uploader`] sends what a [`StageWriter`](super::stage::StageWriter) gives it: as a multipart upload that stays
//! uncompleted, or into a hidden object where the store has none. Stores that accept objects only as a whole get one
//! PUT at the end. [`InFlightBudget`] blocks the writers while too many bytes are in flight.
//!
//! An upload that fails is aborted, a multipart upload also if its future is dropped; a failed abort is logged. A write
//! that needs more than 10,000 upload parts is [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput).

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{MultipartUpload, PutMode, PutMultipartOptions};
use tokio::sync::mpsc;

use super::Store;
use super::staged_write::StagedWrite;
use super::temp_name::temp_path_in;
use crate::error::{Error, Result};
use crate::sync::mutex::lock;

/// The most upload parts that most stores accept.
pub(super) const MAX_UPLOAD_PARTS: usize = 10_000;

/// The memory that the staged writes of one operation share.
#[derive(Debug)]
pub(super) struct InFlightBudget {
    pub(super) capacity_bytes: usize,
    /// The longest write that stays inline.
    pub(super) max_inline_bytes: usize,
    pub(super) free_bytes: Mutex<usize>,
    pub(super) freed: Condvar,
    pub(super) free_inline_bytes: Mutex<usize>,
}

/// The budget of an upload part in flight; given back when dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<InFlightBudget>, usize);

impl Drop for Permit {
    fn drop(&mut self) {
        *lock(&self.0.free_bytes) += self.1;
        self.0.freed.notify_all();
    }
}

impl InFlightBudget {
    /// Blocks until the budget has room. Must not be called on the thread that polls the uploads.
    pub(super) fn acquire(self: &Arc<Self>, bytes: usize) -> Permit {
        let bytes = bytes.min(self.capacity_bytes);
        let free = lock(&self.free_bytes);
        let wait_result = self.freed.wait_while(free, |free| *free < bytes);
        *wait_result.unwrap_or_else(PoisonError::into_inner) -= bytes;
        Permit(Arc::clone(self), bytes)
    }

    /// Takes `bytes` from the budget of inline writes; false if they are too many.
    pub(super) fn try_reserve_inline(&self, bytes: usize) -> bool {
        let mut remaining = lock(&self.free_inline_bytes);
        let fits = bytes <= self.max_inline_bytes && bytes <= *remaining;
        if fits {
            *remaining -= bytes;
        }
        fits
    }
}

/// Uploads what its [`StageWriter`](super::stage::StageWriter) sends; must be polled while the writer writes.
#[derive(Debug)]
pub struct Uploader {
    pub(super) store: Store,
    pub(super) tag: String,
    pub(super) target: String,
    pub(super) upload_parts: mpsc::UnboundedReceiver<(Bytes, Permit)>,
}

impl Uploader {
    /// Uploads until the writer ends. None if the writer sent nothing. After an error the upload is aborted.
    pub async fn run(mut self) -> Result<Option<StagedWrite>> {
        let Some(first) = self.upload_parts.recv().await else {
            return Ok(None);
        };
        match self.store.multipart().map(Arc::clone) {
            Some(multipart) => self
                .run_multipart(multipart.as_ref(), first)
                .await
                .map(Some),
            None => self.run_object(first).await.map(Some),
        }
    }

    async fn run_multipart(
        &mut self,
        multipart: &dyn MultipartStore,
        first: (Bytes, Permit),
    ) -> Result<StagedWrite> {
        let key = self.store.key(&self.target)?;
        // An upload whose answer was lost has no parts; the bucket's lifecycle rule or a clean removes it.
        let begin = || multipart.create_multipart(&key);
        let upload = self.store.retry_idempotent(&self.target, begin).await?;
        let guard = AbortOnDrop::new(&self.store, &self.target, &upload);
        let result = self
            .send_upload_parts(multipart, &key, &upload, first)
            .await;
        guard.disarm();
        match result {
            Ok(upload_parts) => Ok(StagedWrite::Multipart {
                target: self.target.clone(),
                upload,
                upload_parts,
            }),
            Err(error) => {
                if let Err(e) = self.store.abort_upload(&self.target, &upload).await {
                    log::warn!("could not abort the upload of {key}: {e}");
                }
                Err(error)
            }
        }
    }

    async fn send_upload_parts(
        &mut self,
        multipart: &dyn MultipartStore,
        key: &Path,
        upload: &String,
        first: (Bytes, Permit),
    ) -> Result<Vec<String>> {
        let mut in_flight = FuturesUnordered::new();
        let mut next = Some(first);
        let mut part_ids: Vec<String> = Vec::new();
        loop {
            if let Some((bytes, permit)) = next.take() {
                if part_ids.len() == MAX_UPLOAD_PARTS {
                    return Err(too_many_parts(&self.target));
                }
                let index = part_ids.len();
                part_ids.push(String::new());
                in_flight.push(async move {
                    let result = multipart.put_part(key, upload, index, bytes.into()).await;
                    drop(permit);
                    (index, result)
                });
            }
            tokio::select! {
                biased;
                Some((index, result)) = in_flight.next() => match result {
                    Ok(part) => part_ids[index] = part.content_id,
                    Err(e) => {
                        // A part that arrives while the upload is aborted may stay.
                        while in_flight.next().await.is_some() {}
                        return Err(self.store.map_error(e, &self.target));
                    }
                },
                Some(part) = self.upload_parts.recv() => next = Some(part),
                else => return Ok(part_ids),
            }
        }
    }

    /// Uploads into a hidden object.
    async fn run_object(&mut self, first: (Bytes, Permit)) -> Result<StagedWrite> {
        let path = temp_path_beside(&self.store, &self.target, &self.tag);
        let key = self.store.key(&path)?;
        let create_upload = self
            .store
            .inner
            .objects
            .put_multipart_opts(&key, PutMultipartOptions::default());
        match create_upload.await {
            Ok(upload) => self.run_multipart_object(upload, &path, first).await?,
            Err(
                object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. },
            ) => {
                self.run_single_put(&path, first).await?;
            }
            Err(e) => return Err(self.store.map_error(e, &path)),
        }
        Ok(StagedWrite::Object { path })
    }

    /// Sends the upload parts as they come; the object appears when the upload is completed.
    async fn run_multipart_object(
        &mut self,
        mut upload: Box<dyn MultipartUpload>,
        path: &str,
        first: (Bytes, Permit),
    ) -> Result<()> {
        let mut result = self.send_object_parts(upload.as_mut(), first).await;
        if result.is_ok() {
            result = upload
                .complete()
                .await
                .map(drop)
                .map_err(|e| self.store.map_error(e, path));
        }
        if result.is_err()
            && let Err(e) = upload.abort().await
        {
            log::warn!("could not abort the upload of {path}: {e}");
        }
        result
    }

    async fn send_object_parts(
        &mut self,
        upload: &mut dyn MultipartUpload,
        first: (Bytes, Permit),
    ) -> Result<()> {
        let mut in_flight = FuturesUnordered::new();
        let mut next = Some(first);
        let mut count = 0;
        loop {
            if let Some((bytes, permit)) = next.take() {
                count += 1;
                if count > MAX_UPLOAD_PARTS {
                    return Err(too_many_parts(&self.target));
                }
                let put_part = upload.put_part(bytes.into());
                in_flight.push(async move {
                    let result = put_part.await;
                    drop(permit);
                    result
                });
            }
            tokio::select! {
                biased;
                Some(result) = in_flight.next() => if let Err(e) = result {
                    // As above.
                    while in_flight.next().await.is_some() {}
                    return Err(self.store.map_error(e, &self.target));
                },
                Some(part) = self.upload_parts.recv() => next = Some(part),
                else => return Ok(()),
            }
        }
    }

    /// Collects all bytes for a store that accepts objects only as a whole.
    async fn run_single_put(&mut self, path: &str, first: (Bytes, Permit)) -> Result<()> {
        // All bytes are in memory at once, so their permits limit nothing and are dropped.
        let (bytes, permit) = first;
        drop(permit);
        let mut chunks = vec![bytes];
        while let Some((part, _)) = self.upload_parts.recv().await {
            chunks.push(part);
        }
        let payload = chunks.into_iter().collect();
        self.store
            .put_payload(path, payload, PutMode::Overwrite)
            .await
            .map(drop)
    }
}

fn too_many_parts(target: &str) -> Error {
    let message = format!(
        "the file needs more than the {MAX_UPLOAD_PARTS} parts that an upload can have; set max_rows_per_file"
    );
    Error::invalid(message).with_path(target)
}

/// A path in the folder of `target` with a name that no reader takes for data.
fn temp_path_beside(store: &Store, target: &str, tag: &str) -> String {
    temp_path_in(
        store,
        target.rsplit_once('/').map_or("", |(folder, _)| folder),
        tag,
    )
}

/// Aborts an upload whose future is dropped, as by Ctrl-C.
pub(super) struct AbortOnDrop {
    armed: Option<(Store, String, String)>,
}

impl AbortOnDrop {
    pub(super) fn new(store: &Store, path: &str, upload: &str) -> Self {
        Self {
            armed: Some((store.clone(), path.to_owned(), upload.to_owned())),
        }
    }

    pub(super) fn disarm(mut self) {
        self.armed = None;
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        let Some((store, path, upload)) = self.armed.take() else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            if let Err(e) = store.abort_upload(&path, &upload).await {
                log::warn!("could not abort the upload of {path}: {e}");
            }
        });
    }
}
