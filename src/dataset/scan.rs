//! Streaming a dataset, or one of its parts, in bounded memory.
//!
//! Row groups are fetched whole, since their checksums are of whole chunks, and decoded in slices. The next one
//! is fetched meanwhile if it is small; of large ones there is one at a time.
//!
//! With a predicate, row groups whose statistics exclude a match are left out, and so are parts without others.
//!
//! [`open`] takes a snapshot and opens its parts; [`scan`] streams them, [`scan_part`] one of them. Where the dataset
//! is replaced meanwhile, the stream ends with [`ErrorKind::DatasetIncomplete`] instead of a mixture.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_schema::SchemaRef;

use super::open::{DatasetParts, PartIndex, check_part, open_part, open_parts};
use super::read::{
    MAX_RESTARTS, ObservedManifest, RESTART_DELAY, is_unchanged, resolve_current, was_stable,
};
use super::row_filter::DatasetFilter;
use super::{DatasetManifest, check_key, incomplete_error};
use crate::error::{Error, ErrorKind, Result};
use crate::files::expr::Predicate;
use crate::files::{BatchSender, BatchStream, FileShare, OpenPart, run_blocking};
use crate::parquet::Cancel;
use crate::parquet::decode::{Chunks, RowGroupStream};
use crate::parquet::projection::Projection;
use crate::store::Store;

/// A row group with more bytes than this is fetched only when the one before it has been sent.
const MAX_PREFETCH_BYTES: u64 = 64 << 20;

/// A snapshot of a dataset, whose parts are open.
#[derive(Debug)]
pub struct OpenDataset {
    store: Store,
    key: String,
    observed: ObservedManifest,
    parts: DatasetParts,
}

impl OpenDataset {
    /// The dataset's manifest.
    pub fn manifest(&self) -> &DatasetManifest {
        &self.observed.manifest
    }

    /// The dataset's schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.parts.first.file.schema
    }

    /// Streams all columns or `columns`, of all rows or those that match `predicate`; to be called within a runtime.
    pub fn scan(
        self,
        columns: Option<&[String]>,
        predicate: Option<&Predicate>,
    ) -> Result<BatchStream> {
        start_scan(self, columns, predicate, None)
    }
}

/// Opens the dataset as it is now.
pub async fn open(store: &Store, key: &str) -> Result<OpenDataset> {
    check_key(key)?;
    for _ in 0..MAX_RESTARTS {
        let observed = resolve_current(store, key).await?;
        match open_parts(store, key, &observed.manifest).await {
            Ok(parts) => {
                return Ok(OpenDataset {
                    store: store.clone(),
                    key: key.to_owned(),
                    observed,
                    parts,
                });
            }
            Err(error) if was_stable(store, key, &observed).await? => return Err(error),
            Err(_) => store.clock().sleep(RESTART_DELAY).await,
        }
    }
    Err(incomplete_error(
        key,
        &format!("it was replaced during each of {MAX_RESTARTS} attempts to open its parts"),
    ))
}

/// Opens the dataset and streams its rows.
pub async fn scan(store: &Store, key: &str, columns: Option<&[String]>) -> Result<BatchStream> {
    open(store, key).await?.scan(columns, None)
}

/// A part of a dataset, or a share of it.
#[derive(Debug, Clone, Copy)]
pub struct PartSelection {
    /// The position of the part in the manifest.
    pub index: usize,
    /// The share of its row groups; None for all of them.
    pub share: Option<FileShare>,
}

/// Streams one part of the dataset that `manifest` describes; [`ErrorKind::DatasetIncomplete`] if that was
/// replaced. Without `part_index` all parts are opened where the part alone does not prove its position.
pub async fn scan_part(
    store: &Store,
    key: &str,
    manifest: &DatasetManifest,
    selection: PartSelection,
    columns: Option<&[String]>,
    part_index: Option<&PartIndex>,
) -> Result<BatchStream> {
    let PartSelection { index, share } = selection;
    if share.is_some_and(|share| !share.is_valid()) {
        return Err(Error::invalid("a part has no share of this number"));
    }
    check_key(key)?;
    let replaced_error = || incomplete_error(key, "it was replaced since its manifest was read");
    let observed = resolve_current(store, key).await?;
    if observed.manifest != *manifest {
        return Err(replaced_error());
    }
    let name = manifest.parts.get(index).ok_or_else(|| {
        Error::invalid(format!(
            "there is no part {index}; the dataset has {} parts",
            manifest.parts.len()
        ))
    })?;
    let part = open_part(store, key, name).await?;
    let created_at = part.file.seal.as_ref().map(|s| &s.identity.created_at);
    if created_at.is_some_and(|created_at| *created_at != manifest.created_at_utc) {
        return Err(replaced_error());
    }
    let result = check_part(store, key, (manifest, index), &part, part_index).await;
    if let Err(error) = result {
        // The error may come of parts that were replaced meanwhile.
        return Err(if was_stable(store, key, &observed).await? {
            error
        } else {
            replaced_error()
        });
    }
    let parts = DatasetParts::from_single_part(store, key, name, part);
    let opened = OpenDataset {
        store: store.clone(),
        key: key.to_owned(),
        observed,
        parts,
    };
    start_scan(opened, columns, None, share)
}

