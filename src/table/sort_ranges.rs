//! Ranges of the keys of a sort by many processes, and the predicate that selects their rows.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, BooleanArray, RecordBatch, new_null_array};
use arrow_schema::{ArrowError, DataType, Schema};
use serde::{Deserialize, Serialize};

use super::format::Base64;
use crate::error::{Error, Result};
use crate::files::expr::{Bounds, ForeignPredicate, has_floats};
use crate::files::{SortColumn, SortKeys, TableColumns};

/// The keys from `from` on, below `to`; the first range and the last one are open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SortRange {
    pub(super) place: RangePlace,
    pub(super) from: Option<Base64>,
    pub(super) to: Option<Base64>,
    /// The most rows of a file.
    pub(super) file_rows: u64,
}

/// Which range of a plan it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RangePlace {
    /// A path of the plan's runs, which no other plan has.
    pub(super) plan: String,
    pub(super) number: usize,
    pub(super) count: usize,
}

/// The columns to sort by, of their ids.
pub(super) fn sort_columns(columns: &TableColumns, by: &[u32]) -> Result<Vec<SortColumn>> {
    let find = |id: &u32| {
        let index = columns.ids.iter().position(|own| own == id);
        let missing = || Error::invalid(format!("no column has the id {id}"));
        index.map(SortColumn::of_table).ok_or_else(missing)
    };
    by.iter().map(find).collect()
}

/// The rows of a range of keys.
#[derive(Debug)]
pub(super) struct RangePredicate {
    /// The columns to sort by.
    names: Vec<String>,
    by: Vec<SortColumn>,
    schema: Schema,
    range: SortRange,
}

impl RangePredicate {
    pub(super) fn new(columns: &TableColumns, by: &[u32], range: SortRange) -> Result<Self> {
        let table_columns = sort_columns(columns, by)?;
        let indices: Vec<usize> = table_columns.iter().map(|column| column.index).collect();
        let schema = columns
            .schema
            .project(&indices)
            .map_err(Error::from_cause)?;
        Ok(Self {
            names: schema.fields().iter().map(|f| f.name().clone()).collect(),
            by: (0..indices.len()).map(SortColumn::of_table).collect(),
            schema,
            range,
        })
    }

    fn contains(&self, key: &[u8]) -> bool {
        let is_below = |bound: &Option<Base64>| bound.as_ref().is_some_and(|bound| key < &*bound.0);
        !is_below(&self.range.from) && (self.range.to.is_none() || is_below(&self.range.to))
    }

    /// Whether keys that begin with something from `min` to `max` may be in the range.
    fn overlaps(&self, min: &[u8], max: &[u8]) -> bool {
        let begins = self.range.from.as_ref();
        let ends = self.range.to.as_ref();
        begins.is_none_or(|from| max >= &*from.0 || from.0.starts_with(max))
            && ends.is_none_or(|to| min < &*to.0)
    }
}

impl ForeignPredicate for RangePredicate {
    fn text(&self) -> &'static str {
        "a range of a sort"
    }

    fn columns(&self) -> &[String] {
        &self.names
    }

    fn holds(&self, rows: &RecordBatch) -> Result<BooleanArray> {
        let by_name: std::result::Result<Vec<_>, ArrowError> = self
            .names
            .iter()
            .map(|name| rows.schema().index_of(name))
            .collect();
        let batch = by_name.and_then(|indices| rows.project(&indices));
        let keys = SortKeys::new(&self.schema, &self.by)?;
        let keys = batch
            .and_then(|batch| keys.convert_batch(&batch))
            .map_err(Error::from_cause)?;
        let inside: Vec<bool> = keys.iter().map(|key| self.contains(key.as_ref())).collect();
        Ok(inside.into())
    }

    fn may_hold(&self, bounds: &Bounds) -> Result<Vec<bool>> {
        let field = self.schema.field(0);
        let count = bounds.row_counts.num_rows();
        // Statistics know nothing of NaN, and arrays of runs have no nulls of their own.
        let is_unknown = matches!(field.data_type(), DataType::RunEndEncoded(..));
        if is_unknown || has_floats(field.data_type()) {
            return Ok(vec![true; count]);
        }
        let name = field.name();
        let (Some(min), Some(max)) = (
            bounds.min.column_by_name(name),
            bounds.max.column_by_name(name),
        ) else {
            return Ok(vec![true; count]);
        };
        let keys = SortKeys::new(&self.schema, &self.by[..1])?;
        let encode = |array| {
            let rows = keys.convert_columns(&[array]);
            rows.map_err(Error::from_cause)
        };
        let null = encode(new_null_array(field.data_type(), 1))?;
        let (mins, maxes) = (encode(Arc::clone(min))?, encode(Arc::clone(max))?);
        let takes_nulls = self.overlaps(null.row(0).as_ref(), null.row(0).as_ref());
        let null_counts = bounds
            .null_counts
            .column_by_name(name)
            .map(|counts| counts.as_primitive::<UInt64Type>());
        let may_have_null =
            |at| null_counts.is_none_or(|counts| counts.is_null(at) || counts.value(at) > 0);
        let may_hold = (0..count).map(|at| {
            (takes_nulls && may_have_null(at))
                || min.is_null(at)
                || max.is_null(at)
                || self.overlaps(mins.row(at).as_ref(), maxes.row(at).as_ref())
        });
        Ok(may_hold.collect())
    }
}
