//! Bounds of a data file's columns for the manifest, from the statistics of its footer.
//!
//! [`Statistics`] has only bounds that are exact and hold for every value: none of floats (a NaN is within
//! no bound) and none of strings that were cut. Integers and booleans are JSON values; others are the text
//! that Arrow casts them to. A column whose statistics are missing or unreadable has no bounds, and is no
//! error.

use std::collections::BTreeMap;

use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_ord::sort::sort_to_indices;
use arrow_schema::{DataType, Schema};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use serde_json::Value;

use super::values::to_json;

/// Bounds and numbers of nulls, by column id.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Statistics {
    pub(crate) min: BTreeMap<u32, Value>,
    pub(crate) max: BTreeMap<u32, Value>,
    pub(crate) null_counts: BTreeMap<u32, u64>,
}

impl Statistics {
    /// The statistics of a file whose columns are stored as `stored_schema` and have these ids.
    pub(crate) fn from_footer(
        footer: &ParquetMetaData,
        stored_schema: &Schema,
        ids: &[u32],
    ) -> Self {
        let mut statistics = Self::default();
        for (field, id) in stored_schema.fields().iter().zip(ids) {
            // A column without statistics has no bounds.
            let Ok(column) = ColumnStatistics::read(footer, stored_schema, field.name()) else {
                continue;
            };
            if let Some(null_count) = column.null_count {
                statistics.null_counts.insert(*id, null_count);
            }
            if let Some((min, max)) = column.bounds {
                statistics.min.insert(*id, min);
                statistics.max.insert(*id, max);
            }
        }
        statistics
    }

    /// Forgets what is known of a column.
    pub(crate) fn forget(&mut self, id: u32) {
        self.min.remove(&id);
        self.max.remove(&id);
        self.null_counts.remove(&id);
    }
}

struct ColumnStatistics {
    bounds: Option<(Value, Value)>,
    null_count: Option<u64>,
}

impl ColumnStatistics {
    fn read(
        footer: &ParquetMetaData,
        stored_schema: &Schema,
        name: &str,
    ) -> Result<Self, ParquetError> {
        let descriptor = footer.file_metadata().schema_descr();
        let converter = StatisticsConverter::try_new(name, stored_schema, descriptor)?
            .with_missing_null_counts_as_zero(false);
        let groups = || footer.row_groups().iter();
        let counts = converter.row_group_null_counts(groups())?;
        let mut null_counts = counts.values().iter().copied();
        let null_count = null_counts.try_fold(0, u64::checked_add);
        let null_count = null_count.filter(|_| counts.null_count() == 0);
        let rows = groups().map(|g| g.num_rows().unsigned_abs());
        let rows = rows.fold(0, u64::saturating_add);
        if !has_bounds(converter.arrow_field().data_type()) || null_count == Some(rows) {
            return Ok(Self {
                bounds: None,
                null_count,
            });
        }
        let (mins, maxes) = (
            converter.row_group_mins(groups())?,
            converter.row_group_maxes(groups())?,
        );
        let exact = is_exact(
            footer,
            &mins,
            &converter.row_group_is_min_value_exact(groups())?,
        ) && is_exact(
            footer,
            &maxes,
            &converter.row_group_is_max_value_exact(groups())?,
        );
        // A row group of nulls has no bounds; if any other has none, the file has none.
        let groups_with_nulls = groups().zip(counts.iter());
        let empty =
            groups_with_nulls.filter(|(g, nulls)| *nulls == Some(g.num_rows().unsigned_abs()));
        let complete = mins.null_count() <= empty.count() && mins.nulls() == maxes.nulls();
        let bounds = (exact && complete && null_count.is_some()).then(|| {
            Some((
                extreme_to_json(&mins, false)?,
                extreme_to_json(&maxes, true)?,
            ))
        });
        Ok(Self {
            bounds: bounds.flatten(),
            null_count,
        })
    }
}

/// Whether all bounds are known to be exact.
fn is_exact(footer: &ParquetMetaData, bounds: &ArrayRef, flags: &BooleanArray) -> bool {
    let trusted = are_trusted(footer, bounds.data_type());
    let mut flags = flags.iter().enumerate();
    // A row group without values has no flag.
    flags.all(|(group, flag)| flag.unwrap_or(trusted || bounds.is_null(group)))
}

/// Whether bounds are exact if the writer does not flag them. Strings and bytes may be cut, those of
/// dictionaries too; and without a column order in the footer it is unknown how other values were compared.
pub(crate) fn are_trusted(footer: &ParquetMetaData, data_type: &DataType) -> bool {
    let value_type = match data_type {
        DataType::Dictionary(_, values) => values,
        other => other,
    };
    let may_be_cut = value_type.is_string() || value_type.is_binary();
    !may_be_cut && footer.file_metadata().column_orders().is_some()
}

/// Whether the manifest has bounds of columns of a type.
pub(crate) fn has_bounds(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_decimal()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Date32
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Timestamp(..)
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
        )
}

/// The smallest value, or the largest, as JSON for the manifest.
pub(crate) fn extreme_to_json(values: &ArrayRef, largest: bool) -> Option<Value> {
    to_json(&extreme_value(values, largest)?)
}

/// The smallest value, or the largest, as an array of one row.
pub(crate) fn extreme_value(values: &ArrayRef, largest: bool) -> Option<ArrayRef> {
    let options = arrow_schema::SortOptions {
        descending: largest,
        nulls_first: false,
    };
    let first = sort_to_indices(values, Some(options), Some(1)).ok()?;
    let index = usize::try_from(*first.values().first()?).ok()?;
    Some(values.slice(index, 1))
}
