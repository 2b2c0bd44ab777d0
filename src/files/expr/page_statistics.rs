//! Statistics of pages, in the form that DataFusion's pruning reads.
//!
//! The pages of different columns hold different rows. So the boundaries of all pages cut a row group into intervals;
//! an interval lies in one page of each column and has its bounds. A statistic that is missing or not trusted is null
//! and prunes nothing. Bounds of floats are not used, because a NaN is within no bound; bounds of texts only where they
//! have a checksum, because other writers may have cut them in any way.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use arrow_select::take::take;
use datafusion_common::pruning::PruningStatistics;
use datafusion_common::{Column, ScalarValue};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::Type;
use parquet::file::metadata::OffsetIndexBuilder;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::OffsetIndexMetaData;

use super::pruning::contains_floats;
use super::statistics::are_trusted;
use crate::parquet::file::ParquetFile;
use crate::parquet::page_index::{ChunkPages, PageBounds};
use crate::parquet::types::convert;

/// The bounds of a column's pages, in the table's type; an unknown bound is null.
#[derive(Debug)]
pub(crate) struct ColumnPageStatistics {
    mins: ArrayRef,
    maxes: ArrayRef,
    /// The rows of the pages, and their numbers of nulls.
    rows: Vec<Range<usize>>,
    null_counts: Option<Vec<u64>>,
}

impl ColumnPageStatistics {
    /// The statistics of the field at `root`, whose only leaf column is `leaf`, as those of `field` of the table. None
    /// if they cannot be used.
    pub(crate) fn new(
        file: &ParquetFile,
        (root, leaf): (usize, usize),
        field: &Field,
        pages: &ChunkPages,
        bounds: &PageBounds,
    ) -> Option<Self> {
        let metadata = file.metadata();
        let stored_schema = file.stored_schema();
        let descriptor = metadata.file_metadata().schema_descr();
        let name = stored_schema.field(root).name();
        let converter = StatisticsConverter::try_new(name, stored_schema, descriptor).ok()?;
        let stored_type = converter.arrow_field().data_type();
        let is_trusted = bounds.is_sealed || are_trusted(metadata, stored_type);
        let has_order = descriptor.column(leaf).physical_type() != Type::INT96;
        // What an index says of nested values, such as how many are null, it does not say of the rows.
        let is_run = matches!(field.data_type(), DataType::RunEndEncoded(..));
        if is_run
            || stored_type.is_nested()
            || contains_floats(stored_type)
            || !is_trusted
            || !has_order
        {
            return None;
        }
        // The converter looks a column up by row group and leaf.
        let mut column_indexes = vec![ColumnIndexMetaData::NONE; descriptor.num_columns()];
        column_indexes[leaf] = bounds.index.clone();
        let empty = || OffsetIndexBuilder::new().build();
        let mut offset_indexes: Vec<OffsetIndexMetaData> = std::iter::repeat_with(empty)
            .take(descriptor.num_columns())
            .collect();
        offset_indexes[leaf] = pages.to_offset_index();
        let (column_indexes, offset_indexes) = (vec![column_indexes], vec![offset_indexes]);
        let to_bounds = |values: parquet::errors::Result<ArrayRef>| {
            let array = convert(&values.ok()?, field.data_type(), field.name()).ok()?;
            (array.len() == pages.num_pages()).then_some(array)
        };
        Some(Self {
            mins: to_bounds(converter.data_page_mins(&column_indexes, &offset_indexes, [&0]))?,
            maxes: to_bounds(converter.data_page_maxes(&column_indexes, &offset_indexes, [&0]))?,
            rows: (0..pages.num_pages())
                .map(|page| pages.page_rows(page))
                .collect(),
            null_counts: bounds.null_counts.clone(),
        })
    }

    /// For each interval the page in which it lies.
    fn pages_of(&self, intervals: &[Range<usize>]) -> UInt32Array {
        let page_of = |interval: &Range<usize>| {
            let page = self.rows.partition_point(|rows| rows.end <= interval.start);
            u32::try_from(page).ok()
        };
        intervals.iter().map(page_of).collect()
    }

    /// The number of nulls of the rows of an interval, if it is known.
    fn null_count(&self, page: usize, interval: &Range<usize>) -> Option<u64> {
        let (rows, nulls) = (self.rows.get(page)?, *self.null_counts.as_ref()?.get(page)?);
        match nulls {
            0 => Some(0),
            _ if rows == interval => Some(nulls),
            _ => (nulls == rows.len() as u64).then_some(interval.len() as u64),
        }
    }
}

/// The statistics of a row group's intervals.
#[derive(Debug)]
pub(crate) struct IntervalStatistics {
    /// By the name of the table's column.
    columns: BTreeMap<String, ColumnPageStatistics>,
    intervals: Vec<Range<usize>>,
}

impl IntervalStatistics {
    pub(crate) fn new(columns: BTreeMap<String, ColumnPageStatistics>) -> Self {
        let pages = columns.values().flat_map(|column| &column.rows);
        let boundaries: BTreeSet<usize> = pages.flat_map(|rows| [rows.start, rows.end]).collect();
        let starts = boundaries.iter().copied();
        let intervals = starts.zip(boundaries.iter().skip(1).copied());
        Self {
            intervals: intervals.map(|(start, end)| start..end).collect(),
            columns,
        }
    }

    pub(crate) fn intervals(&self) -> &[Range<usize>] {
        &self.intervals
    }

    fn bounds(
        &self,
        column: &Column,
        bounds: impl Fn(&ColumnPageStatistics) -> &ArrayRef,
    ) -> Option<ArrayRef> {
        let statistics = self.columns.get(&column.name)?;
        take(
            bounds(statistics),
            &statistics.pages_of(&self.intervals),
            None,
        )
        .ok()
    }
}

impl PruningStatistics for IntervalStatistics {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bounds(column, |statistics| &statistics.mins)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bounds(column, |statistics| &statistics.maxes)
    }

    fn num_containers(&self) -> usize {
        self.intervals.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let statistics = self.columns.get(&column.name)?;
        let pages = statistics.pages_of(&self.intervals);
        let pairs = pages.values().iter().zip(&self.intervals);
        let counts = pairs.map(|(page, interval)| statistics.null_count(*page as usize, interval));
        Some(Arc::new(counts.collect::<UInt64Array>()))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let counts = self.intervals.iter().map(|interval| interval.len() as u64);
        Some(Arc::new(UInt64Array::from_iter_values(counts)))
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
