//! Reading row groups into memory: columns are decoded by all processors, each as its bytes arrive.
//!
//! [`read_groups`] reads many row groups at once, a [`RowGroupReader`] one at a time. Both limit how many columns are
//! fetched and decoded at once. The first error ends the read.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::ArrayRef;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::fetch::{CONCURRENT_FETCHES, ColumnFetch};
use super::open::{OpenPart, PartSource};
use super::run_blocking;
use crate::error::{Error, Result};
use crate::parquet::arrays::align;
use crate::parquet::default_threads;
use crate::parquet::page_selection::RowSelection;
use crate::store::Store;

/// Number of [`ColumnFetch`]es that are fetched, decoded or waited for at once.
const FETCHES_AHEAD: usize = 16;

/// A row group and what to read of it.
#[derive(Debug, Clone)]
pub(crate) struct RowGroupSelection {
    pub(crate) part: Arc<OpenPart>,
    pub(crate) index: usize,
    /// The columns to read, in the order of the result.
    pub(crate) projection: Arc<[usize]>,
    /// The rows to read; None for all.
    pub(crate) rows: Option<RowSelection>,
}

/// Batches of a row group: the number of rows and the columns. There are several only where a column is several arrays.
pub(crate) type AlignedColumns = Vec<(usize, Vec<ArrayRef>)>;

type DecodedColumns = Vec<(usize, Vec<ArrayRef>)>;

/// Reads row groups; clones share the permits to fetch and to decode.
#[derive(Debug, Clone)]
pub(crate) struct RowGroupReader {
    store: Store,
    fetch_permits: Arc<Semaphore>,
    decode_permits: Arc<Semaphore>,
}

impl RowGroupReader {
    /// A reader that sends at most so many requests at once.
    pub(crate) fn new(store: Store, concurrent_fetches: usize) -> Self {
        Self {
            store,
            fetch_permits: Arc::new(Semaphore::new(concurrent_fetches)),
            decode_permits: Arc::new(Semaphore::new(default_threads())),
        }
    }

    /// Reads a row group: the arrays of each column, in the order of its rows, by the index of the field.
    pub(crate) async fn read(
        &self,
        group: RowGroupSelection,
    ) -> Result<HashMap<usize, Vec<ArrayRef>>> {
        let fetches = group
            .part
            .plan_fetches(group.index, &group.projection, group.rows.as_ref());
        let reads = fetches
            .into_iter()
            .map(|column_fetch| self.clone().read_columns(group.clone(), column_fetch));
        let columns = futures::future::try_join_all(reads).await?;
        Ok(columns.into_iter().flatten().collect())
    }

    /// Fetches some columns and decodes them.
    async fn read_columns(
        self,
        group: RowGroupSelection,
        column_fetch: ColumnFetch,
    ) -> Result<DecodedColumns> {
        let RowGroupSelection {
            part, index, rows, ..
        } = group;
        let fetched = {
            let _permit = self.fetch_permits.acquire().await;
            part.fetch_columns(&self.store, &column_fetch).await?
        };
        let columns = column_fetch.projection.iter().map(|&root| {
            let (part, fetched, rows) = (Arc::clone(&part), fetched.clone(), rows.clone());
            let decode_permits = Arc::clone(&self.decode_permits);
            async move {
                let _permit = decode_permits.acquire_owned().await;
                let arrays =
                    run_blocking(move || part.decode(index, root, &fetched, rows.as_ref())).await?;
                Ok((root, arrays))
            }
        });
        futures::future::try_join_all(columns).await
    }
}

/// Reads row groups, all at once. The largest columns of local files come first, so that the processors
/// end together; those of objects are decoded as they arrive, in the order of the file.
pub(crate) async fn read_groups(
    store: Store,
    groups: &[RowGroupSelection],
) -> Result<Vec<AlignedColumns>> {
    let reader = RowGroupReader::new(store, CONCURRENT_FETCHES);
    let mut fetches = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let rows = group.rows.as_ref();
        for column_fetch in group
            .part
            .plan_fetches(group.index, &group.projection, rows)
        {
            fetches.push((number, column_fetch));
        }
    }
    let is_local = |number: usize| matches!(groups[number].part.source, PartSource::Local(_));
    fetches.sort_by_key(|(number, column_fetch)| {
        let decoded_bytes = |root| {
            groups[*number]
                .part
                .file
                .decoded_bytes(groups[*number].index, root)
        };
        let total_bytes: u64 = column_fetch
            .projection
            .iter()
            .map(|root| decoded_bytes(*root))
            .sum();
        std::cmp::Reverse(if is_local(*number) { total_bytes } else { 0 })
    });
    let reads = fetches.into_iter().map(|(number, column_fetch)| {
        let read = reader
            .clone()
            .read_columns(groups[number].clone(), column_fetch);
        async move { Ok::<_, Error>((number, read.await?)) }
    });
    let mut read = stream::iter(reads).buffer_unordered(FETCHES_AHEAD);
    let mut columns_by_group: Vec<HashMap<usize, Vec<ArrayRef>>> =
        vec![HashMap::new(); groups.len()];
    while let Some((number, columns)) = read.try_next().await? {
        columns_by_group[number].extend(columns);
    }
    Ok(groups
        .iter()
        .zip(columns_by_group)
        .map(|(g, f)| align_columns(g, f))
        .collect())
}

fn align_columns(
    group: &RowGroupSelection,
    mut arrays_by_field: HashMap<usize, Vec<ArrayRef>>,
) -> AlignedColumns {
    let num_rows = group.part.file.metadata().row_group(group.index).num_rows();
    let rows = usize::try_from(num_rows).unwrap_or(usize::MAX);
    let arrays = group
        .projection
        .iter()
        .filter_map(|root| arrays_by_field.remove(root));
    let columns: Vec<_> = arrays.collect();
    if columns.is_empty() {
        return vec![(rows, Vec::new())];
    }
    align(&columns, rows)
}
