//! The first step of a write: parts encoded and uploaded where no reader sees them.

use std::sync::Arc;

use arrow_array::RecordBatchReader;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::{Layout, Shared, StagedPart, Write, blocking, locked};
use crate::error::{Error, Result};
use crate::parquet::Cancel;
use crate::parquet::seal::Identity;
use crate::parquet::writer::{self, FileStats, Files, Sink, WritePlan};
use crate::store::local::TEMP_PREFIX;
use crate::store::stage::{StageWriter, Staged, Staging, Uploader, Written, hidden_in};
use crate::store::{Store, path};

/// How a task of a write differs from the others.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// Orders the parts of different tasks.
    pub number: u64,
    /// Threads that encode.
    pub threads: usize,
    /// The caller holds the whole input in memory.
    pub resident: bool,
    /// Make a part also when there are no rows.
    pub keep_empty: bool,
    /// Another process publishes.
    pub shared: bool,
}

/// Encodes `input` into staged parts. After an error nothing is left.
pub async fn prepare(
    store: &Store,
    write: &Write,
    task: Task,
    mut input: Box<dyn RecordBatchReader + Send>,
) -> Result<Vec<StagedPart>> {
    let staging = Staging::new(
        store,
        task.shared.then(|| write.shared_tag()),
        write.options.memory_limit_bytes,
    );
    let plan = plan(write, task, &*input, staging.memory_bytes())?;
    let parts: Shared<Vec<Unfinished>> = Arc::default();
    let (uploaders, mut begun) = mpsc::unbounded_channel::<(usize, Uploader)>();
    let mut files = PartFiles {
        write: write.clone(),
        task,
        store: store.clone(),
        staging,
        next: 0,
        parts: Arc::clone(&parts),
        uploaders,
    };
    let cancel = Cancel::default();
    let _stop_threads = cancel.guard();
    // The thread drops `files` when it ends, which ends `begun`.
    let mut encoding = std::pin::pin!(blocking(move || writer::write(
        &plan,
        &mut *input,
        &mut files,
        &cancel
    )));
    let mut uploads = FuturesUnordered::new();
    let (mut failure, mut encoded) = (None, None);
    loop {
        tokio::select! {
            biased;
            Some((index, uploaded)) = uploads.next() => match uploaded {
                Ok(staged) => keep(&parts, index, staged),
                Err(e) => { failure.get_or_insert(e); }
            },
            Some((index, uploader)) = begun.recv() => {
                uploads.push(upload(index, uploader));
            }
            done = &mut encoding, if encoded.is_none() => encoded = Some(done),
            else => break,
        }
    }
    // An upload's own error says more than the encoder's, which only saw the upload end.
    let outcome = failure.map_or_else(|| encoded.unwrap_or(Ok(())), Err);
    let parts = std::mem::take(&mut *locked(&parts));
    match outcome {
        Ok(()) => finished(parts, task),
        Err(error) => {
            let staged: Vec<Staged> = parts.into_iter().filter_map(|p| p.staged).collect();
            discard(store, &staged).await;
            Err(error)
        }
    }
}

async fn upload(index: usize, uploader: Uploader) -> (usize, Result<Option<Staged>>) {
    (index, uploader.run().await)
}

/// Notes where a part lies; None leaves what the encoder noted, a part that needs no upload.
fn keep(parts: &Shared<Vec<Unfinished>>, index: usize, staged: Option<Staged>) {
    let part = &mut locked(parts)[index];
    part.staged = staged.or_else(|| part.staged.take());
}

fn plan(
    write: &Write,
    task: Task,
    input: &dyn RecordBatchReader,
    sink_bytes: usize,
) -> Result<WritePlan> {
    let identity = Identity {
        write_id: write.write_id,
        created_at: write.created_at.clone(),
        task: task.number,
        sequence: 0,
        last: false,
    };
    let mut plan = WritePlan::new(input.schema(), write.options.clone(), identity)?;
    plan.threads = task.threads;
    plan.resident = task.resident;
    plan.keep_empty = task.keep_empty;
    plan.sink_bytes = sink_bytes;
    Ok(plan)
}

