//! Writes finished column chunks to files: row groups in order, hashed while they are written, with a seal at the end.
//!
//! [`OutputFiles`] opens the sinks of a [`ByteSinkFactory`] one after the other. A page is hashed when it leaves memory
//! for the sink. The page indexes and the footer of a file are held back until both are known, because the checksums of
//! pages and the seal, which holds the hashes of both, are written between them.
//!
//! An error of a sink is returned as it is; an error of the parquet writer is of the kind `Other`.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory};
use parquet::column::page_store::{
    InMemoryPageStore, PageKey, PageStore, PageStoreArgs, PageStoreFactory,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::TypePtr;

use super::dictionary::Dictionaries;
use super::page_checksums::{ChunkDigest, IndexBytes, PageChecksums, PageHasher};
use super::seal::{PARQUET_TRAILER_BYTES, PartIdentity, Seal, hash};
use crate::error::{Error, Result};
use crate::sync::mutex::lock;

/// Receives the bytes of one file, in order.
pub trait ByteSink: Send {
    /// Writes bytes; blocks while the store is slower than the encoders.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;
    /// Ends the file after its last byte.
    fn finish(self: Box<Self>, stats: FileStats) -> Result<()>;
}

/// The sizes and the footer of a finished file.
#[derive(Debug, Clone)]
pub struct FileStats {
    /// The number of rows.
    pub rows: u64,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The length of seal and footer in bytes, which a reader needs to open the file.
    pub tail_bytes: u64,
    /// The hash of the seal, which tells the file from others.
    pub checksum: u64,
    /// The decoded footer.
    pub footer: Arc<ParquetMetaData>,
}

/// Opens the files of one write, in order.
pub trait ByteSinkFactory: Send {
    /// Opens the next file.
    fn open(&mut self) -> Result<Box<dyn ByteSink>>;

    /// What else the footer's metadata has of the file that was opened last, all rows of which have been read.
    fn footer_metadata(&mut self) -> Result<Vec<KeyValue>> {
        Ok(Vec::new())
    }
}

/// The hashes of one row group's chunks. A chunk's are set when its page store is dropped.
pub(super) type Digests = Arc<Vec<OnceLock<ChunkDigest>>>;

/// Keeps a chunk's pages in memory and hashes each when it is taken, in the order of the file.
struct HashedPages {
    pages: InMemoryPageStore,
    hasher: PageHasher,
    digests: Digests,
    column: usize,
}

impl PageStore for HashedPages {
    fn put(&mut self, value: Bytes) -> Result<PageKey, ParquetError> {
        self.pages.put(value)
    }

    fn take(&mut self, key: PageKey) -> Result<Bytes, ParquetError> {
        let page = self.pages.take(key)?;
        self.hasher.write(&page);
        Ok(page)
    }

    fn memory_size(&self) -> usize {
        self.pages.memory_size()
    }
}

impl Drop for HashedPages {
    fn drop(&mut self) {
        // The store of a column is dropped once.
        let _ = self.digests[self.column].set(std::mem::take(&mut self.hasher).finish());
    }
}

#[derive(Debug)]
pub(super) struct HashedPagesFactory(pub(super) Digests);

impl PageStoreFactory for HashedPagesFactory {
    fn create(&self, args: &PageStoreArgs<'_>) -> Result<Box<dyn PageStore>, ParquetError> {
        Ok(Box::new(HashedPages {
            pages: InMemoryPageStore::default(),
            hasher: PageHasher::default(),
            digests: Arc::clone(&self.0),
            column: args.column_index(),
        }))
    }
}

/// Gives the chunks of a row group's next column once they are finished; None after the last.
pub(super) type NextChunks<'n> = dyn FnMut() -> Result<Option<Vec<ArrowColumnChunk>>> + 'n;

/// A row group whose rows are all known; some of its columns may still be encoded.
pub(super) struct ClosedRowGroup {
    pub(super) digests: Digests,
    pub(super) dictionaries: Dictionaries,
    pub(super) rows: u64,
    /// Whether the row group is the first of a new file.
    pub(super) opens_file: bool,
}

/// Where the bytes of the parquet writer go: to the sink or, at the end of a file, to `tail`.
#[derive(Default)]
struct Destination {
    sink: Option<Box<dyn ByteSink>>,
    tail: Option<Vec<u8>>,
    sent_bytes: u64,
    failure: Option<Error>,
}

#[derive(Clone, Default)]
struct SharedDestination(Arc<Mutex<Destination>>);

impl SharedDestination {
    fn with_lock<T>(&self, work: impl FnOnce(&mut Destination) -> T) -> T {
        work(&mut lock(&self.0))
    }

    /// The sink's own error, if there is one: the parquet writer only repeats its text.
    fn write_error(&self, error: ParquetError) -> Error {
        self.with_lock(|destination| destination.failure.take())
            .unwrap_or_else(|| {
                Error::other(format!("Parquet encoding failed: {error}")).with_source(error)
            })
    }
}

impl Write for SharedDestination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.with_lock(|destination| {
            if let Some(tail) = &mut destination.tail {
                tail.extend_from_slice(bytes);
                return Ok(bytes.len());
            }
            let result = match &mut destination.sink {
                Some(sink) => sink.write(bytes),
                None => Err(Error::other("internal error: the file is closed")),
            };
            destination.sent_bytes += bytes.len() as u64;
            result.map(|()| bytes.len()).map_err(|e| {
                let io_error = io::Error::other(e.to_string());
                destination.failure.get_or_insert(e);
                io_error
            })
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct OpenFile {
    writer: SerializedFileWriter<SharedDestination>,
    destination: SharedDestination,
    rows: u64,
    /// By row group and leaf column.
    digests: Vec<Vec<ChunkDigest>>,
    dictionaries: Dictionaries,
}

/// The files of one write, of which one is open at a time.
pub(super) struct OutputFiles<'a> {
    files: &'a mut dyn ByteSinkFactory,
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    identity: PartIdentity,
    open: Option<OpenFile>,
    /// The rows of the files that are finished.
    finished_rows: u64,
}

impl<'a> OutputFiles<'a> {
    pub(super) fn new(
        files: &'a mut dyn ByteSinkFactory,
        template: &SerializedFileWriter<io::Sink>,
        identity: PartIdentity,
    ) -> Self {
        Self {
            files,
            schema: template.schema_descr().root_schema_ptr(),
            properties: Arc::clone(template.properties()),
            identity,
            open: None,
            finished_rows: 0,
        }
    }

    /// Appends a row group, column after column. A file is finished when the next one begins: only then it is known not
    /// to be the last. After an error, the files are of no use.
    pub(super) fn append(
        &mut self,
        group: &ClosedRowGroup,
        next_chunks: &mut NextChunks<'_>,
    ) -> Result<()> {
        if group.opens_file && self.open.is_some() {
            self.finish_file(false)?;
        }
        let file = match &mut self.open {
            Some(file) => file,
            none => none.insert(open_file(self.files, &self.schema, &self.properties)?),
        };
        file.append(group, next_chunks)
    }

    /// Finishes the last file; with `keep_empty`, writes a file if there were no rows. Fails if the files have not all
    /// `rows` of the input.
    pub(super) fn finish(&mut self, keep_empty: bool, rows: u64) -> Result<()> {
        let appended = self.finished_rows + self.open.as_ref().map_or(0, |file| file.rows);
        if appended != rows {
            let message =
                format!("internal error: the files have {appended} rows, and the input had {rows}");
            return Err(Error::other(message));
        }
        if self.open.is_none() && keep_empty {
            self.open = Some(open_file(self.files, &self.schema, &self.properties)?);
        }
        if self.open.is_some() {
            self.finish_file(true)
        } else {
            Ok(())
        }
    }

    fn finish_file(&mut self, last: bool) -> Result<()> {
        let Some(mut file) = self.open.take() else {
            return Ok(());
        };
        self.identity.last = last;
        for entry in self.files.footer_metadata()? {
            file.writer.append_key_value_metadata(entry);
        }
        let result = file.seal(&self.identity);
        let stats = result.map_err(|e| file.destination.write_error(e))?;
        self.identity.sequence += 1;
        self.finished_rows += stats.rows;
        match file
            .destination
            .with_lock(|destination| destination.sink.take())
        {
            Some(sink) => sink.finish(stats),
            None => Err(Error::other("internal error: the file is closed")),
        }
    }
}

fn open_file(
    files: &mut dyn ByteSinkFactory,
    schema: &TypePtr,
    properties: &WriterPropertiesPtr,
) -> Result<OpenFile> {
    let destination = SharedDestination::default();
    let sink = files.open()?;
    destination.with_lock(|destination| destination.sink = Some(sink));
    let writer = SerializedFileWriter::new(
        destination.clone(),
        Arc::clone(schema),
        Arc::clone(properties),
    )
    .map_err(|e| Error::invalid(format!("the schema cannot be written: {e}")).with_source(e))?;
    Ok(OpenFile {
        writer,
        destination,
        rows: 0,
        digests: Vec::new(),
        dictionaries: Dictionaries::default(),
    })
}

impl OpenFile {
    fn append(&mut self, group: &ClosedRowGroup, next_chunks: &mut NextChunks<'_>) -> Result<()> {
        let destination = &self.destination;
        let to_error = |e| destination.write_error(e);
        let mut row_group = self.writer.next_row_group().map_err(to_error)?;
        while let Some(chunks) = next_chunks()? {
            for chunk in chunks {
                chunk
                    .append_to_row_group(&mut row_group)
                    .map_err(to_error)?;
            }
        }
        row_group.close().map_err(to_error)?;
        self.rows += group.rows;
        self.dictionaries.merge(&group.dictionaries);
        let digests = group.digests.iter();
        self.digests.push(
            digests
                .map(|d| d.get().cloned().unwrap_or_default())
                .collect(),
        );
        Ok(())
    }

    /// Writes the page indexes, the checksums of the pages, the seal and the footer.
    fn seal(&mut self, identity: &PartIdentity) -> Result<FileStats, ParquetError> {
        self.writer.flush()?;
        let tail_start = self.destination.with_lock(|destination| {
            destination.tail = Some(Vec::new());
            destination.sent_bytes
        });
        let metadata = self.writer.finish()?;
        let footer_rows = metadata.file_metadata().num_rows();
        if u64::try_from(footer_rows) != Ok(self.rows) {
            let rows = self.rows;
            let message =
                format!("internal error: the footer states {footer_rows} rows, not {rows}");
            return Err(ParquetError::General(message));
        }
        let tail = self
            .destination
            .with_lock(|destination| destination.tail.take())
            .unwrap_or_default();
        let trailer_start = tail.len().saturating_sub(PARQUET_TRAILER_BYTES);
        let footer_length = tail[trailer_start..]
            .first_chunk()
            .map_or(0, |b| u32::from_le_bytes(*b) as usize);
        let (indexes, footer) = tail.split_at(trailer_start.saturating_sub(footer_length));
        let index_bytes = IndexBytes {
            start: tail_start,
            bytes: indexes,
        };
        let PageChecksums { checksums, chunks } =
            PageChecksums::new(&self.digests, &metadata, &index_bytes)?;
        let indexes = [indexes, &checksums].concat();
        let chunk_hashes = |digests: &Vec<ChunkDigest>| digests.iter().map(|d| d.hash).collect();
        let seal = Seal {
            identity: identity.clone(),
            chunks: self.digests.iter().map(chunk_hashes).collect(),
            index_hash: hash(&indexes),
            footer_hash: hash(footer),
            dictionaries: self.dictionaries.encode()?,
            pages: chunks,
        };
        let seal_bytes = seal.encode();
        self.destination.write_all(&indexes)?;
        self.destination.write_all(&seal_bytes)?;
        self.destination.write_all(footer)?;
        Ok(FileStats {
            rows: self.rows,
            bytes: self
                .destination
                .with_lock(|destination| destination.sent_bytes),
            tail_bytes: (seal_bytes.len() + footer.len()) as u64,
            checksum: Seal::own_hash(&seal_bytes).unwrap_or_default(),
            footer: Arc::new(metadata),
        })
    }
}

/// A factory of column writers that store the hashes of their chunks in `digests`.
pub(super) fn column_factory(
    template: &SerializedFileWriter<io::Sink>,
    schema: &arrow_schema::SchemaRef,
    digests: &Digests,
) -> ArrowRowGroupWriterFactory {
    ArrowRowGroupWriterFactory::new(template, Arc::clone(schema))
        .with_page_store_factory(Arc::new(HashedPagesFactory(Arc::clone(digests))))
}
