//! Bytes uploaded where no reader sees them, made visible later by another call or process.
//!
//! Where a store has multipart uploads, the upload is left uncompleted; local files and other
//! stores get a hidden object that is renamed. Little data stays with the caller ([`StagedWrite::Inline`])
//! and costs one PUT when it is published. A [`StagedWrite`] is plain data: it can be sent to another
//! process or written into a redo log.

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{CopyMode, PutMode};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::Store;
use super::condition::{Condition, is_same_e_tag};
use super::failure::disk_error;
use super::process_id::ProcessId;
use super::upload::{InFlightBudget, Permit};
pub use super::upload::{Uploader, temp_path_in};
use crate::error::{Error, ErrorKind, Result};

/// The size of an upload's pieces but the last: there are stores that want them equal.
pub const UPLOAD_PART_BYTES: usize = 8 << 20;
/// Bytes of one write's uploads that may be on their way at once, at most.
const MAX_IN_FLIGHT_BYTES: usize = 48 << 20;
/// What is at most this long is not staged at all…
const INLINE_BYTES: usize = 128 << 10;
/// …or this, where it travels in messages between processes,…
const SHARED_INLINE_BYTES: usize = 512;
/// as long as the parts of one write together stay below this.
const INLINE_TOTAL_BYTES: usize = 1 << 20;

/// Bytes that wait to be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StagedWrite {
    /// Held here; one PUT publishes them.
    Inline {
        /// The bytes.
        #[serde(with = "base64_bytes")]
        bytes: Bytes,
    },
    /// An uncompleted multipart upload; it can become only the object it was begun for.
    Multipart {
        /// The object it becomes.
        target: String,
        /// The store's name of the upload.
        upload: String,
        /// The store's names of the pieces, in order.
        #[serde(rename = "pieces")]
        upload_parts: Vec<String>,
    },
    /// A hidden object.
    Object {
        /// Where it is.
        path: String,
    },
}

/// Staging of one operation's writes, which share the memory on its way to the store.
#[derive(Debug, Clone)]
pub struct Staging {
    store: Store,
    tag: String,
    budget: Arc<InFlightBudget>,
}

/// Where bytes go before they are published.
#[derive(Debug)]
pub struct StageWriter {
    staging: Staging,
    target: String,
    sink: StageSink,
    buffer: Vec<u8>,
    upload_parts_sent: usize,
}

#[derive(Debug)]
enum StageSink {
    /// A hidden file beside the target, opened past the inline size.
    File(Option<(File, Path)>),
    /// The task that uploads.
    Uploader(mpsc::UnboundedSender<(Bytes, Permit)>),
}

/// How the two ends of a staged write were left.
#[derive(Debug)]
pub enum StageOutcome {
    /// All is staged.
    Done(StagedWrite),
    /// The uploader's result says.
    Uploading,
}

impl Staging {
    /// Staging into `store`. What another process will publish has a `shared_tag` in its names in
    /// the place of the process, so that nobody takes it for abandoned when this one ends.
    pub fn new(store: &Store, shared_tag: Option<String>, memory_limit_bytes: usize) -> Self {
        let in_flight_bytes =
            (memory_limit_bytes / 4).clamp(UPLOAD_PART_BYTES, MAX_IN_FLIGHT_BYTES);
        let budget = InFlightBudget {
            capacity_bytes: in_flight_bytes,
            max_inline_bytes: if shared_tag.is_some() {
                SHARED_INLINE_BYTES
            } else {
                INLINE_BYTES
            },
            free_bytes: Mutex::new(in_flight_bytes),
            freed: Condvar::new(),
            free_inline_bytes: Mutex::new(INLINE_TOTAL_BYTES),
        };
        Self {
            store: store.clone(),
            tag: shared_tag.unwrap_or_else(|| ProcessId::current().tag()),
            budget: Arc::new(budget),
        }
    }

    /// Memory that staging takes while a write is under way.
    pub fn memory_bytes(&self) -> usize {
        match self.store.local() {
            Some(_) => INLINE_TOTAL_BYTES,
            None => self.budget.capacity_bytes + UPLOAD_PART_BYTES + INLINE_TOTAL_BYTES,
        }
    }

    /// Begins to stage what shall become `target`. The uploader is None for local files.
    pub fn begin(&self, target: &str) -> (StageWriter, Option<Uploader>) {
        let (sink, uploader) = if self.store.local().is_some() {
            (StageSink::File(None), None)
        } else {
            let (sender, upload_parts) = mpsc::unbounded_channel();
            let uploader = Uploader {
                store: self.store.clone(),
                tag: self.tag.clone(),
                target: target.to_owned(),
                upload_parts,
            };
            (StageSink::Uploader(sender), Some(uploader))
        };
        let writer = StageWriter {
            staging: self.clone(),
            target: target.to_owned(),
            sink,
            buffer: Vec::new(),
            upload_parts_sent: 0,
        };
        (writer, uploader)
    }
}

