//! Staged bytes on their way to a store: how many may be, and the uploads that carry them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{MultipartUpload, PutMode, PutMultipartOptions};
use tokio::sync::mpsc;

use super::Store;
use super::local::temp_name;
use super::stage::StagedWrite;
use crate::error::{Error, Result};

/// Most stores take no more pieces.
const MAX_UPLOAD_PARTS: usize = 10_000;

/// What the staged writes of one operation share: memory on its way to the store.
#[derive(Debug)]
pub(super) struct InFlightBudget {
    pub(super) capacity_bytes: usize,
    /// Longest part that stays with the caller.
    pub(super) max_inline_bytes: usize,
    pub(super) free_bytes: Mutex<usize>,
    pub(super) freed: Condvar,
    pub(super) free_inline_bytes: Mutex<usize>,
}

/// Room for a piece that is on its way; given back when dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<InFlightBudget>, usize);

impl Drop for Permit {
    fn drop(&mut self) {
        *self
            .0
            .free_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner) += self.1;
        self.0.freed.notify_all();
    }
}

impl InFlightBudget {
    /// Waits for room. Must not be called where the uploads are polled.
    pub(super) fn acquire(self: &Arc<Self>, bytes: usize) -> Permit {
        let bytes = bytes.min(self.capacity_bytes);
        let free = self
            .free_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let wait_result = self.freed.wait_while(free, |free| *free < bytes);
        *wait_result.unwrap_or_else(PoisonError::into_inner) -= bytes;
        Permit(Arc::clone(self), bytes)
    }

    pub(super) fn try_reserve_inline(&self, bytes: usize) -> bool {
        let mut remaining = self
            .free_inline_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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
    /// Uploads until the writer ends. None if it sent nothing. After an error nothing is left.
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
        // One whose answer was lost holds nothing, and is removed by the bucket's rule or a clean.
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
                    log::warn!("the upload of {key} could not be aborted: {e}");
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
                Some((index, result)) = in_flight.next() => {
                    part_ids[index] = result.map_err(|e| self.store.map_error(e, &self.target))?.content_id;
                }
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

    /// Sends the pieces as they come; the object appears with the last.
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
            log::warn!("the upload of {path} could not be aborted: {e}");
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
                Some(result) = in_flight.next() => result.map_err(|e| self.store.map_error(e, &self.target))?,
                Some(part) = self.upload_parts.recv() => next = Some(part),
                else => return Ok(()),
            }
        }
    }

    /// Collects the pieces for a store that takes objects whole, and nothing else.
    async fn run_single_put(&mut self, path: &str, first: (Bytes, Permit)) -> Result<()> {
        let mut chunks = vec![first.0];
        // All pieces are held at once, so there is no room to wait for.
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
    let text = "a part grew beyond what an upload holds; set max_rows_per_file";
    Error::invalid(text).with_path(target)
}

/// A name beside `target` that no reader takes for data.
fn temp_path_beside(store: &Store, target: &str, tag: &str) -> String {
    temp_path_in(
        store,
        target.rsplit_once('/').map_or("", |(folder, _)| folder),
        tag,
    )
}

/// A name in `folder` for what has no final name yet.
pub fn temp_path_in(store: &Store, folder: &str, tag: &str) -> String {
    super::path::join(folder, &temp_name(tag, store.clock().new_id()))
}

/// Aborts an upload whose future was dropped, as by Ctrl-C.
struct AbortOnDrop {
    armed: Option<(Store, String, String)>,
}

impl AbortOnDrop {
    fn new(store: &Store, path: &str, upload: &str) -> Self {
        Self {
            armed: Some((store.clone(), path.to_owned(), upload.to_owned())),
        }
    }

    fn disarm(mut self) {
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
                log::warn!("the upload of {path} could not be aborted: {e}");
            }
        });
    }
}