/// The index of the parts of the dataset that `manifest` describes, by which [`scan_part`] recognizes the right
/// part. [`ErrorKind::DatasetIncomplete`] if that dataset was replaced.
pub async fn index_parts(
    store: &Store,
    key: &str,
    manifest: &DatasetManifest,
) -> Result<PartIndex> {
    check_key(key)?;
    let observed = resolve_current(store, key).await?;
    let replaced_error = || incomplete_error(key, "it was replaced since its manifest was read");
    if observed.manifest != *manifest {
        return Err(replaced_error());
    }
    match open_parts(store, key, manifest).await {
        Ok(parts) => Ok(PartIndex {
            entries: parts.entries,
        }),
        Err(error) if was_stable(store, key, &observed).await? => Err(error),
        Err(_) => Err(replaced_error()),
    }
}

/// Streams the rows of the parts; of `share` if there is one, which is of each part.
fn start_scan(
    dataset: OpenDataset,
    columns: Option<&[String]>,
    predicate: Option<&Predicate>,
    share: Option<FileShare>,
) -> Result<BatchStream> {
    let file = &dataset.parts.first.file;
    let row_filter = predicate
        .map(|predicate| DatasetFilter::new(predicate, &file.schema, &**dataset.store.clock()))
        .transpose()?;
    let output = Projection::new(file, columns)?;
    let projection = match &row_filter {
        None => output.clone(),
        Some(row_filter) => Projection::with_inputs(file, columns, row_filter.columns())?,
    };
    let schema = Arc::clone(&output.schema);
    let dataset_scan = DatasetScan {
        dataset,
        projection: Arc::new(projection),
        schema: output.schema,
        row_filter: row_filter.map(Arc::new),
        share,
    };
    let cancel = Cancel::default();
    Ok(BatchStream::spawn(schema, &cancel, |sender| async move {
        let result = dataset_scan.run(&sender).await;
        dataset_scan.explain_error(result).await
    }))
}

struct DatasetScan {
    dataset: OpenDataset,
    /// The columns that are read: those of the result, then those of the filter.
    projection: Arc<Projection>,
    /// The schema of the result.
    schema: SchemaRef,
    row_filter: Option<Arc<DatasetFilter>>,
    /// The share that is read of each part; None for all of it.
    share: Option<FileShare>,
}

/// A part and the index of one of its row groups.
type RowGroup = (Arc<OpenPart>, usize);

/// The position of a scan: the part whose row groups are read, the next part, the next row group.
#[derive(Default)]
struct ScanCursor {
    part: Option<Arc<OpenPart>>,
    next_part: usize,
    /// The row groups of the part that are still to be read.
    groups: VecDeque<usize>,
}