impl StageWriter {
    /// Takes bytes; blocks while the store is slower than the caller.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.sink {
            StageSink::File(Some((file, key))) => {
                file.write_all(bytes).map_err(|e| disk_error(key, e))
            }
            StageSink::File(None) => {
                self.buffer.extend_from_slice(bytes);
                if self.buffer.len() > self.staging.budget.max_inline_bytes {
                    self.open_file()
                } else {
                    Ok(())
                }
            }
            StageSink::Uploader(_) => self.write_upload_parts(bytes),
        }
    }

    fn open_file(&mut self) -> Result<()> {
        let store = &self.staging.store;
        let key = store.key(&self.target)?;
        let local = store
            .local()
            .ok_or_else(|| Error::other("not a local store"))?;
        let (mut file, temp) = local
            .create_temp(&key, &self.staging.tag)
            .map_err(|e| store.map_error(e, &self.target))?;
        let result = file.write_all(&std::mem::take(&mut self.buffer));
        self.sink = StageSink::File(Some((file, temp.clone())));
        result.map_err(|e| disk_error(&temp, e))
    }

    fn write_upload_parts(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (head, tail) =
                bytes.split_at(bytes.len().min(UPLOAD_PART_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(head);
            bytes = tail;
            if self.buffer.len() == UPLOAD_PART_BYTES {
                self.send_upload_part()?;
            }
        }
        Ok(())
    }

    fn send_upload_part(&mut self) -> Result<()> {
        if let StageSink::Uploader(sender) = &self.sink {
            let part = std::mem::take(&mut self.buffer);
            let permit = self.staging.budget.acquire(part.len());
            self.upload_parts_sent += 1;
            // The uploader has ended early: its error is the one that counts.
            let to_error = |_| Error::new(ErrorKind::Cancelled, "the upload ended early");
            sender.send((part.into(), permit)).map_err(to_error)?;
        }
        Ok(())
    }

    /// Ends the write.
    pub fn finish(mut self) -> Result<StageOutcome> {
        let nothing_sent =
            self.upload_parts_sent == 0 && !matches!(self.sink, StageSink::File(Some(_)));
        if nothing_sent && self.staging.budget.try_reserve_inline(self.buffer.len()) {
            let bytes = Bytes::from(std::mem::take(&mut self.buffer));
            return Ok(StageOutcome::Done(StagedWrite::Inline { bytes }));
        }
        if matches!(self.sink, StageSink::File(None)) {
            self.open_file()?;
        }
        if !self.buffer.is_empty() {
            self.send_upload_part()?;
        }
        if let (StageSink::File(Some((file, key))), Some(local)) =
            (&self.sink, self.staging.store.local())
        {
            local
                .sync_temp(key, file)
                .map_err(|e| self.staging.store.map_error(e, key.as_ref()))?;
        }
        Ok(match &mut self.sink {
            StageSink::File(temp_file) => {
                let path = temp_file
                    .take()
                    .map(|(_, key)| self.staging.store.strip_prefix(&key));
                StageOutcome::Done(StagedWrite::Object {
                    path: path.unwrap_or_default(),
                })
            }
            StageSink::Uploader(_) => StageOutcome::Uploading,
        })
    }
}

impl Drop for StageWriter {
    fn drop(&mut self) {
        if let StageSink::File(Some((_, key))) = &self.sink {
            self.staging
                .store
                .local()
                .into_iter()
                .for_each(|local| local.remove_temp(key));
        }
    }
}

impl StagedWrite {
    /// Makes the bytes visible as `target`, replacing what was there. What it was begun for is the name of this write
    /// alone.
    pub async fn publish(&self, store: &Store, target: &str) -> Result<()> {
        match self {
            Self::Inline { bytes } => {
                store.put(target, bytes.clone(), PutMode::Overwrite).await?;
                Ok(())
            }
            Self::Object { path } => store.rename(path, target).await,
            Self::Multipart {
                target: upload_target,
                upload,
                upload_parts,
            } => {
                let multipart = store
                    .multipart()
                    .ok_or_else(|| Error::other("the upload is of another kind of store"))?;
                let key = store.key(upload_target)?;
                let part_ids = upload_parts
                    .iter()
                    .map(|id| PartId {
                        content_id: id.clone(),
                    })
                    .collect();
                let completed = multipart.complete_multipart(&key, upload, part_ids).await;
                match completed.map_err(|e| store.map_error(e, upload_target)) {
                    Ok(_) => {}
                    // Sent again after an answer that was lost: the name is that of one write.
                    Err(e)
                        if e.kind() == ErrorKind::NotFound
                            && store.is_file(upload_target).await? => {}
                    Err(e) => return Err(e),
                }
                if upload_target == target {
                    return Ok(());
                }
                let copied = store.copy(upload_target, target, CopyMode::Overwrite).await;
                // Whether or not it was copied: nobody asks for it by the name it was begun for.
                if let Err(e) = store.delete(upload_target).await {
                    log::warn!("{upload_target} could not be removed: {e}");
                }
                copied
            }
        }
    }

