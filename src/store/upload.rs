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
use super::stage::Staged;
use crate::error::{Error, Result};

/// Most stores take no more pieces.
const MAX_PIECES: usize = 10_000;

/// What the staged writes of one operation share: memory on its way to the store.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) in_flight_bytes: usize,
    /// Longest part that stays with the caller.
    pub(super) inline_limit: usize,
    pub(super) free_bytes: Mutex<usize>,
    pub(super) freed: Condvar,
    pub(super) inline_bytes: Mutex<usize>,
}

/// Room for a piece that is on its way; given back when dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<Flow>, usize);

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

impl Flow {
    /// Waits for room. Must not be called where the uploads are polled.
    pub(super) fn acquire(self: &Arc<Self>, bytes: usize) -> Permit {
        let bytes = bytes.min(self.in_flight_bytes);
        let free = self
            .free_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let enough = self.freed.wait_while(free, |free| *free < bytes);
        *enough.unwrap_or_else(PoisonError::into_inner) -= bytes;
        Permit(Arc::clone(self), bytes)
    }

    pub(super) fn inline(&self, bytes: usize) -> bool {
        let mut left = self
            .inline_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let fits = bytes <= self.inline_limit && bytes <= *left;
        if fits {
            *left -= bytes;
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
    pub(super) pieces: mpsc::UnboundedReceiver<(Bytes, Permit)>,
}

impl Uploader {
    /// Uploads until the writer ends. None if it sent nothing. After an error nothing is left.
    pub async fn run(mut self) -> Result<Option<Staged>> {
        let Some(first) = self.pieces.recv().await else {
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
    ) -> Result<Staged> {
        let key = self.store.key(&self.target)?;
        // One whose answer was lost holds nothing, and is removed by the bucket's rule or a clean.
        let begin = || multipart.create_multipart(&key);
        let upload = self.store.again(&self.target, begin).await?;
        let guard = AbortOnDrop::new(&self.store, &self.target, &upload);
        let sent = self.send_pieces(multipart, &key, &upload, first).await;
        guard.disarm();
        match sent {
            Ok(pieces) => Ok(Staged::Multipart {
                target: self.target.clone(),
                upload,
                pieces,
            }),
            Err(error) => {
                if let Err(e) = self.store.abort_upload(&self.target, &upload).await {
                    log::warn!("the upload of {key} could not be aborted: {e}");
                }
                Err(error)
            }
        }
    }

    async fn send_pieces(
        &mut self,
        multipart: &dyn MultipartStore,
        key: &Path,
        upload: &String,
        first: (Bytes, Permit),
    ) -> Result<Vec<String>> {
        let mut flying = FuturesUnordered::new();
        let mut next = Some(first);
        let mut pieces: Vec<String> = Vec::new();
        loop {
            if let Some((bytes, permit)) = next.take() {
                if pieces.len() == MAX_PIECES {
                    return Err(too_long(&self.target));
                }
                let index = pieces.len();
                pieces.push(String::new());
                flying.push(async move {
                    let sent = multipart.put_part(key, upload, index, bytes.into()).await;
                    drop(permit);
                    (index, sent)
                });
            }
            tokio::select! {
                biased;
                Some((index, sent)) = flying.next() => {
                    pieces[index] = sent.map_err(|e| self.store.error(e, &self.target))?.content_id;
                }
                Some(piece) = self.pieces.recv() => next = Some(piece),
                else => return Ok(pieces),
            }
        }
    }

    /// Uploads into a hidden object.
    async fn run_object(&mut self, first: (Bytes, Permit)) -> Result<Staged> {
        let path = hidden_beside(&self.store, &self.target, &self.tag);
        let key = self.store.key(&path)?;
        let begun = self
            .store
            .inner
            .objects
            .put_multipart_opts(&key, PutMultipartOptions::default());
        match begun.await {
            Ok(upload) => self.run_blocks(upload, &path, first).await?,
            Err(
                object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. },
            ) => {
                self.run_whole(&path, first).await?;
            }
            Err(e) => return Err(self.store.error(e, &path)),
        }
        Ok(Staged::Object { path })
    }

    /// Sends the pieces as they come; the object appears with the last.
    async fn run_blocks(
        &mut self,
        mut upload: Box<dyn MultipartUpload>,
        path: &str,
        first: (Bytes, Permit),
    ) -> Result<()> {
        let mut sent = self.send_blocks(upload.as_mut(), first).await;
        if sent.is_ok() {
            sent = upload
                .complete()
                .await
                .map(drop)
                .map_err(|e| self.store.error(e, path));
        }
        if sent.is_err()
            && let Err(e) = upload.abort().await
        {
            log::warn!("the upload of {path} could not be aborted: {e}");
        }
        sent
    }

    async fn send_blocks(
        &mut self,
        upload: &mut dyn MultipartUpload,
        first: (Bytes, Permit),
    ) -> Result<()> {
        let mut flying = FuturesUnordered::new();
        let mut next = Some(first);
        let mut count = 0;
        loop {
            if let Some((bytes, permit)) = next.take() {
                count += 1;
                if count > MAX_PIECES {
                    return Err(too_long(&self.target));
                }
                let sent = upload.put_part(bytes.into());
                flying.push(async move {
                    let sent = sent.await;
                    drop(permit);
                    sent
                });
            }
            tokio::select! {
                biased;
                Some(sent) = flying.next() => sent.map_err(|e| self.store.error(e, &self.target))?,
                Some(piece) = self.pieces.recv() => next = Some(piece),
                else => return Ok(()),
            }
        }
    }

    /// Collects the pieces for a store that takes objects whole, and nothing else.
    async fn run_whole(&mut self, path: &str, first: (Bytes, Permit)) -> Result<()> {
        let mut all = vec![first.0];
        // All pieces are held at once, so there is no room to wait for.
        while let Some((piece, _)) = self.pieces.recv().await {
            all.push(piece);
        }
        let payload = all.into_iter().collect();
        self.store
            .put_payload(path, payload, PutMode::Overwrite)
            .await
            .map(drop)
    }
}

fn too_long(target: &str) -> Error {
    let text = "a part grew beyond what an upload holds; set max_rows_per_file";
    Error::invalid(text).with_path(target)
}

/// A name beside `target` that no reader takes for data.
fn hidden_beside(store: &Store, target: &str, tag: &str) -> String {
    hidden_in(
        store,
        target.rsplit_once('/').map_or("", |(folder, _)| folder),
        tag,
    )
}

/// A name in `folder` for what has no final name yet.
pub fn hidden_in(store: &Store, folder: &str, tag: &str) -> String {
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
