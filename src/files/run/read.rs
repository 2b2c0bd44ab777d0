//! Reading the rows of some keys of a run.
//!
//! A `RunReader` streams the selected rows in the order of the run. From coarse to fine, it leaves out files by their
//! first and last key, blocks of rows by the key index (`index`), and then rows by comparing their keys (`search`). In
//! between, `plan` and `pieces` decide which rows are fetched and decoded at once, and `cache` has what the process has
//! read before. Pipelines look up the stored rows of changed keys with it.
//!
//! Files of a run never change. After an error those of the run leave the cache, and the next reader opens them anew.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use futures::{StreamExt, TryStreamExt, stream};

use super::cache::{COLUMN_BYTES, Column, IndexedPart, PieceColumns, forget, open_cached};
use super::index::{Blocks, KeyIntervals};
use super::keys::CutKeys;
use super::pieces::{Pace, RunEnd, RunPiece, gather, joins, reverse};
use super::plan::FilePlan;
use super::search::KeySearch;
use super::selection::KeySelection;
use super::{KeyColumn, RunFile, SortedRun, sort_columns};
use crate::error::{Error, ErrorKind, Result};
use crate::files::merge::SortColumn;
use crate::files::{
    BatchSender, BatchStream, OpenPart, RowGroupReader, RowGroupSelection, run_blocking,
};
use crate::parquet::Cancel;
use crate::parquet::arrays::align;
use crate::parquet::decode::Chunks;
use crate::parquet::types::batch_with_row_count;
use crate::store::Store;

/// The most requests at once.
const CONCURRENT_REQUESTS: usize = 16;
/// The most rows of a piece of a local file whose columns are decoded one after the other: a few pages take not much longer
/// than to start a task for each column.
const MAX_TASK_ROWS: usize = 1 << 13;

/// Reads the rows of a run.
#[derive(Debug, Clone)]
pub struct RunReader {
    store: Store,
    folder: String,
    schema: SchemaRef,
    key: Arc<[KeyColumn]>,
    run: Arc<SortedRun>,
}

/// The rows to read, of which keys, and which columns.
struct Reading {
    reader: RunReader,
    groups: RowGroupReader,
    cut: CutKeys,
    cut_intervals: KeyIntervals,
    /// The keys to select; `None` for all rows.
    search: Option<KeySearch>,
    /// The columns that are read: those of the result, then those of the key.
    read_schema: SchemaRef,
    /// Whether these columns are of types whose rows can be joined.
    joins: bool,
    result_columns: usize,
    piece_bytes: usize,
    pace: Pace,
}

impl RunReader {
    /// A reader of a run with the columns `schema`, whose files are in `folder`.
    pub fn new(
        store: &Store,
        folder: &str,
        schema: &SchemaRef,
        key: &[KeyColumn],
        run: SortedRun,
    ) -> Result<Self> {
        CutKeys::new(schema, key, key.len())?;
        Ok(Self {
            store: store.clone(),
            folder: folder.to_owned(),
            schema: Arc::clone(schema),
            key: key.into(),
            run: Arc::new(run),
        })
    }

    /// Streams the selected rows in the order of the run, with the columns at these positions. About `memory_bytes` of
    /// them are in memory at a time.
    pub fn read(
        &self,
        selection: &KeySelection,
        columns: &[usize],
        memory_bytes: usize,
    ) -> Result<BatchStream> {
        self.read_at(Pace::Full, selection, columns, memory_bytes)
    }

    /// As [`Self::read`], for a reader that may stop after a few rows: few are read before they are asked for. They come
    /// from one end: from the last one, in the reverse order.
    pub(crate) fn read_on_demand(
        &self,
        from: RunEnd,
        selection: &KeySelection,
        columns: &[usize],
        memory_bytes: usize,
    ) -> Result<BatchStream> {
        self.read_at(Pace::OnDemand(from), selection, columns, memory_bytes)
    }

