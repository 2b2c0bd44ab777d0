//! Which rows are meant: SQL, or a predicate that somebody else evaluates.

use std::fmt;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, UInt64Array};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion_common::Column;
use datafusion_common::pruning::PruningStatistics;

use super::filter::Filter;
use super::schema::TableColumns;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::parquet::types::batch_with_row_count;

/// Which rows are meant. It is checked against the columns of every snapshot it is used on.
#[derive(Debug, Clone)]
pub enum Predicate {
    /// As SQL.
    Sql(String),
    /// Evaluated by the caller.
    Foreign(Arc<dyn ForeignPredicate>),
}

/// A predicate that is not the engine's.
pub trait ForeignPredicate: fmt::Debug + Send + Sync {
    /// What it is, for people.
    fn text(&self) -> &str;

    /// The names of the columns it needs.
    fn columns(&self) -> &[String];

    /// For which rows it holds, one value a row; a null is no.
    fn holds(&self, rows: &RecordBatch) -> Result<BooleanArray>;

    /// Which of some containers (files, row groups) may hold rows for which it holds.
    fn may_hold(&self, bounds: &Bounds) -> Result<Vec<bool>>;
}

/// What is known of the rows of some containers: a row for each of them, its columns those that a
/// predicate needs. What is not known is null.
#[derive(Debug)]
pub struct Bounds {
    /// The smallest values.
    pub min: RecordBatch,
    /// The largest.
    pub max: RecordBatch,
    /// How many nulls there are.
    pub null_counts: RecordBatch,
    /// How many rows, as a column `rows`.
    pub row_counts: RecordBatch,
}

impl From<&str> for Predicate {
    fn from(sql: &str) -> Self {
        Self::Sql(sql.to_owned())
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sql(sql) => f.write_str(sql),
            Self::Foreign(predicate) => f.write_str(predicate.text()),
        }
    }
}

impl Predicate {
    /// The filter that it is of a snapshot's columns; `clock` says what `now()` is.
    pub fn bind(&self, columns: &TableColumns, clock: &dyn Clock) -> Result<Filter> {
        match self {
            Self::Sql(sql) => Filter::parse(sql, columns, clock),
            Self::Foreign(predicate) => Filter::from_foreign(Arc::clone(predicate), columns),
        }
    }

    /// The same, or without statistics and rewriting: evaluated as it is written on every row there is.
    pub fn bind_with(
        &self,
        columns: &TableColumns,
        clock: &dyn Clock,
        use_stats: bool,
    ) -> Result<Filter> {
        match self {
            _ if use_stats => self.bind(columns, clock),
            Self::Sql(sql) => Filter::parse_verbatim(sql, columns, clock),
            Self::Foreign(predicate) => {
                Filter::from_foreign(Arc::clone(predicate), columns).map(Filter::without_statistics)
            }
        }
    }
}

impl Bounds {
    /// What statistics say of the columns `input`.
    pub(super) fn from_statistics(
        statistics: &dyn PruningStatistics,
        input: &SchemaRef,
    ) -> Result<Self> {
        let count = statistics.num_containers();
        let nullable = |data_type: Option<&DataType>| {
            let input_fields = input.fields().iter();
            let fields = input_fields.map(|f| {
                let field_type = data_type.unwrap_or_else(|| f.data_type());
                Field::new(f.name(), field_type.clone(), true)
            });
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        };
        let batch = |schema: SchemaRef, statistic: &dyn Fn(&Column) -> Option<ArrayRef>| {
            let arrays = schema.fields().iter().map(|field| {
                let array = statistic(&Column::from_name(field.name()));
                let converted = array.and_then(|values| cast(&values, field.data_type()).ok());
                converted.unwrap_or_else(|| arrow_array::new_null_array(field.data_type(), count))
            });
            let columns = arrays.collect();
            batch_with_row_count(&schema, columns, count)
        };
        let known_counts = statistics.row_counts();
        let row_counts = known_counts.unwrap_or_else(|| Arc::new(UInt64Array::new_null(count)));
        let schema = Schema::new(vec![Field::new("rows", DataType::UInt64, true)]);
        Ok(Self {
            min: batch(nullable(None), &|c| statistics.min_values(c))?,
            max: batch(nullable(None), &|c| statistics.max_values(c))?,
            null_counts: batch(nullable(Some(&DataType::UInt64)), &|c| {
                statistics.null_counts(c)
            })?,
            row_counts: RecordBatch::try_new(Arc::new(schema), vec![row_counts])
                .map_err(|e| Error::other(e.to_string()).with_source(e))?,
        })
    }
}
