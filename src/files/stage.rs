//! Staging a stream of batches as Parquet files: encoded by threads, uploaded meanwhile.
//!
//! [`stage`] runs the encoder in a thread, which opens one file after the other through a [`FileOpener`], and drives
//! the uploads of these files. It gives a [`StagedFile`] each. After an error, and where the call is cancelled, the
//! files that are staged already are removed; the error is that of the upload that failed first, else the encoder's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatchReader;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parquet::file::metadata::KeyValue;
use tokio::sync::mpsc;

use super::run_short;
use crate::error::{Error, Result};
use crate::parquet::Cancel;
use crate::parquet::writer::{self, ByteSink, ByteSinkFactory, FileStats, WritePlan};
use crate::store::Store;
use crate::store::stage::{StageOutcome, StageWriter, Staging, Uploader};
use crate::store::staged_write::{StagedWrite, discard_in_background};
use crate::sync::hash::SharedHasher;
use crate::sync::mutex::lock;
use crate::sync::progress::{self, Progress};

/// A staged file: written, and invisible until it is published.
#[derive(Debug)]
pub(crate) struct StagedFile {
    pub(crate) staged: StagedWrite,
    pub(crate) stats: FileStats,
    /// The SHA3-256 of its bytes, if a hasher was passed.
    pub(crate) sha3: Option<[u8; 32]>,
}

/// Gives the path that the n-th file of a write is to become.
pub(crate) type TargetPathFn = Box<dyn FnMut(usize) -> String + Send>;
/// Gives what the metadata of each file's footer has besides, file after file, when all rows of the file were read.
pub(crate) type FooterMetadataFn = Box<dyn FnMut() -> Result<Vec<KeyValue>> + Send>;

/// What a write asks about each of its files.
pub(crate) struct FileHooks {
    pub(crate) targets: TargetPathFn,
    /// The hasher of the first file, if its bytes are hashed.
    pub(crate) hasher: Option<SharedHasher>,
    /// What the footers have besides.
    pub(crate) footers: Option<FooterMetadataFn>,
}

impl FileHooks {
    pub(crate) fn new(targets: TargetPathFn) -> Self {
        Self {
            targets,
            hasher: None,
            footers: None,
        }
    }
}

/// Encodes `input` into staged files, each begun for its target. After an error nothing stays staged. In place, only
/// what needs no upload may be staged: the encoder waits for uploads.
pub(crate) async fn stage(
    store: &Store,
    staging: Staging,
    plan: WritePlan,
    mut input: Box<dyn RecordBatchReader + Send>,
    hooks: FileHooks,
) -> Result<Vec<StagedFile>> {
    let files: SharedPendingFiles = Arc::new(PendingFiles {
        store: store.clone(),
        files: Mutex::default(),
    });
    let (uploaders, mut uploader_receiver) = mpsc::unbounded_channel::<(usize, Uploader)>();
    let mut opener = FileOpener {
        staging,
        hooks,
        next: 0,
        files: Arc::clone(&files),
        uploaders,
        progress: progress::current(),
    };
    let cancel = Cancel::default();
    let _stop_threads = cancel.guard();
    // The encoder drops `opener` when it ends, which closes `uploader_receiver`.
    let mut encoding = std::pin::pin!(run_short(move || writer::write(
        &plan,
        &mut *input,
        &mut opener,
        &cancel
    )));
    let mut uploads = FuturesUnordered::new();
    let (mut failure, mut encoded) = (None, None);
    loop {
        tokio::select! {
            biased;
            Some((index, uploaded)) = uploads.next() => match uploaded {
                Ok(staged) => record(&files, index, staged),
                Err(e) => { failure.get_or_insert(e); }
            },
            Some((index, uploader)) = uploader_receiver.recv() => {
                uploads.push(upload(index, uploader));
            }
            done = &mut encoding, if encoded.is_none() => encoded = Some(done),
            else => break,
        }
    }
    // An upload's own error says more than the encoder's, which only knows that the upload ended.
    let not_ended = || Err(Error::other("internal error: the encoder did not end"));
    let outcome = failure.map_or_else(|| encoded.unwrap_or_else(not_ended), Err);
    match outcome {
        Ok(()) => {
            let files = std::mem::take(&mut *lock_files(&files));
            files.into_iter().map(PendingFile::finish).collect()
        }
        Err(error) => {
            let staged: Vec<StagedWrite> = lock_files(&files)
                .iter()
                .filter_map(|f| f.staged.clone())
                .collect();
            discard(store, &staged).await;
            lock_files(&files).clear();
            Err(error)
        }
    }
}