    fn read_at(
        &self,
        pace: Pace,
        selection: &KeySelection,
        columns: &[usize],
        memory_bytes: usize,
    ) -> Result<BatchStream> {
        let reading = Reading {
            pace,
            ..self.plan(selection, columns, memory_bytes)?
        };
        let reading = Arc::new(reading);
        let schema = Arc::new(self.schema.project(columns).map_err(Error::from_cause)?);
        let cancel = Cancel::default();
        Ok(match pace {
            Pace::Full => BatchStream::spawn(schema, &cancel, move |sender| reading.send(sender)),
            Pace::OnDemand(_) => {
                BatchStream::spawn_ahead(schema, &cancel, 1, move |sender| reading.send(sender))
            }
        })
    }

    /// The number of blocks of the key indexes that each of some keys can be in, 0 for those that the indexes do not tell
    /// apart. Keys are in order, and may have the first columns of the run's key only.
    pub(crate) async fn count_blocks(&self, keys: &[ArrayRef]) -> Result<Vec<usize>> {
        let selection = KeySelection::Keys(keys.to_vec());
        let reading = Arc::new(self.plan(&selection, &[], 0)?);
        let cut_keys = reading.cut.cut(keys)?;
        let rows = cut_keys.num_rows();
        let is_alone = |at: &usize| {
            let is_other = |other: usize| cut_keys.row(other) != cut_keys.row(*at);
            (*at == 0 || is_other(*at - 1)) && (*at + 1 == rows || is_other(*at + 1))
        };
        let distinct: Vec<usize> = (0..rows).filter(is_alone).collect();
        let mut counts = vec![0; rows];
        let opened = reading.files()?.into_iter().map(|(at, _)| {
            let reading = Arc::clone(&reading);
            async move { reading.open_indexed(at).await }
        });
        // A Vec, because the future of the iterator itself would not be Send.
        let opened: Vec<_> = opened.collect();
        let mut opened = stream::iter(opened).buffered(Pace::Full.ahead()).boxed();
        while let Some((_, blocks)) = opened.try_next().await? {
            let mut first = 0;
            for at in &distinct {
                counts[*at] += blocks.count(cut_keys.row(*at).data(), &mut first);
            }
        }
        Ok(counts)
    }

    fn plan(
        &self,
        selection: &KeySelection,
        columns: &[usize],
        memory_bytes: usize,
    ) -> Result<Reading> {
        let key_columns = selection.columns()?;
        if let Some(count) = key_columns.filter(|count| *count == 0 || *count > self.key.len()) {
            let message = format!("the run's key has {} columns, not {count}", self.key.len());
            return Err(Error::invalid(message));
        }
        let by: Vec<SortColumn> = sort_columns(&self.schema, &self.key)?;
        let by = &by[..key_columns.unwrap_or(self.key.len())];
        selection.check_types(&self.schema, by)?;
        let cut = CutKeys::new(&self.schema, &self.key, by.len())?;
        let cut_intervals = KeyIntervals::cut(selection, &cut)?;
        let mut read_columns = columns.to_vec();
        let mut search = None;
        if key_columns.is_some() {
            read_columns.extend(by.iter().map(|column| column.index));
            search = Some(KeySearch::new(selection, &self.schema, by)?);
        }
        let read_schema = Arc::new(
            self.schema
                .project(&read_columns)
                .map_err(Error::from_cause)?,
        );
        Ok(Reading {
            reader: self.clone(),
            groups: RowGroupReader::new(self.store.clone(), CONCURRENT_REQUESTS),
            cut,
            cut_intervals,
            search,
            joins: joins(&read_schema),
            read_schema,
            result_columns: columns.len(),
            piece_bytes: memory_bytes / Pace::Full.ahead(),
            pace: Pace::Full,
        })
    }
}

impl Reading {
    /// Reads the selection and sends it. After an error the files are opened anew by the next reader.
    async fn send(self: Arc<Self>, sender: BatchSender) -> Result<()> {
        let sent = Arc::clone(&self).send_all(sender).await;
        if sent.is_err() {
            let RunReader {
                store, folder, run, ..
            } = &self.reader;
            forget(store, folder, &run.files);
        }
        sent
    }

