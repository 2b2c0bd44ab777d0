//! A dataset as a stream of batches, in bounded memory.
//!
//! Row groups are fetched whole, since their checksums are of whole chunks, and decoded in slices. The
//! next one is fetched meanwhile if it is small; of large ones there is one at a time. The snapshot is
//! the one that was there at the beginning: if it is replaced meanwhile, the stream ends with an error
//! instead of a mixture.

use std::sync::Arc;

use arrow_schema::SchemaRef;

use super::open::{DatasetParts, PartIndex, check_part, open_part, open_parts};
use super::read::{ObservedManifest, is_unchanged, resolve_current, was_stable};
use super::{DatasetManifest, check_key, incomplete_error};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::Cancel;
use crate::parquet::decode::{Chunks, GroupStream};
use crate::parquet::projection::Projection;
use crate::part::{BatchSender, BatchStream, OpenPart, run_blocking};
use crate::store::Store;

/// A row group with more than this is fetched only when the one before it has been read.
const MAX_PREFETCH_BYTES: u64 = 64 << 20;

/// A dataset whose parts are open.
#[derive(Debug)]
pub struct OpenDataset {
    store: Store,
    key: String,
    observed: ObservedManifest,
    parts: DatasetParts,
}

impl OpenDataset {
    /// The schema as it was written.
    pub fn schema(&self) -> &SchemaRef {
        &self.parts.first.file.schema
    }

    /// Streams the rows; within a runtime.
    pub fn scan(self, columns: Option<&[String]>) -> Result<BatchStream> {
        start_scan(self, columns)
    }
}

/// Opens the dataset as it is now.
pub async fn open(store: &Store, key: &str) -> Result<OpenDataset> {
    check_key(key)?;
    for _ in 0..10 {
        let seen = resolve_current(store, key).await?;
        match open_parts(store, key, &seen.manifest).await {
            Ok(parts) => {
                return Ok(OpenDataset {
                    store: store.clone(),
                    key: key.to_owned(),
                    observed: seen,
                    parts,
                });
            }
            Err(error) if was_stable(store, key, &seen).await? => return Err(error),
            Err(_) => {}
        }
    }
    Err(incomplete_error(
        key,
        "it is replaced faster than it can be read",
    ))
}

/// Streams the dataset.
pub async fn scan(store: &Store, key: &str, columns: Option<&[String]>) -> Result<BatchStream> {
    open(store, key).await?.scan(columns)
}

/// Streams one part of the dataset that `manifest` describes, and no other. Without `known`, other parts
/// are looked at where the part's place among them is not certain.
pub async fn scan_part(
    store: &Store,
    key: &str,
    manifest: &DatasetManifest,
    index: usize,
    columns: Option<&[String]>,
    known: Option<&PartIndex>,
) -> Result<BatchStream> {
    check_key(key)?;
    let replaced = || incomplete_error(key, "it was replaced since its manifest was read");
    let seen = resolve_current(store, key).await?;
    if seen.manifest != *manifest {
        return Err(replaced());
    }
    let name = manifest.parts.get(index).ok_or_else(|| {
        Error::invalid(format!(
            "there is no part {index}; the dataset has {}",
            manifest.parts.len()
        ))
    })?;
    let part = open_part(store, key, name).await?;
    let created_at = part.file.seal.as_ref().map(|s| &s.identity.created_at);
    if created_at.is_some_and(|created_at| *created_at != manifest.created_at_utc) {
        return Err(replaced());
    }
    let checked = check_part(store, key, (manifest, index), &part, known).await;
    if let Err(error) = checked {
        // The dataset's parts may have been replaced meanwhile.
        return Err(if was_stable(store, key, &seen).await? {
            error
        } else {
            replaced()
        });
    }
    let parts = DatasetParts::from_single_part(store, key, name, part);
    let opened = OpenDataset {
        store: store.clone(),
        key: key.to_owned(),
        observed: seen,
        parts,
    };
    start_scan(opened, columns)
}

/// What each part of the dataset that `manifest` describes is, so that readers of single parts can tell
/// whether they read the right one.
pub async fn index_parts(
    store: &Store,
    key: &str,
    manifest: &DatasetManifest,
) -> Result<PartIndex> {
    check_key(key)?;
    let seen = resolve_current(store, key).await?;
    let replaced = || incomplete_error(key, "it was replaced since its manifest was read");
    if seen.manifest != *manifest {
        return Err(replaced());
    }
    match open_parts(store, key, manifest).await {
        Ok(parts) => Ok(PartIndex {
            entries: parts.entries,
        }),
        Err(error) if was_stable(store, key, &seen).await? => Err(error),
        Err(_) => Err(replaced()),
    }
}

fn start_scan(dataset: OpenDataset, columns: Option<&[String]>) -> Result<BatchStream> {
    let projection = Projection::new(&dataset.parts.first.file, columns)?;
    let schema = Arc::clone(&projection.schema);
    let job = DatasetScan {
        dataset,
        projection: Arc::new(projection),
    };
    let cancel = Cancel::default();
    Ok(BatchStream::spawn(schema, &cancel, |sender| async move {
        let ended = job.run(&sender).await;
        job.explain_error(ended).await
    }))
}

struct DatasetScan {
    dataset: OpenDataset,
    projection: Arc<Projection>,
}

/// A row group of a part.
type RowGroup = (Arc<OpenPart>, usize);

