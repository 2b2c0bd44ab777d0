//! Publishing staged files under their names, so that none of them stays after an error or where the call is cancelled.
//!
//! A call that is cancelled begins no more requests. Those that it began end in the background, because one that is
//! dropped may have its effect later; then the files are removed. If the process ends before that, a vacuum removes
//! them. A removal that fails is logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::stage::{StagedFile, discard};
use crate::error::{Error, ErrorKind, Result};
use crate::store::staged_write::StagedWrite;
use crate::store::{Store, defer_name_syncs};
use crate::sync::begun::run_to_end;
use crate::sync::in_place::in_place;

/// The maximum number of files that are published concurrently.
const CONCURRENT_FILES: usize = 16;

/// Publishes staged files at `paths`; after an error it removes all of them.
pub(crate) async fn publish_files(
    store: &Store,
    staged: &[StagedFile],
    paths: Vec<String>,
) -> Result<()> {
    Publishing::begin(store, staged, paths).finish().await
}

/// Files that are being published.
struct Files {
    store: Store,
    staged: Vec<StagedWrite>,
    paths: Vec<String>,
}

impl Files {
    async fn remove(&self) {
        discard(&self.store, &self.staged).await;
        if let Err(e) = self.store.delete_all(&self.paths).await {
            log::warn!("files of a failed write could not be removed; vacuum removes them: {e}");
        }
    }
}

/// A publish under way; dropping it before its end removes the files.
struct Publishing {
    files: Arc<Files>,
    is_cancelled: Arc<AtomicBool>,
    /// None after its end.
    work: Option<BoxFuture<'static, Result<()>>>,
}

impl Publishing {
    fn begin(store: &Store, staged: &[StagedFile], paths: Vec<String>) -> Self {
        let files = Arc::new(Files {
            store: store.clone(),
            staged: staged.iter().map(|file| file.staged.clone()).collect(),
            paths,
        });
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let requests = (0..files.staged.len().min(files.paths.len())).map(|index| {
            let (files, is_cancelled) = (Arc::clone(&files), Arc::clone(&is_cancelled));
            async move {
                if is_cancelled.load(Ordering::Relaxed) {
                    let message = "the write was cancelled";
                    return Err(Error::new(ErrorKind::Cancelled, message));
                }
                let (file, path) = (&files.staged[index], &files.paths[index]);
                file.publish(&files.store, path).await
            }
        });
        // A Vec, because the future of the iterator itself would not be Send.
        let requests: Vec<_> = requests.collect();
        let published_files = Arc::clone(&files);
        let work = async move {
            let is_single = requests.len() == 1;
            let published = async {
                defer_name_syncs(run_to_end(requests, CONCURRENT_FILES)).await?;
                let files = &published_files;
                files.store.sync_names(&files.paths).await
            };
            let published = if is_single {
                in_place(published).await
            } else {
                published.await
            };
            if published.is_err() {
                published_files.remove().await;
            }
            published
        };
        Self {
            files,
            is_cancelled,
            work: Some(work.boxed()),
        }
    }

    async fn finish(mut self) -> Result<()> {
        let published = match &mut self.work {
            Some(work) => work.await,
            None => Ok(()),
        };
        self.work = None;
        published
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else {
            return;
        };
        self.is_cancelled.store(true, Ordering::Relaxed);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let files = Arc::clone(&self.files);
        runtime.spawn(async move {
            // After an error it has removed them itself.
            if work.await.is_ok() {
                files.remove().await;
            }
        });
    }
}