    async fn send_all(self: Arc<Self>, sender: BatchSender) -> Result<()> {
        let mut files = self.files()?;
        if self.pace.is_backward() {
            files.reverse();
        }
        let keys: usize = files.iter().map(|(_, keys)| keys).sum();
        let files = files.into_iter().map(|(at, of_file)| {
            let reading = Arc::clone(&self);
            // So much that those of all files together fit.
            let cache_bytes = COLUMN_BYTES / keys * of_file;
            async move { reading.plan_file(at, cache_bytes).await }
        });
        // A Vec, because the future of the iterator itself would not be Send.
        let files: Vec<_> = files.collect();
        let mut batches = stream::iter(files)
            .buffered(self.pace.ahead())
            .map_ok(|pieces| stream::iter(pieces.into_iter().map(Ok)))
            .try_flatten()
            .map_ok(|piece| Arc::clone(&self).read_piece(piece))
            .try_buffered(self.pace.ahead())
            .boxed();
        let mut rows = 0;
        while let Some(read) = batches.try_next().await? {
            for batch in read {
                rows += batch.num_rows() as u64;
                if sender.send(Ok(batch)).await.is_err() {
                    return Ok(());
                }
            }
        }
        self.check_rows(rows)
    }

    /// Fails if all rows of the run are read, and these are not as many.
    fn check_rows(&self, rows: u64) -> Result<()> {
        let expected = self.reader.run.rows();
        if self.search.is_some() || rows == expected {
            return Ok(());
        }
        let message = format!("a run has {rows} rows, and the version that lists it {expected}");
        Err(Error::new(ErrorKind::PartCorrupted, message).with_path(&self.reader.folder))
    }

    /// The files that can hold rows of the selection, and of each how many of its keys or ranges it can hold.
    fn files(&self) -> Result<Vec<(usize, usize)>> {
        let files = &self.reader.run.files;
        let keys = |of: fn(&RunFile) -> &Vec<serde_json::Value>| {
            self.cut.parse(
                &files
                    .iter()
                    .map(|file| of(file).clone())
                    .collect::<Vec<_>>(),
            )
        };
        let (first, last) = (keys(|file| &file.first)?, keys(|file| &file.last)?);
        let counts = (0..files.len()).map(|at| {
            let (low, high) = (first.row(at), last.row(at));
            (
                at,
                self.cut_intervals.count_between(low.data(), high.data()),
            )
        });
        Ok(counts.filter(|(_, keys)| *keys > 0).collect())
    }

    /// A file and the blocks of its key index.
    async fn open_indexed(&self, at: usize) -> Result<(IndexedPart, Arc<Blocks>)> {
        let (folder, file) = (&self.reader.folder, &self.reader.run.files[at]);
        let opened = open_cached(&self.reader.store, folder, file).await?;
        let blocks = opened.blocks(&self.cut);
        let blocks = blocks.map_err(|e| in_file(&opened.part.path, e))?;
        Ok((opened, blocks))
    }

    /// The pieces of a file to read, of which so many bytes of columns may be kept.
    async fn plan_file(&self, at: usize, cache_bytes: usize) -> Result<Vec<RunPiece>> {
        let (file, blocks) = self.open_indexed(at).await?;
        let field_indices = self.field_indices(&file.part);
        let mut field_indices = field_indices.map_err(|e| in_file(&file.path, e))?;
        field_indices.sort_unstable();
        field_indices.dedup();
        let plan = FilePlan {
            store: self.reader.store.clone(),
            file,
            field_indices: field_indices.into(),
            block_rows: blocks.block_rows(),
            pace: self.pace,
            joins: self.joins,
            piece_bytes: self.piece_bytes,
            cache_bytes,
        };
        plan.pieces(&blocks.rows_of(&self.cut_intervals)).await
    }