    /// As [`StagedWrite::publish`], if what is at `target` meets the condition; gives the new ETag where it is known.
    ///
    /// [`ErrorKind::NotFound`]: what was staged is gone. [`ErrorKind::Conflict`] (or [`ErrorKind::AlreadyExists`]):
    /// the condition does not hold. Without [`super::ConditionSupport::complete`] the condition of a
    /// completion is looked at before it is sent.
    pub async fn publish_if(
        &self,
        store: &Store,
        target: &str,
        condition: &Condition,
    ) -> Result<Option<String>> {
        match self {
            Self::Inline { bytes } => {
                Ok(store.put_if(target, bytes.clone(), condition).await?.e_tag)
            }
            Self::Object { path } => store.move_if(path, target, condition).await,
            Self::Multipart {
                target: upload_target,
                upload,
                upload_parts,
            } if upload_target == target => {
                store
                    .complete_if(target, upload, upload_parts, condition)
                    .await
            }
            Self::Multipart { .. } => {
                Err(Error::other("an upload becomes what it was begun for").with_path(target))
            }
        }
    }

    /// Whether it is still there as it was staged, in `bytes` bytes. False: it is gone, or something else is there.
    pub async fn is_intact(&self, store: &Store, bytes: u64) -> Result<bool> {
        match self {
            Self::Inline {
                bytes: inline_bytes,
            } => Ok(inline_bytes.len() as u64 == bytes),
            Self::Object { path } => match store.head(path).await {
                Ok(meta) => Ok(meta.size == bytes),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
                Err(e) => Err(e),
            },
            Self::Multipart {
                target,
                upload,
                upload_parts,
            } => match store.list_parts(target, upload).await {
                Ok(parts) => {
                    let total_bytes: u64 = parts.iter().map(|part| part.bytes).sum();
                    let pairs = parts.iter().zip(upload_parts);
                    let mut matches =
                        pairs.map(|(part, part_id)| is_same_part(&part.e_tag, part_id));
                    Ok(parts.len() == upload_parts.len()
                        && total_bytes == bytes
                        && matches.all(|is_same| is_same))
                }
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
                Err(e) => Err(e),
            },
        }
    }

    /// Removes what was staged; what is gone already is no error.
    pub async fn discard(&self, store: &Store) -> Result<()> {
        match self {
            Self::Inline { .. } => Ok(()),
            Self::Object { path } => store.delete(path).await.map(drop),
            Self::Multipart { target, upload, .. } => store.abort_upload(target, upload).await,
        }
    }

    /// The paths it occupies, so that cleaning leaves them alone.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Object { path } => Some(path),
            Self::Inline { .. } | Self::Multipart { .. } => None,
        }
    }
}

/// Whether a listed ETag is that of a piece, whose name may hold checksums too.
fn is_same_part(e_tag: &str, part_id: &str) -> bool {
    let e_tag_element = part_id
        .split_once("<ETag>")
        .and_then(|(_, rest)| rest.split_once("</ETag>"));
    let part_e_tag = e_tag_element
        .map_or(part_id, |(tag, _)| tag)
        .replace("&quot;", "\"");
    is_same_e_tag(Some(&part_e_tag), e_tag)
}

/// Removes what was staged and will not be published, without waiting: for what ends by being dropped.
pub fn discard_in_background(store: &Store, staged: Vec<StagedWrite>) {
    let (files, uploads): (Vec<_>, Vec<_>) =
        staged.into_iter().partition(|_| store.local().is_some());
    for file in files {
        if let (Some(local), Some(Ok(key))) =
            (store.local(), file.path().map(|path| store.key(path)))
        {
            local.remove_temp(&key);
        }
    }
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    if uploads
        .iter()
        .all(|staged| matches!(staged, StagedWrite::Inline { .. }))
    {
        return;
    }
    let store = store.clone();
    runtime.spawn(async move {
        for staged in uploads {
            if let Err(e) = staged.discard(&store).await {
                log::warn!("a staged write could not be removed: {e}");
            }
        }
    });
}

mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD
            .decode(text)
            .map(Bytes::from)
            .map_err(D::Error::custom)
    }
}