impl DatasetScan {
    async fn run(&self, sender: &BatchSender) -> Result<()> {
        let mut cursor = ScanCursor::default();
        let mut current = self.next_group(&mut cursor).await?;
        let mut prefetched = None;
        while let Some((part, group)) = current {
            let chunks = match prefetched.take() {
                Some(chunks) => chunks,
                None => self.fetch(&part, group).await?,
            };
            let prefetch = async {
                let next = self.next_group(&mut cursor).await?;
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
            let (has_consumer, next) =
                futures::join!(self.send(&part, group, chunks, sender), prefetch);
            if !has_consumer? {
                return Ok(());
            }
            (current, prefetched) = next?;
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
        let reason = "it was replaced while it was read; scan it again";
        incomplete_error(&self.dataset.key, reason)
    }

    /// The next row group; None after the last.
    async fn next_group(&self, cursor: &mut ScanCursor) -> Result<Option<RowGroup>> {
        loop {
            if let Some(part) = &cursor.part
                && let Some(group) = cursor.groups.pop_front()
            {
                return Ok(Some((Arc::clone(part), group)));
            }
            if cursor.next_part == self.dataset.parts.len() {
                return Ok(None);
            }
            let part = self.dataset.parts.get(cursor.next_part).await?;
            let selected = self.projection.select(&part.file);
            cursor.groups = match &self.row_filter {
                Some(row_filter) => row_filter.row_groups(&part).await?,
                None => (0..part.file.metadata().num_row_groups()).collect(),
            };
            if let Some(share) = self.share {
                let in_share = share.row_groups(&part.file);
                cursor.groups.retain(|group| in_share.contains(group));
            }
            cursor.part = Some(Arc::new(part.with_file(selected)));
            cursor.next_part += 1;
        }
    }

    /// Bytes of the column chunks that a row group's columns need.
    fn fetched_bytes(&self, part: &OpenPart, group: usize) -> u64 {
        let ranges = part.file.ranges(group, &self.projection.indices);
        ranges.iter().map(|range| range.end - range.start).sum()
    }

    async fn fetch(&self, part: &OpenPart, group: usize) -> Result<Chunks> {
        part.fetch(&self.dataset.store, group, &self.projection.indices)
            .await
    }

    /// Replaces an error whose cause is that the dataset was replaced by one that says so.
    async fn explain_error(&self, result: Result<()>) -> Result<()> {
        let Err(error) = result else { return Ok(()) };
        let dataset = &self.dataset;
        let is_replaced = match error.kind() {
            ErrorKind::NotFound | ErrorKind::Conflict => true,
            // A file server may have forgotten a file that was replaced (ESTALE).
            ErrorKind::PartCorrupted | ErrorKind::Other => {
                let unchanged = is_unchanged(&dataset.store, &dataset.key, &dataset.observed);
                // A second failure does not hide the first.
                unchanged.await.is_ok_and(|unchanged| !unchanged)
            }
            _ => false,
        };
        Err(if is_replaced {
            self.replaced_error().with_source(error)
        } else {
            error
        })
    }

    /// Decodes a row group and sends its batches. Each is decoded once the channel has room for it, so that no thread
    /// waits for a slow consumer. False if the consumer was dropped.
    async fn send(
        &self,
        part: &Arc<OpenPart>,
        group: usize,
        chunks: Chunks,
        sender: &BatchSender,
    ) -> Result<bool> {
        let mut undecoded = Some(FetchedRowGroup {
            part: Arc::clone(part),
            group,
            chunks,
            projection: Arc::clone(&self.projection),
        });
        let mut decoder = None;
        loop {
            let Ok(permit) = sender.reserve().await else {
                return Ok(false);
            };
            let (fetched, part) = (undecoded.take(), Arc::clone(part));
            let projection = Arc::clone(&self.projection);
            let (schema, row_filter) = (Arc::clone(&self.schema), self.row_filter.clone());
            let decode = run_blocking(move || {
                let with_part_context = |e: Error| {
                    e.context(format!("part {:?}", part.path))
                        .with_path(&part.path)
                };
                let mut stream = match (fetched, decoder) {
                    (_, Some(stream)) => stream,
                    (Some(fetched), None) => fetched.open().map_err(with_part_context)?,
                    (None, None) => return Ok(None),
                };
                let Some(batch) = stream.next_batch().map_err(with_part_context)? else {
                    return Ok(None);
                };
                let batch = projection
                    .build_batch(batch.columns(), batch.num_rows())
                    .map_err(with_part_context)?;
                let selected = match row_filter {
                    Some(row_filter) => row_filter.select(&batch, &schema)?,
                    None => batch,
                };
                Ok(Some((stream, selected)))
            });
            match decode.await? {
                Some((stream, batch)) => {
                    decoder = Some(stream);
                    if self.row_filter.is_none() || batch.num_rows() > 0 {
                        permit.send(Ok(batch));
                    }
                }
                None => return Ok(true),
            }
        }
    }
}

/// A row group whose chunks were fetched.
struct FetchedRowGroup {
    part: Arc<OpenPart>,
    group: usize,
    chunks: Chunks,
    projection: Arc<Projection>,
}

impl FetchedRowGroup {
    fn open(mut self) -> Result<RowGroupStream> {
        let projection = &self.projection.indices;
        for root in projection.iter() {
            if let Some(read) = self.part.read_local(self.group, *root, None) {
                self.chunks.absorb(read?);
            }
        }
        let file = &self.part.file;
        RowGroupStream::open(file, self.group, projection, &self.chunks)
    }
}
