//! Reading the rows of some keys of a run.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use futures::{StreamExt, TryStreamExt, stream};

use super::cache::{forget, open_cached, read_through};
use super::index::{Blocks, KeyIntervals};
use super::keys::CutKeys;
use super::pieces::{Pace, RunEnd, join_small, joins, pack, reverse};
use super::selection::KeySelection;
use super::{KeyColumn, RunFile, SortedRun, sort_columns};
use crate::error::{Error, ErrorKind, Result};
use crate::files::merge::{SortColumn, SortKeys};
use crate::files::{
    BatchSender, BatchStream, OpenPart, RowGroupReader, RowGroupSelection, run_blocking,
};
use crate::parquet::Cancel;
use crate::parquet::arrays::align;
use crate::parquet::page_selection::{GroupPages, RowSelection};
use crate::parquet::row_ranges::RowRanges;
use crate::parquet::types::batch_with_row_count;
use crate::store::Store;

/// The most requests at once.
const CONCURRENT_REQUESTS: usize = 16;
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
    /// The keys to compare, and what with; `None` for all rows.
    filter: Option<(SortKeys, KeyIntervals)>,
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
        let mut counts = vec![0; cut_keys.num_rows()];
        let opened = reading.files()?.into_iter().map(|at| {
            let reading = Arc::clone(&reading);
            async move { reading.open_indexed(at).await }
        });
        // A Vec, because the future of the iterator itself would not be Send.
        let opened: Vec<_> = opened.collect();
        let mut opened = stream::iter(opened).buffered(Pace::Full.ahead()).boxed();
        while let Some((_, blocks)) = opened.try_next().await? {
            for (at, count) in counts.iter_mut().enumerate() {
                let key = cut_keys.row(at);
                let is_other = |other: usize| cut_keys.row(other) != key;
                let is_first = at == 0 || is_other(at - 1);
                if is_first && (at + 1 == cut_keys.num_rows() || is_other(at + 1)) {
                    *count += blocks.count(key.as_ref());
                }
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
        let mut filter = None;
        if key_columns.is_some() {
            let at = (columns.len()..)
                .zip(by)
                .map(|(index, column)| SortColumn { index, ..*column });
            let at: Vec<SortColumn> = at.collect();
            read_columns.extend(by.iter().map(|column| column.index));
            let read_schema = self
                .schema
                .project(&read_columns)
                .map_err(Error::from_cause)?;
            let keys = SortKeys::new(&read_schema, &at)?;
            let intervals = KeyIntervals::exact(selection, &keys)?;
            filter = Some((keys, intervals));
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
            filter,
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
        let files = files.into_iter().map(|at| {
            let reading = Arc::clone(&self);
            async move { reading.plan_file(at).await }
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
        while let Some(read) = batches.try_next().await? {
            for batch in read {
                if sender.send(Ok(batch)).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The files that can hold rows of the selection.
    fn files(&self) -> Result<Vec<usize>> {
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
        let may_hold = |at: &usize| {
            self.cut_intervals
                .overlap(first.row(*at).as_ref(), last.row(*at).as_ref())
        };
        Ok((0..files.len()).filter(may_hold).collect())
    }

    /// A file and the blocks of its key index.
    async fn open_indexed(&self, at: usize) -> Result<(Arc<OpenPart>, Arc<Blocks>)> {
        let (folder, file) = (&self.reader.folder, &self.reader.run.files[at]);
        let opened = open_cached(&self.reader.store, folder, file).await?;
        let blocks = opened.blocks(&self.cut);
        let blocks = blocks.map_err(|e| in_file(&opened.part.path, e))?;
        Ok((opened.part, blocks))
    }

    /// The pieces of a file's row groups to read.
    async fn plan_file(&self, at: usize) -> Result<Vec<RowGroupSelection>> {
        let (part, blocks) = self.open_indexed(at).await?;
        let in_file = |e: Error| in_file(&part.path, e);
        let mut field_indices = self.field_indices(&part).map_err(in_file)?;
        field_indices.sort_unstable();
        field_indices.dedup();
        let field_indices: Arc<[usize]> = field_indices.into();
        let rows = blocks.rows_of(&self.cut_intervals);
        let mut pieces = Vec::new();
        let mut begin = 0;
        for group in 0..part.file.metadata().num_row_groups() {
            let group_rows = usize::try_from(part.file.metadata().row_group(group).num_rows())
                .unwrap_or_default();
            let end = begin + group_rows as u64;
            let in_group = rows.iter().map(|range| {
                let position =
                    |row: u64| usize::try_from(row.clamp(begin, end) - begin).unwrap_or_default();
                position(range.start)..position(range.end)
            });
            let selected = RowRanges::covering(in_group);
            begin = end;
            if !selected.is_empty() {
                pieces.extend(
                    self.plan_group(&part, group, group_rows, &selected, &field_indices)
                        .await?,
                );
            }
        }
        if self.pace.is_backward() {
            pieces.reverse();
        }
        Ok(pieces)
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

    async fn plan_group(
        &self,
        part: &Arc<OpenPart>,
        group: usize,
        group_rows: usize,
        selected: &RowRanges,
        field_indices: &Arc<[usize]>,
    ) -> Result<Vec<RowGroupSelection>> {
        let group_bytes: u64 = field_indices
            .iter()
            .map(|root| part.file.decoded_bytes(group, *root))
            .sum();
        let row_bytes = usize::try_from(group_bytes).unwrap_or(usize::MAX) / group_rows.max(1);
        let piece_rows = self.piece_bytes / row_bytes.max(1);
        let piece = |rows| RowGroupSelection {
            part: Arc::clone(part),
            index: group,
            projection: Arc::clone(field_indices),
            rows,
        };
        if selected.num_rows() == group_rows && self.pace.is_piece(group_rows, piece_rows) {
            return Ok(vec![piece(None)]);
        }
        let pages = Arc::new(self.read_pages(part, group, field_indices).await?);
        let ranges = self.pace.split(selected.as_slice(), piece_rows);
        let memory_bytes: u64 = field_indices
            .iter()
            .map(|root| part.file.memory_bytes_of(group, *root))
            .sum();
        let memory_bytes = usize::try_from(memory_bytes).unwrap_or(usize::MAX) / group_rows.max(1);
        let max_ranges = if self.joins {
            self.pace.max_ranges()
        } else {
            1
        };
        let packed = pack(
            ranges.into_iter(),
            self.piece_bytes / memory_bytes.max(1),
            max_ranges,
        );
        Ok(packed
            .into_iter()
            .map(|ranges| {
                piece(Some(RowSelection {
                    rows: RowRanges::covering(ranges),
                    mask: None,
                    pages: Arc::clone(&pages),
                }))
            })
            .collect())
    }

    /// The pages of the columns that are read.
    async fn read_pages(
        &self,
        part: &OpenPart,
        group: usize,
        field_indices: &[usize],
    ) -> Result<GroupPages> {
        let leaves = field_indices
            .iter()
            .flat_map(|root| part.file.leaves(*root));
        let indexed = leaves.filter_map(|leaf| Some((leaf, part.file.index_ranges(group, leaf)?)));
        let indexed: HashMap<usize, _> = indexed.collect();
        let ranges = indexed.values().flat_map(|ranges| ranges.to_fetch(false));
        let bytes = part
            .read_ranges(&self.reader.store, ranges.collect())
            .await?;
        let mut pages = GroupPages::new();
        for (leaf, ranges) in &indexed {
            let decoded = part.file.decode_pages(group, *leaf, ranges, &bytes);
            let path = &part.path;
            let decoded =
                decoded.map_err(|e| e.context(format!("file {path:?}")).with_path(path))?;
            pages.extend(decoded.map(|chunk_pages| (*leaf, chunk_pages)));
        }
        Ok(pages)
    }

    /// Reads a piece, without the rows that are not selected.
    async fn read_piece(self: Arc<Self>, piece: RowGroupSelection) -> Result<Vec<RecordBatch>> {
        let rows = piece.rows.as_ref().map(|selection| selection.rows.clone());
        let rows = rows.unwrap_or_else(|| {
            let group = piece.part.file.metadata().row_group(piece.index);
            RowRanges::all(usize::try_from(group.num_rows()).unwrap_or_default())
        });
        let field_indices = self.field_indices(&piece.part)?;
        let by_range = if self.filter.is_some() {
            let store = &self.reader.store;
            read_through(store, piece, rows.as_slice(), |piece| {
                self.groups.read(piece)
            })
            .await?
        } else {
            vec![self.groups.read(piece).await?]
        };
        run_blocking(move || {
            let mut selected = Vec::new();
            for (range, arrays) in rows.as_slice().iter().zip(&by_range) {
                let columns = field_indices
                    .iter()
                    .map(|root| arrays.get(root).cloned().unwrap_or_default());
                let columns: Vec<Vec<ArrayRef>> = columns.collect();
                let aligned = if columns.is_empty() {
                    vec![(range.len(), Vec::new())]
                } else {
                    align(&columns, range.len())
                };
                for (rows, arrays) in aligned {
                    selected.push(self.select(arrays, rows)?);
                }
            }
            selected.retain(|batch| batch.num_rows() > 0);
            if self.pace.is_backward() {
                return reverse(selected);
            }
            Ok(if self.joins {
                join_small(selected)
            } else {
                selected
            })
        })
        .await
    }

    fn select(&self, arrays: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let batch = batch_with_row_count(&self.read_schema, arrays, rows)?;
        let Some((keys, intervals)) = &self.filter else {
            return Ok(batch);
        };
        let keys = keys.convert_batch(&batch).map_err(Error::from_cause)?;
        let mask = BooleanArray::from(intervals.select(&keys));
        let columns: Vec<usize> = (0..self.result_columns).collect();
        let result = batch.project(&columns).map_err(Error::from_cause)?;
        if mask.true_count() == mask.len() {
            return Ok(result);
        }
        filter_record_batch(&result, &mask).map_err(Error::from_cause)
    }
}

fn in_file(file_path: &str, e: Error) -> Error {
    let e = e.context(format!("file {file_path:?}"));
    e.with_path(file_path)
}
