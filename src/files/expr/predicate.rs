//! Predicates: SQL, or one that the caller evaluates, such as an expression of pyarrow.

use std::fmt;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, UInt64Array};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion_common::Column;
use datafusion_common::pruning::PruningStatistics;

use crate::error::{Error, Result};
use crate::parquet::types::batch_with_row_count;

/// Selects rows. A predicate is bound to the columns of each snapshot that it is used on.
#[derive(Debug, Clone)]
pub enum Predicate {
    /// A SQL expression.
    Sql(String),
    /// Evaluated by the caller.
    Foreign(Arc<dyn ForeignPredicate>),
}

/// A predicate that the caller evaluates.
pub trait ForeignPredicate: fmt::Debug + Send + Sync {
    /// The predicate as text, for messages and the history.
    fn text(&self) -> &str;

    /// The names of the columns that it reads.
    fn columns(&self) -> &[String];

    /// Evaluates the predicate: one value per row; a row with a null does not match.
    fn holds(&self, rows: &RecordBatch) -> Result<BooleanArray>;

    /// For each container (file or row group) whether it may hold matching rows.
    fn may_hold(&self, bounds: &Bounds) -> Result<Vec<bool>>;
}

/// Statistics of containers (files or row groups): one row for each container, one column for each
/// column that a predicate reads. Unknown values are null.
#[derive(Debug)]
pub struct Bounds {
    /// The smallest values.
    pub min: RecordBatch,
    /// The largest values.
    pub max: RecordBatch,
    /// Numbers of nulls.
    pub null_counts: RecordBatch,
    /// Numbers of rows, in one column `rows`.
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

impl Bounds {
    /// Collects the statistics of the columns of `input`.
    pub(crate) fn from_statistics(
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
                .map_err(Error::from_cause)?,
        })
    }
}