    /// For each column that is read its field in the file.
    fn field_indices(&self, part: &OpenPart) -> Result<Vec<usize>> {
        let stored = part.file.stored_schema();
        let fields = self.read_schema.fields().iter().map(|field| {
            stored.index_of(field.name()).map_err(|e| {
                let message = format!("the file has no column {:?}", field.name());
                Error::new(ErrorKind::PartCorrupted, message).with_source(e)
            })
        });
        fields.collect()
    }

    /// Reads a piece, without the rows that are not selected.
    async fn read_piece(self: Arc<Self>, piece: RunPiece) -> Result<Vec<RecordBatch>> {
        let field_indices = self.field_indices(&piece.selection.part)?;
        let positions = positions(&piece.selection.projection, &field_indices);
        let rows = piece.num_rows();
        if self.search.is_none() {
            let projection = Arc::clone(&piece.selection.projection);
            let mut read = self.groups.read(piece.selection).await?;
            let columns = projection
                .iter()
                .map(|root| read.remove(root).unwrap_or_default())
                .collect();
            return run_blocking(move || self.select(vec![(rows, columns)], &positions)).await;
        }
        let columns = PieceColumns::new(&self.reader.store, piece);
        let is_small = self.reader.store.local().is_some() && rows <= MAX_TASK_ROWS;
        let fetched = match columns.missing() {
            Some(missing) if !is_small => Some(self.groups.read(missing.clone()).await?),
            _ => None,
        };
        run_blocking(move || {
            let fresh = match (fetched, columns.missing()) {
                (Some(fetched), _) => fetched,
                (None, Some(missing)) => decode(missing)?,
                (None, None) => HashMap::new(),
            };
            self.select(columns.complete(fresh)?, &positions)
        })
        .await
    }

    /// The selected rows of decoded columns; each column that is read has its position among these.
    fn select(
        &self,
        decoded: Vec<(usize, Vec<Column>)>,
        positions: &[usize],
    ) -> Result<Vec<RecordBatch>> {
        let mut selected = Vec::new();
        for (rows, columns) in decoded {
            let read: Vec<Column> = positions.iter().map(|at| columns[*at].clone()).collect();
            let aligned = if read.is_empty() {
                vec![(rows, Vec::new())]
            } else {
                align(&read, rows)
            };
            for (rows, arrays) in aligned {
                let batch = batch_with_row_count(&self.read_schema, arrays, rows)?;
                selected.extend(self.select_rows(batch)?);
            }
        }
        let batches = gather(selected, self.joins)?;
        if self.pace.is_backward() {
            return reverse(batches);
        }
        Ok(batches)
    }

    /// The columns of the result and which rows of them are selected, if any is.
    fn select_rows(&self, batch: RecordBatch) -> Result<Option<(RecordBatch, Vec<Range<usize>>)>> {
        let rows = batch.num_rows();
        let Some(search) = &self.search else {
            let all = std::iter::once(0..rows).collect();
            return Ok((rows > 0).then_some((batch, all)));
        };
        let ranges = search.rows_in(&batch.columns()[self.result_columns..], rows)?;
        if ranges.is_empty() {
            return Ok(None);
        }
        let columns: Vec<usize> = (0..self.result_columns).collect();
        let result = batch.project(&columns).map_err(Error::from_cause)?;
        Ok(Some((result, ranges)))
    }
}

/// Decodes the columns of some rows of a local file.
fn decode(rows: &RowGroupSelection) -> Result<HashMap<usize, Column>> {
    let (part, chunks) = (&rows.part, Chunks::new());
    let columns = rows.projection.iter().map(|root| {
        let arrays = part.decode(rows.index, *root, &chunks, rows.rows.as_ref())?;
        Ok((*root, arrays))
    });
    columns.collect()
}

/// The position of each field among those of a projection, which has them all in ascending order.
fn positions(projection: &[usize], field_indices: &[usize]) -> Vec<usize> {
    let position = |root: &usize| projection.partition_point(|other| other < root);
    field_indices.iter().map(position).collect()
}

fn in_file(file_path: &str, e: Error) -> Error {
    let e = e.context(format!("file {file_path:?}"));
    e.with_path(file_path)
}