/// Where a scan is: the part whose row groups are read, the next part, the next row group.
#[derive(Default)]
struct ScanCursor {
    part: Option<Arc<OpenPart>>,
    next_part: usize,
    next_group: usize,
}

impl DatasetScan {
    async fn run(&self, sender: &BatchSender) -> Result<()> {
        let mut position = ScanCursor::default();
        let mut now = self.next_group(&mut position).await?;
        let mut ahead = None;
        while let Some((part, group)) = now {
            let chunks = match ahead.take() {
                Some(chunks) => chunks,
                None => self.fetch(&part, group).await?,
            };
            let next = async {
                let next = self.next_group(&mut position).await?;
                let chunks = match &next {
                    Some((next, group))
                        if self.fetched_bytes(next, *group) <= MAX_PREFETCH_BYTES =>
                    {
                        Some(self.fetch(next, *group).await?)
                    }
                    _ => None,
                };
                Ok::<_, Error>((next, chunks))
            };
            let (sent, next) = futures::join!(self.send(&part, group, chunks, sender), next);
            if !sent? {
                return Ok(());
            }
            (now, ahead) = next?;
        }
        let dataset = &self.dataset;
        if dataset.parts.all_sealed()
            || is_unchanged(&dataset.store, &dataset.key, &dataset.observed).await?
        {
            return Ok(());
        }
        Err(self.replaced_error())
    }

    fn replaced_error(&self) -> Error {
        let why = "it was replaced while it was read; scan it again";
        incomplete_error(&self.dataset.key, why)
    }

    /// The row group after the last one that was given.
    async fn next_group(&self, position: &mut ScanCursor) -> Result<Option<RowGroup>> {
        loop {
            if let Some(part) = &position.part
                && position.next_group < part.file.metadata().num_row_groups()
            {
                position.next_group += 1;
                return Ok(Some((Arc::clone(part), position.next_group - 1)));
            }
            if position.next_part == self.dataset.parts.len() {
                return Ok(None);
            }
            let part = self.dataset.parts.get(position.next_part).await?;
            let selected = self.projection.select(&part.file);
            position.part = Some(Arc::new(part.with_file(selected)));
            position.next_part += 1;
            position.next_group = 0;
        }
    }

    /// How much a row group's columns are; nothing where they are read as they are decoded.
    fn fetched_bytes(&self, part: &OpenPart, group: usize) -> u64 {
        let ranges = part.file.ranges(group, &self.projection.roots);
        ranges.iter().map(|range| range.end - range.start).sum()
    }

    async fn fetch(&self, part: &OpenPart, group: usize) -> Result<Chunks> {
        part.fetch(&self.dataset.store, group, &self.projection.roots)
            .await
    }

    /// An error that comes of the dataset having been replaced says so.
    async fn explain_error(&self, ended: Result<()>) -> Result<()> {
        let Err(error) = ended else { return Ok(()) };
        let dataset = &self.dataset;
        let is_replaced = match error.kind() {
            ErrorKind::NotFound | ErrorKind::Conflict => true,
            ErrorKind::PartCorrupted => {
                !is_unchanged(&dataset.store, &dataset.key, &dataset.observed).await?
            }
            _ => false,
        };
        Err(if is_replaced {
            self.replaced_error().with_source(error)
        } else {
            error
        })
    }

    /// Decodes a row group and sends its batches, each once there is room for it: while nobody takes them
    /// no thread waits. False once the reader has gone.
    async fn send(
        &self,
        part: &Arc<OpenPart>,
        group: usize,
        chunks: Chunks,
        sender: &BatchSender,
    ) -> Result<bool> {
        let mut source = Some(FetchedRowGroup {
            part: Arc::clone(part),
            group,
            chunks,
            projection: Arc::clone(&self.projection),
        });
        let mut decoding = None;
        loop {
            let Ok(room) = sender.reserve().await else {
                return Ok(false);
            };
            let (opening, part) = (source.take(), Arc::clone(part));
            let projection = Arc::clone(&self.projection);
            let step = run_blocking(move || {
                let named = |e: Error| {
                    e.context(format!("part {:?}", part.path))
                        .with_path(&part.path)
                };
                let mut stream = match (opening, decoding) {
                    (_, Some(stream)) => stream,
                    (Some(opening), None) => opening.open().map_err(named)?,
                    (None, None) => return Ok(None),
                };
                let Some(batch) = stream.next_batch().map_err(named)? else {
                    return Ok(None);
                };
                let batch = projection.batch(batch.columns(), batch.num_rows());
                Ok(Some((stream, batch.map_err(named)?)))
            });
            match step.await? {
                Some((stream, batch)) => {
                    decoding = Some(stream);
                    room.send(Ok(batch));
                }
                None => return Ok(true),
            }
        }
    }
}

/// A row group that was fetched.
struct FetchedRowGroup {
    part: Arc<OpenPart>,
    group: usize,
    chunks: Chunks,
    projection: Arc<Projection>,
}

impl FetchedRowGroup {
    fn open(mut self) -> Result<GroupStream> {
        let roots = &self.projection.roots;
        for root in roots.iter() {
            if let Some(read) = self.part.read_local(self.group, *root) {
                self.chunks.absorb(read?);
            }
        }
        let file = &self.part.file;
        GroupStream::open(file, self.group, roots, &self.chunks)
    }
}
