//! Statistics of files and row groups, in the form that DataFusion's pruning reads.
//!
//! [`FileStatistics`] come from the manifest, [`RowGroupStatistics`] from a file's footer. A statistic
//! that is missing, inexact or unreadable is null, or `None` for the whole column: it prunes nothing and
//! is no error. Bounds of floats in a footer are not used.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BooleanArray, StringArray, UInt64Array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use datafusion_common::pruning::PruningStatistics;
use datafusion_common::{Column, ScalarValue};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use serde_json::Value;

use super::statistics::{are_trusted, has_bounds};
use super::values::to_text;
use crate::error::Result;
use crate::files::OpenPart;
use crate::files::columns::TableColumns;
use crate::files::entry::DataFile;
use crate::files::key_ranges::{KeyRanges, Overlap};
use crate::parquet::types::convert;

/// The manifest's statistics of data files.
pub(crate) struct FileStatistics<'a> {
    pub(crate) files: &'a [DataFile],
    pub(crate) columns: &'a TableColumns,
}

impl FileStatistics<'_> {
    fn position_and_id(&self, column: &Column) -> Option<(usize, u32)> {
        let (position, _) = self.columns.schema.column_with_name(&column.name)?;
        Some((position, self.columns.ids[position]))
    }

    /// The bounds of the files for the column at a position, in its type; unknown ones are null.
    pub(crate) fn bounds(
        &self,
        position: usize,
        bound: impl Fn(&DataFile) -> Option<&Value>,
    ) -> Option<ArrayRef> {
        let field = self.columns.schema.field(position);
        let id = self.columns.ids[position];
        let value_type = match field.data_type() {
            DataType::Dictionary(_, values) => values,
            other => other,
        };
        // A null text as a list would be a list of a null, which is a value.
        if !has_bounds(value_type) {
            return None;
        }
        let strings = self.files.iter().map(|file| {
            let known = bound(file).filter(|_| file.knows_bounds(id, value_type));
            known.and_then(to_text)
        });
        let texts: ArrayRef = Arc::new(strings.collect::<StringArray>());
        // Text that cannot be parsed becomes null.
        let options = CastOptions {
            safe: true,
            ..CastOptions::default()
        };
        let values = cast_with_options(&texts, value_type, &options).ok()?;
        convert(&values, field.data_type(), field.name()).ok()
    }
}

impl PruningStatistics for FileStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        let (position, id) = self.position_and_id(column)?;
        self.bounds(position, |file| file.min.get(&id))
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        let (position, id) = self.position_and_id(column)?;
        self.bounds(position, |file| file.max.get(&id))
    }

    fn num_containers(&self) -> usize {
        self.files.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let (_, id) = self.position_and_id(column)?;
        let counts = self
            .files
            .iter()
            .map(|file| file.null_counts.get(&id).copied());
        Some(Arc::new(counts.collect::<UInt64Array>()))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let counts = self.files.iter().map(|file| file.total_rows);
        Some(Arc::new(UInt64Array::from_iter_values(counts)))
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

/// The footer's statistics of a file's row groups.
pub(crate) struct RowGroupStatistics<'a> {
    pub(crate) part: &'a OpenPart,
    pub(crate) columns: &'a TableColumns,
    /// For each column of the table its field in the file, if the file has it.
    pub(crate) field_mappings: &'a [Option<usize>],
}

/// Which statistics of a column.
#[derive(Clone, Copy)]
enum StatisticsType {
    Min,
    Max,
    NullCount,
}

impl RowGroupStatistics<'_> {
    /// For each row group how its keys overlap the ranges.
    pub(crate) fn overlaps(&self, ranges: &KeyRanges, key: &str) -> Result<Vec<Overlap>> {
        let key = Column::from_name(key);
        let bounds = self.min_values(&key).zip(self.max_values(&key));
        let Some((mins, maxes)) = bounds else {
            return Ok(vec![Overlap::Partial; self.num_containers()]);
        };
        let null_counts = self.null_counts(&key);
        let nulls = null_counts.as_ref().and_then(|n| n.as_primitive_opt());
        ranges.overlaps(&mins, &maxes, nulls)
    }

    /// What the footer says of a column; None if it says nothing of use. Bounds that cannot be of the column's
    /// type make arrow-rs panic.
    fn statistics(&self, column: &Column, statistics_type: StatisticsType) -> Option<ArrayRef> {
        let read = std::panic::AssertUnwindSafe(|| self.read_statistics(column, statistics_type));
        std::panic::catch_unwind(read).unwrap_or_default()
    }

    fn read_statistics(
        &self,
        column: &Column,
        statistics_type: StatisticsType,
    ) -> Option<ArrayRef> {
        let (position, field) = self.columns.schema.column_with_name(&column.name)?;
        let field_index = self.field_mappings[position]?;
        let metadata = self.part.file.metadata();
        let stored_schema = self.part.file.stored_schema();
        let name = stored_schema.field(field_index).name();
        let descriptor = metadata.file_metadata().schema_descr();
        let converter = StatisticsConverter::try_new(name, stored_schema, descriptor)
            .ok()?
            .with_missing_null_counts_as_zero(false);
        let groups = || metadata.row_groups().iter();
        if let StatisticsType::NullCount = statistics_type {
            return Some(Arc::new(converter.row_group_null_counts(groups()).ok()?));
        }
        // A NaN is within no bound, and the footer does not say whether there is one. And an array of runs does
        // not say which of its values are null.
        if contains_floats(converter.arrow_field().data_type())
            || matches!(field.data_type(), DataType::RunEndEncoded(..))
        {
            return None;
        }
        let (values, exact) = match statistics_type {
            StatisticsType::Min => (
                converter.row_group_mins(groups()).ok()?,
                converter.row_group_is_min_value_exact(groups()).ok()?,
            ),
            _ => (
                converter.row_group_maxes(groups()).ok()?,
                converter.row_group_is_max_value_exact(groups()).ok()?,
            ),
        };
        let values = convert(&values, field.data_type(), name).ok()?;
        let trusted = are_trusted(metadata, values.data_type());
        let inexact: BooleanArray = exact
            .iter()
            .map(|exact| Some(!exact.unwrap_or(trusted)))
            .collect();
        arrow_select::nullif::nullif(&values, &inexact).ok()
    }
}

pub(super) fn contains_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => value.is_floating(),
        other => other.is_floating(),
    }
}

impl PruningStatistics for RowGroupStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.statistics(column, StatisticsType::Min)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.statistics(column, StatisticsType::Max)
    }

    fn num_containers(&self) -> usize {
        self.part.file.metadata().num_row_groups()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        self.statistics(column, StatisticsType::NullCount)
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let groups = self.part.file.metadata().row_groups().iter();
        let counts = groups.map(|g| g.num_rows().unsigned_abs());
        Some(Arc::new(UInt64Array::from_iter_values(counts)))
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
