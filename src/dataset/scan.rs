//! A dataset as a stream of batches, in bounded memory.
//!
//! Row groups are fetched a little ahead and decoded in order, each in slices, so that neither a
//! large row group nor a long dataset is ever held whole. The snapshot is the one that was there at
//! the beginning: if it is replaced meanwhile, the stream ends with an error instead of a mixture.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tokio::sync::mpsc;

use super::open::{all_sealed, open_part, open_parts};
use super::read::{Seen, settle, unchanged};
use super::{Manifest, check_key, incomplete};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::Cancel;
use crate::parquet::decode::stream_group;
use crate::part::{OpenPart, Scan, blocking};
use crate::store::Store;

/// Streams the dataset.
pub async fn scan(store: &Store, key: &str, columns: Option<&[String]>) -> Result<Scan> {
    check_key(key)?;
    for _ in 0..10 {
        let seen = settle(store, key).await?;
        match open_parts(store, key, &seen.manifest).await {
            Ok(parts) => return start(store, key, seen, parts, columns),
            Err(error) if unchanged(store, key, &seen).await? => return Err(error),
            Err(_) => {}
        }
    }
    Err(incomplete(key, "it is replaced faster than it can be read"))
}

/// Streams one part of the dataset that `manifest` describes, and no other.
pub async fn scan_part(
    store: &Store,
    key: &str,
    manifest: &Manifest,
    index: usize,
    columns: Option<&[String]>,
) -> Result<Scan> {
    check_key(key)?;
    let replaced = || incomplete(key, "it was replaced since its manifest was read");
    let seen = settle(store, key).await?;
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
    if part
        .file
        .seal
        .as_ref()
        .is_some_and(|s| s.identity.created_at != manifest.created_at_utc)
    {
        return Err(replaced());
    }
    start(store, key, seen, vec![part], columns)
}

fn start(
    store: &Store,
    key: &str,
    seen: Seen,
    parts: Vec<OpenPart>,
    columns: Option<&[String]>,
) -> Result<Scan> {
    let Some(first) = parts.first() else {
        return Err(incomplete(key, "its manifest lists no parts"));
    };
    let roots = first.file.project(columns)?;
    let schema = first
        .file
        .schema
        .project(&roots)
        .map_err(|e| Error::other(e.to_string()).caused_by(e))?;
    let schema = Arc::new(schema);
    let cancel = Cancel::default();
    let job = Job {
        store: store.clone(),
        key: key.to_owned(),
        seen,
        parts,
        roots,
        schema: Arc::clone(&schema),
        cancel: cancel.clone(),
    };
    Ok(Scan::start(schema, &cancel, |sender| async move {
        job.run(&sender).await
    }))
}

struct Job {
    store: Store,
    key: String,
    seen: Seen,
    parts: Vec<OpenPart>,
    roots: Vec<usize>,
    schema: SchemaRef,
    cancel: Cancel,
}

impl Job {
    async fn run(&self, sender: &mpsc::Sender<Result<RecordBatch>>) -> Result<()> {
        let units: Vec<(&OpenPart, usize)> = self
            .parts
            .iter()
            .flat_map(|part| {
                (0..part.file.metadata().num_row_groups()).map(move |group| (part, group))
            })
            .collect();
        let mut ahead = match units.first() {
            Some((part, group)) => Some(self.fetch(part, *group).await?),
            None => None,
        };
        for (i, (part, group)) in units.iter().enumerate() {
            let Some(chunks) = ahead.take() else { break };
            let decode = self.decode(part, *group, chunks, sender.clone());
            let next = async {
                match units.get(i + 1) {
                    Some((part, group)) => self.fetch(part, *group).await.map(Some),
                    None => Ok(None),
                }
            };
            let (decoded, fetched) = futures::join!(decode, next);
            decoded?;
            ahead = fetched?;
        }
        if all_sealed(&self.parts) || unchanged(&self.store, &self.key, &self.seen).await? {
            return Ok(());
        }
        Err(incomplete(
            &self.key,
            "it was replaced while it was read; scan it again",
        ))
    }

    async fn fetch(&self, part: &OpenPart, group: usize) -> Result<crate::parquet::decode::Chunks> {
        let fetched = part.fetch(&self.store, group, &self.roots).await;
        fetched.map_err(|e| match e.kind() {
            ErrorKind::NotFound | ErrorKind::Conflict => incomplete(
                &self.key,
                "it was replaced while it was read; scan it again",
            )
            .caused_by(e),
            _ => e,
        })
    }

    async fn decode(
        &self,
        part: &OpenPart,
        group: usize,
        mut chunks: crate::parquet::decode::Chunks,
        sender: mpsc::Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        let (part, roots, schema, cancel) = (
            part.clone(),
            self.roots.clone(),
            Arc::clone(&self.schema),
            self.cancel.clone(),
        );
        blocking(move || {
            for root in &roots {
                if let Some(read) = part.read_local(group, *root) {
                    chunks.absorb(read?);
                }
            }
            let named = |e: Error| e.context(format!("part {:?}", part.path)).at(&part.path);
            stream_group(&part.file, group, &roots, &chunks, &schema, &mut |batch| {
                cancel.check()?;
                let gone = |_| Error::new(ErrorKind::Cancelled, "the reader has gone");
                sender.blocking_send(Ok(batch)).map_err(gone)
            })
            .map_err(named)
        })
        .await
    }
}
