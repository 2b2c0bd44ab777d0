//! Selecting rows of a row group, and reading the selected ones.
//!
//! First the pages are pruned, then the columns of the filter and of the key are read for the rows that are left. The
//! other columns are read only for the rows that match.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use arrow_schema::SchemaRef;

use super::file_scanner::{FileScanner, FileSource};
use super::row_group::{ColumnArrays, RowFilter, RowGroupScan, SelectedRows, build_batches};
use crate::error::Result;
use crate::files::{FileShare, run_blocking};
use crate::parquet::arrays::filter_arrays;
use crate::parquet::page_selection::RowSelection;
use crate::parquet::row_ranges::RowRanges;

impl<S: FileSource> FileScanner<S> {
    /// The share of a file that is read, if that is not all of it.
    pub(crate) fn share_of(&self, file: usize) -> Option<FileShare> {
        self.source.share_of(&self.data_file(file).path)
    }

    /// Those of some row groups of a file that are in the share of it that is read.
    pub(crate) fn take_share(
        &self,
        file: usize,
        mut row_groups: Vec<RowGroupScan>,
    ) -> Vec<RowGroupScan> {
        if let (Some(share), Some(first)) = (self.share_of(file), row_groups.first()) {
            let groups = share.row_groups(&first.part.file);
            row_groups.retain(|row_group| groups.contains(&row_group.group));
        }
        row_groups
    }

    /// For each row of a row group whether it is not deleted, for a reader without a filter.
    pub(crate) async fn live_row_mask(&self, row_group: &RowGroupScan) -> Result<BooleanArray> {
        if row_group.is_deleted() {
            return Ok(vec![false; row_group.num_rows()].into());
        }
        let mask = self.select(row_group).await?.mask;
        Ok(mask.unwrap_or_else(|| vec![true; row_group.num_rows()].into()))
    }

    /// Reads some columns, which `schema` has, of the rows of `mask`.
    pub(crate) async fn read_selected(
        &self,
        row_group: &RowGroupScan,
        mask: BooleanArray,
        projection: Arc<[usize]>,
        schema: &SchemaRef,
    ) -> Result<Vec<RecordBatch>> {
        let matched = mask.values().set_slices().map(|(start, end)| start..end);
        let rows = RowRanges::covering(matched);
        let mut selection = self.select_pages(row_group, &projection, rows).await?;
        let positions = RowRanges::all(row_group.num_rows()).positions_of(&selection.rows);
        selection.mask = Some(select_bits(mask.values(), &positions));
        let columns = self
            .read_columns(row_group, &projection, &selection)
            .await?;
        build_batches(&columns, &projection, selection.num_rows(), schema)
    }

    /// Selects the rows of a row group that are not deleted and match the filter. The mask has all of its rows.
    pub(crate) async fn select(&self, row_group: &RowGroupScan) -> Result<SelectedRows> {
        let all_rows = RowRanges::all(row_group.num_rows());
        // The keys of all rows are needed to count those that are not deleted.
        let candidates = if row_group.has_key_deletes() {
            RowSelection {
                rows: all_rows.clone(),
                mask: None,
                pages: Arc::default(),
            }
        } else {
            self.prune_pages(row_group).await?
        };
        let selection = self.select_among(row_group, &candidates).await?;
        if candidates.rows == all_rows {
            return Ok(selection);
        }
        let candidate_rows = candidates.rows.as_slice();
        let candidate_mask = selection
            .mask
            .unwrap_or_else(|| vec![true; candidates.rows.num_rows()].into());
        let mut mask = BooleanBufferBuilder::new(row_group.num_rows());
        let mut begin = 0;
        for range in candidate_rows {
            mask.append_n(range.start - mask.len(), false);
            mask.append_buffer(candidate_mask.slice(begin, range.len()).values());
            begin += range.len();
        }
        mask.append_n(row_group.num_rows() - mask.len(), false);
        Ok(SelectedRows {
            mask: Some(BooleanArray::new(mask.finish(), None)),
            live_rows: row_group.num_rows() - row_group.num_deleted_rows(),
            columns: ColumnArrays::new(),
        })
    }