fn finished(parts: Vec<Unfinished>, task: Task) -> Result<Vec<StagedPart>> {
    let numbered = parts.into_iter().zip(0..);
    let finish = |(part, sequence): (Unfinished, u64)| match (part.staged, part.stats) {
        (Some(staged), Some(stats)) => Ok(StagedPart {
            staged,
            rows: stats.rows,
            bytes: stats.bytes,
            task: task.number,
            sequence,
        }),
        _ => Err(Error::other("a part was not finished")),
    };
    numbered.map(finish).collect()
}

/// Removes staged parts; what cannot be removed is logged, since the cause of it all matters more.
async fn discard(store: &Store, staged: &[Staged]) {
    for part in staged {
        if let Err(e) = part.discard(store).await {
            log::warn!("a staged part could not be removed: {e}");
        }
    }
}

/// Removes the parts of a write that will not be published.
pub async fn abort(store: &Store, parts: &[StagedPart]) {
    let staged: Vec<Staged> = parts.iter().map(|p| p.staged.clone()).collect();
    discard(store, &staged).await;
}

/// Removes the hidden objects of every task of a write. Uncompleted uploads of a store that cannot
/// list them stay until its lifecycle rule ends them.
pub async fn abort_all(store: &Store, write: &Write) -> Result<()> {
    let prefix = format!("{TEMP_PREFIX}{}-", write.shared_tag());
    let folder = store.list_folder(&write.key).await?;
    let ours = folder.files.iter().filter(|meta| {
        let name = meta.location.filename();
        name.is_some_and(|name| name.starts_with(&prefix))
    });
    let paths: Vec<String> = ours.map(|meta| meta.location.to_string()).collect();
    store.delete_all(&paths).await
}

#[derive(Debug, Default)]
struct Unfinished {
    staged: Option<Staged>,
    stats: Option<FileStats>,
}

/// Opens the parts of one task, in order.
struct PartFiles {
    write: Write,
    task: Task,
    store: Store,
    staging: Staging,
    next: usize,
    parts: Shared<Vec<Unfinished>>,
    uploaders: mpsc::UnboundedSender<(usize, Uploader)>,
}

impl PartFiles {
    /// The final name where it is known already: an upload can become only what it was begun for.
    fn target(&self) -> String {
        let one_each = self.write.options.rows_per_file.is_none();
        let number = match (self.write.layout, self.task.shared) {
            (Layout::Single, _) | (Layout::Numbered, false) => Some(self.next),
            (Layout::Numbered, true) if one_each => usize::try_from(self.task.number).ok(),
            (Layout::Numbered, true) if self.task.number == 0 => Some(self.next),
            (Layout::Numbered, true) => None,
        };
        match number {
            Some(number) => path::join(&self.write.key, &self.write.layout.name(number)),
            None => hidden_in(&self.store, &self.write.key, &self.write.shared_tag()),
        }
    }
}

impl Files for PartFiles {
    fn open(&mut self) -> Result<Box<dyn Sink>> {
        let (writer, uploader) = self.staging.begin(&self.target());
        let index = self.next;
        self.next += 1;
        locked(&self.parts).push(Unfinished::default());
        if let Some(uploader) = uploader {
            // Nobody listens any more only when the whole write is being dropped.
            let _ = self.uploaders.send((index, uploader));
        }
        Ok(Box::new(PartSink {
            index,
            writer,
            parts: Arc::clone(&self.parts),
        }))
    }
}

struct PartSink {
    index: usize,
    writer: StageWriter,
    parts: Shared<Vec<Unfinished>>,
}

impl Sink for PartSink {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write(bytes)
    }

    fn finish(self: Box<Self>, stats: FileStats) -> Result<()> {
        let written = self.writer.finish()?;
        let part = &mut locked(&self.parts)[self.index];
        part.stats = Some(stats);
        if let Written::Done(staged) = written {
            part.staged = Some(staged);
        }
        Ok(())
    }
}
