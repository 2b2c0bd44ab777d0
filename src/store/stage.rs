//! Staged writes: bytes uploaded where no reader sees them, and published later by another call or process.
//!
//! [`Staging`] begins the writes of one operation. A [`StageWriter`] takes the bytes of one write, its [`Uploader`]
//! sends them. In a store with multipart uploads the upload is left uncompleted ([`StagedWrite::Multipart`]); local files and
//! other stores get a hidden object that is renamed ([`StagedWrite::Object`]). Little data stays with the caller
//! ([`StagedWrite::Inline`]) and costs one PUT when it is published. A [`StagedWrite`] is plain data: it can be sent to
//! another process or written into a redo log.

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use object_store::path::Path;
use tokio::sync::mpsc;

use super::Store;
use super::failure::disk_error;
use super::process_id::ProcessId;
use super::staged_write::StagedWrite;
pub use super::upload::Uploader;
use super::upload::{InFlightBudget, Permit};
use crate::error::{Error, ErrorKind, Result};

/// The size of all upload parts but the last; some stores require equal ones.
pub const UPLOAD_PART_BYTES: usize = 8 << 20;
/// The most bytes of one operation's uploads that are in flight at once.
const MAX_IN_FLIGHT_BYTES: usize = 48 << 20;
/// The longest write that stays inline.
const INLINE_BYTES: usize = 128 << 10;
/// The longest inline write that travels in messages between processes.
const SHARED_INLINE_BYTES: usize = 512;
/// The most bytes that all inline writes of one operation have together.
const INLINE_TOTAL_BYTES: usize = 1 << 20;

/// Stages the writes of one operation, which share a budget of memory in flight.
#[derive(Debug, Clone)]
pub struct Staging {
    store: Store,
    tag: String,
    budget: Arc<InFlightBudget>,
}

/// Takes the bytes of one staged write. Dropping it unfinished removes its hidden local file.
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
    /// A hidden file beside the target, opened when the write is too long to stay inline.
    File(Option<(File, Path)>),
    /// The channel to the [`Uploader`].
    Uploader(mpsc::UnboundedSender<(Bytes, Permit)>),
}

/// How [`StageWriter::finish`] left a write.
#[derive(Debug)]
pub enum StageOutcome {
    /// The write is staged.
    Done(StagedWrite),
    /// The result of [`Uploader::run`] has the staged write.
    Uploading,
}

impl Staging {
    /// Creates the staging of one operation in `store`; up to a quarter of the memory limit is in flight.
    ///
    /// If another process will publish the writes, `shared_tag` takes the place of this process's tag in the names of
    /// hidden files, so that they do not count as abandoned when this process ends.
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

    /// The bytes of memory that staging takes while a write is in progress.
    pub fn memory_bytes(&self) -> usize {
        match self.store.local() {
            Some(_) => INLINE_TOTAL_BYTES,
            None => self.budget.capacity_bytes + UPLOAD_PART_BYTES + INLINE_TOTAL_BYTES,
        }
    }

    /// Begins a write that will become `target`. The uploader is None for local files.
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
    /// Appends bytes; blocks while the store is slower than the caller. [`ErrorKind::Cancelled`] if the uploader has
    /// ended: its own error says why.
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
            .ok_or_else(|| Error::other("internal error: not a local store"))?;
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
            // The next one does not grow step by step: each step would copy its bytes.
            self.buffer = Vec::with_capacity(UPLOAD_PART_BYTES);
            // The uploader has ended: its own error is the one to report.
            let to_error = |_| {
                Error::new(
                    ErrorKind::Cancelled,
                    "the upload ended before all bytes were sent",
                )
            };
            sender.send((part.into(), permit)).map_err(to_error)?;
        }
        Ok(())
    }

    /// Ends the write. The content of a hidden local file is on the disk then, unless durability is switched off; its
    /// name is with that of what names it, or with its own new one.
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
                .sync_file(key, file)
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