    /// Selects those of some rows that are not deleted and match the filter.
    async fn select_among(
        &self,
        row_group: &RowGroupScan,
        candidates: &RowSelection,
    ) -> Result<SelectedRows> {
        let by_key = row_group.has_key_deletes();
        let key = if by_key {
            Some(self.key_position()?)
        } else {
            None
        };
        let filter = self.filter();
        let mut needed = filter.map_or_else(Vec::new, |f| f.columns().to_vec());
        if let Some(key) = key.filter(|key| !needed.contains(key)) {
            needed.push(key);
        }
        let columns = self.read_columns(row_group, &needed, candidates).await?;
        let row_filter = RowFilter {
            row_group: row_group.clone(),
            rows: candidates.rows.clone(),
            key,
            filter: filter.cloned(),
        };
        run_blocking(move || row_filter.select(columns)).await
    }

    /// Reads the selected rows of a row group, as `schema`: that of the columns in `projection`. Of more than
    /// `row_limit` rows only the first are read.
    pub(crate) async fn read(
        &self,
        row_group: &RowGroupScan,
        projection: &[usize],
        schema: &SchemaRef,
    ) -> Result<Vec<RecordBatch>> {
        let candidates = self.prune_pages(row_group).await?;
        if candidates.rows.is_empty() && row_group.num_rows() > 0 {
            return Ok(Vec::new());
        }
        let SelectedRows { mask, columns, .. } = self.select_among(row_group, &candidates).await?;
        let bits = mask.map(|mask| mask.values().clone());
        let incomplete = bits.filter(|bits| bits.count_set_bits() < bits.len());
        let mask = limit_mask(incomplete, candidates.rows.num_rows(), self.row_limit);
        let mut rows = candidates.rows.clone();
        if let Some(mask) = &mask {
            let matched = mask.set_slices().map(|(start, end)| start..end);
            rows = rows.at_positions(matched);
            if rows.is_empty() {
                return Ok(Vec::new());
            }
        }
        let unread = projection
            .iter()
            .filter(|c| !columns.contains_key(c))
            .copied();
        let missing: Vec<usize> = unread.collect();
        let mut selection = self.select_pages(row_group, &missing, rows).await?;
        let positions = candidates.rows.positions_of(&selection.rows);
        selection.mask = mask.as_ref().map(|mask| select_bits(mask, &positions));
        let mut column_arrays = self.read_columns(row_group, &missing, &selection).await?;
        let (projection, schema) = (projection.to_vec(), Arc::clone(schema));
        run_blocking(move || {
            let filter_columns = columns.into_iter();
            for (column, arrays) in filter_columns.filter(|(c, _)| projection.contains(c)) {
                column_arrays.insert(column, filter_arrays(arrays, mask.as_ref())?);
            }
            build_batches(&column_arrays, &projection, selection.num_rows(), &schema)
        })
        .await
    }
}

/// Of the rows that `mask` selects the first `limit`; `None` selects all of `rows` rows.
fn limit_mask(mask: Option<BooleanBuffer>, rows: usize, limit: usize) -> Option<BooleanBuffer> {
    let selected = mask.as_ref().map_or(rows, BooleanBuffer::count_set_bits);
    if selected <= limit {
        return mask;
    }
    let mut limited = BooleanBufferBuilder::new(rows);
    if let Some(mask) = mask {
        let end = mask.set_indices().nth(limit).unwrap_or(rows);
        limited.append_buffer(&mask.slice(0, end));
    } else {
        limited.append_n(limit, true);
    }
    limited.append_n(rows - limited.len(), false);
    Some(limited.finish())
}

/// The bits at some positions.
fn select_bits(bits: &BooleanBuffer, positions: &[Range<usize>]) -> BooleanBuffer {
    let mut selected = BooleanBufferBuilder::new(bits.len());
    for range in positions {
        selected.append_buffer(&bits.slice(range.start, range.len()));
    }
    selected.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_keeps_the_first_selected_rows() {
        for rows in [0, 1, 7, 64, 65, 130] {
            for step in 1..4 {
                let bits: Vec<bool> = (0..rows)
                    .map(|row: usize| row.is_multiple_of(step))
                    .collect();
                let selected: Vec<usize> = (0..rows).step_by(step).collect();
                for limit in (0..=rows + 1).chain([usize::MAX]) {
                    let mask = (step > 1).then(|| BooleanBuffer::from(bits.as_slice()));
                    let limited = limit_mask(mask, rows, limit);
                    let all_rows = BooleanBuffer::new_set(rows);
                    let actual: Vec<usize> = limited.unwrap_or(all_rows).set_indices().collect();
                    assert_eq!(actual, selected[..selected.len().min(limit)]);
                }
            }
        }
    }
}