async fn upload(index: usize, uploader: Uploader) -> (usize, Result<Option<StagedWrite>>) {
    (index, uploader.run().await)
}

/// Records where a file is staged; None leaves what the encoder recorded, a file that needs no upload.
fn record(files: &SharedPendingFiles, index: usize, staged: Option<StagedWrite>) {
    let file = &mut lock_files(files)[index];
    file.staged = staged.or_else(|| file.staged.take());
}

/// Removes staged files. Failures are logged, since the error that led here matters more.
pub(crate) async fn discard(store: &Store, staged: &[StagedWrite]) {
    for file in staged {
        if let Err(e) = file.discard(store).await {
            log::warn!("could not remove a staged file: {e}");
        }
    }
}

#[derive(Debug, Default)]
struct PendingFile {
    staged: Option<StagedWrite>,
    stats: Option<FileStats>,
    sha3: Option<[u8; 32]>,
}

impl PendingFile {
    fn finish(self) -> Result<StagedFile> {
        match (self.staged, self.stats) {
            (Some(staged), Some(stats)) => Ok(StagedFile {
                staged,
                stats,
                sha3: self.sha3,
            }),
            _ => Err(Error::other(
                "internal error: a staged file was not finished",
            )),
        }
    }
}

/// The files of a write that is under way; dropping it removes those that are staged.
struct PendingFiles {
    store: Store,
    files: Mutex<Vec<PendingFile>>,
}

impl Drop for PendingFiles {
    fn drop(&mut self) {
        let files = self.files.get_mut().unwrap_or_else(PoisonError::into_inner);
        let staged = files
            .iter_mut()
            .filter_map(|file| file.staged.take())
            .collect();
        discard_in_background(&self.store, staged);
    }
}

type SharedPendingFiles = Arc<PendingFiles>;

fn lock_files(files: &SharedPendingFiles) -> MutexGuard<'_, Vec<PendingFile>> {
    lock(&files.files)
}

/// Opens the files of a write, in order.
struct FileOpener {
    staging: Staging,
    hooks: FileHooks,
    next: usize,
    files: SharedPendingFiles,
    uploaders: mpsc::UnboundedSender<(usize, Uploader)>,
    progress: Option<Arc<Progress>>,
}

impl ByteSinkFactory for FileOpener {
    fn open(&mut self) -> Result<Box<dyn ByteSink>> {
        let (writer, uploader) = self.staging.begin(&(self.hooks.targets)(self.next));
        let index = self.next;
        self.next += 1;
        lock_files(&self.files).push(PendingFile::default());
        if let Some(uploader) = uploader {
            // The receiver is closed only when the whole write is being dropped.
            let _ = self.uploaders.send((index, uploader));
        }
        Ok(Box::new(FileSink {
            index,
            writer,
            hasher: self.hooks.hasher.take(),
            files: Arc::clone(&self.files),
            progress: self.progress.clone(),
        }))
    }

    fn footer_metadata(&mut self) -> Result<Vec<KeyValue>> {
        self.hooks.footers.as_mut().map_or(Ok(Vec::new()), |f| f())
    }
}

struct FileSink {
    index: usize,
    writer: StageWriter,
    hasher: Option<SharedHasher>,
    files: SharedPendingFiles,
    progress: Option<Arc<Progress>>,
}

impl ByteSink for FileSink {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(hasher) = &self.hasher {
            hasher.update(bytes);
        }
        if let Some(progress) = &self.progress {
            progress.add_bytes(bytes.len() as u64);
        }
        self.writer.write(bytes)
    }

    fn finish(self: Box<Self>, stats: FileStats) -> Result<()> {
        let outcome = self.writer.finish()?;
        let file = &mut lock_files(&self.files)[self.index];
        file.stats = Some(stats);
        file.sha3 = self.hasher.map(|hasher| hasher.finish());
        if let StageOutcome::Done(staged) = outcome {
            file.staged = Some(staged);
        }
        if let Some(progress) = &self.progress {
            progress.add_files(1);
        }
        Ok(())
    }
}
